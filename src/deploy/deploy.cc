#include "xffl/deploy/deploy.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <sstream>
#include <utility>

#include "script.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/config/experiment.h"

namespace xffl::deploy {
namespace {

constexpr uint64_t kFiles = 200;

// One line for each answer: "key value". $1: the folder.
constexpr const char* kAsk = R"sh(
LC_ALL=C; export LC_ALL
mkdir -p -- "$1" || exit 1
echo "machine $(uname -m)"
libc=$(getconf GNU_LIBC_VERSION 2>/dev/null) && echo "glibc ${libc#glibc }"
set -- "$1" $(df -Pk -- "$1" 2>/dev/null | tail -n 1) && echo "kib $5"
set -- "$1" $(df -Pi -- "$1" 2>/dev/null | tail -n 1) && echo "files $5"
probe=$1/.xffl-probe.$$
printf '#!/bin/sh\nexit 0\n' >"$probe" && chmod 700 "$probe" && {
  if "$probe" 2>/dev/null; then echo "exec yes"; else echo "exec no"; fi
}
rm -f -- "$probe"
missing=
for program in tar gzip sha256sum ln mv; do
  command -v $program >/dev/null 2>&1 || missing="$missing $program"
done
echo "missing$missing"
)sh";

// $1: the folder of programs, $2: the bundle's name, $3: the hash of its MANIFEST. Exit code 3: a
// file differs.
constexpr const char* kVerify = R"sh(
LC_ALL=C; export LC_ALL
cd -- "$1/$2" || exit 2
case $(sha256sum MANIFEST) in "$3"*) ;; *) echo "MANIFEST: another hash than the archive's name"; exit 3;; esac
sha256sum -c --quiet MANIFEST 2>&1 || exit 3
)sh";

constexpr const char* kUnpack = R"sh(
LC_ALL=C; export LC_ALL
cd -- "$1" || exit 2
rm -rf -- ".staging/unpacked" && mkdir ".staging/unpacked" || exit 2
tar -xzf ".staging/$2/$2.tar.gz" --touch --no-same-owner -C ".staging/unpacked" 2>&1 || exit 3
cd ".staging/unpacked/$2" || exit 3
case $(sha256sum MANIFEST) in "$3"*) ;; *) echo "MANIFEST: another hash than the archive's name"; exit 3;; esac
sha256sum -c --quiet MANIFEST 2>&1 || exit 3
cd ../../.. && rm -rf -- "$2" && mv -- ".staging/unpacked/$2" "$2" && rm -rf .staging
)sh";

constexpr const char* kMoveLink = R"sh(
cd -- "$1" && ln -sfn -- "$2" ".$3.new" && mv -fT -- ".$3.new" "$3"
)sh";

// A project's name has no dot, so that the folder is no project's.
RemotePath programs(const RemotePath& workdir) { return workdir / config::kBundlesFolder; }

// "2.28" as {2, 28}; empty for another text.
std::optional<std::pair<int, int>> version(std::string_view text) {
  static const std::regex kPattern("([0-9]{1,4})\\.([0-9]{1,4})(\\..*)?");
  std::cmatch match;
  if (!std::regex_match(text.data(), text.data() + text.size(), match, kPattern))
    return std::nullopt;
  return std::pair{std::stoi(match[1]), std::stoi(match[2])};
}

uint64_t number(const std::string& text) {
  static const std::regex kPattern("[0-9]{1,18}");
  return std::regex_match(text, kPattern) ? std::stoull(text) : 0;
}

