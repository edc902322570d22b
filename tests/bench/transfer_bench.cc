// Measures one push and one fetch of a model with real sshds, all at once, compared with scp of the
// same bytes. tests/bench/transfer_bench.py runs it on the testbed. Prints one line of JSON for
// each measurement: wall time, and the CPU time of this side and of the facilities' processes.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iostream>
#include <sstream>
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

struct Facility {
  std::string host, user;
  int init = 0;  // the first process of its namespace; 0: unknown
};

struct Arguments {
  std::string key, known_hosts;
  fs::path work;
  uint64_t bytes = 0;
  int repeats = 3;
  bool shell = true;
  std::vector<Facility> facilities;
};

std::string namespace_of(const std::string& pid) {
  std::error_code gone;
  return fs::read_symlink("/proc/" + pid + "/ns/pid", gone).string();
}

// CPU time of a process and of the children that it waited for.
double cpu_seconds_of(const fs::path& process) {
  std::ifstream stat(process / "stat");
  std::string text;
  std::getline(stat, text);
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string skipped;
  for (int i = 3; i <= 13; ++i) fields >> skipped;
  long ticks = 0;
  for (int i = 14; i <= 17; ++i) {
    long more = 0;
    fields >> more;
    ticks += more;
  }
  return static_cast<double>(ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// CPU time of all processes of the facilities.
double far_cpu_seconds(const std::vector<Facility>& facilities) {
  double seconds = 0;
  for (const Facility& facility : facilities) {
    if (facility.init == 0) continue;
    const std::string wanted = namespace_of(std::to_string(facility.init));
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string pid = entry.path().filename().string();
      if (pid.find_first_not_of("0123456789") == std::string::npos && namespace_of(pid) == wanted)
        seconds += cpu_seconds_of(entry.path());
    }
  }
  return seconds;
}

// CPU time of this process and of the children that it waited for.
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

// Runs `body` for all facilities concurrently.
void report(const Arguments& arguments, const std::string& what, uint64_t bytes,
            const std::function<void(size_t)>& body) {
  const double cpu = cpu_seconds(), far_cpu = far_cpu_seconds(arguments.facilities);
  const auto begin = std::chrono::steady_clock::now();
  {
    std::vector<std::future<void>> all;
    for (size_t i = 0; i < arguments.facilities.size(); ++i)
      all.push_back(std::async(std::launch::async, body, i));
    for (auto& one : all) one.get();
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  std::printf(
      "{\"what\": \"%s\", \"bytes\": %llu, \"seconds\": %.4f, \"cpu\": %.3f, \"far_cpu\": %.3f}\n",
      what.c_str(), static_cast<unsigned long long>(bytes), elapsed.count(), cpu_seconds() - cpu,
      far_cpu_seconds(arguments.facilities) - far_cpu);
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

// `cipher`: "" for scp's default.
void scp(const Arguments& arguments, const std::string& cipher, const std::string& from,
         const std::string& to) {
  std::vector<std::string> argv = {"scp",
                                   "-q",
                                   "-r",
                                   "-i",
                                   arguments.key,
                                   "-o",
                                   "BatchMode=yes",
                                   "-o",
                                   "UserKnownHostsFile=" + arguments.known_hosts};
  if (!cipher.empty()) argv.insert(argv.end(), {"-c", cipher});
  argv.insert(argv.end(), {from, to});
  const ProcessResult result = run_process({.argv = argv, .timeout = std::chrono::minutes(10)});
  if (result.exit_code != 0) throw Error(ErrorKind::kRemote, "scp: " + result.err);
}

void measure(const Arguments& arguments) {
  const fs::path model = arguments.work / "model";
  make_model(model, arguments.bytes);
  const checkpoint::Manifest manifest = checkpoint::read_manifest(model);
  const uint64_t total = manifest.total_bytes();
  const RemotePath top("/scratch/bench"), by_scp("/scratch/scp");
  std::vector<std::shared_ptr<remote::Session>> sessions;
  for (const Facility& facility : arguments.facilities) {
    sessions.push_back(remote::make_ssh_session({.hosts = {{facility.host, 22}},
                                                 .user = facility.user,
                                                 .keys = {arguments.key},
                                                 .agent = false,
                                                 .known_hosts = arguments.known_hosts,
                                                 .shell = arguments.shell}));
    sessions.back()->make_dirs(top);
  }
  const auto back = [&](size_t i) { return arguments.work / ("back-" + std::to_string(i)); };
  const auto far = [&](size_t i) {
    return arguments.facilities[i].user + "@" + arguments.facilities[i].host + ":" + by_scp.str();
  };
  const auto clean = [&](const RemotePath& at_facility) {
    for (size_t i = 0; i < sessions.size(); ++i) {
      sessions[i]->remove_tree(at_facility);
      fs::remove_all(back(i));
    }
  };
  for (int repeat = 0; repeat < arguments.repeats; ++repeat) {
    const RemotePath to = top / ("model-" + std::to_string(repeat));
    const auto push = [&](size_t i) { transfer::push(*sessions[i], model, manifest, to, {}); };
    report(arguments, "push", total, push);
    report(arguments, "push again", total, push);
    report(arguments, "fetch", total, [&](size_t i) {
      transfer::fetch(*sessions[i], to, manifest.root_sha256(), total, back(i), {});
    });
    clean(to);
    for (const std::string cipher : {"", "aes128-gcm@openssh.com"}) {
      const std::string by = cipher.empty() ? "scp" : "scp by AES-GCM";
      report(arguments, by + " there", total,
             [&](size_t i) { scp(arguments, cipher, model.string(), far(i)); });
      report(arguments, by + " back", total,
             [&](size_t i) { scp(arguments, cipher, far(i), back(i).string()); });
      clean(by_scp);
    }
  }
  for (const auto& session : sessions) session->remove_tree(top);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 10 || argc % 3 != 1) {
    std::cerr << "xffl-transfer-bench KEY KNOWN_HOSTS FOLDER BYTES REPEATS shell|sftp "
                 "(HOST USER INIT_PID)...\n";
    return 2;
  }
  try {
    Arguments arguments{argv[1],
                        argv[2],
                        argv[3],
                        std::stoull(argv[4]),
                        std::stoi(argv[5]),
                        std::string(argv[6]) == "shell",
                        {}};
    for (int i = 7; i < argc; i += 3)
      arguments.facilities.push_back({argv[i], argv[i + 1], std::stoi(argv[i + 2])});
    measure(arguments);
  } catch (const Error& error) {
    std::cerr << "xffl-transfer-bench: " << error.what() << "\n";
    return 1;
  }
}
