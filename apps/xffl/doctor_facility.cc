#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <span>
#include <sstream>

#include "doctor.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/facility/job_script.h"
#include "xffl/remote/ssh.h"
#include "xffl/submit/clock_offset.h"
#include "xffl/tokens/token_shard.h"
#include "xffl/upkeep/purge_guard.h"

namespace xffl {
std::string gigabytes(uint64_t bytes) {
  char text[40];
  const double value = static_cast<double>(bytes);
  if (bytes < 100'000'000)
    std::snprintf(text, sizeof text, "%.1f MB", value / 1e6);
  else
    std::snprintf(text, sizeof text, "%.1f GB", value / 1e9);
  return text;
}

namespace {

using Severity = CheckResult::Severity;
using std::chrono::seconds;

constexpr seconds kPatience{30};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Compares the output of `program --version` with the version of this xffl: the two programs
// exchange files.
CheckResult check_trainer_version(const std::string& program, const std::string& output) {
  const std::string line = log::printable(first_line(output), 100);
  const std::string ours = std::string("xffl-train ") + XFFL_VERSION;
  if (line == ours || line.starts_with(ours + " ")) return {Severity::kOk, "trainer", line, ""};
  return {
      Severity::kWarning, "trainer", program + " is '" + line + "', and this xffl is " XFFL_VERSION,
      "install xffl-train " XFFL_VERSION " there: another version may not read this one's files"};
}

constexpr uint64_t kFewFiles = 5'000, kTooFewFiles = 200;  // a round makes some dozens
constexpr int kInMemory = 95;  // exit code of kScript: tmpfs, where a reservation takes memory

// Each file system has its own quota tool, with output for humans. The check reserves the bytes in
// a file instead, because fallocate fails where writing would fail. The check removes the file at
// once. The script prints the kind of file system with its total and free files, then reserves the
// bytes.
constexpr const char* kScript = R"(
LC_ALL=C; export LC_ALL
PATH=$PATH:/usr/bin:/bin # an account's own PATH may be short
kind=$(stat -f -c %T -- "$1") && stat -f -c '%T %c %d' -- "$1" || exit 94
case $kind in tmpfs|ramfs) exit 95;; esac
fallocate -l "$2" -- "$1/.xffl-space" 2>&1
code=$?
rm -f -- "$1/.xffl-space"
exit $code
)";

CheckResult check_free_files(const std::string& line) {
  std::istringstream fields(line);
  std::string kind;
  uint64_t all = 0, free = 0;
  if (!(fields >> kind >> all >> free) || all == 0)
    return {Severity::kOk, "free files", "not checked: the file system does not count them", ""};
  CheckResult result{Severity::kOk, "free files",
                     std::to_string(free) + " in the file system; a quota of files was not checked",
                     ""};
  if (free >= kFewFiles) return result;
  result.severity = free < kTooFewFiles ? Severity::kError : Severity::kWarning;
  result.fix = "remove files there, or choose another workdir";
  return result;
}

CheckResult check_quota(const remote::CommandResult& answer, const std::string& message,
                        uint64_t needed) {
  const std::string space = gigabytes(needed);
  if (answer.exit_code == 0)
    return {Severity::kOk, "quota", space + " could be reserved, and were released", ""};
  const bool quota = message.find("quota exceeded") != std::string::npos;
  if (quota || message.find("No space left") != std::string::npos)
    return {Severity::kError, "quota",
            space + " cannot be reserved: " + log::printable(message, 300),
            std::string(quota ? "your quota" : "the file system") +
                " does not leave the space of a round: remove files, ask for more, or choose "
                "another workdir"};
  const std::string why = answer.exit_code == kInMemory ? "the file system is memory"
                          : message.empty() ? "exit code " + std::to_string(answer.exit_code)
                                            : log::printable(message, 200);
  return {answer.exit_code == kInMemory ? Severity::kOk : Severity::kWarning, "quota",
          "not checked: space cannot be reserved there (" + why + ")",
          answer.exit_code == kInMemory
              ? ""
              : "check with `quota` or `lfs quota`: a round needs about " + space};
}

