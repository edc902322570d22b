// Measures transfers of files to and from a facility over SSH, compared with scp of the same bytes
// in the same run, with a private sshd on the loopback interface or with --host.
//
//   ssh_bench [--megabytes 500] [--repeat 3] [--host NAME --port N --user U --key FILE
//             --known-hosts FILE --folder FOLDER]
//
// Not a test: prints medians and ratios to scp's. Files are warm in the page cache; both sides
// read and write the same folders, neither syncs.
#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>

#include "support/sshd.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"
#include "xffl/base/sha256.h"
#include "xffl/remote/ssh.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;

struct Place {
  remote::SshSettings settings;
  fs::path folder;  // at the facility
};

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void download(remote::Session& session, const fs::path& from, const fs::path& to, uint64_t size) {
  const UniqueFd file = open_file(to, O_WRONLY | O_CREAT | O_TRUNC);
  session.download(RemotePath(from.string()), 0, size,
                   [&](std::span<const std::byte> bytes) { write_all(file.get(), bytes, to); }, {});
}

void upload(remote::Session& session, const fs::path& from, const fs::path& to) {
  const MappedFile file(from);
  session.upload(RemotePath(to.string()), 0, file.bytes().size(),
                 [&](uint64_t offset, std::span<std::byte> out) {
                   std::memcpy(out.data(), file.bytes().data() + offset, out.size());
                 },
                 {});
}

void scp(const Place& place, bool down, const fs::path& here, const fs::path& there) {
  const auto& settings = place.settings;
  const std::string far = settings.user + "@" + settings.hosts[0].name + ":" + there.string();
  std::vector<std::string> argv = {"scp", "-q",
                                   "-F",  "none",
                                   "-P",  std::to_string(settings.hosts[0].port),
                                   "-i",  settings.keys[0].string(),
                                   "-o",  "UserKnownHostsFile=" + settings.known_hosts.string(),
                                   "-o",  "BatchMode=yes"};
  argv.push_back(down ? far : here.string());
  argv.push_back(down ? here.string() : far);
  test::must_run(argv);
}

struct Method {
  const char* name;
  std::function<void()> down, up;
};

void measure(const std::vector<Method>& methods, double megabytes, int repeat) {
  std::vector<std::vector<double>> down(methods.size()), up(methods.size());
  for (int i = 0; i < repeat; ++i)  // interleaved, so that disturbances affect all sides
    for (size_t m = 0; m < methods.size(); ++m) {
      down[m].push_back(seconds_of(methods[m].down));
      up[m].push_back(seconds_of(methods[m].up));
    }
  std::printf("%-28s %12s %8s %12s %8s\n", "", "down MB/s", "/ scp", "up MB/s", "/ scp");
  for (size_t m = 0; m < methods.size(); ++m)
    std::printf("%-28s %12.0f %8.2f %12.0f %8.2f\n", methods[m].name, megabytes / median(down[m]),
                median(down[0]) / median(down[m]), megabytes / median(up[m]),
                median(up[0]) / median(up[m]));
}

void small_things(remote::Session& session, const fs::path& folder) {
  const RemotePath file((folder / "small").string());
  const auto each = [](const char* what, const std::function<void()>& body) {
    std::vector<double> times;
    for (int i = 0; i < 20; ++i) times.push_back(seconds_of(body));
    std::printf("%-28s %9.1f ms\n", what, median(times) * 1000);
  };
  each("run true", [&] { session.run({"true"}, "", std::chrono::seconds(30), {}); });
  each("stat", [&] { session.stat(file); });
  each("write_text_atomic 1 kB",
       [&] { remote::write_text_atomic(session, file, std::string(1000, 'x')); });
  each("read_text 1 kB", [&] { remote::read_text(session, file, 10'000); });
}

void bench(const Place& place, uint64_t megabytes, int repeat) {
  test::TempDir here;
  const fs::path source = here / "source", back = here / "back", scp_back = here / "scp_back";
  {
    std::ofstream out(source);
    std::string block(1u << 20, '\0');
    for (uint64_t i = 0; i < megabytes; ++i) {
      for (size_t at = 0; at < block.size(); at += 8) {
        const uint64_t word = (i << 20 | at) * 0x9E3779B97F4A7C15u;
        std::memcpy(block.data() + at, &word, 8);
      }
      out << block;
    }
  }
  const uint64_t size = megabytes << 20;
  const auto by_shell = remote::make_ssh_session(place.settings);
  auto sftp_settings = place.settings;
  sftp_settings.shell = false;
  const auto by_sftp = remote::make_ssh_session(sftp_settings);
  const fs::path far = place.folder / "xffl-bench", far_scp = place.folder / "xffl-bench-scp";
  scp(place, false, source, far);
  const std::vector<Method> methods = {
      {"scp", [&] { scp(place, true, scp_back, far); },
       [&] { scp(place, false, source, far_scp); }},
      {"xffl, commands", [&] { download(*by_shell, far, back, size); },
       [&] { upload(*by_shell, source, far); }},
      {"xffl, SFTP only", [&] { download(*by_sftp, far, back, size); },
       [&] { upload(*by_sftp, source, far); }},
  };
  measure(methods, static_cast<double>(size) / 1e6, repeat);
  if (sha256_file(back) != sha256_file(source)) throw Error(ErrorKind::kCorrupt, "bytes differ");
  small_things(*by_shell, place.folder);
  by_shell->remove_tree(RemotePath(far.string()));
  by_shell->remove_tree(RemotePath(far_scp.string()));
}

}  // namespace
}  // namespace xffl

int main(int argc, char** argv) try {
  CLI::App app{"Transfers over SSH beside scp."};
  uint64_t megabytes = 500;
  int repeat = 3;
  xffl::remote::SshHost host;
  xffl::Place place;
  std::string key, known_hosts, folder;
  app.add_option("--megabytes", megabytes);
  app.add_option("--repeat", repeat);
  app.add_option("--host", host.name);
  app.add_option("--port", host.port);
  app.add_option("--user", place.settings.user);
  app.add_option("--key", key);
  app.add_option("--known-hosts", known_hosts);
  app.add_option("--folder", folder);
  app.add_option("--streams", place.settings.streams);
  CLI11_PARSE(app, argc, argv);
  if (!host.name.empty()) {
    place.settings.hosts = {host};
    place.settings.keys = {key};
    place.settings.known_hosts = known_hosts;
    place.folder = folder;
    xffl::bench(place, megabytes, repeat);
    return 0;
  }
  if (!xffl::test::Sshd::missing().empty()) {
    std::fprintf(stderr, "ssh_bench: %s\n", xffl::test::Sshd::missing().c_str());
    return 1;
  }
  xffl::test::Sshd sshd;
  const int streams = place.settings.streams;
  place.settings = sshd.settings();
  place.settings.streams = streams;
  place.folder = sshd.dir().path();
  xffl::bench(place, megabytes, repeat);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "ssh_bench: %s\n", error.what());
  return 1;
}
