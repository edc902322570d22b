#include "doctor.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "facility_room.h"
#include "partition_limit.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/llama_config.h"
#include "xffl/config/load.h"
#include "xffl/facility/model_bytes.h"
#include "xffl/facility/render.h"
#include "xffl/facility/slurm_settings.h"
#include "xffl/history/file_system.h"
#include "xffl/remote/ssh.h"
#include "xffl/tokens/token_shard.h"
#include "xffl/upkeep/purge_guard.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using Grade = Finding::Grade;
using std::chrono::seconds;

constexpr seconds kPatience{30};

/// Nothing when there is no model: that is a finding of its own.
std::optional<facility::ModelBytes> bytes_of_model(const config::Experiment& experiment) try {
  return facility::model_bytes(experiment, experiment.model);
} catch (const Error&) {
  return std::nullopt;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// What `program --version` said, compared with this xffl: the two exchange files.
Finding trainer_version(const std::string& program, const std::string& said) {
  const std::string line = log::printable(first_line(said), 100);
  const std::string ours = std::string("xffl-train ") + XFFL_VERSION;
  if (line == ours || line.starts_with(ours + " ")) return {Grade::kGood, "trainer", line, ""};
  return {
      Grade::kWarning, "trainer", program + " is '" + line + "', and this xffl is " XFFL_VERSION,
      "install xffl-train " XFFL_VERSION " there: another version may not read this one's files"};
}

class Examination {
 public:
  Examination(const config::Experiment& experiment, const config::Facility& facility,
              facility::Services& services)
      : experiment_(experiment), facility_(facility), services_(services) {}

  std::vector<Finding> run() {
    if (facility_.access == config::AccessKind::kSsh) {
      host_keys();
      credential();
    }
    if (bad_ || !log_in()) return findings_;
    work_folder();
    data();
    image();
    purging();
    if (facility_.scheduler == config::SchedulerKind::kSlurm) slurm();
    trainer();
    return findings_;
  }

 private:
  void add(Grade grade, std::string what, std::string said, std::string fix = "") {
    if (grade == Grade::kBad) bad_ = true;
    findings_.push_back({grade, std::move(what), std::move(said), std::move(fix)});
  }
  // Runs one check; what it throws is its finding.
  template <class Body>
  bool check(const std::string& what, const std::string& fix, Body&& body) {
    try {
      body();
      return true;
    } catch (const Error& error) {
      add(Grade::kBad, what, error.what(), fix);
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
        add(pinned ? Grade::kGood : Grade::kBad, "host key",
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
      const std::string said = "valid until " + format_utc(*expiry);
      if (left.count() <= 0) return add(Grade::kBad, "certificate", "expired: " + said, renew);
      add(left < std::chrono::hours(2) ? Grade::kWarning : Grade::kGood, "certificate", said,
          left < std::chrono::hours(2)
              ? "it ends in " + std::to_string(left.count()) + " min: " + renew
              : "");
    });
  }
  // What a log-in that failed needs.
  Finding log_in_failed(const Error& error) const {
    const std::string said = error.what();
    if (said.starts_with(remote::kHostKeyChanged))
      return {Grade::kBad, "host key", said,
              "ask the site whether it has a new key; if so, " + trust_command()};
    if (error.kind() != ErrorKind::kAuth)
      return {Grade::kBad, "log-in", said,
              "are ssh.hosts and ssh.jump right, and can this machine reach them?"};
    return {Grade::kBad, "log-in", said,
            "is ssh.user right, and does the site know the key? " + remote::renewal(ssh()) +
                ", or try `xffl login " + facility_.name.str() + "`"};
  }
  bool log_in() {
    try {
      connect();
      return true;
    } catch (const Error& error) {
      findings_.push_back(log_in_failed(error));
      return false;
    }
  }
  void connect() {
    session_ = services_.connect(facility_);
    const auto result = session_->run({"uname", "-sm"}, "", kPatience, {});
    if (result.exit_code != 0)
      throw Error(ErrorKind::kRemote, "`uname` ended with " + std::to_string(result.exit_code) +
                                          ": " + log::printable(result.err, 300));
    add(Grade::kGood, "log-in", log::printable(first_line(result.out), 100));
  }
  void work_folder() {
    const std::string path = facility_.workdir.str();
    if (!check("work folder", "choose a workdir that you may write", [&] {
          session_->make_dirs(facility_.workdir);
          const RemotePath probe = facility_.workdir / ".xffl-probe";
          remote::write_text_atomic(*session_, probe, "xffl\n");
          session_->remove_tree(probe);
          add(Grade::kGood, "work folder", path + " can be written");
        }))
      return;
    const auto bytes = bytes_of_model(experiment_);
    if (bytes)
      check("free space", "", [&] {
        for (Finding& finding : examine_room(*session_, facility_.workdir, bytes->at_facility()))
          findings_.push_back(std::move(finding));
      });
    if (!facility_.transfer.hosts.empty())
      check("transfer host", "see docs/operator/ssh.md", [&] {
        const bool there =
            services_.connect_transfer(facility_)->stat(facility_.workdir).has_value();
        add(there ? Grade::kGood : Grade::kBad, "transfer host",
            there ? "it sees the work folder" : "it does not see " + path,
            there ? "" : "the work folder must be on a file system that both hosts share");
      });
  }
  // Why a job could not use what is there; empty: it could, or nobody can tell. What a program of
  // one's own reads is its business, and an image may be a folder.
  std::string unusable(const RemotePath& path, const remote::FileInfo& info, bool is_shard) const {
    using Type = remote::FileInfo::Type;
    if (is_shard && info.type == Type::kFolder) return "is a folder: name the shards in it";
    if (info.type != Type::kRegular) return "";
    std::array<char, tokens::kShardMagic.size()> head{};
    const size_t n = session_->read(path, 0, std::as_writable_bytes(std::span(head)));
    if (is_shard && std::string_view(head.data(), n) != tokens::kShardMagic)
      return "is no token shard: `xffl-tokenize encode` makes them";
    return "";
  }
  void file(const std::string& what, const std::string& text, bool is_shard) {
    check(what, "see that your account may read it", [&] {
      const RemotePath path(text);
      const auto info = session_->stat(path);
      const std::string problem = info ? unusable(path, *info, is_shard) : "is not there";
      add(problem.empty() ? Grade::kGood : Grade::kBad, what,
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
  void purging() {
    if (facility_.purge_after.count() == 0) return;
    check("purging", "", [&] {
      bool fine = true;
      for (const upkeep::FileAge& age :
           upkeep::ages(*session_, facility_.workdir, upkeep::files_of_people(facility_))) {
        const std::string warning = upkeep::purge_warning(age, facility_.purge_after);
        if (warning.empty() || !age.unused_for) continue;  // what is not there is told already
        fine = false;
        add(Grade::kWarning, "purging", age.path + " " + warning,
            "read or `touch` it there, or keep it where nothing is purged");
      }
      if (fine)
        add(Grade::kGood, "purging", "what jobs need was used lately, or is not on scratch");
    });
  }
  void slurm() {
    const auto there = [&] {
      const auto version = session_->run({"sbatch", "--version"}, "", kPatience, {});
      if (version.exit_code != 0) throw Error(ErrorKind::kRemote, log::printable(version.err, 300));
      add(Grade::kGood, "Slurm", log::printable(first_line(version.out), 100));
    };
    if (check("Slurm", "is Slurm in the PATH of a log-in without a terminal?", there))
      check("allocation", kControllerFix, [&] { allocation(); });
  }
  void allocation() {
    const auto script = facility::render_script(experiment_, facility::preview_state(),
                                                facility_.name, std::nullopt, services_.programs);
    // The attempt's folder is not there yet: the test is about what is asked for.
    const submit::TestOnly answer =
        submit::test_only(*session_, facility::slurm_settings(facility_.slurm),
                          {script.job_name, script.script, facility_.workdir}, {});
    const std::string said = log::printable(answer.answer, 300);
    if (answer.accepted) {
      add(Grade::kGood, "allocation", said);
      return walltime();
    }
    if (answer.permanent)
      return add(Grade::kBad, "allocation", said,
                 "correct account, partition, qos, nodes or time in xffl.yaml");
    add(Grade::kBad, "allocation", said, kControllerFix);
  }

  // A warning: some QOS lift the partition's limit.
  void walltime() {
    std::vector<std::string> words = {"sinfo", "-h", "-o", "%P %l"};
    if (!facility_.slurm.cluster.empty()) words.push_back("--clusters=" + facility_.slurm.cluster);
    const auto answer = session_->run(words, "", kPatience, {});
    const auto limit = answer.exit_code == 0
                           ? longest_walltime(answer.out, facility_.slurm.partition)
                           : std::nullopt;
    if (!limit || facility_.slurm.time <= *limit) return;
    add(Grade::kWarning, "walltime",
        "slurm.time is " + std::to_string(facility_.slurm.time.count() / 60) +
            " min, the partition allows " + std::to_string(limit->count() / 60) +
            " min: the job may wait for ever",
        "shorten slurm.time, or choose another partition");
  }

  // What runs inside an image or behind modules only a job can tell.
  void trainer() {
    const char* inside = !facility_.image.file.empty() ? "inside the image"
                         : !facility_.modules.empty()  ? "behind environment modules"
                                                       : nullptr;
    if (inside != nullptr)
      return add(Grade::kGood, "trainer", std::string("not looked at: it is ") + inside);
    if (!facility_.trainer_command.empty()) return own_trainer(facility_.trainer_command.front());
    std::string program = facility_.trainer_program;
    if (program.empty())
      program = facility_.access == config::AccessKind::kLocal ? services_.programs.trainer.string()
                                                               : "xffl-train";
    check("trainer", "", [&] {
      const auto result = session_->run({program, "--version"}, "", kPatience, {});
      if (result.exit_code == 0) return findings_.push_back(trainer_version(program, result.out));
      no_trainer(program, "does not start: " + log::printable(first_line(result.err), 300));
    });
  }
  void own_trainer(const std::string& program) {
    check("trainer", "", [&] {
      const auto found =
          session_->run({"sh", "-c", "command -v -- \"$1\"", "sh", program}, "", kPatience, {});
      if (found.exit_code != 0) return no_trainer(program, "is not there");
      add(Grade::kGood, "trainer", program + " is there; what it does was not looked at");
    });
  }
  // The lines of `environment` may make it known to jobs.
  void no_trainer(const std::string& program, const std::string& why) {
    const bool may_be_found = !facility_.environment.empty() && !program.starts_with('/');
    add(may_be_found ? Grade::kWarning : Grade::kBad, "trainer",
        program + " " + why + (may_be_found ? " (without the lines of environment)" : ""),
        "install it there, or say where it is: facilities." + facility_.name.str() + ".trainer");
  }

  static constexpr const char* kControllerFix =
      "Slurm does not take requests now: try again later, or ask the site; what is asked for was "
      "not looked at";

  const config::Experiment& experiment_;
  const config::Facility& facility_;
  facility::Services& services_;
  std::shared_ptr<remote::Session> session_;
  std::vector<Finding> findings_;
  bool bad_ = false;
};

}  // namespace

namespace {

// Where a job would find out after its queue, and `xffl run` before its first round.
std::vector<Finding> examine_model(const config::Experiment& experiment) {
  std::vector<Finding> findings;
  for (const std::string& missing : config::find_missing(experiment))
    findings.push_back({Grade::kBad, "file", missing, "put it there, or correct xffl.yaml"});
  const bool is_there = std::none_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.said.starts_with("model:") || finding.said.starts_with("adapter:");
  });
  if (!is_there) return findings;
  const auto builtin = [](const config::Facility& facility) {
    return facility.trainer_command.empty();
  };
  try {
    if (std::any_of(experiment.facilities.begin(), experiment.facilities.end(), builtin))
      checkpoint::read_llama_config(experiment.model);
    else
      parse_json(read_file(experiment.model / "config.json", 1 << 20),
                 (experiment.model / "config.json").string());
    facility::model_bytes(experiment, experiment.model);
    findings.push_back({Grade::kGood, "model", experiment.model.string(), ""});
  } catch (const Error& error) {
    findings.push_back({Grade::kBad, "model", error.what(),
                        "copy the model again, or correct 'model' in xffl.yaml"});
  }
  return findings;
}

// Where runs/ will be made.
fs::path nearest_existing(fs::path folder) {
  std::error_code unknown;
  while (!fs::exists(folder, unknown) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

}  // namespace

std::vector<Finding> examine_this_machine(const config::Experiment& experiment,
                                          const fs::path& runs,
                                          const facility::Services& services) {
  std::vector<Finding> findings = examine_model(experiment);
  const std::string kind = history::network_file_system(runs);
  const fs::path place = nearest_existing(runs);
  if (!kind.empty())
    findings.push_back(
        {Grade::kBad, "runs folder", place.string() + " is on " + kind,
         "put runs/ on a local disk (`--workdir` of all commands): a journal is not safe there"});
  else
    findings.push_back({Grade::kGood, "runs folder", place.string(), ""});
  std::error_code none;
  const fs::space_info info = fs::space(place, none);
  const auto bytes = bytes_of_model(experiment);
  if (bytes && !none)
    findings.push_back(
        free_space(place.string(), info.available, bytes->here(experiment.facilities.size())));
  if (fs::exists(services.programs.trainer))
    findings.push_back({Grade::kGood, "trainer", services.programs.trainer.string(), ""});
  return findings;
}

std::vector<Finding> examine_facility(const config::Experiment& experiment,
                                      const config::Facility& facility,
                                      facility::Services& services) {
  return Examination(experiment, facility, services).run();
}

}  // namespace xffl
