// Real facilities for tests: sshd, munge, slurmctld and compute nodes of Slurm on this machine,
// made by scripts/dev_cluster.sh, with what a facility can suffer.
//
// Where the machine cannot have them (no root, no namespaces, packages missing) a test skips:
//   Bed bed({"alba"}, {"--min-job-age", "2"});
//   if (!bed.up()) GTEST_SKIP() << bed.why_not();
// XFFL_KEEP_BED=1 leaves the bed up after the test, to be looked at.
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
  std::string host, inner_host;  // as the coordinator and as other hosts of the facility reach it
  std::string mover;             // an address that speaks SFTP only; empty without --mover
  int port = 22;
  std::string user;
  std::filesystem::path key;            // opens the user's account
  std::filesystem::path certified_key;  // opens it only with the certificate that certify() writes
  std::filesystem::path known_hosts;    // of every facility of the bed
  std::string scratch, home;            // folders there
  std::filesystem::path folder;         // here: log/ has the daemons' logs, scratch/ is /scratch

  /// Runs a command on the log-in node, past sshd: as root, or as the facility's user.
  ProcessResult exec_on_login(const std::vector<std::string>& argv,
                              const std::string& stdin_text = "") const;
  ProcessResult exec_as_user(const std::vector<std::string>& argv,
                             const std::string& stdin_text = "") const;

  // Daemons: sshd mover munged mariadbd slurmdbd slurmctld slurmd:N slurmstepd:N.
  std::vector<pid_t> pids(const std::string& daemon) const;
  /// Sends a signal at once; no waiting.
  void signal_daemon(const std::string& daemon, int signal) const;
  /// Ends it, kindly or by SIGKILL, and returns when it is gone.
  void stop_daemon(const std::string& daemon, const std::string& signal = "TERM") const;
  void start_daemon(const std::string& daemon) const;
  /// A compute node loses power; comes back.
  void node_down(int number) const;
  void node_up(int number) const;

  /// Slurm lets a requeued job wait for two minutes; an administrator need not. Waits until `nodes`
  /// nodes are free and nothing of the job's first start is left to report, whose end would count
  /// for the second start; then two seconds, since slurmd revokes the first start's credential and
  /// knows older ones from newer ones by whole seconds.
  void start_requeued(const std::string& job, int nodes) const;

  /// The network between here and there, one way: milliseconds, megabits a second (0: unlimited),
  /// per cent of packets lost.
  void wan(double delay_ms, double rate_mbit, double loss_percent) const;
  void wan_off() const;
  void cut() const;  // nothing passes, and nobody is told
  void heal() const;

  /// Has the bed's authority sign `certified_key` for so long (the -V of ssh-keygen: "+2m").
  void certify(const std::string& validity) const;
  void change_host_key() const;

 private:
  friend class Bed;
  ProcessResult script(std::vector<std::string> args, const std::string& stdin_text = "") const;
  std::filesystem::path state_;
};

class Bed {
 public:
  /// `flavours` are options of `scripts/dev_cluster.sh up`. Throws when it should work and does
  /// not.
  explicit Bed(const std::vector<std::string>& names = {"alba"},
               const std::vector<std::string>& flavours = {});
  ~Bed();
  Bed(const Bed&) = delete;
  Bed& operator=(const Bed&) = delete;

  /// Further facilities, with other flavours.
  void add(const std::vector<std::string>& names, const std::vector<std::string>& flavours);

  bool up() const { return why_not_.empty(); }
  const std::string& why_not() const { return why_not_; }
  const Facility& facility(const std::string& name) const { return facilities_.at(name); }
  std::filesystem::path state() const { return *dir_ / "bed"; }
  void down();

 private:
  void show_logs() const;

  std::unique_ptr<TempDir> dir_ = std::make_unique<TempDir>();
  std::string why_not_;
  std::map<std::string, Facility> facilities_;
};

}  // namespace xffl::test
