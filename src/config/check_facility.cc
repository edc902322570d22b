#include "check_facility.h"

#include <algorithm>

namespace xffl::config {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kMaxRanks = 1'000'000;
constexpr milliseconds kSlurmPoll{60'000};  // what sites ask for

class Checker {
 public:
  Checker(SectionReader& reader, const std::string& path, Facility& facility)
      : reader_(reader), path_(path), facility_(facility) {}

  void check() {
    if (facility_.access == AccessKind::kSsh) check_ssh();
    if (facility_.scheduler == SchedulerKind::kSlurm) check_slurm();
  }

 private:
  void problem(const std::string& key, const std::string& message) {
    reader_.problem(reader_.mark(path_ + "." + key), message);
  }
  void require(const std::string& key, bool there, const std::string& what) {
    if (!there && !reader_.was_given(path_ + "." + key))
      problem(key, "missing required key " + in_quotes(path_ + "." + key) + ": " + what);
  }

  void check_ssh() {
    require("ssh.hosts", !facility_.ssh.hosts.empty(), "the log-in nodes of a facility");
    require("ssh.user", !facility_.ssh.user.empty(), "the account's name at the facility");
    require("workdir", !facility_.workdir.empty(),
            "a folder at the facility, on a file system that compute nodes share");
    if (facility_.scheduler == SchedulerKind::kProcess)
      problem("scheduler",
              "a facility behind SSH needs 'scheduler: slurm': processes are started "
              "on this machine only");
    Transfer& transfer = facility_.transfer;
    const bool names_a_way =
        !transfer.user.empty() || !transfer.shell || !reader_.was_given(path_ + ".transfer.pack");
    if (transfer.hosts.empty() && reader_.was_given(path_ + ".transfer") && names_a_way)
      problem("transfer",
              "'transfer' needs hosts: without them files take the way of the commands");
    if (!transfer.hosts.empty() && transfer.user.empty()) transfer.user = facility_.ssh.user;
  }

  void check_slurm() {
    check_world();
    const Slurm& slurm = facility_.slurm;
    if (slurm.warning >= slurm.time)
      problem("slurm.warning", "'warning' should be shorter than 'time', the walltime");
    if (facility_.workdir.str().find_first_not_of(kPlain) != std::string::npos)
      problem("workdir",
              "'workdir' stands in directives of Slurm and should be of letters, digits "
              "and '/._-+@=', found " +
                  in_quotes(facility_.workdir.str()));
    const Image& image = facility_.image;
    if (image.file.empty() && reader_.was_given(path_ + ".image"))
      require("image.file", false, "the image that the trainer runs in");
    if (facility_.poll_interval.count() == 0 && !reader_.was_given(path_ + ".poll_interval") &&
        !reader_.was_given("policy.poll_interval"))
      facility_.poll_interval = kSlurmPoll;
  }

  void check_world() {
    Slurm& slurm = facility_.slurm;
    if (slurm.tasks_per_node == 0) slurm.tasks_per_node = std::max(1, slurm.gpus_per_node);
    const int64_t ranks = int64_t{slurm.nodes} * slurm.tasks_per_node;
    const std::string product = std::to_string(slurm.nodes) + " nodes * " +
                                std::to_string(slurm.tasks_per_node) + " tasks_per_node";
    if (ranks > kMaxRanks)
      return problem("slurm.nodes", product + " are more than a million ranks");
    if (reader_.was_given(path_ + ".world_size") && facility_.world_size != ranks)
      return problem("world_size", "'world_size' is " + std::to_string(facility_.world_size) +
                                       ", but a job of Slurm has " + product +
                                       ": leave world_size out");
    facility_.world_size = static_cast<int>(ranks);
  }

  static constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._-+@=";

  SectionReader& reader_;
  const std::string& path_;
  Facility& facility_;
};

}  // namespace

void check_facility(SectionReader& reader, const std::string& path, Facility& facility) {
  Checker(reader, path, facility).check();
}

}  // namespace xffl::config