// Checks the free space and free files of a session's folder, and tries to reserve `needed` bytes.
// Each result names the part that the check could not examine. Throws kRemote, kIo.
std::vector<CheckResult> check_disk_space(remote::Session& session, const RemotePath& folder,
                                          uint64_t needed) {
  std::vector<CheckResult> results;
  const auto free = session.free_bytes(folder);
  if (free)
    results.push_back(check_free_space(folder.str(), *free, needed));
  else
    results.push_back({Severity::kWarning, "free space", "the facility does not report it",
                       "check it there: a round needs about " + gigabytes(needed)});
  if (results.back().severity == Severity::kError) return results;
  // At least one block, so that the check notices a user over quota with a small model, too.
  const std::string bytes = std::to_string(std::max<uint64_t>(needed, 4096));
  const auto answer =
      session.run({"sh", "-c", kScript, "sh", folder.str(), bytes}, "", kPatience, {});
  const size_t end = std::min(answer.out.find('\n'), answer.out.size());
  results.push_back(check_free_files(answer.out.substr(0, end)));
  std::string message = answer.out.substr(std::min(end + 1, answer.out.size()));
  while (!message.empty() && message.back() == '\n') message.pop_back();
  results.push_back(check_quota(answer, message, needed));
  return results;
}

class FacilityCheckup {
 public:
  FacilityCheckup(const config::Experiment& experiment, const config::Facility& facility,
                  facility::Services& services)
      : experiment_(experiment), facility_(facility), services_(services) {}

  std::vector<CheckResult> run() {
    if (facility_.access == config::AccessKind::kSsh) {
      host_keys();
      credential();
    }
    if (failed_ || !log_in()) return results_;
    if (facility_.access == config::AccessKind::kSsh) clock();
    work_folder();
    data();
    image();
    purge();
    if (!manager_.this_machine) queue();
    trainer();
    return results_;
  }

 private:
  void add(Severity severity, std::string check, std::string message, std::string fix = "") {
    if (severity == Severity::kError) failed_ = true;
    results_.push_back({severity, std::move(check), std::move(message), std::move(fix)});
  }
  // Adds an error with its `fix` unless the check passed.
  void add_passed(bool passed, const std::string& check, const std::string& good,
                  const std::string& bad, const std::string& fix) {
    passed ? add(Severity::kOk, check, good) : add(Severity::kError, check, bad, fix);
  }
  // Runs one check; an Error becomes its result.
  template <class Body>
  bool check(const std::string& name, const std::string& fix, Body&& body) {
    try {
      body();
      return true;
    } catch (const Error& error) {
      add(Severity::kError, name, error.what(), fix);
      return false;
    }
  }
  std::string trust_command() const { return "run `xffl trust " + facility_.name.str() + "`"; }

  remote::SshSettings ssh() const {
    return facility::ssh_settings(facility_, experiment_.project_folder);
  }

