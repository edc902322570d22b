// One push and one fetch of a model against a real sshd, timed; beside scp of the same bytes.
// tests/bench/transfer_bench runs it on the bed. Prints one line of JSON for each measurement.
#include <fcntl.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"
#include "xffl/base/sha256.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/remote/ssh.h"
#include "xffl/transfer/transfer.h"

namespace {

namespace fs = std::filesystem;
using namespace xffl;

struct Arguments {
  std::string host, user, key, known_hosts;
  fs::path work;
  uint64_t bytes = 0;
  int repeats = 3;
  bool shell = true;
};

// Of this process and of the children that it has waited for.
double cpu_seconds() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    struct rusage usage {};
    ::getrusage(who, &usage);
    for (const timeval& time : {usage.ru_utime, usage.ru_stime})
      seconds += static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  }
  return seconds;
}

void report(const char* what, uint64_t bytes, const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  const double cpu = cpu_seconds();
  body();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  std::printf("{\"what\": \"%s\", \"bytes\": %llu, \"seconds\": %.4f, \"cpu_seconds\": %.3f}\n",
              what, static_cast<unsigned long long>(bytes), elapsed.count(), cpu_seconds() - cpu);
  std::fflush(stdout);
}

void make_model(const fs::path& folder, uint64_t bytes) {
  make_dirs(folder);
  std::string block(1u << 20, '\0');
  uint64_t state = bytes + 1;
  UniqueFd fd = open_file(folder / "model.safetensors", O_WRONLY | O_CREAT | O_TRUNC);
  for (uint64_t done = 0; done < bytes; done += block.size()) {
    for (char& c : block)
      c = static_cast<char>((state = state * 6364136223846793005u + 1442695040888963407u) >> 56);
    write_all(fd.get(), std::as_bytes(std::span(block)), folder);
  }
  for (const char* name : {"config.json", "generation_config.json", "special_tokens_map.json",
                           "tokenizer.model", "tokenizer_config.json"})
    write_file_atomic(folder / name, std::string(3000, 'x'));
  checkpoint::write_manifest(folder);
}

void scp(const Arguments& arguments, const std::string& from, const std::string& to) {
  const ProcessResult result =
      run_process({.argv = {"scp", "-q", "-r", "-i", arguments.key, "-o", "BatchMode=yes", "-o",
                            "UserKnownHostsFile=" + arguments.known_hosts, from, to},
                   .timeout = std::chrono::minutes(10)});
  if (result.exit_code != 0) throw Error(ErrorKind::kRemote, "scp: " + result.err);
}

void measure(const Arguments& arguments) {
  const auto session = remote::make_ssh_session({.hosts = {{arguments.host, 22}},
                                                 .user = arguments.user,
                                                 .keys = {arguments.key},
                                                 .agent = false,
                                                 .known_hosts = arguments.known_hosts,
                                                 .shell = arguments.shell});
  const fs::path model = arguments.work / "model";
  make_model(model, arguments.bytes);
  const checkpoint::Manifest manifest = checkpoint::read_manifest(model);
  const uint64_t total = manifest.total_bytes();
  const RemotePath top("/scratch/bench");
  const std::string far = arguments.user + "@" + arguments.host + ":/scratch/";
  session->make_dirs(top);
  for (int i = 0; i < arguments.repeats; ++i) {
    const RemotePath to = top / ("model-" + std::to_string(i));
    const fs::path back = arguments.work / "back";
    fs::remove_all(back);
    report("push", total, [&] { transfer::push(*session, model, manifest, to, {}); });
    report("push again", total, [&] { transfer::push(*session, model, manifest, to, {}); });
    report("fetch", total,
           [&] { transfer::fetch(*session, to, manifest.root_sha256(), total, back, {}); });
    session->remove_tree(to);
    fs::remove_all(back);
    report("scp there", total, [&] { scp(arguments, model.string(), far + "scp"); });
    report("scp back", total, [&] { scp(arguments, far + "scp", back.string()); });
    session->remove_tree(RemotePath("/scratch/scp"));
    fs::remove_all(back);
  }
  session->remove_tree(top);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) {
    std::cerr << "xffl-transfer-bench HOST USER KEY KNOWN_HOSTS FOLDER BYTES REPEATS shell|sftp\n";
    return 2;
  }
  try {
    measure({argv[1], argv[2], argv[3], argv[4], argv[5], std::stoull(argv[6]), std::stoi(argv[7]),
             std::string(argv[8]) == "shell"});
  } catch (const Error& error) {
    std::cerr << "xffl-transfer-bench: " << error.what() << "\n";
    return 1;
  }
}