// The bytes of the tar file in a gzip archive. The archive's last four bytes are the low 32 bits of
// the size (RFC 1952); the high bits follow because the tar file is at least as large as the
// archive, and not larger by 4 GiB.
uint64_t unpacked_bytes(const std::filesystem::path& archive, uint64_t archive_bytes) {
  constexpr uint64_t kGzipSize = 4;
  if (archive_bytes < kGzipSize) return 0;
  std::ifstream file(archive, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(archive_bytes - kGzipSize));
  unsigned char low[kGzipSize] = {};
  file.read(reinterpret_cast<char*>(low), kGzipSize);
  if (!file) throw Error(ErrorKind::kIo, "cannot read the end of " + archive.string());
  uint64_t bytes = 0;
  for (size_t i = kGzipSize; i-- > 0;) bytes = bytes << 8 | low[i];
  constexpr uint64_t kWrap = uint64_t{1} << 32;
  const uint64_t wraps = archive_bytes > bytes ? (archive_bytes - bytes + kWrap - 1) / kWrap : 0;
  return bytes + wraps * kWrap;
}

std::string megabytes(uint64_t bytes) { return std::to_string(bytes / 1'000'000) + " MB"; }

// True when the bundle is unpacked and each of its files has its hash.
bool is_intact(remote::Session& session, const RemotePath& folder, const Bundle& bundle,
               const std::stop_token& stop) {
  if (!session.stat(folder / bundle.name / "MANIFEST")) return false;
  const Answer answer = run_script(
      session, kVerify, {folder.str(), bundle.name, bundle.manifest_hash}, kLongScript, stop);
  if (answer.exit_code != 0)
    log::warning("the deployed bundle is damaged and is replaced",
                 {{"bundle", bundle.name}, {"problem", answer.text}});
  return answer.exit_code == 0;
}

uint64_t send_and_unpack(const transfer::Endpoint& facility, const RemotePath& folder,
                         const Bundle& bundle, const std::stop_token& stop,
                         const transfer::OnProgress& on_progress) {
  checkpoint::Manifest manifest;
  manifest.files = {checkpoint::hash_file(bundle.archive)};
  const RemotePath staging = folder / ".staging" / bundle.name;
  const uint64_t moved =
      transfer::push(facility, bundle.archive.parent_path(), manifest, staging, stop, on_progress)
          .moved_bytes;
  const Answer answer =
      run_script(facility.control, kUnpack, {folder.str(), bundle.name, bundle.manifest_hash},
                 kLongScript, stop);
  if (answer.exit_code == 3)
    fail_script(ErrorKind::kCorrupt, "the bundle " + bundle.name + " cannot be unpacked whole",
                answer);
  if (answer.exit_code != 0)
    fail_script(ErrorKind::kIo, "cannot unpack " + bundle.name + " in " + folder.str(), answer);
  return moved;
}

}  // namespace

Bundle read_bundle(const std::filesystem::path& archive) {
  static const std::regex kPattern(
      "(xffl-trainer-([0-9][0-9A-Za-z.]{0,30})-([a-z0-9_]{1,20})-([a-z0-9]{1,20})-([0-9a-f]{8}))"
      "\\.tar\\.gz");
  const std::string file = archive.filename().string();
  std::smatch match;
  if (!std::regex_match(file, match, kPattern))
    throw Error(ErrorKind::kUsage,
                "'" + log::printable(file, 120) +
                    "' is no bundle: expected xffl-trainer-VERSION-ARCH-FLAVOUR-HASH.tar.gz, as "
                    "scripts/package.sh writes it");
  if (!std::filesystem::is_regular_file(archive))
    throw Error(ErrorKind::kNotFound, archive.string() + " is not a file");
  const uint64_t bytes = std::filesystem::file_size(archive);
  return {
      std::filesystem::absolute(archive), match[1], match[2], match[3], match[4], match[5], bytes,
      unpacked_bytes(archive, bytes)};
}

Host ask_host(remote::Session& session, const RemotePath& folder) {
  const remote::CommandResult result =
      session.run({"sh", "-c", kAsk, "sh", folder.str()}, "", kShortScript, {});
  if (result.exit_code != 0)
    fail_script(ErrorKind::kIo, "cannot create " + folder.str(),
                {result.exit_code, log::printable(result.out + result.err, 600)});
  std::map<std::string, std::string> answers;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = std::min(line.find(' '), line.size());
    answers[line.substr(0, at)] = line.substr(std::min(at + 1, line.size()));
  }
  if (!answers.contains("missing"))
    throw Error(ErrorKind::kRemote,
                "the facility's answer is not whole: '" + log::printable(result.out, 200) + "'");
  return {log::printable(answers["machine"], 40),
          log::printable(answers["glibc"], 40),
          number(answers["kib"]),
          number(answers["files"]),
          answers["exec"] != "no",
          log::printable(answers["missing"], 100)};
}

