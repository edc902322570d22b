// Promises of a whole run, on federations in this process.
#include "small_federation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include "run_parts.h"
#include "support/await.h"
#include "support/failing_call.h"
#include "support/faulty_session.h"
#include "support/forwarding_scheduler.h"
#include "support/thrown.h"
#include "xffl/facility/driver.h"
#include "xffl/remote/stop_scope.h"
#include "xffl/run/log_in.h"

namespace xffl::run {
namespace {

namespace fs = std::filesystem;
using std::chrono::hours;
using std::chrono::minutes;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const std::string kLora =
    "training: {steps_per_round: 4, batch_size: 2, micro_batch_size: 2, lora: {rank: 2, alpha: 4, "
    "target_modules: [q_proj]}}\n";

// A user's job templates for Slurm; the third line of the second one names no value.
const std::string kOwnTemplate =
    "#!/bin/bash\n{{sbatch options}}\ncd {{quote folder}} # {{nonce}}\n{{words launch}}\n";
const std::string kWrongTemplate = "#!/bin/bash\n{{sbatch options}}\n# {{acount}}\n";

class Federation : public test::SmallFederation {
 protected:
  history::RunState state() const {
    return history::replay(history::read_events(run_folder().journal()));
  }
  std::string failure_of(const std::string& sections) {
    return test::message_of(ErrorKind::kFailed, [&] { run(sections); });
  }
  // The report is about the changed files of the update.
  static void report_files(const fs::path& update, job::JobReport& report) {
    fs::remove(update / "manifest.json");
    checkpoint::write_manifest(update);
    report.update_sha256 = checkpoint::read_manifest(update).root_sha256();
  }
  // Damages the coordinator's file.
  void damage_accepted_update(const std::string& facility) const {
    const fs::path stored = run_folder().facility(1, FacilityName(facility)) / "update";
    std::fstream(stored / "model.safetensors", std::ios::in | std::ios::out)
        .seekp(-3, std::ios::end)
        .put(0x7f);
  }
  // brno leaves with its job in the queue.
  void let_brno_leave_at_once() {
    on_submit_ = [this](const job::JobSpec& spec) {
      if (spec.key.facility != "brno") return;
      history::leave_request(
          run_folder(), {history::Request::Kind::kLeave, {FacilityName("brno")}, "spent", true});
      EXPECT_TRUE(test::await([&] { return history::pending_requests(run_folder()).empty(); }));
    };
  }
  static void flip_byte(const fs::path& file) {
    const auto at = static_cast<std::streamoff>(fs::file_size(file) / 2);
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    const int byte = stream.seekg(at).get();
    stream.seekp(at).put(static_cast<char>(byte ^ 1));
  }
  // The second of two rounds gets its model as differences; each job unpacks its model.
  config::Experiment with_packed_models() {
    write_model(20'000);
    config::Experiment parsed = experiment("policy: {evaluate_last: false}\n", 2);
    for (config::Facility& facility : parsed.facilities) {
      facility.access = config::AccessKind::kSsh;  // the sessions stay local
      facility.transfer.pack = config::PackModels::kAlways;
    }
    on_submit_ = [this](const job::JobSpec& spec) {
      if (spec.base_model_packed)
        fs::copy(run_folder().global(1), spec.base_model_path, fs::copy_options::recursive);
    };
    return parsed;
  }
  // A run that fails because of brno. alba's second attempt is accepted, and its update is damaged
  // here.
  void fail_after_a_second_attempt_of_alba(const std::string& policy);
  // A job that finds its model damaged says so; the next attempt compares the model's bytes.
  void expect_repaired_model(const std::string& training);
  // Runs until alba's update is here; brno's job runs on.
  void stop_with_the_update_of_alba(const std::string& policy);
  // brno's part of a round begins when alba's update of the first round is here: alba's work takes
  // real time, and the deadline does not wait for it.
  void let_brno_begin_after_alba();
  // A user's command without a coordinator.
  void act(const history::Request& request, const std::string& sections, int rounds = 1) {
    facility::Services made = services();
    operate(experiment(sections, rounds), run_folder(), made, request, std::chrono::seconds(1));
  }
  void cancel(const std::string& sections, int rounds = 1) {
    act({history::Request::Kind::kCancel, {}, "enough"}, sections, rounds);
  }
  facility::StagedScript stage(const history::RunFolder& folder) {
    facility::Services made = services();
    return stage_job(experiment(""), folder, made, FacilityName("alba"), {});
  }
  // brno's job script has a template of its own.
  config::Experiment with_own_template(const std::string& sections) {
    facility_keys_ = "scheduler: slurm, slurm: {time: 1h}, ";
    write_file_atomic(own_template(), kOwnTemplate);
    config::Experiment parsed = experiment(sections);
    parsed.facilities.at(1).template_file = own_template();
    return parsed;
  }
  fs::path own_template() const { return folder_ / "own.sbatch"; }
  // A user restores brno's template an hour from now.
  void restore_template_after_an_hour() {
    const auto restored = std::make_shared<std::atomic<bool>>(false);
    clock_.on_sleep = [this, restored, until = clock_.elapsed() + hours(1)] {
      if (clock_.elapsed() > until && !restored->exchange(true))
        write_file_atomic(own_template(), kOwnTemplate);
    };
  }
};

TEST_F(Federation, CurrentIsTheLastModel) {
  run("policy: {evaluate_last: false}\n", 2);
  EXPECT_EQ(fs::canonical(run_folder().current()), fs::canonical(run_folder().global(2)));
  EXPECT_EQ(weight(run_folder().current(), 0), 1.0f) << "two rounds of 0.5";
  for (const char* name : {"alba", "brno"})
    EXPECT_EQ(jobs_of(name).at(1).training.first_step, 4) << "the steps of round 1 came before";
}

// A new run in the same folder would replace the models.
TEST_F(Federation, ARunWithoutItsJournalIsNotStartedAgain) {
  const std::string policy = "policy: {evaluate_last: false}\n";
  run(policy);
  for (const char* name : {"journal.db", "journal.db-wal", "journal.db-shm", "journal.jsonl"})
    fs::remove(run_folder().path() / name);
  const auto refusal = [&] {
    return test::message_of(ErrorKind::kCorrupt, [&] { run(policy, 2); });
  };
  EXPECT_THAT(refusal(), HasSubstr(run_folder().current().string()));
  EXPECT_THAT(refusal(), HasSubstr("xffl run --new")) << "the journal is here, and empty";
  EXPECT_TRUE(history::read_events(run_folder().journal()).empty());
  EXPECT_EQ(master_weight(0), 0.5f);
  EXPECT_EQ(jobs_of("alba").size(), 1u);
  fs::remove(run_folder().current());  // as of a run that was killed in its first round
  EXPECT_THAT(refusal(), HasSubstr("r0000"));
}

// Nonces are derived from the secret, and other users of a facility see the names of jobs.
TEST_F(Federation, NoDigitsOfTheSecretAreInNamesAtAFacility) {
  run("policy: {evaluate_last: false}\n");
  ASSERT_TRUE(state().identity);
  EXPECT_EQ(state().identity->tag.size(), 8u);
  const job::JobSpec job = jobs_of("alba").at(0);
  EXPECT_THAT(job.report_path, HasSubstr("0001-" + state().identity->tag + "/alba/"));
  EXPECT_THAT(job.report_path, Not(HasSubstr(state().identity->secret.substr(0, 8))));
}

// The threads for removals begin after the second round.
TEST_F(Federation, ARefusedThreadEndsTheRunWithAnError) {
  constexpr int kSkipped = 77;
  const int code = test::in_child([&] {
    observer_.on_round = [](int round, const auto&, double) {
      if (round == 2 && !test::fail_calls(SYS_clone3, EAGAIN)) ::_exit(kSkipped);
    };
    try {
      run("policy: {keep_rounds: 1, evaluate_last: false}\n", 3);
      return 0;
    } catch (const Error& error) {
      return exit_code(error.kind());
    }
  });
  if (code == kSkipped) GTEST_SKIP() << "no system call filters here";
  EXPECT_EQ(code, exit_code(ErrorKind::kIo));
}

// The threads are those that watch the limits of actions.
TEST_F(Federation, RefusedThreadsCostAFacilityItsRoundOnly) {
  constexpr int kSkipped = 77;
  for (const bool from_the_beginning : {true, false}) {
    fs::remove_all(folder_ / "runs");
    const int code = test::in_child([&] {
      const auto refuse = [](const std::string& facility) {
        if (facility == "brno" && !test::fail_calls(SYS_clone3, EAGAIN)) ::_exit(kSkipped);
      };
      if (from_the_beginning)
        on_begin_ = refuse;
      else
        on_submit_ = [&](const job::JobSpec& spec) { refuse(spec.key.facility); };
      trainings_["brno"].duration = hours(1);
      const run::Outcome outcome =
          run("policy: {on_missing: skip, quorum: 1, quorum_grace: 2h, poll_interval: 1m, "
              "evaluate_last: false}\n");
      if (outcome.rounds_published != 1) return 1;
      const auto events = history::read_events(run_folder().journal());
      const bool is_told = std::any_of(events.begin(), events.end(), [&](const auto& event) {
        return event.kind == "facility_missing" && event.facility == "brno" &&
               (from_the_beginning ||  // the facility has no action yet
                event.payload.find("cannot start a thread") != std::string::npos);
      });
      return is_told ? 0 : 2;
    });
    if (code == kSkipped) GTEST_SKIP() << "no system call filters here";
    EXPECT_EQ(code, 0) << from_the_beginning;
  }
}

TEST_F(Federation, TheFileOfAJobHasThePathsOfComputeNodes) {
  facility_keys_ = "scheduler: slurm, slurm: {time: 1h}, compute_mounts: ['/data:/nodes', '" +
                   folder_.path().string() + "'], ";
  EXPECT_EQ(run("policy: {evaluate_last: false}\n").rounds_published, 1);
  EXPECT_THAT(jobs_of("alba").at(0).train_paths, ElementsAre("/nodes/x.tokens"));
}

// A site with data movers forbids large transfers on its login nodes.
TEST_F(Federation, ModelsAndUpdatesPassThroughTheHostsForTransfers) {
  write_model(300'000);  // small files pass through the login node
  const auto local = remote::make_local_session();
  const auto movers = std::make_shared<test::FaultySession>(*local);
  facility::Services made = services();
  made.connect_transfer = [&](const config::Facility&) { return movers; };
  run_federation(experiment("policy: {evaluate_last: false}\n"), run_folder(), made,
                 stop_.get_token(), observer_);
  EXPECT_GT(movers->calls("write"), 0) << "the model";
  EXPECT_GT(movers->calls("download"), 0) << "the updates";
}

// A job would wait in the queue, and then find nothing to train on.
TEST_F(Federation, AFacilityWithoutItsPreparedTextGetsNoJob) {
  config::Experiment parsed = experiment(
      "policy: {on_missing: skip, quorum: 1, deadline: 1000h, max_outage: 3h, poll_interval: 1m, "
      "evaluate_last: false}\n");
  parsed.facilities.at(1).prepared = RemotePath((folder_ / "text").string());
  EXPECT_EQ(run(parsed).rounds_published, 1);
  EXPECT_THAT(jobs_of("brno"), testing::IsEmpty());
  EXPECT_THAT(state().rounds.at(1).facilities.at(FacilityName("brno")).missing.value_or(""),
              HasSubstr("not tokenized yet: xffl prepare brno"));
}

TEST_F(Federation, AReportOfAnotherAttemptIsRejected) {
  change_report_ = [](const job::JobSpec&, job::JobReport& report) {
    if (report.key.facility == "brno") report.key.nonce = std::string(32, '0');
  };
  EXPECT_THAT(failure_of(""), HasSubstr("key.nonce"));
}

// The headers of a facility's shards may claim any length.
TEST_F(Federation, NoSequenceIsLongerThanTheModelTakes) {
  std::string header(64, '\0');
  header.replace(0, 8, "XFFLTOK1");
  header[24] = 100;  // sequence_length; the model takes 64 tokens
  write_file_atomic(folder_ / "long.tokens", header);
  trainings_["alba"].tokens = 8 * 64 + 1;
  config::Experiment parsed =
      experiment("policy: {on_missing: skip, quorum: 1, evaluate_last: false}\n");
  for (const int64_t of_the_settings : {0, 100}) {
    for (config::Facility& facility : parsed.facilities) {
      facility.train_data = {(folder_ / "long.tokens").string()};
      facility.sequence_length = of_the_settings;
    }
    fs::remove_all(run_folder().path());
    EXPECT_EQ(run(parsed).rounds_published, 1);
    EXPECT_THAT(state().rounds.at(1).participant_names(), ElementsAre("brno"));
  }
}

TEST_F(Federation, AnUpdateOfManyBytesIsNotFetched) {
  change_report_ = [](const job::JobSpec& spec, job::JobReport& report) {
    const fs::path update = spec.update_path;
    std::ofstream(update / "extra.bin").put(0);
    fs::resize_file(update / "extra.bin", 65u << 20);
    report_files(update, report);
  };
  EXPECT_THAT(failure_of(""), HasSubstr("bytes of files; the limit is"));
}

TEST_F(Federation, AnUpdateThatIsNoModelIsRejected) {
  change_report_ = [](const job::JobSpec& spec, job::JobReport& report) {
    write_file_atomic(fs::path(spec.update_path) / "model.safetensors", "no tensors");
    report_files(spec.update_path, report);
  };
  EXPECT_THAT(failure_of(""), HasSubstr("its update was rejected"));
}

// The mean with brno's update would exceed the largest fp16 number.
TEST_F(Federation, AnUpdateOutOfTheRangeOfThePublishedTypeCostsItsFacilityTheRoundOnly) {
  trainings_["alba"].step = 200'000;
  EXPECT_EQ(run("aggregation: {publish_dtype: fp16}\n"
                "policy: {max_change: 0, on_missing: skip, quorum: 1, evaluate_last: false}\n")
                .rounds_published,
            1);
  EXPECT_THAT(state().rounds.at(1).participant_names(), ElementsAre("brno"));
  EXPECT_THAT(state().rounds.at(1).facilities.at(FacilityName("alba")).missing.value_or(""),
              HasSubstr("out of the range of F16"));
}

TEST_F(Federation, AClosedAttemptIsFenced) {
  ends_["brno"] = {.state = submit::JobState::kEnded};
  failure_of("policy: {max_attempts: 2}\n");
  ASSERT_EQ(jobs_of("brno").size(), 2u);
  for (const job::JobSpec& job : jobs_of("brno"))
    EXPECT_TRUE(fs::exists(fs::path(job.report_path).parent_path().parent_path() / plan::kFence));
  EXPECT_NE(jobs_of("brno")[0].key.nonce, jobs_of("brno")[1].key.nonce);
}

TEST_F(Federation, TheReasonOfAStopHoldsNoSecret) {
  rejected_["brno"] = "the password=correct-horse-battery is wrong";
  EXPECT_THAT(failure_of(""), HasSubstr("is wrong"));
  ASSERT_TRUE(state().stopped);
  EXPECT_THAT(state().stopped->reason, HasSubstr("is wrong"));
  EXPECT_THAT(state().stopped->reason, Not(HasSubstr("battery")));
}

// Also where the reason is cut: half a token is no longer recognized as one.
TEST_F(Federation, TheLongReasonOfAStopHoldsNoPartOfASecret) {
  std::string reason = "no";
  for (int i = 0; i < 500; ++i) reason += " hf_" + std::string(20, 'a');
  observer_.on_round = [&](int, const auto&, double) { throw Error(ErrorKind::kIo, reason); };
  EXPECT_EQ(test::kind_of([&] { run(""); }), ErrorKind::kIo);
  ASSERT_TRUE(state().stopped);
  EXPECT_THAT(state().stopped->reason, HasSubstr("no [removed] [removed]"));
  EXPECT_THAT(state().stopped->reason, Not(HasSubstr("hf_")));
}

// The import of the model fails ahead of the first round. A killed coordinator would show the
// reason of the stop before.
TEST_F(Federation, TheReasonOfAStopEndsWithTheNextStart) {
  const std::string policy = "policy: {evaluate_last: false}\n";
  fs::rename(folder_ / "model", folder_ / "moved");
  EXPECT_THROW(run(policy), Error);
  EXPECT_TRUE(state().stopped);
  EXPECT_TRUE(state().rounds.empty());
  fs::rename(folder_ / "moved", folder_ / "model");
  bool stays = false;
  on_submit_ = [&](const job::JobSpec&) { stays = stays || state().stopped; };
  EXPECT_EQ(run(policy).rounds_published, 1);
  EXPECT_FALSE(stays);
}

TEST_F(Federation, ADamagedAcceptedUpdateIsFetchedAgain) {
  rejected_["brno"] = "not now";
  failure_of("");
  damage_accepted_update("alba");
  rejected_.clear();
  EXPECT_EQ(run("").rounds_published, 1);
  for (size_t index = 0; index < 8; ++index)
    EXPECT_EQ(master_weight(index), static_cast<float>(index) / 8 + 0.5f);
  EXPECT_EQ(jobs_of("alba").size(), 1u) << "alba still has the update";
}

// The mean expects the update on record; alba's folder has that of another training by now.
TEST_F(Federation, AnotherUpdateTakesNoPlaceOfAnAcceptedOne) {
  rejected_["brno"] = "not now";
  failure_of("");
  damage_accepted_update("alba");
  rejected_.clear();
  const job::JobSpec job = jobs_of("alba").at(0);
  fs::remove_all(job.update_path);
  trainings_["alba"].step = 0.25f;
  train(job);
  EXPECT_EQ(run("").rounds_published, 1);
  EXPECT_EQ(jobs_of("alba").size(), 2u) << "alba trains again";
}

void Federation::fail_after_a_second_attempt_of_alba(const std::string& policy) {
  rejected_["brno"] = "not now";
  on_submit_ = [this](const job::JobSpec& spec) {
    if (spec.key.attempt == 1) ends_["alba"] = {};
    if (spec.key.attempt == 2) ends_.erase("alba");
  };
  failure_of(policy);
  on_submit_ = {};
  rejected_.clear();
  ASSERT_EQ(jobs_of("alba").size(), 2u);
  damage_accepted_update("alba");
}

// The facility has no report of the first attempt.
TEST_F(Federation, ADamagedUpdateOfASecondAttemptIsFetchedAgain) {
  const std::string policy = "policy: {max_attempts: 2, evaluate_last: false}\n";
  ASSERT_NO_FATAL_FAILURE(fail_after_a_second_attempt_of_alba(policy));
  const auto local = remote::make_local_session();
  const auto session = std::make_shared<test::FaultySession>(*local);
  bool has_dropped = false;
  session->after_stat = [&](const RemotePath& path) {
    if (path.str().ends_with("/update/manifest.json") && !std::exchange(has_dropped, true))
      throw Error(ErrorKind::kRemote, "the link dropped");
  };
  sessions_["alba"] = session;
  EXPECT_EQ(run(policy).rounds_published, 1);
  EXPECT_TRUE(has_dropped) << "the test tells nothing";
  EXPECT_EQ(jobs_of("alba").size(), 2u) << "alba still has the update";
}

TEST_F(Federation, ALostUpdateOfASecondAttemptIsTrainedAgain) {
  const std::string policy = "policy: {max_attempts: 2, evaluate_last: false}\n";
  ASSERT_NO_FATAL_FAILURE(fail_after_a_second_attempt_of_alba(policy));
  fs::remove(jobs_of("alba").at(1).report_path);
  EXPECT_EQ(run(policy).rounds_published, 1);
  ASSERT_EQ(jobs_of("alba").size(), 3u);
  EXPECT_EQ(jobs_of("alba").back().key.attempt, 3);
}

TEST_F(Federation, AnAcceptedUpdateIsFetchedAgainUnderALowerMaxChange) {
  rejected_["brno"] = "not now";
  failure_of("");
  damage_accepted_update("alba");
  EXPECT_EQ(run("policy: {on_missing: skip, quorum: 1, deadline: 20d, max_change: 0.1, "
                "evaluate_last: false}\n")
                .rounds_published,
            1);
  EXPECT_EQ(jobs_of("alba").size(), 1u) << "the limit of its acceptance counts";
}

TEST_F(Federation, AnAcceptedUpdateIsFetchedAgainUnderShorterSequences) {
  trainings_["alba"].tokens = 8 * 64;
  rejected_["brno"] = "not now";
  failure_of("");
  damage_accepted_update("alba");
  rejected_.clear();
  config::Experiment shorter = experiment("");
  for (config::Facility& facility : shorter.facilities) facility.sequence_length = 2;
  EXPECT_EQ(run(shorter).rounds_published, 1);
  EXPECT_EQ(jobs_of("alba").size(), 1u) << "the limit of its acceptance counts";
}

// alba is down for longer than policy.max_outage.
TEST_F(Federation, ADamagedUpdateOfAnAbsentFacilityEndsNoRun) {
  rejected_["brno"] = "not now";
  failure_of("");
  damage_accepted_update("alba");
  rejected_.clear();
  sessions_["alba"] = std::make_shared<test::DeadSession>();
  EXPECT_EQ(run("policy: {on_missing: skip, quorum: 1, max_outage: 3h, poll_interval: 1m, "
                "evaluate_last: false}\n")
                .rounds_published,
            1);
  EXPECT_THAT(state().rounds.at(1).participant_names(), ElementsAre("brno"));
}

TEST_F(Federation, AFailedRoundCancelsTheOtherJobs) {
  std::vector<std::string> cancelled;
  on_cancel_ = [&](const std::string& facility) {
    cancelled.push_back(facility);
    return true;
  };
  trainings_["alba"].duration = hours(1000);
  trainings_["brno"] = {.duration = minutes(1), .after_job_of = "alba"};
  ends_["brno"] = {.state = submit::JobState::kEnded};
  failure_of("policy: {on_missing: fail, max_attempts: 1, poll_interval: 1m}\n");
  EXPECT_THAT(cancelled, ElementsAre("alba"));
}

// alba trains when brno's update is here.
TEST_F(Federation, AFailedRoundCostsNoAttemptAtTheOtherFacilities) {
  const std::string policy =
      "policy: {on_missing: fail, max_attempts: 1, poll_interval: 1m, evaluate_last: false}\n";
  trainings_["alba"] = {.duration = minutes(1), .after = "brno"};
  trainings_["brno"] = {.duration = minutes(1), .after_job_of = "alba"};
  ends_["brno"] = {.state = submit::JobState::kEnded};
  failure_of(policy);
  ASSERT_EQ(jobs_of("alba").size(), 1u);
  ends_.clear();
  act({history::Request::Kind::kResume, {FacilityName("brno")}, ""}, policy);
  EXPECT_EQ(run(policy).rounds_published, 1);
  EXPECT_EQ(jobs_of("alba").size(), 2u);
}

// alba's job reports right after the last look at it; the next run fetches the update.
TEST_F(Federation, AFailedRoundDoesNotCancelAJobThatHasReported) {
  job::JobSpec of_alba;
  bool reports = false;
  std::atomic<bool> looks = false, cancels = false;
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.key.facility != "alba") return;
    of_alba = spec;
    reports = true;
  };
  const auto local = remote::make_local_session();
  const auto session = std::make_shared<test::FaultySession>(*local);
  session->after_stat = [&](const RemotePath& path) {
    if (!path.str().ends_with(plan::kReportFile) || !std::exchange(reports, false)) return;
    looks = true;
    const std::stop_token stop = remote::StopScope::current();
    EXPECT_TRUE(test::await([&] { return stop.stop_requested(); }));
    train(of_alba);
  };
  sessions_["alba"] = session;
  trainings_["alba"].duration = hours(100'000);
  ends_["brno"] = {.state = submit::JobState::kEnded};
  on_begin_ = [&](const std::string& facility) {
    if (facility != "brno") return;
    EXPECT_TRUE(test::await([&] { return looks.load(); }));
  };
  on_cancel_ = [&](const std::string&) { return cancels = true; };
  failure_of("policy: {on_missing: fail, max_attempts: 1, poll_interval: 1m}\n");
  EXPECT_TRUE(fs::exists(of_alba.report_path)) << "the test tells nothing";
  EXPECT_FALSE(cancels);
}

// This machine cannot begin brno's part of the round. alba's job would hide the error for weeks.
TEST_F(Federation, AnErrorAtOneFacilityEndsTheWaitForTheOthers) {
  std::atomic<bool> is_submitted = false;
  trainings_["alba"].duration = hours(1000);
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.key.facility != "alba") return;
    is_submitted = true;
    const std::stop_token stop = remote::StopScope::current();
    EXPECT_TRUE(test::await([&] { return stop.stop_requested(); }, std::chrono::seconds(30)));
  };
  on_begin_ = [&](const std::string& facility) {
    if (facility != "brno") return;
    EXPECT_TRUE(test::await([&] { return is_submitted.load(); }));
    throw Error(ErrorKind::kUnsupported, "this build lacks the queue manager");
  };
  EXPECT_EQ(test::kind_of([&] { run("policy: {poll_interval: 1h}\n"); }), ErrorKind::kUnsupported);
}

void Federation::expect_repaired_model(const std::string& training) {
  std::string model, repaired;
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.key.facility != "alba") return;
    const fs::path weights = fs::path(spec.base_model_path) / "model.safetensors";
    if (spec.key.attempt == 1) {
      model = read_file(weights, 1 << 20);
      std::fstream(weights, std::ios::in | std::ios::out).seekp(-3, std::ios::end).put('!');
      EXPECT_NE(read_file(weights, 1 << 20), model);
      job::report_model_failure(spec.model_failure_path(), "a file is damaged");
      ends_["alba"] = {};
    } else {
      repaired = read_file(weights, 1 << 20);
      ends_.erase("alba");
    }
  };
  run(training + "policy: {max_attempts: 2, evaluate_last: false}\n");
  EXPECT_EQ(jobs_of("alba").size(), 2u);
  EXPECT_EQ(repaired, model);
}

