// Test fixture: a facility with a real Slurm, whose jobs run the shipped template.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "support/await.h"
#include "support/testbed_ssh.h"
#include "xffl/base/clock.h"
#include "xffl/facility/job_script.h"
#include "xffl/facility/services.h"
#include "xffl/remote/ssh.h"
#include "xffl/submit/slurm.h"

namespace xffl::submit {

using std::chrono::milliseconds;

// A trainer that records its arguments, waits for the file `finish`, and stops on SIGUSR1.
inline constexpr const char* kTrainer = R"sh(#!/bin/bash
warned() { echo "rank $SLURM_PROCID warned" >>ranks.txt; [ "$SLURM_PROCID" != 0 ] || echo warned >out/report.json; exit 0; }
trap warned USR1
echo "rank $SLURM_PROCID of $SLURM_NTASKS on $MASTER_ADDR:$MASTER_PORT tag $TAG gpus $CUDA_VISIBLE_DEVICES args $*" >>ranks.txt
echo "start ${SLURM_RESTART_COUNT:-0}" >>out/begun
until [ -e finish ]; do sleep 0.1; done
[ "$SLURM_PROCID" != 0 ] || echo done >out/report.json
)sh";

class SlurmTestbed : public testing::Test {
 protected:
  void start(const std::vector<std::string>& flavours = {}) {
    testbed_ = std::make_unique<test::Testbed>(std::vector<std::string>{"alba"}, flavours);
    if (!testbed_->up()) return;
    alba_ = &testbed_->facility("alba");
    session_ = remote::make_ssh_session(test::ssh_settings(*alba_));
    facility_.name = FacilityName("alba");
    facility_.scheduler = submit::QueueSettings("slurm");
    facility_.workdir = RemotePath(alba_->scratch);
    facility_.trainer_command = {"bash", alba_->scratch + "/trainer.sh"};
    facility_.environment = {"export TAG='it'\\''s'"};
    slurm().nodes = 2;
    slurm().tasks_per_node = slurm().gpus_per_node = 1;
    slurm().warning = std::chrono::seconds(60);
    facility_.world_size = 2;
    remote::write_text_atomic(*session_, RemotePath(alba_->scratch + "/trainer.sh"), kTrainer);
    scheduler_ = coordinator();
  }
  std::shared_ptr<Scheduler> coordinator() {
    SlurmSettings settings = slurm();
    settings.command_timeout = milliseconds(30000);
    return make_slurm_scheduler(settings, session_, clock_);
  }

  JobRequest request(int attempt = 1) {
    job::JobSpec spec;
    spec.key = {"demo", "0001", 1, "alba", attempt, std::string(32, 'a')};
    const RemotePath folder(alba_->scratch + "/a" + std::to_string(attempt));
    session_->make_dirs(folder / "out");
    return {.name = spec.key.name(),
            .script = facility::job_script(facility_, spec, spec.key.name(), folder,
                                           {"/x/xffl", "/x/xffl-train"}),
            .folder = folder};
  }
  std::string text(const RemotePath& path) {
    return session_->stat(path) ? remote::read_text(*session_, path, 1 << 20) : std::string();
  }
  std::string output(const JobRequest& request) { return text(request.folder / "job.out"); }
  JobStatus status(const JobRequest& request, const JobId& id) {
    const SubmittedJob job{id, request.name};
    return scheduler_->query(std::span(&job, 1), {}).at(id);
  }
  static bool await(const std::function<bool()>& condition, int seconds = 60) {
    return test::await(condition, std::chrono::seconds(seconds));
  }
  bool await_state(const JobRequest& request, const JobId& id, JobState state, int seconds = 60) {
    return await([&] { return status(request, id).state == state; }, seconds);
  }
  bool await_ranks(const JobRequest& request, int count = 2) {
    return await([&] {
      const std::string ranks = text(request.folder / "ranks.txt");
      return std::count(ranks.begin(), ranks.end(), '\n') >= count;
    });
  }
  void finish(const JobRequest& request) {
    remote::write_text_atomic(*session_, request.folder / "finish", "");
  }

  SlurmSettings& slurm() { return facility_.scheduler.as<SlurmSettings>(); }

  std::unique_ptr<test::Testbed> testbed_;
  const test::Facility* alba_ = nullptr;
  std::shared_ptr<remote::Session> session_;
  SystemClock clock_;
  config::Facility facility_;
  std::shared_ptr<Scheduler> scheduler_;
};

#define START_TESTBED(...) \
  start(__VA_ARGS__);      \
  if (!testbed_->up()) GTEST_SKIP() << testbed_->why_not()

}  // namespace xffl::submit
