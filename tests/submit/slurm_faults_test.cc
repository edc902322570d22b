// A real Slurm whose daemons stop, die and forget: what is in doubt is looked up, and every job
// trains once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <random>

#include "support/slurm_bed.h"
#include "xffl/base/error.h"

namespace xffl::submit {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::SlurmBed;
using testing::ElementsAre;
using testing::SizeIs;

#define NEED(bed) \
  if (!(bed).up()) GTEST_SKIP() << (bed).why_not()

std::optional<ErrorKind> kind_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.kind();
  }
  return std::nullopt;
}

// What a coordinator does about a submission (round/): in doubt, it looks twice, a settle time
// apart, adopts what it finds, else submits again under the same name.
class Coordinator {
 public:
  Coordinator(std::shared_ptr<Scheduler> scheduler, const JobRequest& request)
      : scheduler_(std::move(scheduler)), request_(request) {}

  void submit() {
    for (;;) {
      try {
        id = scheduler_->submit(request_, {});
        return;
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::kBusy) continue;  // no job exists
        if (error.kind() != ErrorKind::kRemote) throw;
        ++doubts;
        if (look_twice()) return;
      }
    }
  }

  /// Until its training is over. A controller that was killed forgets what it answered, and may
  /// take the end of a job of the same id for this one's: what is unknown, twice, or over without a
  /// training, is as if it had never been.
  void see_through(const std::function<bool()>& trained) {
    submit();
    const auto ends = std::chrono::steady_clock::now() + seconds(90);
    while (!trained() && std::chrono::steady_clock::now() < ends) {
      std::this_thread::sleep_for(milliseconds(300));
      try {
        const SubmittedJob job{id, request_.name};
        const JobState state = scheduler_->query(std::span(&job, 1), {}).at(id).state;
        if (state == JobState::kPending || state == JobState::kRunning) continue;
        if (state == JobState::kHeld) continue;
        std::this_thread::sleep_for(scheduler_->settle_time());
        if (trained()) return;
        ++lost;
        const JobId gone = id;
        if (!look_twice() || (state == JobState::kEnded && id == gone)) submit();
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kRemote) throw;
      }
    }
  }

  JobId id;
  int doubts = 0, lost = 0;
  bool adopted = false;

 private:
  bool look_twice() {
    for (int look = 0; look < 2;) {
      std::this_thread::sleep_for(scheduler_->settle_time());
      try {
        const auto ids = scheduler_->find(request_, {});
        ++look;
        if (ids.empty()) continue;
        id = ids.front();
        return adopted = true;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kRemote) throw;
      }
    }
    return false;
  }

  const std::shared_ptr<Scheduler> scheduler_;
  const JobRequest request_;
};

TEST(SlurmFaults, ControllerDownIsNoAnswerAndNoJobIsLost) {
  SlurmBed bed({"--slurm", "MessageTimeout=2"});
  NEED(bed);
  const auto scheduler = bed.scheduler();
  const JobRequest job = bed.request("job", "until [ -e finish ]; do sleep 0.1; done");
  const JobId id = scheduler->submit(job, {});
  ASSERT_EQ(bed.await(*scheduler, id, job, JobState::kRunning).state, JobState::kRunning);
  bed.facility().stop_daemon("slurmctld", "TERM");
  EXPECT_EQ(kind_of([&] { bed.status(*scheduler, id, job); }), ErrorKind::kRemote);
  EXPECT_EQ(kind_of([&] { scheduler->find(job, {}); }), ErrorKind::kRemote);
  const auto refused = kind_of([&] { scheduler->submit(bed.request("later"), {}); });
  EXPECT_TRUE(refused == ErrorKind::kBusy || refused == ErrorKind::kRemote);
  EXPECT_EQ(kind_of([&] { scheduler->cancel({id, job.name}, {}); }), ErrorKind::kRemote);
  bed.facility().start_daemon("slurmctld");
  ASSERT_TRUE(bed.await([&] { return !kind_of([&] { scheduler->find(job, {}); }); }, seconds(20)));
  EXPECT_EQ(bed.await(*scheduler, id, job, JobState::kRunning).state, JobState::kRunning);
  bed.touch(job, "finish");
  EXPECT_EQ(bed.await(*scheduler, id, job, JobState::kEnded).state, JobState::kEnded);
  EXPECT_THAT(bed.lines(job, "trainings"), SizeIs(1));
}

TEST(SlurmFaults, DeadMungeIsNoAnswer) {
  SlurmBed bed;
  NEED(bed);
  const auto scheduler = bed.scheduler();
  const JobRequest job = bed.request("job", "until [ -e finish ]; do sleep 0.1; done");
  const JobId id = scheduler->submit(job, {});
  ASSERT_EQ(bed.await(*scheduler, id, job, JobState::kRunning).state, JobState::kRunning);
  bed.facility().stop_daemon("munged");
  EXPECT_EQ(kind_of([&] { bed.status(*scheduler, id, job); }), ErrorKind::kRemote);
  const auto refused = kind_of([&] { scheduler->submit(bed.request("later"), {}); });
  EXPECT_TRUE(refused == ErrorKind::kBusy || refused == ErrorKind::kRemote);
  bed.facility().start_daemon("munged");
  bed.touch(job, "finish");
  EXPECT_EQ(bed.await(*scheduler, id, job, JobState::kEnded).state, JobState::kEnded);
  EXPECT_THAT(bed.lines(job, "trainings"), SizeIs(1));
}

