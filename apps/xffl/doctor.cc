#include "doctor.h"

#include <set>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/model_folder.h"
#include "xffl/config/load.h"
#include "xffl/journal/file_system.h"
#include "xffl/remote/ssh.h"
#include "xffl/round/purge.h"
#include "xffl/round/render.h"
#include "xffl/round/slurm_settings.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using Grade = Finding::Grade;
using std::chrono::seconds;

// At a facility the global model, the update and their predecessors lie side by side; here a
// float32 master and every facility's update do.
constexpr double kFacilityModels = 2.2;
constexpr double kLocalModels = 4;
constexpr seconds kPatience{30};

std::string megabytes(uint64_t bytes) {
  char text[40];
  std::snprintf(text, sizeof text, "%.1f GB", static_cast<double>(bytes) / 1e9);
  return text;
}

/// 0 when there is no model: that is a finding of its own.
uint64_t model_bytes(const config::Experiment& experiment) try {
  uint64_t bytes = 0;
  const checkpoint::ModelFolder model(experiment.model);
  for (const checkpoint::TensorSpec& tensor : model.tensors())
    bytes += static_cast<uint64_t>(tensor.num_elements()) * 2;
  return bytes;
} catch (const Error&) {
  return 0;
}

Finding space(const std::string& where, uint64_t free, uint64_t needed) {
  Finding finding{Grade::kGood, "free space", megabytes(free) + " in " + where, ""};
  if (free < needed) {
    finding.grade = Grade::kBad;
    finding.fix = "a round needs about " + megabytes(needed) +
                  " there: remove files, ask for more quota, or choose another workdir";
  }
  return finding;
}

class Examination {
 public:
  Examination(const config::Experiment& experiment, const config::Facility& facility,
              round::World& world)
      : experiment_(experiment), facility_(facility), world_(world) {}

