#include "xffl/deploy/deploy.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <span>
#include <sstream>
#include <utility>

#include "placer.h"
#include "script.h"
#include "xffl/base/embedded_file.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/config/experiment.h"

namespace xffl::deploy {

std::span<const EmbeddedFile> deploy_scripts();  // generated

namespace {

constexpr uint64_t kFiles = 200;

// One line for each answer: "key value". $1: the folder.
constexpr const char* kAsk = R"sh(
LC_ALL=C; export LC_ALL
mkdir -p -- "$1" || exit 1
echo "machine $(uname -m)"
libc=$(getconf GNU_LIBC_VERSION 2>/dev/null || /usr/bin/getconf GNU_LIBC_VERSION 2>/dev/null) &&
  echo "glibc ${libc#glibc }"
set -- "$1" $(df -Pk -- "$1" 2>/dev/null | tail -n 1)
[ "${3:-0}" = 0 ] || echo "kib $5" # some file systems have no size
set -- "$1" $(df -Pi -- "$1" 2>/dev/null | tail -n 1)
[ "${3:-0}" = 0 ] || echo "files $5" # likewise
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

constexpr const char* kMoveLink = R"sh(
cd -- "$1" && ln -sfn -- "$2" ".$3.new" && mv -fT -- ".$3.new" "$3"
)sh";

// "2.28" as {2, 28}; empty for another text.
std::optional<std::pair<int, int>> version(std::string_view text) {
  static const std::regex kPattern("([0-9]{1,4})\\.([0-9]{1,4})(\\..*)?");
  std::cmatch match;
  if (!std::regex_match(text.data(), text.data() + text.size(), match, kPattern))
    return std::nullopt;
  return std::pair{std::stoi(match[1]), std::stoi(match[2])};
}

std::optional<uint64_t> number(const std::string& text) {
  static const std::regex kPattern("[0-9]{1,18}");
  if (!std::regex_match(text, kPattern)) return std::nullopt;
  return std::stoull(text);
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

uint64_t send(const transfer::Endpoint& facility, const RemotePath& staging, const Bundle& bundle,
              const std::stop_token& stop, const transfer::OnProgress& on_progress) {
  checkpoint::Manifest manifest;
  manifest.files = {checkpoint::hash_file(bundle.archive)};
  return transfer::push(facility, bundle.archive.parent_path(), manifest, staging, stop,
                        on_progress)
      .moved_bytes;
}

// The host as its problems are judged before a byte is sent. A job may find another machine or
// glibc on its node, and other programs.
Host judged_host(const Bundle& bundle, Host host, const RemotePath& folder, bool unpacks) {
  if (unpacks) return host;
  for (const std::string& problem :
       problems(bundle, {.machine = host.machine, .glibc = host.glibc}, folder))
    log::warning("the log-in node could not run this bundle; the job finds out about its node",
                 {{"problem", problem}});
  host.machine = host.glibc = "";
  std::istringstream words(std::exchange(host.missing, ""));
  for (std::string word; words >> word;)
    if (word != "tar" && word != "gzip" && word != "sha256sum")
      host.missing += (host.missing.empty() ? "" : " ") + word;
  return host;
}

bool is_unpacked(remote::Session& session, const RemotePath& folder, const Bundle& bundle) {
  return session.stat(folder / bundle.name / "MANIFEST").has_value();
}

bool is_in_place(const Report& report) {
  return report.state == "intact" || report.state == "unpacked";
}

// Throws unless the bundle is in place. A changed archive is removed: the next deployment sends it
// again.
void require_whole(remote::Session& session, const Report& report, const Bundle& bundle,
                   const RemotePath& staging) {
  if (!report.missing.empty())
    throw Error(ErrorKind::kUnsupported, "the PATH of " + describe_node(report) + " lacks " +
                                             report.missing +
                                             ", which unpack and verify the bundle");
  if (is_in_place(report)) return;
  if (report.state != "broken")
    throw Error(ErrorKind::kIo, "the archive in " + staging.str() +
                                    " has disappeared: repeat the command, which sends it again");
  std::string message =
      "the bundle " + bundle.name + " cannot be unpacked whole: " + report.problem;
  if (report.archive != checkpoint::hash_file(bundle.archive).sha256) {
    session.remove_tree(staging);
    message += "; the archive was damaged at the facility and is removed: repeat the command";
  }
  throw Error(ErrorKind::kCorrupt, message);
}

void require_start(const Report& report, const Bundle& bundle, const RemotePath& folder) {
  const std::string expected = "xffl-train " + bundle.version;
  if (has_started(report, bundle.version)) return;
  const RemotePath program = folder / bundle.name / config::kBundlePrograms / "xffl-train";
  fail_script(ErrorKind::kFailed,
              program.str() + " --version does not print '" + expected + "' on " +
                  describe_node(report) +
                  (report.machine == bundle.arch ? "" : ", and the bundle is for " + bundle.arch),
              {report.exit_code, report.started});
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
  if (host.free_kib && *host.free_kib * 1024 < needed)
    found.push_back(megabytes(*host.free_kib * 1024) + " are free in " + folder.str() + ", and " +
                    megabytes(needed) + " are needed: remove files, or choose another workdir");
  if (host.free_files && *host.free_files < kFiles)
    found.push_back(std::to_string(*host.free_files) + " files are left in " + folder.str() +
                    ", and the bundle has up to " + std::to_string(kFiles) + ": remove files");
  if (!host.missing.empty())
    found.push_back("its PATH lacks " + host.missing + ", which unpack and verify the bundle");
  return found;
}

PlaceScript bundle_script(const RemotePath& workdir, const Bundle& bundle) {
  return {deploy_scripts().front().text,
          {programs_folder(workdir).str(), bundle.name, bundle.manifest_hash}};
}

Report LoginNodePlacer::run() {
  std::vector<std::string> argv = {"sh", "-c", std::string(script_.text), "sh"};
  argv.insert(argv.end(), script_.arguments.begin(), script_.arguments.end());
  const remote::CommandResult result = session_.run(argv, "", kLongScript, stop_);
  Report report = parse_report(result.out);
  if (result.exit_code != 0 || !report.whole)
    fail_script(
        ErrorKind::kIo,
        "cannot put " + script_.arguments.at(1) + " into place in " + script_.arguments.at(0),
        {result.exit_code, log::printable(result.err, 600)});
  return report;
}

std::string describe_node(const Report& report) {
  return "node " + report.host + " (" + report.machine +
         (report.glibc.empty() ? ")" : ", glibc " + report.glibc + ")");
}

bool has_started(const Report& report, const std::string& version) {
  const std::string expected = "xffl-train " + version;
  return report.exit_code == 0 &&
         (report.started == expected || report.started.starts_with(expected + " "));
}

// A project's name has no dot, so that the folder is no project's.
RemotePath programs_folder(const RemotePath& workdir) { return workdir / config::kBundlesFolder; }

Report parse_report(std::string_view text) {
  constexpr size_t kShown = 1500;
  Report report;
  const std::map<std::string, std::string Report::*> texts{{"host", &Report::host},
                                                           {"machine", &Report::machine},
                                                           {"glibc", &Report::glibc},
                                                           {"missing", &Report::missing},
                                                           {"state", &Report::state},
                                                           {"damage", &Report::damage},
                                                           {"problem", &Report::problem},
                                                           {"archive", &Report::archive},
                                                           {"started", &Report::started},
                                                           {"step", &Report::step},
                                                           {"no_program", &Report::no_program}};
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    report.whole = line == "end";
    const size_t at = std::min(line.find(' '), line.size());
    const std::string key = line.substr(0, at), value = line.substr(std::min(at + 1, line.size()));
    const auto found = texts.find(key);
    if (found != texts.end()) report.*found->second = log::printable(value, kShown);
    if (key == "exit_code")
      report.exit_code = static_cast<int>(std::min<uint64_t>(number(value).value_or(0), 255));
  }
  return report;
}

Deployed deploy_with(Placer& placer, const transfer::Endpoint& facility, const Bundle& bundle,
                     const RemotePath& workdir, const std::stop_token& stop,
                     const transfer::OnProgress& on_progress) {
  const RemotePath folder = programs_folder(workdir);
  Host host =
      judged_host(bundle, ask_host(facility.control, folder), folder, placer.on_login_node());
  // A bundle that is in place needs no space.
  if (is_unpacked(facility.control, folder, bundle)) host.free_kib = host.free_files = {};
  std::string all;
  for (const std::string& problem : problems(bundle, host, folder))
    all += (all.empty() ? "" : "; ") + problem;
  if (!all.empty()) throw Error(ErrorKind::kUnsupported, all);

  const RemotePath staging = folder / ".staging" / bundle.name;
  Deployed done;
  std::optional<Report> report = placer.earlier();
  const bool is_there = is_unpacked(facility.control, folder, bundle);
  // The site may have purged the bundle since the earlier job.
  if (report && is_in_place(*report) && !is_there) report.reset();
  if (!report && is_there) report = placer.run();
  if (report && !report->damage.empty())
    log::warning("the deployed bundle is damaged and is replaced",
                 {{"bundle", bundle.name}, {"problem", report->damage}});
  if (!report || report->state == "absent") {
    done.moved_bytes = send(facility, staging, bundle, stop, on_progress);
    report = placer.run();
  }
  try {
    require_whole(facility.control, *report, bundle, staging);
    require_start(*report, bundle, folder);
  } catch (const Error&) {
    placer.close();
    throw;
  }
  done.was_there = report->state == "intact";
  done.started = report->started;
  const Answer promoted = run_script(
      facility.control, kMoveLink, {folder.str(), bundle.name, std::string(config::kNewestBundle)},
      kShortScript, stop);
  if (promoted.exit_code != 0)
    fail_script(ErrorKind::kIo, "cannot move the link " + (folder / config::kNewestBundle).str(),
                promoted);
  placer.close();
  done.program = folder / config::kNewestBundle / config::kBundlePrograms / "xffl-train";
  return done;
}

Deployed deploy(const transfer::Endpoint& facility, const Bundle& bundle, const RemotePath& workdir,
                std::stop_token stop, const transfer::OnProgress& on_progress) {
  LoginNodePlacer placer(facility.control, bundle_script(workdir, bundle), stop);
  return deploy_with(placer, facility, bundle, workdir, stop, on_progress);
}

std::vector<std::string> deployed(remote::Session& session, const RemotePath& workdir) {
  std::vector<std::string> names;
  try {
    names = session.list(programs_folder(workdir));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kNotFound) throw;
  }
  std::erase_if(names, [](const std::string& name) { return !name.starts_with("xffl-trainer-"); });
  return names;
}

void remove(remote::Session& session, const RemotePath& workdir, std::stop_token stop) {
  session.remove_tree(programs_folder(workdir), stop);
}

}  // namespace xffl::deploy