TEST_F(Federation, AModelThatAJobFindsDamagedIsRepaired) { expect_repaired_model(""); }

TEST_F(Federation, WithLoraTheModelUnderTheAdapterIsRepaired) { expect_repaired_model(kLora); }

// The link drops as the next attempt compares the model, which the facility has not mended yet.
TEST_F(Federation, AModelIsRepairedAfterALinkThatDropped) {
  const auto local = remote::make_local_session();
  const auto session = std::make_shared<test::FaultySession>(*local);
  bool complains = false, has_dropped = false;
  session->after_stat = [&](const RemotePath& path) {
    if (path.str().ends_with(plan::kModelFailure)) complains = complains || fs::exists(path.str());
    if (!complains || path.str().find("/models/") == std::string::npos) return;
    if (!std::exchange(has_dropped, true)) throw Error(ErrorKind::kRemote, "the link dropped");
  };
  sessions_["alba"] = session;
  expect_repaired_model("");
  EXPECT_TRUE(has_dropped) << "the test tells nothing";
}

// A job could not unpack differences to another model than its facility holds.
TEST_F(Federation, ADamagedReferenceIsMadeAgainBeforeAModelIsPacked) {
  const config::Experiment parsed = with_packed_models();
  const fs::path reference = run_folder().global(0) / "model.safetensors";
  std::string whole;
  observer_.on_round = [&](int round, const auto&, double) {
    if (round != 1) return;
    whole = read_file(reference, 1 << 20);
    flip_byte(reference);
    EXPECT_NE(read_file(reference, 1 << 20), whole);
  };
  EXPECT_EQ(run(parsed).rounds_published, 2);
  EXPECT_TRUE(jobs_of("alba").at(1).base_model_packed) << "the test tells nothing";
  EXPECT_EQ(read_file(reference, 1 << 20), whole);
}

