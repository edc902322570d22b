// A facility of the testbed with xffl's Slurm scheduler, for tests of Slurm's behaviour.
#pragma once

#include <fstream>

#include "support/await.h"
#include "support/testbed_ssh.h"
#include "xffl/base/clock.h"
#include "xffl/submit/slurm.h"

namespace xffl::test {

class SlurmTestbed {
 public:
  explicit SlurmTestbed(const std::vector<std::string>& flavours = {})
      : testbed_({"alba"}, flavours) {
    if (testbed_.up()) session_ = remote::make_ssh_session(ssh_settings(facility()));
    settings.settle_time = std::chrono::seconds(1);
    settings.time = std::chrono::minutes(5);
    settings.warning = std::chrono::seconds(0);
  }

  bool up() const { return testbed_.up(); }
  const std::string& why_not() const { return testbed_.why_not(); }
  const Facility& facility() const { return testbed_.facility("alba"); }

  /// A coordinator's scheduler with the current `settings`.
  std::shared_ptr<submit::Scheduler> scheduler() {
    return submit::make_slurm_scheduler(settings, session_, clock_);
  }

  /// A job with the protocol of docs/operator/slurm.md: each start appends to "starts"; the first
  /// start claims the job, runs the script `work` in the job's folder and appends to "trainings".
  submit::JobRequest request(const std::string& short_name, const std::string& work = "sleep 1") {
    const std::string name = "xffl-" + short_name;  // the prefix of all xffl jobs
    const std::string folder = facility().scratch + "/" + name;
    must(facility().exec_as_user({"mkdir", "-p", folder}));
    return {.name = name,
            .script = "#!/bin/sh\ncd " + folder +
                      " || exit 1\necho \"$SLURM_JOB_ID\" >>starts\n"
                      "if ! mkdir claim; then [ ! -e trainings ] && "
                      "[ \"$(cat claim/owner)\" = \"$SLURM_JOB_ID\" ] || exit 0; fi\n"
                      "echo \"$SLURM_JOB_ID\" >claim/owner\n" +
                      work + "\necho \"$SLURM_JOB_ID\" >>trainings\n",
            .folder = RemotePath(folder)};
  }

  /// Waits until the script has claimed the job. Slurm reports RUNNING before the script begins.
  bool await_start(const submit::JobRequest& request) const {
    return test::await([&] { return exists(request, "claim/owner"); });
  }
  bool exists(const submit::JobRequest& request, const std::string& file) const {
    return std::filesystem::exists(here(request) / file);
  }
  /// The lines of a file in the job's folder; none when the file does not exist.
  std::vector<std::string> lines(const submit::JobRequest& request, const std::string& file) const {
    std::ifstream in(here(request) / file);
    std::vector<std::string> found;
    for (std::string line; std::getline(in, line);) found.push_back(line);
    return found;
  }
  void touch(const submit::JobRequest& request, const std::string& file) const {
    std::ofstream(here(request) / file);
  }

  static submit::JobStatus status(submit::Scheduler& scheduler, const JobId& id,
                                  const submit::JobRequest& request) {
    const submit::SubmittedJob job{id, request.name};
    return scheduler.query(std::span(&job, 1), {}).at(id);
  }
  /// Polls until the state is `wanted` or `timeout` has passed; returns the last status.
  static submit::JobStatus await(submit::Scheduler& scheduler, const JobId& id,
                                 const submit::JobRequest& request, submit::JobState wanted,
                                 std::chrono::seconds timeout = std::chrono::seconds(120)) {
    submit::JobStatus last;
    test::await([&] { return (last = status(scheduler, id, request)).state == wanted; }, timeout);
    return last;
  }
  /// Runs a command as the cluster's administrator.
  std::string admin(const std::vector<std::string>& argv) const {
    return must(facility().exec_on_login(argv));
  }

  submit::SlurmSettings settings;

 private:
  static std::string must(const ProcessResult& result) {
    if (result.exit_code != 0) throw std::runtime_error(result.err + result.out);
    return result.out;
  }
  std::filesystem::path here(const submit::JobRequest& request) const {
    return facility().folder / "scratch" / request.name;
  }

  Testbed testbed_;
  SystemClock clock_;
  std::shared_ptr<remote::Session> session_;
};

}  // namespace xffl::test