  std::vector<Finding> run() {
    if (facility_.access == config::AccessKind::kSsh) {
      host_keys(round::ssh_settings(facility_, experiment_.project_folder));
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

  void host_keys(const remote::SshSettings& settings) {
    check("host key", trust_command(), [&] {
      for (const remote::SshHost& host : settings.hosts) {
        const bool pinned = !remote::trusted_keys(settings, host).empty();
        add(pinned ? Grade::kGood : Grade::kBad, "host key",
            host.name + (pinned ? " is pinned" : " is not trusted yet"),
            pinned ? "" : trust_command());
      }
    });
  }
  void credential() {
    check("certificate", "renew it", [&] {
      const auto expiry =
          remote::credential_expiry(round::ssh_settings(facility_, experiment_.project_folder));
      if (!expiry) return;
      const auto left =
          std::chrono::duration_cast<std::chrono::minutes>(*expiry - world_.clock.utc());
      const std::string said = "valid until " + format_utc(*expiry);
      if (left.count() <= 0) return add(Grade::kBad, "certificate", said, "renew it");
      add(left < std::chrono::hours(2) ? Grade::kWarning : Grade::kGood, "certificate", said,
          left < std::chrono::hours(2) ? "it ends in " + std::to_string(left.count()) + " min"
                                       : "");
    });
  }
  bool log_in() {
    return check("log-in", "see docs/ssh.md", [&] {
      session_ = world_.connect(facility_);
      const auto result = session_->run({"uname", "-sm"}, "", kPatience, {});
      if (result.exit_code != 0)
        throw Error(ErrorKind::kRemote, "`uname` ended with " + std::to_string(result.exit_code) +
                                            ": " + log::printable(result.err, 300));
      add(Grade::kGood, "log-in", log::printable(first_line(result.out), 100));
    });
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
    check("free space", "", [&] {
      const auto free = session_->free_bytes(facility_.workdir);
      if (!free)
        return add(Grade::kWarning, "free space", "the facility does not say", "look there");
      findings_.push_back(space(
          path, *free,
          static_cast<uint64_t>(static_cast<double>(model_bytes(experiment_)) * kFacilityModels)));
    });
    if (!facility_.transfer.hosts.empty())
      check("transfer host", "see docs/ssh.md", [&] {
        const bool there = world_.connect_transfer(facility_)->stat(facility_.workdir).has_value();
        add(there ? Grade::kGood : Grade::kBad, "transfer host",
            there ? "it sees the work folder" : "it does not see " + path,
            there ? "" : "the work folder must be on a file system that both hosts share");
      });
  }
  void file(const std::string& what, const std::string& path) {
    check(what, "", [&] {
      const auto info = session_->stat(RemotePath(path));
      add(info ? Grade::kGood : Grade::kBad, what, path + (info ? "" : " is not there"),
          info ? "" : "correct the path in xffl.yaml, or put the file there");
    });
  }
  void data() {
    for (const std::string& path : facility_.train_data) file("training data", path);
    for (const job::ValidationSet& set : facility_.validation) file("validation data", set.path);
  }
  void image() {
    if (!facility_.image.file.empty()) file("image", facility_.image.file);
  }
  void purging() {
    if (facility_.purge_after.count() == 0) return;
    check("purging", "", [&] {
      bool fine = true;
      for (const round::FileAge& age :
           round::ages(*session_, facility_.workdir, round::files_of_people(facility_))) {
        const std::string warning = round::purge_warning(age, facility_.purge_after);
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
    check("Slurm", "is Slurm in the PATH of a log-in without a terminal?", [&] {
      const auto version = session_->run({"sbatch", "--version"}, "", kPatience, {});
      if (version.exit_code != 0) throw Error(ErrorKind::kRemote, log::printable(version.err, 300));
      add(Grade::kGood, "Slurm", log::printable(first_line(version.out), 100));
      const auto script = round::render_script(experiment_, round::preview_history(),
                                               facility_.name, std::nullopt, world_.programs);
      // The attempt's folder is not there yet: the test is about what is asked for.
      const submit::TestOnly answer =
          submit::test_only(*session_, round::slurm_settings(facility_.slurm),
                            {script.job_name, script.script, facility_.workdir}, {});
      add(answer.accepted ? Grade::kGood : Grade::kBad, "allocation",
          log::printable(answer.answer, 300),
          answer.accepted ? "" : "correct account, partition, qos, nodes or time in xffl.yaml");
    });
  }
  void trainer() {
    if (!facility_.trainer_command.empty() || !facility_.image.file.empty() ||
        !facility_.modules.empty())
      return;  // what runs inside an image or behind modules only a job can tell
    check("trainer", "give facilities." + facility_.name.str() + ".trainer.program", [&] {
      std::string program = facility_.trainer_program;
      if (program.empty())
        program = facility_.access == config::AccessKind::kLocal ? world_.programs.trainer.string()
                                                                 : "xffl-train";
      const auto result = session_->run({program, "--version"}, "", kPatience, {});
      if (result.exit_code != 0)
        throw Error(ErrorKind::kNotFound,
                    program + " does not start: " + log::printable(result.err, 300));
      add(Grade::kGood, "trainer", log::printable(first_line(result.out), 100));
    });
  }
  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

  const config::Experiment& experiment_;
  const config::Facility& facility_;
  round::World& world_;
  std::shared_ptr<remote::Session> session_;
  std::vector<Finding> findings_;
  bool bad_ = false;
};

}  // namespace

std::vector<Finding> examine_this_machine(const config::Experiment& experiment,
                                          const round::World& world) {
  std::vector<Finding> findings;
  for (const std::string& missing : config::find_missing(experiment))
    findings.push_back({Grade::kBad, "file", missing, "put it there, or correct xffl.yaml"});
  const std::string kind = journal::network_file_system(experiment.project_folder);
  if (!kind.empty())
    findings.push_back(
        {Grade::kBad, "project folder", "on " + kind,
         "put runs/ on a local disk (`xffl run --workdir`): a journal is not safe there"});
  else
    findings.push_back({Grade::kGood, "project folder", experiment.project_folder.string(), ""});
  std::error_code none;
  const fs::space_info info = fs::space(experiment.project_folder, none);
  if (findings.front().grade == Grade::kGood && !none)
    findings.push_back(space(
        experiment.project_folder.string(), info.available,
        static_cast<uint64_t>(static_cast<double>(model_bytes(experiment)) *
                              (kLocalModels + static_cast<double>(experiment.facilities.size())))));
  if (fs::exists(world.programs.trainer))
    findings.push_back({Grade::kGood, "trainer", world.programs.trainer.string(), ""});
  return findings;
}

std::vector<Finding> examine_facility(const config::Experiment& experiment,
                                      const config::Facility& facility, round::World& world) {
  return Examination(experiment, facility, world).run();
}

}  // namespace xffl