// The error of a model that is damaged on this machine would end the run.
TEST_F(Federation, AFacilityGetsTheWholeModelWhenThePackedOneIsDamagedHere) {
  const config::Experiment parsed = with_packed_models();
  const auto local = remote::make_local_session();
  const auto session = std::make_shared<test::FaultySession>(*local);
  bool is_damaged = false;
  session->after_stat = [&](const RemotePath& path) {
    if (!path.parent().filename().starts_with("packed-") || std::exchange(is_damaged, true)) return;
    for (const auto& entry : fs::directory_iterator(run_folder().round(1))) {
      if (!entry.is_directory() || !entry.path().filename().string().starts_with("global.packed"))
        continue;
      for (const auto& file : fs::directory_iterator(entry.path())) flip_byte(file.path());
    }
  };
  sessions_["alba"] = session;
  EXPECT_EQ(run(parsed).rounds_published, 2);
  EXPECT_TRUE(is_damaged) << "the test tells nothing";
  ASSERT_EQ(jobs_of("alba").size(), 2u);
  EXPECT_FALSE(jobs_of("alba")[1].base_model_packed);
}

// Jobs wait in the queues of sites that remove files which nobody has read for 80 days. They would
// start without their models.
TEST_F(Federation, APurgedModelIsBackBeforeTheWaitingJobStarts) {
  facility_keys_ = "purge_after: 80d, ";
  trainings_["alba"] = {.duration = hours(24 * 60), .state = submit::JobState::kHeld};
  trainings_["brno"] = {.duration = hours(24 * 60), .state = submit::JobState::kPending};
  std::mutex mutex;
  std::map<std::string, fs::path> models;  // by facility
  std::set<std::string> removed, back;
  on_submit_ = [&](const job::JobSpec& spec) {
    const std::lock_guard lock(mutex);
    models[spec.key.facility] = fs::path(spec.base_model_path) / "model.safetensors";
  };
  clock_.on_sleep = [&] {
    const std::lock_guard lock(mutex);
    for (const auto& [name, model] : models) {
      if (back.contains(name)) continue;
      if (removed.contains(name) && fs::exists(model)) back.insert(name);
      if (!removed.contains(name) && fs::remove(model)) removed.insert(name);
    }
  };
  EXPECT_EQ(run("policy: {poll_interval: 1h, evaluate_last: false}\n").rounds_published, 1);
  EXPECT_THAT(back, ElementsAre("alba", "brno"));
  for (const char* name : {"alba", "brno"}) EXPECT_EQ(jobs_of(name).size(), 1u) << name;
}

// After the repair a further report has another cause, and counts as a failed attempt.
TEST_F(Federation, ATrainerThatAlwaysReportsADamagedModelUsesUpItsAttempts) {
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.key.facility != "alba") return;
    job::report_model_failure(spec.model_failure_path(), "a file is damaged");
    ends_["alba"] = {};
  };
  EXPECT_EQ(run("policy: {on_missing: skip, deadline: 20d, max_attempts: 2, rerun_budget: 9, "
                "evaluate_last: false}\n")
                .rounds_published,
            1);
  EXPECT_EQ(jobs_of("alba").size(), 3u) << "one before the repair, two after it";
}

// The project's model may be gone by then.
TEST_F(Federation, ADamagedFirstModelIsRoundedAgainFromItsMaster) {
  const fs::path weights = run_folder().global(0) / "model.safetensors";
  std::string whole;
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.key.facility != "alba") return;
    if (spec.key.attempt != 1) {
      ends_.erase("alba");
      return;
    }
    whole = read_file(weights, 1 << 20);
    std::fstream(weights, std::ios::in | std::ios::out).seekp(-3, std::ios::end).put('!');
    EXPECT_NE(read_file(weights, 1 << 20), whole);
    fs::remove_all(folder_ / "model");
    fs::remove_all(spec.base_model_path);
    ends_["alba"] = {};
  };
  EXPECT_EQ(run("policy: {max_attempts: 2, evaluate_last: false}\n").rounds_published, 1);
  EXPECT_EQ(read_file(weights, 1 << 20), whole);
}

// The first model and its master are damaged, and the project's model, from which they could be
// made again, has changed.
TEST_F(Federation, NoOtherModelTakesThePlaceOfADamagedOne) {
  const auto damage = [](const fs::path& model, char byte) {
    std::fstream(model / "model.safetensors", std::ios::in | std::ios::out)
        .seekp(-3, std::ios::end)
        .put(byte);
    return read_file(model / "model.safetensors", 1 << 20);
  };
  std::string damaged;
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.key.facility != "alba" || spec.key.attempt != 1) return;
    damaged = damage(run_folder().global(0), '!');
    damage(run_folder().master(0), '!');
    damage(folder_ / "model", '"');
    fs::remove_all(spec.base_model_path);
    ends_["alba"] = {};
  };
  EXPECT_THAT(test::message_of(ErrorKind::kCorrupt,
                               [&] { run("policy: {max_attempts: 2, evaluate_last: false}\n"); }),
              HasSubstr("cannot rebuild it"));
  EXPECT_EQ(read_file(run_folder().global(0) / "model.safetensors", 1 << 20), damaged);
}

// The journal has the rounds' weights: another release may compute others from the same reports.
// Other settings stand for that release.
TEST_F(Federation, ADamagedMasterIsRebuiltWithTheWeightsOnRecord) {
  trainings_["alba"] = {.step = 1.0f, .tokens = 96};
  trainings_["brno"] = {.step = 0.5f, .tokens = 32};
  run("policy: {evaluate_last: false}\naggregation: {weights: tokens}\n", 2);
  const history::RunFolder folder = run_folder();
  const config::Experiment other = experiment("aggregation: {weights: equal}\n", 2);
  history::RunHistory history(folder.journal());
  facility::RunModels models(other, folder, history);
  for (const int round : {1, 2}) {
    write_file_atomic(folder.master(round) / "model.safetensors", "damaged");
    models.restore_master(round);
    EXPECT_EQ(master_weight(0, round), 0.875f * static_cast<float>(round))
        << "(96 * 1 + 32 * 0.5) / 128 in each round";
  }
}

// A second reader that met the damage before the rebuild does not hash the whole model again.
TEST_F(Federation, ADamagedModelIsRebuiltOnceForAllItsReaders) {
  run("policy: {evaluate_last: false}\n");
  const history::RunFolder folder = run_folder();
  const fs::path weights = folder.global(1) / "model.safetensors";
  const fs::path blocks = checkpoint::block_hashes_path(folder.global(1));
  const std::string whole = read_file(weights, 1 << 20);
  const config::Experiment same = experiment("policy: {evaluate_last: false}\n");
  history::RunHistory history(folder.journal());
  facility::RunModels models(same, folder, history);
  // A reader of a model that is whole by the second call.
  const auto reader = [&](const std::function<void()>& during) {
    return [&, during, calls = 0](const checkpoint::Hashes&) mutable {
      if (++calls > 1) return;
      during();
      throw Error(ErrorKind::kCorrupt, "a block is damaged");
    };
  };
  const auto damage = [&] { write_file_atomic(weights, "damaged"); };
  auto first = reader(damage);
  auto second = reader([&] {
    models.with_global(1, std::ref(first));
    EXPECT_TRUE(fs::remove(blocks)) << "the rebuild wrote it";
  });
  models.with_global(1, std::ref(second));
  EXPECT_EQ(read_file(weights, 1 << 20), whole);
  EXPECT_FALSE(fs::exists(blocks)) << "the model was hashed again";
  auto later = reader(damage);
  models.with_global(1, std::ref(later));
  EXPECT_EQ(read_file(weights, 1 << 20), whole) << "damage after the rebuild";
}

// The grace time begins with the update that completes the quorum, not with the first one.
TEST_F(Federation, TheGraceTimeBeginsWithTheQuorumsLastUpdate) {
  has_cork_ = true;
  trainings_["brno"] = {.duration = hours(10), .after = "alba"};
  trainings_["cork"] = {.duration = hours(3), .after = "brno"};
  run("policy: {on_missing: skip, quorum: 2, quorum_grace: 5h, poll_interval: 1m, "
      "evaluate_last: false}\n");
  EXPECT_THAT(state().rounds.at(1).participant_names(), ElementsAre("alba", "brno", "cork"));
}

TEST_F(Federation, AFurtherUpdateDoesNotProlongTheGraceTime) {
  has_cork_ = true;
  trainings_["brno"] = {.duration = hours(10), .after = "alba"};
  trainings_["cork"] = {.duration = hours(45), .after = "brno"};
  run("policy: {on_missing: skip, quorum: 1, quorum_grace: 50h, poll_interval: 1m, "
      "evaluate_last: false}\n");
  EXPECT_THAT(state().rounds.at(1).participant_names(), ElementsAre("alba", "brno"));
}

TEST_F(Federation, ALateFacilityStaysOutAfterTheGraceTime) {
  has_cork_ = true;
  trainings_["brno"].duration = minutes(10);
  trainings_["cork"].duration = hours(20);
  run("policy: {on_missing: skip, quorum: 2, quorum_grace: 5m, poll_interval: 10s, "
      "evaluate_last: false}\n");
  EXPECT_THAT(state().rounds.at(1).participant_names(), ElementsAre("alba", "brno"));
  EXPECT_GE(clock_.elapsed(), minutes(15));
}

void Federation::let_brno_begin_after_alba() {
  on_begin_ = [&](const std::string& facility) {
    const fs::path update = run_folder().facility(1, FacilityName("alba")) / "report.json";
    if (facility != "brno") return;
    EXPECT_TRUE(test::await([&] { return fs::exists(update); }));
  };
}

// brno's job runs past each deadline. Its second cancellation, that of the evaluation, fails.
TEST_F(Federation, AJobOfTheEvaluationIsCancelledAgainAtTheEnd) {
  let_brno_begin_after_alba();
  int cancellations = 0;
  on_cancel_ = [&](const std::string&) {
    if (++cancellations == 2) throw Error(ErrorKind::kRemote, "the link is down");
    return true;
  };
  trainings_["brno"].duration = hours(100);
  EXPECT_EQ(run("policy: {on_missing: skip, quorum: 1, quorum_grace: 0s, deadline: 2h, "
                "poll_interval: 1m}\n")
                .rounds_published,
            1);
  EXPECT_EQ(jobs_of("brno").size(), 2u);
  EXPECT_EQ(cancellations, 3) << "of the round's job, and twice of the evaluation's";
}

// When brno's report comes, the model is damaged on this machine, and cannot be rebuilt.
TEST_F(Federation, TheJobOfAnEvaluationThatFailsHereIsCancelled) {
  std::vector<std::string> cancelled;
  on_cancel_ = [&](const std::string& facility) {
    cancelled.push_back(facility);
    return true;
  };
  change_report_ = [&](const job::JobSpec& spec, const job::JobReport&) {
    if (spec.training.steps > 0) return;
    const history::RunFolder folder = run_folder();
    for (const fs::path& model :
         {folder.global(1), folder.master(1), folder.facility(1, FacilityName("alba")) / "update"})
      write_file_atomic(model / "model.safetensors", "damaged");
  };
  EXPECT_EQ(test::kind_of([&] { run(""); }), ErrorKind::kCorrupt);
  EXPECT_THAT(cancelled, ElementsAre("brno"));
}

// The error passes: the facility's part of the evaluation is not begun again.
TEST_F(Federation, AnErrorOfAFileAtAnEvaluationEndsNoRun) {
  std::atomic<bool> has_failed = false;
  on_begin_ = [&](const std::string& facility) {
    if (facility == "brno" && fs::exists(run_folder().current()) && !has_failed.exchange(true))
      throw fs::filesystem_error("cannot look", std::make_error_code(std::errc::io_error));
  };
  EXPECT_EQ(run("").rounds_published, 1);
  EXPECT_TRUE(has_failed);
  EXPECT_TRUE(state().completed);
  EXPECT_THAT(state().rounds.at(2).facilities.at(FacilityName("brno")).missing.value_or(""),
              HasSubstr("cannot look"));
}

// brno no longer answers when the user gives up the evaluation of the last model.
TEST_F(Federation, AnEvaluationThatIsGivenUpAtAnUnreachableFacilityEndsNoRun) {
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.training.steps == 0) stop_.request_stop();
  };
  EXPECT_EQ(test::kind_of([&] { run(""); }), ErrorKind::kCancelled);
  on_submit_ = {};
  stop_ = {};
  int cancellations = 0;
  on_cancel_ = [&](const std::string&) -> bool {
    ++cancellations;
    throw Error(ErrorKind::kRemote, "the link is down");
  };
  EXPECT_EQ(run("policy: {evaluate_last: false}\n").rounds_published, 1);
  EXPECT_GT(cancellations, 0) << "the test tells nothing";
  EXPECT_TRUE(state().completed);
}

void Federation::stop_with_the_update_of_alba(const std::string& policy) {
  // The journal has the times of the wall clock.
  clock_.advance(Clock::UtcTime(SystemClock().utc()) - clock_.utc());
  trainings_["brno"].duration = hours(100'000);
  const fs::path update = run_folder().facility(1, FacilityName("alba")) / "report.json";
  clock_.on_sleep = [&] {
    if (fs::exists(update)) stop_.request_stop();
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // alba's work takes real time
  };
  EXPECT_EQ(test::kind_of([&] { run(policy); }), ErrorKind::kCancelled);
  clock_.on_sleep = {};
  stop_ = {};
}

// A restart reads xffl.yaml again before the scheduler accepts the job.
TEST_F(Federation, AnEnlargedJobIsNotSubmittedOverTheBudget) {
  const std::string policy =
      "policy: {on_missing: skip, quorum: 1, deadline: 2h, poll_interval: 1m, evaluate_last: "
      "false, budget: {node_hours: 5}}\n";
  // The journal has the times of the wall clock.
  clock_.advance(Clock::UtcTime(SystemClock().utc()) - clock_.utc());
  facility_keys_ = "scheduler: slurm, slurm: {nodes: 1, time: 1h}, ";
  std::atomic<bool> is_deferred = false;
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.key.facility != "brno") return;
    is_deferred = true;
    throw Error(ErrorKind::kBusy, "QOSMaxSubmitJobPerUserLimit");
  };
  const fs::path update = run_folder().facility(1, FacilityName("alba")) / "report.json";
  clock_.on_sleep = [&] {
    if (is_deferred && fs::exists(update)) stop_.request_stop();
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // alba's work takes real time
  };
  EXPECT_EQ(test::kind_of([&] { run(policy); }), ErrorKind::kCancelled);
  clock_.on_sleep = {};
  on_submit_ = {};
  stop_ = {};
  const size_t tries = jobs_of("brno").size();
  facility_keys_ = "scheduler: slurm, slurm: {nodes: 1, time: 20h}, ";
  EXPECT_EQ(run(policy).rounds_published, 1);
  EXPECT_EQ(jobs_of("brno").size(), tries);
  EXPECT_THAT(state().rounds.at(1).participant_names(), ElementsAre("alba"));
}

