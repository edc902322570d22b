#include <array>
#include <span>

#include "disk_space.h"
#include "doctor.h"
#include "slurm_checks.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/remote/ssh.h"
#include "xffl/tokens/token_shard.h"
#include "xffl/upkeep/purge_guard.h"

namespace xffl {
namespace {

using Severity = CheckResult::Severity;
using std::chrono::seconds;

constexpr seconds kPatience{30};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Compares the output of `program --version` with this xffl: the two exchange files.
CheckResult check_trainer_version(const std::string& program, const std::string& output) {
  const std::string line = log::printable(first_line(output), 100);
  const std::string ours = std::string("xffl-train ") + XFFL_VERSION;
  if (line == ours || line.starts_with(ours + " ")) return {Severity::kOk, "trainer", line, ""};
  return {
      Severity::kWarning, "trainer", program + " is '" + line + "', and this xffl is " XFFL_VERSION,
      "install xffl-train " XFFL_VERSION " there: another version may not read this one's files"};
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
    work_folder();
    data();
    image();
    purge();
    if (facility_.scheduler == config::SchedulerKind::kSlurm)
      add_all(check_slurm(experiment_, facility_, *session_, services_));
    trainer();
    return results_;
  }

 private:
  void add(Severity severity, std::string check, std::string message, std::string fix = "") {
    if (severity == Severity::kError) failed_ = true;
    results_.push_back({severity, std::move(check), std::move(message), std::move(fix)});
  }
  void add_all(std::vector<CheckResult> results) {
    for (CheckResult& result : results) results_.push_back(std::move(result));
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
        const bool pinned = !remote::trusted_keys(settings, host).empty();
        add(pinned ? Severity::kOk : Severity::kError, "host key",
            host.name + (pinned ? " is pinned" : " is not trusted yet"),
            pinned ? "" : trust_command());
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
      add(left < std::chrono::hours(2) ? Severity::kWarning : Severity::kOk, "certificate",
          validity,
          left < std::chrono::hours(2)
              ? "it ends in " + std::to_string(left.count()) + " min: " + renew
              : "");
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
    const auto result = session_->run({"uname", "-sm"}, "", kPatience, {});
    if (result.exit_code != 0)
      throw Error(ErrorKind::kRemote, "`uname` ended with " + std::to_string(result.exit_code) +
                                          ": " + log::printable(result.err, 300));
    add(Severity::kOk, "log-in", log::printable(first_line(result.out), 100));
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
      check("free space", "",
            [&] { add_all(check_disk_space(*session_, facility_.workdir, bytes->at_facility())); });
    if (!facility_.transfer.hosts.empty())
      check("transfer host", "see docs/operator/ssh.md", [&] {
        const bool there =
            services_.connect_transfer(facility_)->stat(facility_.workdir).has_value();
        add(there ? Severity::kOk : Severity::kError, "transfer host",
            there ? "the work folder is visible" : path + " is not visible there",
            there ? "" : "the work folder must be on a file system that both hosts share");
      });
  }
  // Why a job could not use this path; empty: it could, or the answer is unknown. A user's own
  // program may read any format, and an image may be a folder.
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
      add(problem.empty() ? Severity::kOk : Severity::kError, name,
          text + (problem.empty() ? "" : " " + problem),
          problem.empty() ? "" : "correct the path in xffl.yaml, or put the file there");
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
        "install it there, or set its path: facilities." + facility_.name.str() + ".trainer");
  }

  const config::Experiment& experiment_;
  const config::Facility& facility_;
  facility::Services& services_;
  std::shared_ptr<remote::Session> session_;
  std::vector<CheckResult> results_;
  bool failed_ = false;
};

}  // namespace

std::vector<CheckResult> check_facility(const config::Experiment& experiment,
                                        const config::Facility& facility,
                                        facility::Services& services) {
  return FacilityCheckup(experiment, facility, services).run();
}

}  // namespace xffl