// A controller that lost its state gives old ids to strangers.
TEST(SlurmFaults, AnIdThatAStrangerHasNowIsUnknown) {
  SlurmBed bed;
  NEED(bed);
  const auto scheduler = bed.scheduler();
  const JobRequest job = bed.request("job"), stranger = bed.request("stranger", "sleep 60");
  const JobId id = scheduler->submit(job, {});
  EXPECT_EQ(bed.await(*scheduler, id, job, JobState::kEnded).state, JobState::kEnded);
  bed.facility().stop_daemon("slurmctld", "KILL");
  bed.admin({"find", "/var/spool/slurmctld", "-type", "f", "-delete"});
  bed.facility().start_daemon("slurmctld");
  ASSERT_TRUE(bed.await([&] { return !kind_of([&] { scheduler->find(job, {}); }); }, seconds(20)));
  Coordinator other(scheduler, stranger);
  other.submit();
  ASSERT_EQ(other.id, id) << "the bed's controller did not lose its state";
  EXPECT_EQ(bed.status(*scheduler, id, job).state, JobState::kUnknown);
  EXPECT_TRUE(scheduler->find(job, {}).empty());
  // Who knows the id by its old name does not end the stranger's job.
  ASSERT_EQ(bed.await(*scheduler, id, stranger, JobState::kRunning).state, JobState::kRunning);
  scheduler->cancel({id, job.name}, {});
  EXPECT_EQ(bed.status(*scheduler, id, stranger).state, JobState::kRunning);
  scheduler->cancel({id, stranger.name}, {});
  EXPECT_EQ(bed.await(*scheduler, id, stranger, JobState::kCancelled).state, JobState::kCancelled);
}

// slurmctld stops in the middle of a submission, for longer than Slurm's commands wait, or is
// killed there. XFFL_CAMPAIGN is the number of submissions.
class Interrupted {
 public:
  explicit Interrupted(unsigned seed) : random_(seed) {}

  void run(SlurmBed& bed, int number, bool kill) {
    const auto scheduler = bed.scheduler();
    const JobRequest job = bed.request("trial-" + std::to_string(number), "sleep 0.2");
    const std::vector<pid_t> controller = bed.facility().pids("slurmctld");
    ASSERT_EQ(controller.size(), 1u);
    const auto before = milliseconds(random_() % 120), length = milliseconds(random_() % 5000);
    std::jthread fault([&] {
      std::this_thread::sleep_for(before);
      ::kill(controller[0], kill ? SIGKILL : SIGSTOP);
      std::this_thread::sleep_for(length);
      if (kill)
        bed.facility().start_daemon("slurmctld");
      else
        ::kill(controller[0], SIGCONT);
    });
    Coordinator coordinator(scheduler, job);
    coordinator.see_through([&] { return bed.exists(job, "trainings"); });
    fault.join();
    doubts += coordinator.doubts > 0;
    lost += coordinator.lost > 0;
    adopted += coordinator.adopted;
    ASSERT_TRUE(bed.exists(job, "trainings"))
        << "job " << coordinator.id.str() << " of trial " << number << " did not train";
    jobs.push_back(job);
  }

  void expect_one_training_each(const SlurmBed& bed) {
    std::this_thread::sleep_for(seconds(3));  // for a twin to start, if there is one
    for (const JobRequest& job : jobs) {
      EXPECT_THAT(bed.lines(job, "trainings"), SizeIs(1)) << job.name;
      starts += bed.lines(job, "starts").size();
    }
  }

  std::vector<JobRequest> jobs;
  int doubts = 0, lost = 0, adopted = 0;
  size_t starts = 0;

 private:
  std::mt19937 random_;
};

int from_environment(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

// A controller that was killed gives the id of a job that it forgot to another one. The node that
// still knows the first refuses it and is drained, until an administrator resumes it.
void resume_nodes(const SlurmBed& bed, std::stop_token stop) {
  while (!stop.stop_requested()) {
    bed.facility().exec_on_login({"scontrol", "update", "NodeName=alba[1-2]", "State=RESUME"});
    std::this_thread::sleep_for(seconds(3));
  }
}

void interrupt_submissions(bool kill, int trials) {
  SlurmBed bed({"--slurm", "MessageTimeout=2"});
  NEED(bed);
  bed.settings.settle_time = seconds(4);
  Interrupted interrupted(static_cast<unsigned>(from_environment("XFFL_CAMPAIGN_SEED", 7)));
  std::jthread administrator([&](std::stop_token stop) {
    if (kill) resume_nodes(bed, stop);
  });
  for (int i = 0; i < trials && !testing::Test::HasFatalFailure(); ++i)
    interrupted.run(bed, i, kill);
  interrupted.expect_one_training_each(bed);
  std::cout << trials << " submissions: " << interrupted.doubts << " in doubt, " << interrupted.lost
            << " lost after their answer, " << interrupted.adopted << " adopted, "
            << interrupted.starts << " starts, " << interrupted.jobs.size() << " trainings\n";
}

TEST(SlurmFaults, SubmissionsWithTheControllerStopped) {
  interrupt_submissions(false, from_environment("XFFL_CAMPAIGN", 4));
}

TEST(SlurmFaults, SubmissionsWithTheControllerKilled) {
  interrupt_submissions(true, from_environment("XFFL_CAMPAIGN", 2));
}

}  // namespace
}  // namespace xffl::submit