// 2 nodes x 7500 s in hours, and back in seconds, are more than 15000.
TEST_F(Federation, AnUnchangedJobIsReservedOnce) {
  facility_keys_ = "scheduler: slurm, slurm: {nodes: 2, time: 125m}, ";
  EXPECT_EQ(run("policy: {evaluate_last: false, budget: {node_hours: 100}}\n").rounds_published, 1);
  size_t intents = 0;
  for (const history::StoredEvent& event : history::read_events(run_folder().journal()))
    intents += event.kind == "submit_intended";
  EXPECT_EQ(intents, 2u) << "of two facilities";
}

TEST_F(Federation, ARestartDoesNotRenewTheDeadline) {
  const std::string policy =
      "policy: {on_missing: skip, quorum: 1, quorum_grace: 0s, deadline: 1000h, poll_interval: "
      "1m, evaluate_last: false}\n";
  stop_with_the_update_of_alba(policy);
  clock_.advance(hours(1001));
  const auto restarted = clock_.elapsed();
  EXPECT_EQ(run(policy).rounds_published, 1);
  EXPECT_LT(clock_.elapsed() - restarted, hours(1));
  EXPECT_THAT(state().rounds.at(1).participant_names(), ElementsAre("alba"));
}

// An action of brno begins before the deadline and takes 6 s longer. After 5 s the deadline would
// end the action under another on_missing.
TEST_F(Federation, UnderWaitTheDeadlineEndsNoAction) {
  std::atomic<bool> looks = false;
  const auto local = remote::make_local_session();
  const auto session = std::make_shared<test::FaultySession>(*local);
  session->after_stat = [&](const RemotePath& path) {
    if (!path.str().ends_with(plan::kReportFile) || looks.exchange(true)) return;
    clock_.advance(hours(3));
    const std::stop_token stop = remote::StopScope::current();
    EXPECT_FALSE(test::await([&] { return stop.stop_requested(); }, std::chrono::seconds(6)));
  };
  sessions_["brno"] = session;
  EXPECT_EQ(
      run("policy: {on_missing: wait, deadline: 2h, evaluate_last: false}\n").rounds_published, 1);
  EXPECT_TRUE(looks);
}

// Only brno measures the last model, and its scheduler accepts no further job.
TEST_F(Federation, AnEvaluationWithoutASubmissionEndsAtItsDeadline) {
  on_submit_ = [](const job::JobSpec& spec) {
    if (spec.training.steps == 0) throw Error(ErrorKind::kBusy, "QOSMaxSubmitJobPerUserLimit");
  };
  clock_.on_sleep = [&] {
    if (clock_.elapsed() > hours(1000)) stop_.request_stop();  // it would not end
  };
  EXPECT_EQ(run("policy: {on_missing: skip, deadline: 20h, poll_interval: 1m}\n").rounds_published,
            1);
  EXPECT_LT(clock_.elapsed(), hours(30));
  const history::RunState known = state();
  EXPECT_TRUE(known.completed);
  EXPECT_THAT(known.rounds.at(2).facilities.at(FacilityName("brno")).missing.value_or(""),
              HasSubstr("the round's deadline of 72000 s"));
}

// Both facilities accept no job for longer than the deadline, which begins with the first job.
TEST_F(Federation, ARoundWithoutASubmissionOutlivesItsDeadline) {
  on_submit_ = [&](const job::JobSpec&) {
    if (clock_.elapsed() < hours(30)) throw Error(ErrorKind::kBusy, "QOSMaxSubmitJobPerUserLimit");
  };
  EXPECT_EQ(run("policy: {on_missing: skip, deadline: 20h, poll_interval: 1m, evaluate_last: "
                "false}\n")
                .rounds_published,
            1);
  EXPECT_THAT(state().rounds.at(1).participant_names(), ElementsAre("alba", "brno"));
}

// A stop comes with the submission of the evaluation's job.
TEST_F(Federation, AStopDoesNotCancelTheJobOfAnEvaluation) {
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.training.steps == 0) stop_.request_stop();
  };
  EXPECT_EQ(test::kind_of([&] { run(""); }), ErrorKind::kCancelled);
  for (const history::StoredEvent& event : history::read_events(run_folder().journal()))
    EXPECT_NE(event.kind, "cancel_intended");
  stop_ = {};
  EXPECT_EQ(run("").rounds_published, 1);
  const history::FacilityState brno = state().rounds.at(2).facilities.at(FacilityName("brno"));
  EXPECT_TRUE(brno.accepted);
  EXPECT_EQ(brno.attempts.size(), 1u);
}

TEST_F(Federation, ARestartDoesNotRenewTheDeadlineOfAnEvaluation) {
  const std::string policy = "policy: {on_missing: skip, deadline: 1000h, poll_interval: 1m}\n";
  // The journal has the times of the wall clock.
  clock_.advance(Clock::UtcTime(SystemClock().utc()) - clock_.utc());
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.training.steps > 0) return;
    stop_.request_stop();
    throw Error(ErrorKind::kBusy, "QOSMaxSubmitJobPerUserLimit");
  };
  EXPECT_EQ(test::kind_of([&] { run(policy); }), ErrorKind::kCancelled);
  stop_ = {};
  clock_.advance(hours(1001));
  const auto restarted = clock_.elapsed();
  clock_.on_sleep = [&] {
    if (clock_.elapsed() > restarted + hours(100)) stop_.request_stop();
  };
  EXPECT_EQ(run(policy).rounds_published, 1);
  EXPECT_LT(clock_.elapsed() - restarted, hours(1));
  EXPECT_TRUE(state().completed);
}

TEST_F(Federation, ARestartWithinTheGraceTimeEndsTheRoundWithIt) {
  const std::string policy =
      "policy: {on_missing: skip, quorum: 1, quorum_grace: 1000h, deadline: 9000h, poll_interval: "
      "1m, evaluate_last: false}\n";
  stop_with_the_update_of_alba(policy);
  clock_.advance(Clock::UtcTime(SystemClock().utc()) + hours(999) - clock_.utc());
  const auto restarted = clock_.elapsed();
  clock_.on_sleep = [&] {
    if (clock_.elapsed() > restarted + hours(9)) stop_.request_stop();
  };
  EXPECT_EQ(run(policy).rounds_published, 1);
  EXPECT_LT(clock_.elapsed() - restarted, hours(2));
  EXPECT_THAT(state().rounds.at(1).participant_names(), ElementsAre("alba"));
}

// --- Cancellations ---

const std::string kLeavesOutLateOnes =
    "policy: {on_missing: skip, quorum: 1, quorum_grace: 5m, poll_interval: 10s, evaluate_last: "
    "false}\n";

// The jobs wait in the queue when the scheduler has forgotten their cancellations.
TEST_F(Federation, AForgottenCancellationOfAWaitingJobIsRepeated) {
  has_cork_ = true;
  trainings_["brno"] = {.duration = hours(1000), .state = submit::JobState::kHeld};
  trainings_["cork"] = {.duration = hours(1000), .state = submit::JobState::kPending};
  std::atomic<int> of_brno = 0, of_cork = 0;
  on_cancel_ = [&](const std::string& name) { return ++(name == "brno" ? of_brno : of_cork) == 2; };
  run(kLeavesOutLateOnes);
  EXPECT_EQ(of_brno, 2);
  EXPECT_EQ(of_cork, 2);
}

// After five cancellations of a job that still runs, the driver gives up until the run's end.
TEST_F(Federation, AJobThatSurvivesItsCancellationsIsCancelledAgainAtTheEnd) {
  trainings_["brno"].duration = hours(1000);
  int cancellations = 0;
  on_cancel_ = [&](const std::string&) { return ++cancellations > 5; };
  EXPECT_EQ(run(kLeavesOutLateOnes).rounds_published, 1);
  EXPECT_EQ(cancellations, 6) << "none of the first five is on record as confirmed";
}

// The job of the first round survives five cancellations, and would run beside that of the second.
TEST_F(Federation, AJobThatSurvivesItsCancellationsIsCancelledAgainAheadOfTheNextOne) {
  let_brno_begin_after_alba();
  trainings_["brno"].duration = hours(1000);
  std::atomic<int> cancellations = 0;
  on_cancel_ = [&](const std::string&) { return ++cancellations > 5; };
  std::vector<int> ahead;  // the cancellations before each job of brno
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.key.facility != "brno") return;
    ahead.push_back(cancellations);
    if (spec.key.round == 2) stop_.request_stop();
  };
  EXPECT_EQ(test::kind_of([&] { run(kLeavesOutLateOnes, 2); }), ErrorKind::kCancelled);
  EXPECT_THAT(ahead, ElementsAre(0, 6));
}

// The deadline fails the round; brno's job survives five cancellations.
TEST_F(Federation, ACancellationOfTheRunRepeatsThatOfAFailedAttempt) {
  const std::string policy = "policy: {on_missing: fail, deadline: 2h, poll_interval: 1m}\n";
  let_brno_begin_after_alba();
  trainings_["brno"].duration = hours(1000);
  int cancellations = 0;
  on_cancel_ = [&](const std::string&) { return ++cancellations > 5; };
  EXPECT_THAT(failure_of(policy), HasSubstr("the round's deadline"));
  EXPECT_EQ(cancellations, 5);
  cancel(policy);
  EXPECT_TRUE(state().cancelled);
  EXPECT_EQ(cancellations, 6);
}

// A stop after the last round, before the run's end would repeat the cancellation.
TEST_F(Federation, ACancellationAfterTheLastRoundRepeatsEarlierOnes) {
  trainings_["brno"].duration = hours(1000);
  int cancellations = 0;
  on_cancel_ = [&](const std::string&) { return ++cancellations > 5; };
  observer_.on_round = [&](int, const auto&, double) { stop_.request_stop(); };
  EXPECT_EQ(test::kind_of([&] { run(kLeavesOutLateOnes); }), ErrorKind::kCancelled);
  EXPECT_EQ(cancellations, 5);
  cancel(kLeavesOutLateOnes);
  EXPECT_TRUE(state().cancelled);
  EXPECT_EQ(cancellations, 6);
}

bool needs_a_log_in(const std::string&) {
  throw Error(ErrorKind::kAuth, "the certificate has expired");
}

TEST_F(Federation, ACancellationWithoutACredentialIsNotConfirmed) {
  const std::string policy = "policy: {evaluate_last: false}\n";
  trainings_["brno"].duration = hours(1000);
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.key.facility == "brno") stop_.request_stop();
  };
  EXPECT_EQ(test::kind_of([&] { run(policy); }), ErrorKind::kCancelled);
  on_cancel_ = needs_a_log_in;
  EXPECT_EQ(test::kind_of([&] { cancel(policy); }), ErrorKind::kAuth);
  EXPECT_FALSE(state().cancelled);
  EXPECT_EQ(history::pending_requests(run_folder()).size(), 1u) << "`xffl run` repeats it";
  on_cancel_ = {};
  cancel(policy);
  EXPECT_TRUE(state().cancelled);
}

// The coordinator gets the request. The next one would train if the request were gone.
TEST_F(Federation, ACancellationThatTheCoordinatorCannotConfirmStaysOnRecord) {
  const std::string policy = "policy: {evaluate_last: false}\n";
  trainings_["brno"].duration = hours(100'000);
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.key.facility != "brno") return;
    history::leave_request(run_folder(), {history::Request::Kind::kCancel, {}, "enough"});
    const std::stop_token stop = remote::StopScope::current();
    EXPECT_TRUE(test::await([&] { return stop.stop_requested(); }, std::chrono::seconds(30)));
  };
  on_cancel_ = needs_a_log_in;
  EXPECT_EQ(test::kind_of([&] { run(policy); }), ErrorKind::kAuth);
  EXPECT_FALSE(state().cancelled);
  ASSERT_EQ(history::pending_requests(run_folder()).size(), 1u);
  on_cancel_ = {};
  EXPECT_EQ(test::kind_of([&] { run(policy); }), ErrorKind::kFailed);
  EXPECT_TRUE(state().cancelled);
  EXPECT_EQ(jobs_of("brno").size(), 1u);
}

// The user ended the command that waited for the coordinator.
TEST_F(Federation, ALateCancellationLeavesACompletedRunAlone) {
  const std::string policy = "policy: {evaluate_last: false}\n";
  run(policy);
  history::leave_request(run_folder(), {history::Request::Kind::kCancel, {}, "enough"});
  EXPECT_EQ(run(policy).rounds_published, 1);
  EXPECT_FALSE(state().cancelled);
}