  void host_keys() {
    check("host key", trust_command(), [&] {
      const remote::SshSettings settings = ssh();
      std::vector<remote::SshHost> hosts = settings.jump;
      hosts.insert(hosts.end(), settings.hosts.begin(), settings.hosts.end());
      if (!facility_.transfer.hosts.empty())
        for (const remote::SshHost& host :
             facility::transfer_settings(facility_, experiment_.project_folder).hosts)
          hosts.push_back(host);
      for (const remote::SshHost& host : hosts) {
        add_passed(!remote::trusted_keys(settings, host).empty(), "host key",
                   host.name + " is pinned", host.name + " is not trusted yet", trust_command());
      }
    });
  }
  void credential() {
    const std::string renew = remote::renewal(ssh());
    check("certificate", renew, [&] {
      const auto expiry = remote::credential_expiry(ssh());
      if (!expiry) return;
      const auto left =
          std::chrono::duration_cast<std::chrono::minutes>(*expiry - services_.clock.utc());
      const std::string validity = "valid until " + format_utc(*expiry);
      if (left.count() <= 0)
        return add(Severity::kError, "certificate", "expired: " + validity, renew);
      if (left >= std::chrono::hours(2)) return add(Severity::kOk, "certificate", validity);
      add(Severity::kWarning, "certificate", validity,
          "it ends in " + std::to_string(left.count()) + " min: " + renew);
    });
  }
  CheckResult log_in_failed(const Error& error) const {
    const std::string message = error.what();
    if (message.starts_with(remote::kHostKeyChanged))
      return {Severity::kError, "host key", message,
              "ask the site whether it has a new key; if so, " + trust_command()};
    if (error.kind() != ErrorKind::kAuth)
      return {Severity::kError, "log-in", message,
              "are ssh.hosts and ssh.jump right, and can this machine reach them?"};
    return {Severity::kError, "log-in", message,
            "is ssh.user right, and does the site know the key? " + remote::renewal(ssh()) +
                ", or try `xffl login " + facility_.name.str() + "`"};
  }
  bool log_in() {
    try {
      connect();
      return true;
    } catch (const Error& error) {
      results_.push_back(log_in_failed(error));
      return false;
    }
  }
  void connect() {
    session_ = services_.connect(facility_);
    queue_ = facility::queue_session(facility_, session_);
    const auto result = session_->run({"uname", "-sm"}, "", kPatience, {});
    if (result.exit_code != 0)
      throw Error(ErrorKind::kRemote, "`uname` ended with " + std::to_string(result.exit_code) +
                                          ": " + log::printable(result.err, 300));
    add(Severity::kOk, "log-in", log::printable(first_line(result.out), 100));
  }
  // Nothing that xffl decides depends on the facility's clock; people compare times in logs, and
  // certificates depend on it.
  void clock() {
    constexpr double kMostSeconds = 60;
    check("clock", "", [&] {
      submit::ClockFilter filter;
      for (int sample = 0; sample < 3; ++sample) {
        const Clock::UtcTime before = services_.clock.utc();
        const auto answer = session_->run({"date", "+%s"}, "", kPatience, {});
        const Clock::UtcTime after = services_.clock.utc();
        int64_t time = 0;
        const std::string line = first_line(answer.out);
        const auto [end, problem] = std::from_chars(line.data(), line.data() + line.size(), time);
        if (problem != std::errc() || end != line.data() + line.size())
          return add(Severity::kWarning, "clock",
                     "not compared: `date` printed '" + log::printable(line, 100) + "'",
                     "is `date` in the PATH of a log-in without a terminal?");
        filter.add(time, before, after);
      }
      const auto best = filter.best();
      if (!best) return;  // this machine's clock was set meanwhile
      char text[120];
      std::snprintf(text, sizeof text, "%.1f s %s this machine's (to %.1f s)",
                    std::abs(best->offset), best->offset < 0 ? "behind" : "ahead of", best->error);
      if (std::abs(best->offset) - best->error <= kMostSeconds)
        return add(Severity::kOk, "clock", text);
      add(Severity::kWarning, "clock", text,
          "compare this machine with a time server (`timedatectl`), or tell the site: "
          "certificates may be refused, and times in logs do not match");
    });
  }
  void work_folder() {
    const std::string path = facility_.workdir.str();
    if (!check("work folder", "choose a workdir that you may write", [&] {
          session_->make_dirs(facility_.workdir);
          const RemotePath probe = facility_.workdir / ".xffl-probe";
          remote::write_text_atomic(*session_, probe, "xffl\n");
          session_->remove_tree(probe);
          add(Severity::kOk, "work folder", path + " can be written");
        }))
      return;
    const auto bytes = bytes_of_model(experiment_);
    if (bytes)
      check("free space", "", [&] {
        for (CheckResult& result :
             check_disk_space(*session_, facility_.workdir, bytes->at_facility()))
          results_.push_back(std::move(result));
      });
    if (!facility_.transfer.hosts.empty())
      check("transfer host", "see docs/operator/ssh.md", [&] {
        add_passed(services_.connect_transfer(facility_)->stat(facility_.workdir).has_value(),
                   "transfer host", "the work folder is visible", path + " is not visible there",
                   "the work folder must be on a file system that both hosts share");
      });
  }
  // The reason why a job could not use this path; empty: a job could, or the answer is unknown. A
  // user's own program may read any format, and an image may be a folder.
  std::string unusable(const RemotePath& path, const remote::FileInfo& info, bool is_shard) const {
    using Type = remote::FileInfo::Type;
    if (is_shard && info.type == Type::kFolder) return "is a folder: name the shards in it";
    if (info.type != Type::kRegular) return "";
    std::array<char, tokens::kShardMagic.size()> head{};
    const size_t n = session_->read(path, 0, std::as_writable_bytes(std::span(head)));
    if (is_shard && std::string_view(head.data(), n) != tokens::kShardMagic)
      return "is not a token shard: `xffl-tokenize encode` makes them";
    return "";
  }
  void file(const std::string& name, const std::string& text, bool is_shard) {
    check(name, "is it readable for your account?", [&] {
      const RemotePath path(text);
      const auto info = session_->stat(path);
      const std::string problem = info ? unusable(path, *info, is_shard) : "does not exist";
      const bool is_prepared = !facility_.prepared.empty() && path.parent() == facility_.prepared;
      add_passed(problem.empty(), name, text, text + " " + problem,
                 is_prepared ? "tokenize the text: xffl prepare " + facility_.name.str()
                             : "correct the path in xffl.yaml, or put the file there");
    });
  }
  void data() {
    const bool shards = facility_.trainer_command.empty();
    for (const std::string& path : facility_.train_data) file("training data", path, shards);
    for (const job::ValidationSet& set : facility_.validation)
      file("validation data", set.path, shards);
  }
  void image() {
    if (!facility_.image.file.empty()) file("image", facility_.image.file, false);
  }
  void purge() {
    if (facility_.purge_after.count() == 0) return;
    check("purge", "", [&] {
      bool ok = true;
      for (const upkeep::FileAge& age :
           upkeep::file_ages(*session_, facility_.workdir, upkeep::user_files(facility_))) {
        const std::string warning = upkeep::purge_warning(age, facility_.purge_after);
        if (warning.empty() || !age.unused_for) continue;  // file() reports a missing file
        ok = false;
        add(Severity::kWarning, "purge", age.path + " " + warning,
            "read or `touch` it there, or move it to a file system without a purge policy");
      }
      if (ok)
        add(Severity::kOk, "purge", "the files of jobs were used recently, or are not on scratch");
    });
  }
  std::string controller_fix() const {
    return std::string(manager_.title) +
           " does not take requests now: try again later, or ask the site; the requested "
           "allocation was not checked";
  }
  void queue() {
    const std::string title(manager_.title);
    if (!check(title,
               "is " + title +
                   " in the PATH of a log-in without a terminal? else set login_shell: true",
               [&] {
                 const auto version = queue_->run(
                     {std::string(manager_.program), std::string(manager_.version_option)}, "",
                     kPatience, {});
                 if (version.exit_code != 0)
                   throw Error(ErrorKind::kRemote, log::printable(version.err, 300));
                 add(Severity::kOk, title, log::printable(first_line(version.out), 100));
               }))
      return;
    if (!manager_.caution.empty()) add(Severity::kWarning, title, std::string(manager_.caution));
    if (manager_.check == nullptr)
      return add(Severity::kOk, "allocation", "not checked: " + title + " has no test submission");
    check("allocation", controller_fix(), [&] { allocation(); });
  }
  // The queue manager's check of the next job (`sbatch --test-only`), and the walltime against the
  // partition's limit: most controllers of Slurm (EnforcePartLimits=NO) accept a longer job, which
  // then stays pending (PartitionTimeLimit).
  void allocation() {
    const auto script = facility::render_script(experiment_, facility::preview_state(),
                                                facility_.name, std::nullopt, services_.programs);
    // The attempt's folder does not exist yet; the check needs any existing folder.
    const submit::TestOnly answer = manager_.check(
        *queue_, facility_.scheduler, {script.job_name, script.script, facility_.workdir}, {});
    const std::string message = log::printable(answer.answer, 300);
    if (!answer.accepted)
      return add(Severity::kError, "allocation", message,
                 answer.permanent ? "correct account, partition, qos, nodes or time in xffl.yaml"
                                  : controller_fix());
    add(Severity::kOk, "allocation", message);
    if (manager_.longest_walltime == nullptr) return;
    const auto limit = manager_.longest_walltime(*queue_, facility_.scheduler);
    const std::chrono::seconds walltime = facility_.shape().walltime;
    const std::string key = std::string(manager_.name) + ".time";
    if (limit && walltime > *limit)  // a warning: some QOS lift the partition's limit
      add(Severity::kWarning, "walltime",
          key + " is " + std::to_string(walltime.count() / 60) + " min, the partition allows " +
              std::to_string(limit->count() / 60) + " min: the job may stay pending",
          "shorten " + key + ", or choose another partition");
  }
  // The trainer inside an image or behind modules is visible to a job only.
  void trainer() {
    const char* inside = !facility_.image.file.empty() ? "inside the image"
                         : !facility_.modules.empty()  ? "behind environment modules"
                                                       : nullptr;
    if (inside != nullptr)
      return add(Severity::kOk, "trainer", std::string("not checked: it is ") + inside);
    if (!facility_.trainer_command.empty()) return own_trainer(facility_.trainer_command.front());
    std::string program = facility_.trainer_program;
    if (program.empty())
      program = facility_.access == config::AccessKind::kLocal ? services_.programs.trainer.string()
                                                               : "xffl-train";
    check("trainer", "", [&] {
      const auto result = session_->run({program, "--version"}, "", kPatience, {});
      if (result.exit_code == 0)
        return results_.push_back(check_trainer_version(program, result.out));
      no_trainer(program, "does not start: " + log::printable(first_line(result.err), 300));
    });
  }
  void own_trainer(const std::string& program) {
    check("trainer", "", [&] {
      const auto found =
          session_->run({"sh", "-c", "command -v -- \"$1\"", "sh", program}, "", kPatience, {});
      if (found.exit_code != 0) return no_trainer(program, "does not exist");
      add(Severity::kOk, "trainer", program + " exists; its version was not checked");
    });
  }
  // A warning when the lines of `environment` may put the program on the PATH of jobs.
  void no_trainer(const std::string& program, const std::string& why) {
    const bool may_be_found = !facility_.environment.empty() && !program.starts_with('/');
    add(may_be_found ? Severity::kWarning : Severity::kError, "trainer",
        program + " " + why + (may_be_found ? " (without the lines of environment)" : ""),
        facility_.trainer_bundle
            ? "put a bundle there: xffl deploy " + facility_.name.str() + " BUNDLE"
            : "install it there, or set its path: facilities." + facility_.name.str() + ".trainer");
  }

  const config::Experiment& experiment_;
  const config::Facility& facility_;
  const submit::QueueManager& manager_ = facility_.scheduler.manager();
  facility::Services& services_;
  std::shared_ptr<remote::Session> session_, queue_;
  std::vector<CheckResult> results_;
  bool failed_ = false;
};

}  // namespace

std::optional<facility::ModelBytes> bytes_of_model(const config::Experiment& experiment) try {
  return facility::model_bytes(experiment, experiment.model);
} catch (const Error&) {
  return std::nullopt;
}

CheckResult check_free_space(const std::string& folder, uint64_t free, uint64_t needed) {
  CheckResult result{
      Severity::kOk, "free space",
      gigabytes(free) + " in " + folder + "; a round needs about " + gigabytes(needed), ""};
  if (free >= needed) return result;
  result.severity = Severity::kError;
  result.fix = "remove files, ask for more space, or choose another workdir";
  return result;
}

std::vector<CheckResult> check_facility(const config::Experiment& experiment,
                                        const config::Facility& facility,
                                        facility::Services& services) {
  return FacilityCheckup(experiment, facility, services).run();
}

}  // namespace xffl
