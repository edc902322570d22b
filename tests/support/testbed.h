// Real facilities for tests: sshd, munge, slurmctld and compute nodes of Slurm on this machine,
// created by scripts/dev_cluster.sh, with fault injection.
//
// A test skips on a machine that cannot run them (no root, no namespaces, missing packages):
//   Testbed testbed({"alba"}, {"--min-job-age", "2"});
//   if (!testbed.up()) GTEST_SKIP() << testbed.why_not();
// XFFL_KEEP_TESTBED=1 leaves the testbed up after the test, for inspection.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "support/temp_dir.h"
#include "xffl/base/process.h"

namespace xffl::test {

class Facility {
 public:
  std::string name;
  std::string host, inner_host;  // addresses for the coordinator and for hosts of the facility
  std::string mover;             // an address that speaks SFTP only; empty without --mover
  int port = 22;
  std::string user;
  std::filesystem::path key;            // an authorized key of the user
  std::filesystem::path certified_key;  // accepted only with the certificate of certify()
  std::filesystem::path known_hosts;    // for every facility of the testbed
  std::string scratch, home;            // paths at the facility
  std::filesystem::path folder;         // local: log/ has the daemons' logs, scratch/ is /scratch

  /// Runs a command on the login node without sshd: as root, or as the facility's user.
  ProcessResult exec_on_login(const std::vector<std::string>& argv,
                              const std::string& stdin_text = "") const;
  ProcessResult exec_as_user(const std::vector<std::string>& argv,
                             const std::string& stdin_text = "") const;

  // Daemons: sshd mover munged mariadbd slurmdbd slurmctld slurmd:N slurmstepd:N.
  std::vector<pid_t> pids(const std::string& daemon) const;
  /// Sends a signal and does not wait.
  void signal_daemon(const std::string& daemon, int signal) const;
  /// Ends a daemon with `signal` (TERM or KILL) and waits for its end.
  void stop_daemon(const std::string& daemon, const std::string& signal = "TERM") const;
  void start_daemon(const std::string& daemon) const;
  /// A compute node loses power; boots again.
  void node_down(int number) const;
  void node_up(int number) const;

  /// Starts a requeued job without Slurm's delay of two minutes. Waits first until `nodes` nodes
  /// are free and no slurmstepd of the first start is left, whose end would count for the second
  /// start. Then waits two seconds: slurmd revokes the first start's credential and compares
  /// credentials by whole seconds.
  void start_requeued(const std::string& job, int nodes) const;

  /// Sets the link between this machine and the facility, one way: delay, rate (0: unlimited),
  /// loss.
  void wan(double delay_ms, double rate_mbit, double loss_percent) const;
  void wan_off() const;
  void cut() const;  // drops all packets silently
  void heal() const;

  /// The testbed's authority signs `certified_key` for `validity` (-V of ssh-keygen: "+2m").
  void certify(const std::string& validity) const;
  void change_host_key() const;

 private:
  friend class Testbed;
  ProcessResult script(std::vector<std::string> args, const std::string& stdin_text = "") const;
  std::filesystem::path state_;
};

class Testbed {
 public:
  /// `flavours` are options of `scripts/dev_cluster.sh up`. Throws for a failure on a capable
  /// machine.
  explicit Testbed(const std::vector<std::string>& names = {"alba"},
                   const std::vector<std::string>& flavours = {});
  ~Testbed();
  Testbed(const Testbed&) = delete;
  Testbed& operator=(const Testbed&) = delete;

  /// Adds facilities with other flavours.
  void add(const std::vector<std::string>& names, const std::vector<std::string>& flavours);

  bool up() const { return why_not_.empty(); }
  const std::string& why_not() const { return why_not_; }
  const Facility& facility(const std::string& name) const { return facilities_.at(name); }
  std::filesystem::path state() const { return *dir_ / "testbed"; }
  void down();

 private:
  void show_logs() const;

  std::unique_ptr<TempDir> dir_ = std::make_unique<TempDir>();
  std::string why_not_;
  std::map<std::string, Facility> facilities_;
};

}  // namespace xffl::test