// A facility that hardly answers must not keep the jobs of the others running. Each cancellation
// ends only after the other one has begun.
TEST_F(Federation, ACancellationReachesAllFacilitiesSideBySide) {
  const std::string policy = "policy: {evaluate_last: false}\n";
  trainings_["alba"] = {.duration = hours(100'000), .after_job_of = "brno"};
  trainings_["brno"] = {.duration = hours(100'000), .after_job_of = "alba"};
  std::atomic<int> submitted = 0, begun = 0;
  on_submit_ = [&](const job::JobSpec&) {
    if (++submitted == 2) stop_.request_stop();
  };
  EXPECT_EQ(test::kind_of([&] { run(policy); }), ErrorKind::kCancelled);
  on_cancel_ = [&](const std::string& facility) {
    ++begun;
    EXPECT_TRUE(test::await([&] { return begun >= 2; }, std::chrono::seconds(30))) << facility;
    return true;
  };
  cancel(policy);
  EXPECT_TRUE(state().cancelled);
  EXPECT_EQ(begun, 2);
}

// The same for the jobs of a round that fails at cork.
TEST_F(Federation, AFailedRoundCancelsTheOtherJobsSideBySide) {
  has_cork_ = true;
  std::atomic<int> submitted = 0, begun = 0;
  on_submit_ = [&](const job::JobSpec&) { ++submitted; };
  on_begin_ = [&](const std::string& facility) {
    if (facility != "cork") return;
    EXPECT_TRUE(test::await([&] { return submitted >= 2; }));
  };
  for (const char* name : {"alba", "brno"})
    trainings_[name] = {.duration = hours(100'000), .after_job_of = "cork"};
  ends_["cork"] = {.state = submit::JobState::kEnded};
  on_cancel_ = [&](const std::string& facility) {
    ++begun;
    EXPECT_TRUE(test::await([&] { return begun >= 2; }, std::chrono::seconds(30))) << facility;
    return true;
  };
  failure_of("policy: {on_missing: fail, max_attempts: 1, poll_interval: 1m}\n");
  EXPECT_EQ(begun, 2);
}

TEST_F(Federation, ACancelledRunTrainsNoMore) {
  const std::string policy = "policy: {evaluate_last: false}\n";
  observer_.on_round = [&](int, const auto&, double) { stop_.request_stop(); };
  EXPECT_EQ(test::kind_of([&] { run(policy, 2); }), ErrorKind::kCancelled);
  cancel(policy, 2);
  stop_ = {};
  EXPECT_THAT(test::message_of(ErrorKind::kFailed, [&] { run(policy, 2); }),
              HasSubstr("was cancelled: start another with `xffl run --new`"));
  EXPECT_EQ(jobs_of("alba").size(), 1u) << "of the first round";
}

// brno's job of the first round is not cancelled yet in the second.
TEST_F(Federation, ACancellationWithoutACredentialHoldsUpNoLaterRound) {
  trainings_["brno"].duration = hours(1000);
  on_cancel_ = needs_a_log_in;
  EXPECT_EQ(run(kLeavesOutLateOnes, 2).rounds_published, 2);
  EXPECT_EQ(jobs_of("brno").size(), 2u);
}

// The cancellation of brno's job of the first round outlasts the second round.
TEST_F(Federation, AnEarlierCancellationThatTheRoundsEndStopsEndsNoRun) {
  trainings_["brno"].duration = hours(100'000);
  const auto has_second_update = [&] {
    const auto events = history::read_events(run_folder().journal());
    return std::any_of(events.begin(), events.end(), [](const history::StoredEvent& event) {
      return event.kind == "update_accepted" && event.round == 2;
    });
  };
  std::atomic<int> later = 0;  // cancellations after the first round
  on_cancel_ = [&](const std::string& facility) {
    if (!fs::exists(run_folder().current())) return needs_a_log_in(facility);
    if (++later > 1) return true;  // at the run's end
    EXPECT_TRUE(test::await(has_second_update));
    clock_.advance(hours(1));
    const std::stop_token stop = remote::StopScope::current();
    EXPECT_TRUE(test::await([&] { return stop.stop_requested(); }, std::chrono::seconds(30)));
    throw Error(ErrorKind::kCancelled, "stopped while scancel ran");
  };
  EXPECT_EQ(run(kLeavesOutLateOnes, 2).rounds_published, 2);
  EXPECT_EQ(later, 2);
  EXPECT_EQ(jobs_of("brno").size(), 1u);
  EXPECT_THAT(state().rounds.at(2).participant_names(), ElementsAre("alba"));
}

// brno is unreachable when it leaves at once. alba's part of the second round begins with the
// cancellation of brno's job.
TEST_F(Federation, TheJobOfAFacilityThatLeftIsCancelledInALaterRound) {
  trainings_["brno"].duration = hours(100'000);
  std::atomic<bool> is_cancelled = false;
  const auto has_published = [&] { return fs::exists(run_folder().current()); };
  on_cancel_ = [&](const std::string& facility) {
    if (!has_published()) throw Error(ErrorKind::kRemote, facility + ": the link is down");
    return is_cancelled = true;
  };
  let_brno_leave_at_once();
  on_begin_ = [&](const std::string& facility) {
    if (facility != "alba" || !has_published()) return;
    EXPECT_TRUE(test::await([&] { return is_cancelled.load(); }, std::chrono::seconds(30)));
  };
  EXPECT_EQ(run("policy: {evaluate_last: false}\n", 2).rounds_published, 2);
  EXPECT_EQ(jobs_of("brno").size(), 1u);
}

// The scheduler of brno, which has left, does not answer while alba trains the second round.
TEST_F(Federation, NoRoundWaitsForACancellationAtAFacilityThatLeft) {
  trainings_["brno"].duration = hours(100'000);
  std::atomic<int> later = 0;  // cancellations after the first round
  const auto has_published = [&] { return fs::exists(run_folder().current()); };
  on_cancel_ = [&](const std::string& facility) {
    if (!has_published()) throw Error(ErrorKind::kRemote, facility + ": the link is down");
    if (++later > 1) return true;  // at the run's end
    const std::stop_token stop = remote::StopScope::current();
    EXPECT_TRUE(test::await([&] { return stop.stop_requested(); }, std::chrono::seconds(30)));
    throw Error(ErrorKind::kCancelled, "stopped while scancel ran");
  };
  let_brno_leave_at_once();
  on_begin_ = [&](const std::string& facility) {
    if (facility != "alba" || !has_published()) return;
    EXPECT_TRUE(test::await([&] { return later > 0; }, std::chrono::seconds(30)));
  };
  EXPECT_EQ(run("policy: {evaluate_last: false}\n", 2).rounds_published, 2);
  EXPECT_GE(later, 2);
}

// Each cancellation of the run's end waits until the other one has begun.
TEST_F(Federation, LeftoverCancellationsAreRepeatedSideBySide) {
  has_cork_ = true;
  for (const char* name : {"brno", "cork"}) trainings_[name].duration = hours(1000);
  std::atomic<int> begun = 0;
  on_cancel_ = [&](const std::string& facility) {
    if (!fs::exists(run_folder().current())) return needs_a_log_in(facility);
    ++begun;
    EXPECT_TRUE(test::await([&] { return begun >= 2; }, std::chrono::seconds(30))) << facility;
    return true;
  };
  EXPECT_EQ(run(kLeavesOutLateOnes).rounds_published, 1);
  EXPECT_EQ(begun, 2);
}

// brno's cancellations of two rounds are left, and brno no longer answers.
TEST_F(Federation, LeftoverCancellationsShareALimit) {
  trainings_["brno"].duration = hours(1000);
  on_cancel_ = needs_a_log_in;
  const config::Experiment parsed = experiment(kLeavesOutLateOnes, 2);
  ASSERT_EQ(run(parsed).rounds_published, 2);
  ASSERT_EQ(jobs_of("brno").size(), 2u);
  const history::RunFolder folder = run_folder();
  history::RunHistory history(folder.journal());
  facility::Services made = services();
  history::StatusFile live(folder.live(), clock_, &history);
  facility::Context context{
      parsed, folder, made, observer_, history, live, history.state().identity.value()};
  std::chrono::seconds limit(1);
  int calls = 0;
  on_cancel_ = [&](const std::string&) -> bool {
    ++calls;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    const std::stop_token stop = remote::StopScope::current();
    clock_.advance(std::chrono::seconds(limit) - std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    EXPECT_FALSE(stop.stop_requested()) << "a millisecond is left";
    clock_.advance(std::chrono::milliseconds(1));
    while (!stop.stop_requested() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(stop.stop_requested());
    throw Error(ErrorKind::kCancelled, "stopped while scancel ran");
  };
  const std::vector<facility::Leftover> left =
      facility::repeat_cancellations(context, FacilityName("brno"), 3, {}, limit);
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left.front().round, 1);
  EXPECT_EQ(left.back().round, 2);
  for (const facility::Leftover& each : left) {
    EXPECT_FALSE(each.job_id.empty());
    EXPECT_THAT(each.problem, HasSubstr("not confirmed within 1 s"));
  }
  EXPECT_EQ(calls, 1) << "the second cancellation begins after the limit";
  EXPECT_FALSE(stop_.stop_requested());

  limit = std::chrono::seconds(120);
  log::set_file(folder_ / "log");
  cancel_leftovers(context, 2, {});
  log::set_file({});
  EXPECT_EQ(calls, 2);
  EXPECT_THAT(read_file(folder_ / "log", 1 << 20), HasSubstr("not confirmed within 120 s"));
}

// --- Budgets ---

// A job of the shipped template writes its start before anything else.
TEST_F(Federation, AFailedJobOfAnOwnTemplateUsesItsWholeWalltime) {
  write_file_atomic(own_template(), kOwnTemplate);
  ends_["brno"] = {.state = submit::JobState::kEnded};
  const auto used = [&](const std::string& key) {
    facility_keys_ = "scheduler: slurm, slurm: {nodes: 2, time: 1h}, " + key;
    fs::remove_all(run_folder().path());
    failure_of("policy: {max_attempts: 1}\n");
    return history::RunHistory(run_folder().journal())
        .spending()
        .node_seconds(FacilityName("brno"));
  };
  EXPECT_EQ(used(""), 0) << "it never started";
  EXPECT_EQ(used("template: " + own_template().string() + ", "), 2 * 3600);
}

// The budget counts one run of each job.
TEST_F(Federation, OnlyJobsWithoutABudgetMayBeRequeued) {
  facility_keys_ = "scheduler: slurm, slurm: {time: 1h}, ";
  std::vector<bool> may_requeue;
  on_request_ = [&](const submit::JobRequest& request) {
    may_requeue.push_back(request.may_requeue);
  };
  for (const std::string budget : {"", ", budget: {node_hours: 100}"}) {
    fs::remove_all(run_folder().path());
    EXPECT_EQ(run("policy: {evaluate_last: false" + budget + "}\n").rounds_published, 1);
  }
  EXPECT_EQ(may_requeue, (std::vector<bool>{true, true, false, false}));
}

TEST_F(Federation, ASpentBudgetLeavesOutTheEvaluationOfTheLastModel) {
  facility_keys_ = "scheduler: slurm, slurm: {nodes: 2, time: 1h}, ";
  clock_.on_sleep = [&] {
    if (clock_.elapsed() > hours(1000)) stop_.request_stop();
  };
  EXPECT_EQ(run("policy: {budget: {node_hours: 4}}\n").rounds_published, 1);
  EXPECT_EQ(jobs_of("brno").size(), 1u);
  EXPECT_TRUE(state().completed);
}

// brno has used two thirds of its own budget when its job is submitted.
TEST_F(Federation, ABudgetThatIsNearlyUsedIsLoggedOnce) {
  facility_keys_ = "scheduler: slurm, slurm: {nodes: 2, time: 1h}, ";
  config::Experiment parsed =
      experiment("policy: {evaluate_last: false, budget: {node_hours: 5, warn_at: 0.3}}\n");
  parsed.facilities.at(0).budget = {.node_hours = 3, .warn_at = 0.9};
  parsed.facilities.at(1).budget = {.node_hours = 3, .warn_at = 0.6};
  log::set_file(folder_ / "log");
  EXPECT_EQ(run(parsed).rounds_published, 1);
  log::set_file({});
  std::istringstream lines(read_file(folder_ / "log", 1 << 20));
  std::vector<std::string> budgets;
  for (std::string line; std::getline(lines, line);)
    if (line.find("a budget is nearly used") != std::string::npos)
      budgets.push_back(parse_json(line, "log").at("budget").get<std::string>());
  EXPECT_THAT(budgets, testing::UnorderedElementsAre("policy.budget", "facilities.brno.budget"));
}

// The budget counts them from the intent on.
TEST_F(Federation, ASubmissionsIntentNamesTheTimeOfAKeptAllocation) {
  facility_keys_ = "scheduler: slurm, slurm: {time: 3h, keep_allocation: 1h}, ";
  EXPECT_EQ(run("policy: {evaluate_last: false}\n", 2).rounds_published, 2);
  std::map<int, int64_t> kept;
  for (const history::StoredEvent& event : history::read_events(run_folder().journal()))
    if (event.kind == "submit_intended")
      kept[event.round] += parse_json(event.payload, event.kind).value("keep_s", int64_t{0});
  EXPECT_EQ(kept, (std::map<int, int64_t>{{1, 2 * 3600}, {2, 0}})) << "no job follows the last one";
}

// brno leaves while its job of the first round runs.
TEST_F(Federation, TheKeptAllocationOfAFacilityThatLeftIsReleased) {
  facility_keys_ = "scheduler: slurm, slurm: {time: 3h, keep_allocation: 1h}, ";
  std::vector<std::string> released;
  on_release_ = [&](const std::string& facility) { released.push_back(facility); };
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.key.facility != "brno") return;
    history::leave_request(run_folder(),
                           {history::Request::Kind::kLeave, {FacilityName("brno")}, "spent"});
    EXPECT_TRUE(test::await([&] { return history::pending_requests(run_folder()).empty(); }));
  };
  EXPECT_EQ(run("policy: {evaluate_last: false}\n", 2).rounds_published, 2);
  EXPECT_EQ(jobs_of("brno").size(), 1u);
  EXPECT_THAT(released, ElementsAre("brno"));
}

// brno leaves between two rounds: the next round's plan lacks it.
TEST_F(Federation, TheAllocationOfAFacilityThatLeavesBetweenTwoRoundsIsReleased) {
  facility_keys_ = "scheduler: slurm, slurm: {time: 3h, keep_allocation: 1h}, ";
  std::vector<std::string> released;
  on_release_ = [&](const std::string& facility) { released.push_back(facility); };
  observer_.on_round = [&](int, const auto&, double) { stop_.request_stop(); };
  const std::string policy = "policy: {evaluate_last: false}\n";
  EXPECT_EQ(test::kind_of([&] { run(policy, 2); }), ErrorKind::kCancelled);
  act({history::Request::Kind::kLeave, {FacilityName("brno")}, "spent"}, policy, 2);
  EXPECT_THAT(released, ElementsAre("brno"));
  stop_ = {};
  observer_.on_round = {};
  EXPECT_EQ(run(policy, 2).rounds_published, 2);
  EXPECT_THAT(released, ElementsAre("brno"));
}

// Between the first two of three rounds: the second round would keep allocations for the third one,
// but has no job yet.
TEST_F(Federation, ACancellationReleasesTheAllocationsOfTheRoundBefore) {
  facility_keys_ = "scheduler: slurm, slurm: {time: 3h, keep_allocation: 1h}, ";
  std::atomic<int> released{0};
  on_release_ = [&](const std::string&) { ++released; };
  observer_.on_round = [&](int, const auto&, double) { stop_.request_stop(); };
  const std::string policy = "policy: {evaluate_last: false}\n";
  EXPECT_EQ(test::kind_of([&] { run(policy, 3); }), ErrorKind::kCancelled);
  EXPECT_EQ(released, 0);
  cancel(policy, 3);
  EXPECT_EQ(released, 2) << "alba's and brno's";
}

// A paused facility would keep its nodes idle until the allocation expires.
TEST_F(Federation, APauseReleasesTheAllocationOfTheRoundBefore) {
  facility_keys_ = "scheduler: slurm, slurm: {time: 3h, keep_allocation: 1h}, ";
  std::vector<std::string> released;
  on_release_ = [&](const std::string& facility) { released.push_back(facility); };
  observer_.on_round = [&](int, const auto&, double) { stop_.request_stop(); };
  const std::string policy = "policy: {evaluate_last: false}\n";
  EXPECT_EQ(test::kind_of([&] { run(policy, 2); }), ErrorKind::kCancelled);
  EXPECT_THAT(released, testing::IsEmpty());
  act({history::Request::Kind::kPause, {FacilityName("brno")}, "maintenance"}, policy, 2);
  EXPECT_THAT(released, ElementsAre("brno"));
}

// A user's command, and each later request to a coordinator, would wait for brno.
TEST_F(Federation, AFacilityThatDoesNotReleaseItsAllocationHoldsUpNoPause) {
  facility_keys_ = "scheduler: slurm, slurm: {time: 3h, keep_allocation: 1h}, ";
  observer_.on_round = [&](int, const auto&, double) { stop_.request_stop(); };
  const std::string policy = "policy: {evaluate_last: false}\n";
  EXPECT_EQ(test::kind_of([&] { run(policy, 2); }), ErrorKind::kCancelled);
  bool is_asked = false;
  on_release_ = [&](const std::string&) {
    is_asked = true;
    const std::stop_token stop = remote::StopScope::current();
    EXPECT_TRUE(test::await([&] { return stop.stop_requested(); }, std::chrono::seconds(30)));
    throw Error(ErrorKind::kCancelled, "stopped while it waited");
  };
  act({history::Request::Kind::kPause, {FacilityName("brno")}, "maintenance"}, policy, 2);
  EXPECT_TRUE(is_asked) << "the test tells nothing";
  EXPECT_TRUE(state().paused.contains(FacilityName("brno")));
}

// cork is new in xffl.yaml, and would take part from the second round on.
TEST_F(Federation, AFacilityThatLeftIsNotJoinedByAChangeOfTheConfiguration) {
  const std::string policy = "policy: {evaluate_last: false}\n";
  observer_.on_round = [&](int, const auto&, double) { stop_.request_stop(); };
  EXPECT_EQ(test::kind_of([&] { run(policy, 2); }), ErrorKind::kCancelled);
  observer_.on_round = {};
  stop_ = {};
  has_cork_ = true;
  act({history::Request::Kind::kLeave, {FacilityName("cork")}, "spent"}, policy, 2);
  EXPECT_EQ(run(policy, 2).rounds_published, 2);
  EXPECT_THAT(jobs_of("cork"), testing::IsEmpty());
}

// cork waits to join, and xffl.yaml has another training by then.
TEST_F(Federation, ARoundBeginsWithoutItsNewFacilityWhenTheTrainingHasChanged) {
  const std::string policy = "policy: {evaluate_last: false}\n";
  const config::Experiment before = experiment(policy);
  has_cork_ = true;
  std::string changed = whole_yaml(policy);
  changed.replace(changed.find("steps_per_round: 4"), 18, "steps_per_round: 5");
  write_file_atomic(folder_ / "xffl.yaml", changed);
  history::leave_request(run_folder(), {history::Request::Kind::kJoin, {FacilityName("cork")}, ""});
  EXPECT_EQ(run(before).rounds_published, 1);
  EXPECT_THAT(state().rounds.at(1).participant_names(), ElementsAre("alba", "brno"));
  EXPECT_EQ(jobs_of("alba").at(0).training.steps, 4);
}

// Text that cannot continue the run.
std::string with_other_steps(std::string yaml) {
  return yaml.replace(yaml.find("steps_per_round: 4"), 18, "steps_per_round: 5");
}

// A user corrects xffl.yaml during the round.
TEST_F(Federation, ANewFacilityThatARoundBeganWithoutJoinsWithTheNext) {
  const std::string policy = "policy: {evaluate_last: false}\n";
  const config::Experiment before = experiment(policy, 2);
  has_cork_ = true;
  const std::string correct = whole_yaml(policy, 2);
  write_file_atomic(folder_ / "xffl.yaml", with_other_steps(correct));
  history::leave_request(run_folder(), {history::Request::Kind::kJoin, {FacilityName("cork")}, ""});
  observer_.on_round = [&](int, const auto&, double) {
    write_file_atomic(folder_ / "xffl.yaml", correct);
  };
  EXPECT_EQ(run(before).rounds_published, 2);
  EXPECT_THAT(state().rounds.at(1).participant_names(), ElementsAre("alba", "brno"));
  EXPECT_THAT(state().rounds.at(2).participant_names(), ElementsAre("alba", "brno", "cork"));
}

// The operator replaces a site: the new one joins, all others leave. A mistake in xffl.yaml ends
// the run with an error, and not as completed.
TEST_F(Federation, ARunWhoseMembersAreReplacedGoesOn) {
  const std::string policy = "policy: {evaluate_last: false}\n";
  const config::Experiment before = experiment(policy, 3);
  has_cork_ = true;
  const std::string correct = whole_yaml(policy, 3);
  write_file_atomic(folder_ / "xffl.yaml", with_other_steps(correct));
  using Kind = history::Request::Kind;
  const std::vector<FacilityName> others = {FacilityName("alba"), FacilityName("brno")};
  history::leave_request(run_folder(), {Kind::kJoin, {FacilityName("cork")}, ""});
  observer_.on_round = [&](int, const auto&, double) {
    history::leave_request(run_folder(), {Kind::kLeave, others, "closed"});
    EXPECT_TRUE(test::await([&] { return history::pending_requests(run_folder()).empty(); }));
    observer_.on_round = {};
  };
  EXPECT_EQ(test::kind_of([&] { run(before); }), ErrorKind::kConfig);
  EXPECT_FALSE(state().completed);
  write_file_atomic(folder_ / "xffl.yaml", correct);
  EXPECT_EQ(run(policy, 3).rounds_published, 3);
  EXPECT_THAT(state().rounds.at(3).participant_names(), ElementsAre("cork"));
}

// A script with Windows line ends writes such names. The trainer complains of an unlisted file.
TEST_F(Federation, AFileWithAControlCharacterInTheModelsFolderEndsNoRun) {
  fs::path folder;
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.key.facility != "alba") return;
    folder = spec.base_model_path;
    if (spec.key.attempt == 1) {
      write_file_atomic(folder / "log\r", "x");
      job::report_model_failure(spec.model_failure_path(), "a file is not in the manifest");
      ends_["alba"] = {};
    } else {
      ends_.erase("alba");
    }
  };
  EXPECT_EQ(run("policy: {max_attempts: 2, evaluate_last: false}\n").rounds_published, 1);
  EXPECT_FALSE(fs::exists(folder / "log\r"));
  EXPECT_NO_THROW(checkpoint::verify_folder(folder, checkpoint::read_manifest(folder)));
}

// brno's job of the first of two rounds runs.
TEST_F(Federation, AMemberStaysInTheRoundAndInTheNext) {
  const FacilityName alba("alba"), brno("brno");
  const std::string policy = "policy: {evaluate_last: false}\n";
  trainings_["brno"].duration = hours(1000);
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.key.facility == "brno") stop_.request_stop();
  };
  EXPECT_EQ(test::kind_of([&] { run(policy, 2); }), ErrorKind::kCancelled);
  const auto leave = [&](const std::vector<FacilityName>& names, bool now) {
    act({history::Request::Kind::kLeave, names, "spent", now}, policy, 2);
  };
  const auto refusal = [&](const std::vector<FacilityName>& names) {
    return test::kind_of([&] { leave(names, true); });
  };
  has_cork_ = true;
  EXPECT_EQ(refusal({alba, brno}), ErrorKind::kUsage) << "cork is no member of this round";
  has_cork_ = false;
  leave({brno}, false);
  EXPECT_EQ(refusal({alba}), ErrorKind::kUsage) << "brno is no member of the next round";
  EXPECT_FALSE(state().left.contains(alba));
}

// brno is unreachable when it leaves at once together with cork; no coordinator runs.
TEST_F(Federation, AnUnreachableFacilityThatLeavesKeepsNoOthersJobRunning) {
  has_cork_ = true;
  const std::string policy = "policy: {evaluate_last: false}\n";
  for (const char* name : {"brno", "cork"}) trainings_[name].duration = hours(100'000);
  int submitted = 0;
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.key.facility != "alba" && ++submitted == 2) stop_.request_stop();
  };
  EXPECT_EQ(test::kind_of([&] { run(policy); }), ErrorKind::kCancelled);
  std::vector<std::string> cancelled;
  on_cancel_ = [&](const std::string& facility) {
    if (facility == "brno") throw Error(ErrorKind::kRemote, "the link is down");
    cancelled.push_back(facility);
    return true;
  };
  const std::vector<FacilityName> both = {FacilityName("brno"), FacilityName("cork")};
  act({history::Request::Kind::kLeave, both, "closed", true}, policy);
  EXPECT_THAT(cancelled, ElementsAre("cork"));
}

TEST_F(Federation, ARejectedRequestDoesNotBlockLaterOnes) {
  const FacilityName alba("alba"), brno("brno");
  using Kind = history::Request::Kind;
  history::leave_request(run_folder(), {Kind::kLeave, {alba, brno}, "no member would stay"});
  history::leave_request(run_folder(), {Kind::kLeave, {brno}, "spent"});
  EXPECT_EQ(run("policy: {evaluate_last: false}\n").rounds_published, 1);
  EXPECT_THAT(jobs_of("brno"), testing::IsEmpty());
  EXPECT_THAT(history::pending_requests(run_folder()), testing::IsEmpty());
}

// The coordinator ends before it sees the request. A file that stays would pause alba once more,
// after a user's resume.
TEST_F(Federation, ACommandThatOutlivesTheCoordinatorRemovesItsRequest) {
  rejected_["brno"] = "not now";
  failure_of("");
  auto coordinator = std::make_unique<history::RunHistory>(run_folder().journal());
  size_t pending = 0;
  clock_.on_sleep = [&] {
    if (coordinator) pending = history::pending_requests(run_folder()).size();
    coordinator.reset();
  };
  act({history::Request::Kind::kPause, {FacilityName("alba")}, "maintenance"}, "");
  EXPECT_EQ(pending, 1u);
  EXPECT_TRUE(state().paused.contains(FacilityName("alba")));
  EXPECT_THAT(history::pending_requests(run_folder()), testing::IsEmpty());
}

TEST_F(Federation, ACommandDoesNotWaitForACoordinatorThatHangs) {
  rejected_["brno"] = "not now";
  failure_of("");
  auto coordinator = std::make_unique<history::RunHistory>(run_folder().journal());
  clock_.on_sleep = [&, until = clock_.elapsed() + minutes(1)] {
    if (clock_.elapsed() > until) coordinator.reset();
  };
  const history::Request request{history::Request::Kind::kPause, {FacilityName("alba")}, "x"};
  EXPECT_THAT(test::message_of(ErrorKind::kBusy, [&] { act(request, ""); }),
              HasSubstr("has not acted on the request yet"));
  EXPECT_EQ(history::pending_requests(run_folder()).size(), 1u);
}

// A budget ends its own pause when other jobs need less than their walltime.
TEST_F(Federation, AUsersPauseReplacesThatOfABudget) {
  rejected_["brno"] = "not now";
  failure_of("");
  const FacilityName alba("alba");
  history::RunHistory(run_folder().journal())
      .record({.facility = alba}, history::FacilityPaused{.reason = "spent", .by_budget = true});
  act({history::Request::Kind::kPause, {alba}, "maintenance"}, "");
  EXPECT_EQ(state().paused.at(alba), "maintenance");
  EXPECT_FALSE(history::RunHistory(run_folder().journal()).spending().is_paused(alba));
}

TEST_F(Federation, ThePauseOfARemovedBudgetEndsByItself) {
  const std::string policy = "policy: {evaluate_last: false}\n";
  observer_.on_round = [&](int, const auto&, double) { stop_.request_stop(); };
  EXPECT_EQ(test::kind_of([&] { run(policy, 2); }), ErrorKind::kCancelled);
  const FacilityName alba("alba");
  history::RunHistory(run_folder().journal())
      .record({.facility = alba}, history::FacilityPaused{.reason = "spent", .by_budget = true});
  stop_ = {};
  observer_.on_round = {};
  clock_.on_sleep = [&, until = clock_.elapsed() + hours(100)] {
    if (clock_.elapsed() > until) stop_.request_stop();  // a pause that stays
  };
  EXPECT_EQ(run(policy, 2).rounds_published, 2);
  EXPECT_FALSE(state().paused.contains(alba));
}

// The run completes while the command waits for the coordinator.
TEST_F(Federation, ACompletedRunIsNotReportedAsCancelled) {
  rejected_["brno"] = "not now";
  failure_of("");
  auto coordinator = std::make_unique<history::RunHistory>(run_folder().journal());
  clock_.on_sleep = [&] {
    if (coordinator) coordinator->record({}, history::RunCompleted{.model_sha256 = {}});
    coordinator.reset();
  };
  EXPECT_EQ(test::kind_of([&] { cancel(""); }), ErrorKind::kNotFound);
  EXPECT_THAT(history::pending_requests(run_folder()), testing::IsEmpty());
}

// The coordinator removes each request without a record.
TEST_F(Federation, ACommandFailsWhenTheCoordinatorRejectsItsRequest) {
  const FacilityName brno("brno");
  using Kind = history::Request::Kind;
  rejected_["brno"] = "not now";
  failure_of("");
  history::RunHistory coordinator(run_folder().journal());
  clock_.on_sleep = [&] {
    for (const auto& [name, request] : history::pending_requests(run_folder()))
      history::remove_request(run_folder(), name);
  };
  const auto refusal = [&](const history::Request& request) {
    return test::message_of(ErrorKind::kFailed, [&] { act(request, ""); });
  };
  const auto is_told = HasSubstr("the coordinator did not accept the request");
  EXPECT_THAT(refusal({Kind::kLeave, {brno}, "spent"}), is_told);
  coordinator.record({.facility = brno}, history::FacilityLeft{.reason = "spent", .now = false});
  EXPECT_THAT(refusal({Kind::kLeave, {brno}, "spent", true}), is_told) << "its job goes on";
  EXPECT_THAT(refusal({Kind::kJoin, {brno}, ""}), is_told);
}

// The coordinator dies before its third record, after the run's creation and its place.
TEST_F(Federation, ARequestIsKeptUntilItIsRecorded) {
  const std::string policy = "policy: {evaluate_last: false}\n";
  const int ending = test::in_child([&] {
    history::leave_request(run_folder(),
                           {history::Request::Kind::kLeave, {FacilityName("brno")}, "spent"});
    ::setenv("XFFL_FAILPOINT", "journal:before:3", 1);
    run(policy);
    return 0;
  });
  ASSERT_EQ(ending, 128 + SIGKILL);
  ASSERT_EQ(history::read_events(run_folder().journal()).back().kind, "run_placed");
  EXPECT_EQ(run(policy).rounds_published, 1);
  EXPECT_THAT(jobs_of("brno"), testing::IsEmpty());
  EXPECT_THAT(history::pending_requests(run_folder()), testing::IsEmpty());
}

// `xffl cancel` and others read the file; the next coordinator does not write it again. Each
// coordinator dies right after its record of a configuration.
TEST_F(Federation, TheConfigurationOnRecordIsInItsFile) {
  const auto kill_after = [&](const std::string& failpoint, const std::string& policy) {
    EXPECT_EQ(test::in_child([&] {
                ::setenv("XFFL_FAILPOINT", failpoint.c_str(), 1);
                run(policy);
                return 0;
              }),
              128 + SIGKILL);
    return history::read_events(run_folder().journal()).back().kind;
  };
  ASSERT_EQ(kill_after("journal:after:1", "policy: {evaluate_last: false}\n"), "run_created");
  ASSERT_TRUE(fs::exists(run_folder().config()));
  EXPECT_EQ(sha256_file(run_folder().config()), state().config_sha256);
  const std::string changed = "policy: {evaluate_last: false, max_attempts: 5}\n";
  ASSERT_EQ(kill_after("journal:after:2", changed), "config_changed") << "run_placed comes first";
  EXPECT_EQ(sha256_file(run_folder().config()), state().config_sha256);
}

// The record of a configuration is compared with a changed one.
TEST_F(Federation, ADamagedConfigurationOnRecordIsNotCompared) {
  observer_.on_round = [&](int, const auto&, double) { stop_.request_stop(); };
  EXPECT_EQ(test::kind_of([&] { run("policy: {evaluate_last: false}\n", 2); }),
            ErrorKind::kCancelled);
  observer_.on_round = {};
  stop_ = {};
  const std::string changed = "policy: {evaluate_last: false, max_attempts: 5}\n";
  const std::string text = read_file(run_folder().config(), 1 << 20);
  write_file_atomic(run_folder().config(), text + "# damage\n");
  EXPECT_THAT(test::message_of(ErrorKind::kCorrupt, [&] { run(changed, 2); }),
              HasSubstr("is damaged: its SHA-256 differs from the journal's"));
  write_file_atomic(run_folder().config(), text);
  EXPECT_EQ(run(changed, 2).rounds_published, 2);
}

// Knows no job; notes whether a query was marked as the last one.
class ForgetfulScheduler final : public test::ForwardingScheduler {
 public:
  explicit ForgetfulScheduler(std::function<void(bool)> on_query)
      : ForwardingScheduler(nullptr), on_query_(std::move(on_query)) {}
  JobId submit(const submit::JobRequest&, std::stop_token) override { return JobId("7"); }
  std::vector<JobId> find(const submit::JobRequest&, std::stop_token) override { return {}; }
  std::map<JobId, submit::JobStatus> query(std::span<const submit::SubmittedJob> jobs,
                                           std::stop_token) override {
    std::map<JobId, submit::JobStatus> states;
    for (const submit::SubmittedJob& job : jobs) {
      on_query_(job.presumed_gone);
      states[job.id];
    }
    return states;
  }
  void cancel(const submit::SubmittedJob&, std::stop_token) override {}
  std::chrono::milliseconds settle_time() const override { return std::chrono::seconds(10); }
  std::optional<submit::ClockOffset> clock_offset() const override { return std::nullopt; }

 private:
  const std::function<void(bool)> on_query_;
};

// The scheduler then asks every source of it, and an answer without the accounting decides nothing.
TEST_F(Federation, TheLastQueryOfAnUnknownJobIsMarked) {
  std::vector<bool> marks;
  std::mutex mutex;
  make_scheduler_ = [&](const config::Facility&) {
    return std::make_shared<ForgetfulScheduler>([&](bool mark) {
      const std::lock_guard lock(mutex);
      marks.push_back(mark);
      if (mark || marks.size() == 1000) stop_.request_stop();
    });
  };
  EXPECT_THROW(run("policy: {evaluate_last: false}\n"), Error);
  ASSERT_GE(marks.size(), 3u);
  EXPECT_FALSE(marks.front());
  EXPECT_NE(std::ranges::count(marks, true), 0);
}

TEST_F(Federation, WithLoraTheAdapterIsTrainedAndTheModelStays) {
  // The script of another trainer's job checks the files of model and adapter by this list.
  int num_files = 0, num_adapters = 0;
  on_submit_ = [&](const job::JobSpec& spec) {
    const fs::path folder = fs::path(spec.report_path).parent_path().parent_path();
    std::ifstream list(folder / plan::kModelHashes);
    for (std::string line; std::getline(list, line); ++num_files) {
      const std::string path = line.substr(66);
      EXPECT_EQ(sha256_file(path), line.substr(0, 64)) << path;
      if (path == spec.adapter_path + "/" + std::string(checkpoint::kAdapterName)) ++num_adapters;
    }
  };
  EXPECT_EQ(run(kLora + "policy: {keep_rounds: 1, evaluate_last: false}\n", 2).rounds_published, 2);
  EXPECT_EQ(num_adapters, 4) << "of four jobs";
  EXPECT_GT(num_files, 8);
  const std::vector<job::JobSpec> jobs = jobs_of("alba");
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].base_model_sha256, jobs[1].base_model_sha256);
  EXPECT_NE(jobs[0].adapter_sha256, jobs[1].adapter_sha256);
  EXPECT_FALSE(checkpoint::ModelFolder(jobs[1].base_model_path).is_adapter())
      << "the model stays at the facility";
  EXPECT_TRUE(checkpoint::ModelFolder(run_folder().global(2)).is_adapter());
  EXPECT_FALSE(fs::exists(jobs[0].adapter_path)) << "policy.keep_rounds is 1";
}

// A global model of an earlier run lies on the disk for weeks; its manifest has its hashes.
TEST_F(Federation, AnInputThatDiffersFromItsManifestIsNotImported) {
  const std::string policy = "policy: {evaluate_last: false}\n";
  const auto damage = [](const fs::path& file) {
    std::fstream(file, std::ios::in | std::ios::out).seekp(-3, std::ios::end).put('!');
  };
  const auto refusal = [&](const std::string& sections) {
    return test::message_of(ErrorKind::kCorrupt, [&] { run(sections + policy); });
  };
  const fs::path model = folder_ / "model", adapter = folder_ / "adapter";
  checkpoint::write_manifest(model);
  damage(model / "model.safetensors");
  for (const std::string& sections : {std::string(), kLora}) {
    const std::string message = refusal(sections);
    EXPECT_THAT(message, HasSubstr("model/model.safetensors is damaged: its manifest.json has"));
    EXPECT_THAT(message, HasSubstr("model/manifest.json if the change of the file is yours"));
  }
  fs::remove(model / "manifest.json");  // the change is the user's

  checkpoint::write_initial_lora(adapter, checkpoint::read_llama_config(model),
                                 {2, 4, 0, {"q_proj"}}, 7);
  checkpoint::write_manifest(adapter);
  fs::copy(adapter, folder_ / "whole");
  damage(adapter / checkpoint::kAdapterName);
  EXPECT_THAT(refusal("adapter: adapter\n" + kLora),
              HasSubstr("adapter/adapter_model.safetensors is damaged"));
  EXPECT_EQ(run("adapter: whole\n" + kLora + policy).rounds_published, 1);
}

TEST_F(Federation, AnInputWithAManifestIsImported) {
  checkpoint::write_manifest(folder_ / "model");
  write_file_atomic(folder_ / "model/README.md", "a file that was added later");
  write_file_atomic(folder_ / "model/tokenizer.json", "{}");  // as beside `xffl-train init`
  EXPECT_EQ(run("policy: {evaluate_last: false}\n").rounds_published, 1);
  EXPECT_EQ(master_weight(0), 0.5f);
  for (const fs::path& global : {run_folder().global(0), run_folder().global(1)}) {
    EXPECT_EQ(read_file(global / "tokenizer.json", 10), "{}");
    EXPECT_FALSE(fs::exists(global / "README.md"));
  }
}

// Other programs have files of this name, too.
TEST_F(Federation, AModelWithAForeignManifestIsImported) {
  write_file_atomic(folder_ / "model/manifest.json", R"({"name": "a web page"})");
  EXPECT_EQ(run("policy: {evaluate_last: false}\n").rounds_published, 1);
  EXPECT_EQ(master_weight(0), 0.5f);
}

TEST_F(Federation, AnAdapterOfAnotherModelIsRejected) {
  checkpoint::LlamaConfig larger = checkpoint::read_llama_config(folder_ / "model");
  larger.hidden_size = 16;
  checkpoint::write_initial_lora(folder_ / "adapter", larger, {2, 4, 0, {"q_proj"}}, 7);
  EXPECT_THAT(test::message_of(ErrorKind::kRejected, [&] { run("adapter: adapter\n" + kLora); }),
              HasSubstr("q_proj.lora_A.weight' has the shape [2, 16], expected [2, 8]"));
}

// Takes each job twice, and its answer gets lost. A cancelled job takes its time to end.
class AnswerlessScheduler final : public submit::Scheduler {
 public:
  AnswerlessScheduler(std::stop_source stop, const Clock& clock)
      : stop_(std::move(stop)), clock_(clock) {}
  JobId submit(const submit::JobRequest& request, std::stop_token) override {
    folder_ = request.folder.str();
    nodes_folder_ = request.nodes_folder.str();
    shows_jobs_at_ = clock_.monotonic() + std::chrono::seconds(20);
    stop_.request_stop();
    throw Error(ErrorKind::kRemote, "the answer was lost");
  }
  std::vector<JobId> find(const submit::JobRequest& request, std::stop_token) override {
    if (folder_.empty() || request.folder.str() != folder_) return {};
    if (clock_.monotonic() < shows_jobs_at_) return {};
    return {JobId("42"), JobId("43")};
  }
  std::map<JobId, submit::JobStatus> query(std::span<const submit::SubmittedJob> jobs,
                                           std::stop_token) override {
    std::map<JobId, submit::JobStatus> states;
    for (const submit::SubmittedJob& job : jobs)
      states[job.id] = {
          .state = submit::JobState::kRunning, .native = "COMPLETING", .is_ending = true};
    return states;
  }
  void cancel(const submit::SubmittedJob& job, std::stop_token) override {
    EXPECT_TRUE(fs::exists(fs::path(folder_) / plan::kFence)) << "another one may start late";
    cancelled_.push_back(job.id.str());
  }
  std::chrono::milliseconds settle_time() const override { return std::chrono::seconds(30); }

  bool has_job() const { return !folder_.empty(); }
  const std::string& nodes_folder() const { return nodes_folder_; }
  const std::vector<std::string>& cancelled() const { return cancelled_; }

 private:
  std::stop_source stop_;
  const Clock& clock_;
  Clock::MonotonicTime shows_jobs_at_{};
  std::string folder_, nodes_folder_;
  std::vector<std::string> cancelled_;
};

std::map<std::string, std::shared_ptr<AnswerlessScheduler>> answerless_schedulers(
    const std::stop_source& stop, const Clock& clock) {
  return {{"alba", std::make_shared<AnswerlessScheduler>(stop, clock)},
          {"brno", std::make_shared<AnswerlessScheduler>(stop, clock)}};
}

// The journal does not have the id of a job: only a search finds the jobs.
// The scheduler shows them 20 s later.
TEST_F(Federation, ACancellationEndsTheJobsOfALostAnswer) {
  const auto schedulers = answerless_schedulers(stop_, clock_);
  make_scheduler_ = [&](const config::Facility& facility) {
    return schedulers.at(facility.name.str());
  };
  const std::string policy = "policy: {evaluate_last: false}\n";
  EXPECT_THROW(run(policy), Error);
  cancel(policy);
  EXPECT_TRUE(state().cancelled);
  const std::vector<std::string> both = {"42", "43"}, none;
  int lost = 0;
  for (const auto& [name, scheduler] : schedulers) {
    EXPECT_EQ(scheduler->cancelled(), scheduler->has_job() ? both : none) << name;
    lost += scheduler->has_job() ? 1 : 0;
  }
  EXPECT_GT(lost, 0);
}

TEST_F(Federation, AJobIsSubmittedInItsFolderOnComputeNodes) {
  facility_keys_ = "scheduler: slurm, slurm: {time: 1h}, compute_mounts: ['/data', '" +
                   folder_.path().string() + ":/nodes'], ";
  const auto schedulers = answerless_schedulers(stop_, clock_);
  make_scheduler_ = [&](const config::Facility& facility) {
    return schedulers.at(facility.name.str());
  };
  EXPECT_THROW(run("policy: {evaluate_last: false}\n"), Error);
  int submitted = 0;
  for (const auto& [name, scheduler] : schedulers) {
    if (!scheduler->has_job()) continue;
    ++submitted;
    EXPECT_THAT(scheduler->nodes_folder(), testing::StartsWith("/nodes/")) << name;
    // The script hashes the model's files there.
    const fs::path here = folder_ / scheduler->nodes_folder().substr(std::string("/nodes/").size());
    const std::string hashes = read_file(here / plan::kModelHashes, 1 << 20);
    EXPECT_THAT(hashes, HasSubstr("  /nodes/"));
    EXPECT_THAT(hashes, Not(HasSubstr(folder_.path().string())));
  }
  EXPECT_GT(submitted, 0);
}

// `xffl status` would call the run killed.
TEST_F(Federation, AStagedJobLeavesTheReasonOfTheStop) {
  facility_keys_ = "scheduler: slurm, slurm: {time: 1h}, ";
  for (int times = 0; times < 2; ++times) stage(run_folder());
  const auto stopped = state().stopped;
  ASSERT_TRUE(stopped);
  EXPECT_EQ(stopped->kind, "cancelled");
  EXPECT_THAT(stopped->reason, HasSubstr("alba is staged"));
}

// Its job would train for the original run too.
TEST_F(Federation, ACopyOfARunStagesNoJob) {
  facility_keys_ = "scheduler: slurm, slurm: {time: 1h}, ";
  EXPECT_THAT(stage(run_folder()).command, HasSubstr("sbatch"));
  const history::RunFolder copy(folder_ / "copy", RunName("0001"));
  fs::create_directories(folder_ / "copy");
  fs::copy(run_folder().path(), copy.path(),
           fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  EXPECT_THAT(test::message_of(ErrorKind::kUsage, [&] { stage(copy); }), HasSubstr("is a copy of"));
}

TEST_F(Federation, ACancelledRunStagesNoJob) {
  facility_keys_ = "scheduler: slurm, slurm: {time: 1h}, ";
  rejected_["brno"] = "not now";
  failure_of("");
  cancel("");
  EXPECT_THAT(test::message_of(ErrorKind::kUsage, [&] { stage(run_folder()); }),
              HasSubstr("run 0001 has ended"));
}

// The command runs between two rounds, where the newest model meets the rule. A planned round would
// be trained.
TEST_F(Federation, ARunWhoseRuleIsMetStagesNoJob) {
  facility_keys_ = "scheduler: slurm, slurm: {time: 1h}, ";
  observer_.on_round = [&](int, const auto&, double) { stop_.request_stop(); };
  EXPECT_EQ(test::kind_of([&] { run("policy: {evaluate_last: false}\n", 2); }),
            ErrorKind::kCancelled);
  const config::Experiment ruled =
      experiment("policy: {evaluate_last: false, stop_when: {loss_below: 3}}\n", 2);
  facility::Services made = services();
  const auto stage_next = [&] { stage_job(ruled, run_folder(), made, FacilityName("alba"), {}); };
  EXPECT_THAT(test::message_of(ErrorKind::kUsage, stage_next), HasSubstr("has no job in the next"));
  EXPECT_TRUE(state().stop_rule);
  EXPECT_FALSE(state().rounds.contains(2));
}

// --- Job templates ---

TEST_F(Federation, AWrongOrAbsentTemplateIsRejectedAheadOfAnyConnection) {
  const config::Experiment parsed = with_own_template("policy: {evaluate_last: false}\n");
  std::atomic<int> connections = 0;
  facility::Services made = services();
  made.connect =
      made.connect_transfer = [&](const config::Facility&) -> std::shared_ptr<remote::Session> {
    ++connections;
    return std::make_shared<test::DeadSession>();
  };
  const auto start = [&] {
    run_federation(parsed, run_folder(), made, stop_.get_token(), observer_);
  };
  write_file_atomic(own_template(), kWrongTemplate);
  const auto says_where = testing::AllOf(HasSubstr("the job script of brno: "),
                                         HasSubstr("own.sbatch:3: "), HasSubstr("acount"));
  EXPECT_THAT(test::message_of(ErrorKind::kConfig, start), says_where);
  EXPECT_THAT(
      test::message_of(ErrorKind::kConfig,
                       [&] { stage_job(parsed, run_folder(), made, FacilityName("brno"), {}); }),
      says_where);
  fs::remove(own_template());
  EXPECT_THAT(test::message_of(ErrorKind::kNotFound, start), HasSubstr("own.sbatch"));
  EXPECT_EQ(connections, 0);
  EXPECT_TRUE(state().rounds.empty());
  write_file_atomic(own_template(), kOwnTemplate);
  EXPECT_EQ(run(parsed).rounds_published, 1);
}

// brno leaves between two rounds; a user then removes its template.
TEST_F(Federation, TheTemplateOfAFacilityThatLeftHoldsUpNoOther) {
  const std::string policy = "policy: {evaluate_last: false}\n";
  config::Experiment parsed = with_own_template(policy);
  parsed.rounds = 2;
  observer_.on_round = [&](int, const auto&, double) { stop_.request_stop(); };
  EXPECT_EQ(test::kind_of([&] { run(parsed); }), ErrorKind::kCancelled);
  observer_.on_round = {};
  stop_ = {};
  act({history::Request::Kind::kLeave, {FacilityName("brno")}, "closed"}, policy, 2);
  fs::remove(own_template());
  EXPECT_EQ(run(parsed).rounds_published, 2);
  EXPECT_THAT(state().rounds.at(2).participant_names(), ElementsAre("alba"));
}

// A user spoils brno's template while the round goes on.
TEST_F(Federation, ATemplateThatTurnsWrongCostsItsFacilityTheRoundOnly) {
  const config::Experiment parsed = with_own_template(kLeavesOutLateOnes);
  let_brno_begin_after_alba();
  on_begin_ = [this, wait = on_begin_](const std::string& facility) {
    wait(facility);
    if (facility == "brno") write_file_atomic(own_template(), kWrongTemplate);
  };
  log::set_file(folder_ / "log");
  EXPECT_EQ(run(parsed).rounds_published, 1);
  log::set_file({});
  const history::RoundState round = state().rounds.at(1);
  EXPECT_THAT(round.participant_names(), ElementsAre("alba"));
  const history::FacilityState brno = round.facilities.at(FacilityName("brno"));
  EXPECT_THAT(brno.missing.value_or(""), HasSubstr("own.sbatch:3: "));
  ASSERT_EQ(brno.attempts.size(), 1u);
  EXPECT_TRUE(brno.attempts.front().pushed);
  EXPECT_FALSE(brno.attempts.front().submit_intended);
  EXPECT_THAT(read_file(folder_ / "log", 1 << 20), HasSubstr("a facility needs you"));
}

// A missing facility would end the round of all.
TEST_F(Federation, ATemplateThatComesBackDelaysItsFacilityOnly) {
  const config::Experiment parsed =
      with_own_template("policy: {on_missing: fail, evaluate_last: false}\n");
  on_begin_ = [this](const std::string& facility) {
    if (facility == "brno") fs::remove(own_template());
  };
  restore_template_after_an_hour();
  EXPECT_EQ(run(parsed).rounds_published, 1);
  EXPECT_THAT(state().rounds.at(1).participant_names(), ElementsAre("alba", "brno"));
  EXPECT_EQ(state().rounds.at(1).facilities.at(FacilityName("brno")).attempts.size(), 1u);
  EXPECT_EQ(jobs_of("brno").size(), 1u);
}

// The scheduler defers the submission, and the template is gone at the next try.
TEST_F(Federation, ATemplateThatIsGoneAfterTheIntentToSubmitIsNoRejection) {
  const config::Experiment parsed = with_own_template("policy: {evaluate_last: false}\n");
  bool deferred = false;
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.key.facility != "brno" || std::exchange(deferred, true)) return;
    fs::remove(own_template());
    throw Error(ErrorKind::kBusy, "the limit of jobs in the queue");
  };
  restore_template_after_an_hour();
  EXPECT_EQ(run(parsed).rounds_published, 1);
  EXPECT_EQ(state().rounds.at(1).facilities.at(FacilityName("brno")).attempts.size(), 1u);
  EXPECT_EQ(jobs_of("brno").size(), 2u) << "the deferred submission, and the job";
}

