// A facility of the bed with xffl's scheduler on it, for tests of what Slurm can do to a job.
#pragma once

#include <fstream>
#include <functional>
#include <thread>

#include "support/bed_ssh.h"
#include "xffl/base/clock.h"
#include "xffl/submit/slurm.h"

namespace xffl::test {

class SlurmBed {
 public:
  explicit SlurmBed(const std::vector<std::string>& flavours = {}) : bed_({"alba"}, flavours) {
    if (bed_.up()) session_ = remote::make_ssh_session(ssh_settings(facility()));
    settings.settle_time = std::chrono::seconds(1);
    settings.request.time = std::chrono::minutes(5);
    settings.request.warning = std::chrono::seconds(0);
  }

  bool up() const { return bed_.up(); }
  const std::string& why_not() const { return bed_.why_not(); }
  const Facility& facility() const { return bed_.facility("alba"); }

  /// A coordinator's scheduler with `settings` as they are now.
  std::shared_ptr<submit::Scheduler> scheduler() {
    return submit::make_slurm_scheduler(settings, session_, clock_);
  }

  /// A job with the protocol of docs/operator/slurm.md: every start is noted in "starts", the first
  /// one claims, works (`work`, in its folder) and notes itself in "trainings".
  submit::JobRequest request(const std::string& short_name, const std::string& work = "sleep 1") {
    const std::string name = "xffl-" + short_name;  // as all jobs of xffl
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

  /// Running, for Slurm, is a job whose script has yet to begin.
  bool await_start(const submit::JobRequest& request) const {
    return await([&] { return exists(request, "claim/owner"); });
  }
  bool exists(const submit::JobRequest& request, const std::string& file) const {
    return std::filesystem::exists(here(request) / file);
  }
  /// Lines of a file of the job's folder; none when it is not there.
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
  /// The last status seen: the first one that `wanted` takes, or that after `patience`.
  static submit::JobStatus await(submit::Scheduler& scheduler, const JobId& id,
                                 const submit::JobRequest& request, submit::JobState wanted,
                                 std::chrono::seconds patience = std::chrono::seconds(40)) {
    const auto ends = std::chrono::steady_clock::now() + patience;
    submit::JobStatus last = status(scheduler, id, request);
    while (last.state != wanted && std::chrono::steady_clock::now() < ends) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      last = status(scheduler, id, request);
    }
    return last;
  }
  static bool await(const std::function<bool()>& what,
                    std::chrono::seconds patience = std::chrono::seconds(40)) {
    const auto ends = std::chrono::steady_clock::now() + patience;
    while (!what() && std::chrono::steady_clock::now() < ends)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return what();
  }
  /// Runs a command of an administrator.
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

  Bed bed_;
  SystemClock clock_;
  std::shared_ptr<remote::Session> session_;
};

}  // namespace xffl::test