std::vector<std::string> problems(const Bundle& bundle, const Host& host,
                                  const RemotePath& folder) {
  std::vector<std::string> found;
  if (!host.machine.empty() && host.machine != bundle.arch)
    found.push_back("the log-in node is " + host.machine + ", and the bundle is for " +
                    bundle.arch + ": take a bundle for " + host.machine);
  const auto glibc = version(host.glibc);
  if (glibc && *glibc < *version(kOldestGlibc))
    found.push_back("its glibc is " + host.glibc + ", and the bundle needs " +
                    std::string(kOldestGlibc) + ": use an image (facilities.F.image)");
  if (!host.starts_programs)
    found.push_back(folder.str() +
                    " is on a file system that starts no programs (noexec): choose another "
                    "workdir");
  const uint64_t needed = bundle.archive_bytes + bundle.unpacked_bytes;
  if (host.free_kib > 0 && host.free_kib * 1024 < needed)
    found.push_back(megabytes(host.free_kib * 1024) + " are free in " + folder.str() + ", and " +
                    megabytes(needed) + " are needed: remove files, or choose another workdir");
  if (host.free_files > 0 && host.free_files < kFiles)
    found.push_back(std::to_string(host.free_files) + " files are left in " + folder.str() +
                    ", and the bundle has up to " + std::to_string(kFiles) + ": remove files");
  if (!host.missing.empty())
    found.push_back("its PATH lacks " + host.missing + ", which unpack and verify the bundle");
  return found;
}

Deployed deploy(const transfer::Endpoint& facility, const Bundle& bundle, const RemotePath& workdir,
                std::stop_token stop, const transfer::OnProgress& on_progress) {
  const RemotePath folder = programs(workdir);
  std::string all;
  for (const std::string& problem : problems(bundle, ask_host(facility.control, folder), folder))
    all += (all.empty() ? "" : "; ") + problem;
  if (!all.empty()) throw Error(ErrorKind::kUnsupported, all);

  Deployed done;
  done.was_there = is_intact(facility.control, folder, bundle, stop);
  if (!done.was_there)
    done.moved_bytes = send_and_unpack(facility, folder, bundle, stop, on_progress);
  const RemotePath program = folder / bundle.name / config::kBundlePrograms / "xffl-train";
  const remote::CommandResult started =
      facility.control.run({program.str(), "--version"}, "", kShortScript, stop);
  done.started = log::printable(started.out.substr(0, started.out.find('\n')), 100);
  const std::string expected = "xffl-train " + bundle.version;
  if (started.exit_code != 0 ||
      (done.started != expected && !done.started.starts_with(expected + " ")))
    fail_script(ErrorKind::kFailed, program.str() + " --version does not print '" + expected + "'",
                {started.exit_code, log::printable(started.out + started.err, 600)});
  const Answer promoted = run_script(
      facility.control, kMoveLink, {folder.str(), bundle.name, std::string(config::kNewestBundle)},
      kShortScript, stop);
  if (promoted.exit_code != 0)
    fail_script(ErrorKind::kIo, "cannot move the link " + (folder / config::kNewestBundle).str(),
                promoted);
  done.program = folder / config::kNewestBundle / config::kBundlePrograms / "xffl-train";
  return done;
}

std::vector<std::string> deployed(remote::Session& session, const RemotePath& workdir) {
  std::vector<std::string> names;
  try {
    names = session.list(programs(workdir));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kNotFound) throw;
  }
  std::erase_if(names, [](const std::string& name) { return !name.starts_with("xffl-trainer-"); });
  return names;
}

void remove(remote::Session& session, const RemotePath& workdir, std::stop_token stop) {
  session.remove_tree(programs(workdir), stop);
}

}  // namespace xffl::deploy