// --- File descriptors ---

// The lack begins with the last action of the last facility, and outlasts the tries that another
// error of this machine gets.
TEST_F(Federation, AMeanWaitsForFileDescriptors) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto allow = [&](rlim_t count) {
    const rlimit limit{.rlim_cur = count, .rlim_max = before.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  };
  const std::shared_ptr<void> restored_at_the_end(nullptr, [&](void*) { allow(before.rlim_cur); });
  const auto local = remote::make_local_session();
  std::atomic<int> ended = 0, pauses = 0;
  std::atomic<bool> lacks = false, waited = false;
  for (const char* name : {"alba", "brno"}) {
    const auto session = std::make_shared<test::FaultySession>(*local);
    session->after_stat = [&](const RemotePath& path) {
      if (!path.str().ends_with(plan::kMetricsFile) || ++ended != 2) return;
      lacks = true;
      allow(3);  // standard input and outputs
    };
    sessions_[name] = session;
  }
  clock_.on_sleep = [&] {
    if (!lacks || ++pauses < 6) return;
    lacks = false;
    waited = true;
    allow(before.rlim_cur);
  };
  log::set_file(folder_ / "log");
  EXPECT_EQ(run("policy: {evaluate_last: false}\n").rounds_published, 1);
  log::set_file({});
  EXPECT_TRUE(waited);
  EXPECT_EQ(master_weight(1), 1.0f / 8 + 0.5f);
  EXPECT_THAT(read_file(folder_ / "log", 1 << 20),
              HasSubstr("this machine does not answer as expected: will retry"));
}

// A try may fail after it has made the models, ahead of their final names.
TEST_F(Federation, AMeanReplacesTheModelsOfAFailedTry) {
  int64_t epoch = 0;
  observer_.on_begin = [&](int64_t own) { epoch = own; };
  on_submit_ = [&](const job::JobSpec&) {
    for (const fs::path& path : {run_folder().master(1), run_folder().global(1)})
      make_dirs(history::work_name(path, epoch));
  };
  EXPECT_EQ(run("policy: {evaluate_last: false}\n").rounds_published, 1);
  EXPECT_EQ(master_weight(1), 1.0f / 8 + 0.5f);
}

// A folder is in the way of the symbolic link until the first pause after the mean.
TEST_F(Federation, APublicationOutlivesAPassingErrorOfAFile) {
  int64_t epoch = 0;
  std::atomic<bool> has_waited = false;
  observer_.on_begin = [&](int64_t own) { epoch = own; };
  on_submit_ = [&](const job::JobSpec&) {
    make_dirs(history::work_name(run_folder().current(), epoch) / "x");
  };
  clock_.on_sleep = [&] {
    if (!fs::exists(run_folder().global(1)) || has_waited.exchange(true)) return;
    fs::remove_all(history::work_name(run_folder().current(), epoch));
  };
  EXPECT_EQ(run("policy: {evaluate_last: false}\n").rounds_published, 1);
  EXPECT_TRUE(has_waited);
  EXPECT_EQ(fs::canonical(run_folder().current()), fs::canonical(run_folder().global(1)));
}

TEST_F(Federation, AnErrorOfAFileThatStaysEndsTheRun) {
  int64_t epoch = 0;
  observer_.on_begin = [&](int64_t own) { epoch = own; };
  on_submit_ = [&](const job::JobSpec&) {
    make_dirs(history::work_name(run_folder().current(), epoch) / "x");
  };
  clock_.on_sleep = [&] {
    if (clock_.elapsed() > hours(1)) stop_.request_stop();
  };
  EXPECT_EQ(test::kind_of([&] { run("policy: {evaluate_last: false}\n"); }), ErrorKind::kIo);
}

// A lack of file descriptors may last, and the coordinator then tries again without end.
TEST_F(Federation, AStopEndsThePauseOfAPublicationThatFails) {
  int64_t epoch = 0;
  observer_.on_begin = [&](int64_t own) { epoch = own; };
  on_submit_ = [&](const job::JobSpec&) {
    make_dirs(history::work_name(run_folder().current(), epoch) / "x");
  };
  clock_.on_sleep = [&] {
    if (fs::exists(run_folder().global(1))) stop_.request_stop();
  };
  EXPECT_EQ(test::kind_of([&] { run("policy: {evaluate_last: false}\n"); }), ErrorKind::kCancelled);
}

// A password must not reach another facility.
TEST_F(Federation, ALogInReachesTheNamedFacility) {
  std::vector<std::string> seen;
  facility::Services made = services();
  made.log_in = [&](const config::Facility& facility, const remote::Ask& ask) {
    seen = {facility.name.str(), ask("Code: ", false)};
  };
  on_submit_ = [&](const job::JobSpec& spec) {
    if (spec.key.facility != "alba") return;
    EXPECT_TRUE(
        log_in_through_coordinator(run_folder(), FacilityName("brno"),
                                   [](const std::string&, bool) { return std::string("123456"); }));
  };
  run_federation(experiment("policy: {evaluate_last: false}\n"), run_folder(), made,
                 stop_.get_token(), observer_);
  EXPECT_THAT(seen, ElementsAre("brno", "123456"));
}

// The model under an adapter keeps all its numbers.
TEST_F(Federation, WithLoraAModelOfSeveralTypesIsKeptInFloat32) {
  write_model(16, checkpoint::Dtype::kF32);
  EXPECT_EQ(run(kLora).rounds_published, 1);
  const checkpoint::ModelFolder adapted(run_folder().adapted());
  for (const checkpoint::TensorSpec& tensor : adapted.tensors())
    EXPECT_EQ(tensor.dtype, checkpoint::Dtype::kF32) << tensor.name;
}

}  // namespace
}  // namespace xffl::run
