// The policy changes while the coordinator is down: SIGKILL before a journal record, another value
// in xffl.yaml, and the same run again. Results from before the change count, and the new value
// decides from then on.
//
// Each coordinator is a child process, because XFFL_FAILPOINT holds for a process. ctest changes
// each key before a sample of the records; with XFFL_CAMPAIGN=1 before each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <set>
#include <thread>

#include "small_federation.h"
#include "support/failing_call.h"

// A lost disk cache is not the subject here (power_loss_test.cc), and synchronising hundreds of
// journals takes minutes.
extern "C" int fsync(int) { return 0; }
extern "C" int fdatasync(int) { return 0; }

namespace xffl::run {
namespace {

namespace fs = std::filesystem;
using std::chrono::hours;
using testing::ElementsAre;
using testing::HasSubstr;
using Events = std::vector<history::StoredEvent>;
using Settings = std::map<std::string, std::string>;

// alba's jobs train at their submission. brno's jobs are submitted after alba's update is on
// record, and train when a coordinator has waited three hours for them. The folder `jobs` outlives
// the coordinator.
class LateScheduler final : public submit::Scheduler {
 public:
  using Train = std::function<void(const job::JobSpec&)>;
  LateScheduler(fs::path jobs, fs::path journal, bool is_late, const Clock& clock, Train train)
      : jobs_(std::move(jobs)),
        journal_(std::move(journal)),
        is_late_(is_late),
        clock_(clock),
        train_(std::move(train)) {}

  JobId submit(const submit::JobRequest& request, std::stop_token stop) override {
    const job::JobSpec spec = job::read_job_spec(request.folder.str() + "/job.json");
    if (is_late_) await_alba(spec.key.round, stop);
    write_file_atomic(jobs_ / id_of(spec), request.folder.str());
    std::ofstream(jobs_ / "submissions", std::ios::app)
        << spec.key.facility << ' ' << spec.key.round << ' ' << spec.key.attempt << ' '
        << (spec.on_stop == job::OnStop::kCheckpoint ? "resume" : "use") << '\n';
    if (!is_late_) train_(spec);
    return JobId(id_of(spec));
  }
  std::vector<JobId> find(const submit::JobRequest& request, std::stop_token) override {
    const std::string id = id_of(job::read_job_spec(request.folder.str() + "/job.json"));
    if (!fs::exists(jobs_ / id)) return {};
    return {JobId(id)};
  }
  std::map<JobId, submit::JobStatus> query(std::span<const submit::SubmittedJob> jobs,
                                           std::stop_token) override {
    std::map<JobId, submit::JobStatus> states;
    for (const submit::SubmittedJob& job : jobs) {
      submit::JobStatus& status = states[job.id];
      status = {.state = submit::JobState::kEnded};
      const fs::path file = jobs_ / job.id.str();
      if (!fs::exists(file)) continue;
      const auto since = first_query_.emplace(job.id, clock_.monotonic()).first->second;
      if (is_late_ && clock_.monotonic() - since < hours(3)) {
        status.state = submit::JobState::kRunning;
        continue;
      }
      const job::JobSpec spec = job::read_job_spec(read_file(file, 4096) + "/job.json");
      if (fs::exists(spec.report_path)) continue;
      fs::remove_all(spec.update_path);  // of a training that died with the coordinator
      train_(spec);
      if (is_late_) std::ofstream(jobs_ / ("reported-" + std::to_string(spec.key.round))).flush();
    }
    return states;
  }
  void cancel(const submit::SubmittedJob& job, std::stop_token) override {
    fs::remove(jobs_ / job.id.str());
  }
  std::chrono::milliseconds settle_time() const override { return std::chrono::milliseconds(1); }

 private:
  static std::string id_of(const job::JobSpec& spec) {
    return std::to_string((spec.key.facility == "alba" ? 10'000 : 20'000) + 100 * spec.key.round +
                          spec.key.attempt);
  }
  // The simulated clock goes on only when alba needs no more of the round's time.
  void await_alba(int round, const std::stop_token& stop) const {
    const auto accepted = [&] {
      const Events events = history::read_events(journal_);
      return std::any_of(events.begin(), events.end(), [&](const history::StoredEvent& event) {
        return event.kind == "update_accepted" && event.facility == "alba" && event.round == round;
      });
    };
    while (!accepted()) {
      if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped on request");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  const fs::path jobs_, journal_;
  const bool is_late_;
  const Clock& clock_;
  const Train train_;
  std::map<JobId, Clock::MonotonicTime> first_query_;
};

class PolicyChange : public test::SmallFederation {
 protected:
  PolicyChange() {
    make_dirs(jobs_);
    clock_.advance(SystemClock().utc() - clock_.utc());  // the journal has the real time
    make_scheduler_ = [this](const config::Facility& facility) {
      return std::make_shared<LateScheduler>(jobs_, run_folder().journal(),
                                             brno_is_late_ && facility.name.str() == "brno", clock_,
                                             [this](const job::JobSpec& spec) { train(spec); });
    };
  }

  // Each test's rounds with the policy `before` up to each record of the sample, then with `after`.
  // `check` judges the journal and has the number of records before the change.
  void change(const Settings& before, const Settings& after,
              const std::function<void(const Events&, size_t)>& check) {
    coordinate(before, 0);
    const auto records = static_cast<int>(events().size());
    forget_run();
    const bool all = std::getenv("XFFL_CAMPAIGN") != nullptr;
    const int step = all ? 1 : std::max(1, records / 3);
    int kills = 0;
    for (int record = all ? 2 : 2 + first_; record <= records; record += step) {
      ASSERT_EQ(coordinate(before, record), 128 + SIGKILL) << record;
      reported_ = reports_of_brno();
      const size_t known = events().size();
      ASSERT_EQ(known, static_cast<size_t>(record - 1));
      ++kills;
      exit_code_ = coordinate(after, 0);
      SCOPED_TRACE("changed before record " + std::to_string(record) + " of " +
                   std::to_string(records) + (exit_code_ == 0 ? "" : ": " + message()));
      check(events(), known);
      expect_complete();
      if (HasFailure()) {
        for (const auto& event : events())
          std::cout << event.seq << ' ' << event.kind << ' ' << event.round << ' ' << event.facility
                    << ' ' << event.attempt << ' ' << event.payload.substr(0, 200) << '\n';
        return;
      }
      forget_run();
    }
    std::cout << kills << " changes, at " << records << " records\n";
    EXPECT_GE(kills, 2);
  }

  // Returns the exit code of a coordinator that dies before its `record`-th record (0: lives).
  int coordinate(const Settings& changes, int record) const {
    return test::in_child([&] {
      if (record > 0)
        ::setenv("XFFL_FAILPOINT", ("journal:before:" + std::to_string(record)).c_str(), 1);
      try {
        const_cast<PolicyChange*>(this)->run(policy(changes), rounds_);
        return 0;
      } catch (const Error& error) {
        write_file_atomic(jobs_ / "message", error.what());
        return exit_code(error.kind());
      }
    });
  }
  std::string policy(const Settings& changes) const {
    Settings all = {{"on_missing", "skip"}, {"quorum", "1"},          {"quorum_grace", "0s"},
                    {"deadline", "1h"},     {"poll_interval", "30m"}, {"evaluate_last", "false"}};
    for (const auto& [key, value] : changes) all[key] = value;
    if (!brno_is_late_) all["deadline"] = "1000h";  // the facilities' pauses pass side by side
    std::string text;
    for (const auto& [key, value] : all) text += (text.empty() ? "" : ", ") + key + ": " + value;
    return "policy: {" + text + "}\n";
  }
  Events events() const { return history::read_events(run_folder().journal()); }
  std::string message() const { return read_file(jobs_ / "message", 1 << 16); }
  void forget_run() const {
    for (const char* name : {"runs", "work", "jobs"}) fs::remove_all(folder_ / name);
    make_dirs(jobs_);
  }

  // Each round gets its participants and is published once, and no attempt of a facility is
  // submitted twice.
  void expect_complete() const {
    for (const char* kind : {"participants_frozen", "published"}) {
      std::map<int, int> times;
      for (const history::StoredEvent& event : events())
        if (event.kind == kind) ++times[event.round];
      EXPECT_EQ(times.size(), static_cast<size_t>(rounds_)) << kind;
      for (const auto& [round, count] : times) EXPECT_EQ(count, 1) << kind << ' ' << round;
    }
    std::set<std::string> seen;
    for (const std::string& line : submissions()) EXPECT_TRUE(seen.insert(line).second) << line;
    for (const std::string& line : seen)
      EXPECT_TRUE(resumes_ || !line.starts_with("alba") || line.substr(7, 1) == "1")
          << "trained again: " << line;
  }
  std::set<int> reports_of_brno() const {
    std::set<int> rounds;
    for (int round = 1; round <= rounds_; ++round)
      if (fs::exists(jobs_ / ("reported-" + std::to_string(round)))) rounds.insert(round);
    return rounds;
  }
  std::vector<std::string> submissions() const {
    std::vector<std::string> lines;
    std::ifstream file(jobs_ / "submissions");
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
  static size_t record_of(const Events& events, const std::string& kind, int round,
                          const std::string& facility = "") {
    for (const history::StoredEvent& event : events)
      if (event.kind == kind && event.round == round && event.facility == facility)
        return static_cast<size_t>(event.seq);
    return SIZE_MAX;
  }
  // Each reason why brno is missing has the text of the policy of its time.
  static void expect_reasons(const Events& events, size_t known, const std::string& before,
                             const std::string& after) {
    for (const history::StoredEvent& event : events)
      if (event.kind == "facility_missing") {
        EXPECT_THAT(event.payload,
                    HasSubstr(static_cast<size_t>(event.seq) <= known ? before : after))
            << event.seq;
      }
  }
  // The run fails with `text` while a round has no participants on record, and continues with the
  // policy `again`.
  void expect_failure(const Events& events, size_t known, const std::string& text,
                      const Settings& again) const {
    if (record_of(events, "participants_frozen", rounds_) <= known) {
      EXPECT_EQ(exit_code_, 0) << "the last round's participants were on record";
    } else {
      EXPECT_EQ(exit_code_, exit_code(ErrorKind::kFailed));
      EXPECT_THAT(message(), HasSubstr(text));
      EXPECT_EQ(coordinate(again, 0), 0) << message();
    }
  }
  // brno takes part in the rounds of `expected`.
  void expect_brno(const std::function<bool(int)>& expected) const {
    const history::RunState state = history::replay(events());
    const std::vector<std::string> alone{"alba"}, both{"alba", "brno"};
    for (int round = 1; round <= rounds_; ++round)
      EXPECT_EQ(state.rounds.at(round).participant_names(), expected(round) ? both : alone)
          << round;
  }

  const fs::path jobs_ = folder_ / "jobs";
  int rounds_ = 2;
  bool brno_is_late_ = true;
  bool resumes_ = false;    // alba's training takes two attempts
  int first_ = 0;           // the samples of the tests begin at different records
  std::set<int> reported_;  // brno's reports at the time of the change
  int exit_code_ = 0;       // of the coordinator with the changed policy
};

TEST_F(PolicyChange, Deadline) {
  for (const auto& [before, after] : {std::pair{"1h", "2h"}, std::pair{"2h", "1h"}}) {
    change({{"deadline", before}}, {{"deadline", after}}, [&](const Events& events, size_t known) {
      EXPECT_EQ(exit_code_, 0);
      const auto text = [](const std::string& value) {
        return "the round's deadline of " + std::string(value == "1h" ? "3600 s" : "7200 s");
      };
      expect_reasons(events, known, text(before), text(after));
    });
    first_ = 3;
  }
}

TEST_F(PolicyChange, Quorum) {
  change({{"quorum", "1"}}, {{"quorum", "2"}}, [&](const Events& events, size_t known) {
    expect_failure(events, known, "1 of 2 updates, 2 needed", {});
  });
  first_ = 2;
  change({{"quorum", "2"}}, {{"quorum", "1"}},
         [&](const Events&, size_t) { EXPECT_EQ(exit_code_, 0); });
}

TEST_F(PolicyChange, QuorumGrace) {
  const std::string late = "the round's deadline of 3600 s", grace = "1800 s after its quorum";
  change({}, {{"quorum_grace", "30m"}}, [&](const Events& events, size_t known) {
    EXPECT_EQ(exit_code_, 0);
    expect_reasons(events, known, late, grace);
  });
  first_ = 3;
  change({{"quorum_grace", "30m"}}, {}, [&](const Events& events, size_t known) {
    EXPECT_EQ(exit_code_, 0);
    expect_reasons(events, known, grace, late);
  });
}

TEST_F(PolicyChange, OnMissingFromSkipToWait) {
  change({}, {{"on_missing", "wait"}}, [&](const Events& events, size_t known) {
    EXPECT_EQ(exit_code_, 0);
    expect_brno([&](int round) { return record_of(events, "participants_frozen", round) > known; });
  });
}

TEST_F(PolicyChange, OnMissingFromWaitToSkip) {
  change({{"on_missing", "wait"}}, {}, [&](const Events&, size_t) {
    EXPECT_EQ(exit_code_, 0);
    expect_brno([&](int round) { return reported_.contains(round); });
  });
}

TEST_F(PolicyChange, OnMissingFromSkipToFail) {
  first_ = 1;
  change({}, {{"on_missing", "fail"}}, [&](const Events& events, size_t known) {
    expect_failure(events, known, "policy.on_missing is fail", {});
  });
}

// The participants were frozen without brno while the policy was skip.
TEST_F(PolicyChange, OnMissingFailSparesARoundWithFrozenParticipants) {
  rounds_ = 1;
  coordinate({}, 0);
  const size_t frozen = record_of(events(), "participants_frozen", 1);
  forget_run();
  ASSERT_EQ(coordinate({}, static_cast<int>(frozen) + 1), 128 + SIGKILL);
  ASSERT_EQ(record_of(events(), "participants_frozen", 1), events().size());
  EXPECT_EQ(coordinate({{"on_missing", "fail"}}, 0), 0) << message();
  expect_complete();
}

// alba's jobs get the warning of their walltime: with "use" in the middle of their training, with
// "resume" in the first attempt. A job obeys the rule of its job.json.
TEST_F(PolicyChange, OnWalltime) {
  brno_is_late_ = false;
  resumes_ = true;
  change_report_ = [](const job::JobSpec& spec, job::JobReport& report) {
    const bool uses = spec.on_stop == job::OnStop::kUpdate;
    if (spec.key.facility != "alba" || (!uses && spec.key.attempt > 1)) return;
    report.stopped_early = true;
    report.steps = 2;
    report.samples = report.tokens = 4;
    if (uses) return;
    report.update_sha256.clear();
    fs::remove_all(spec.update_path);
  };
  for (const auto& [before, after] : {std::pair{"use", "resume"}, std::pair{"resume", "use"}}) {
    change({{"on_walltime", before}}, {{"on_walltime", after}},
           [&](const Events& events, size_t known) {
             EXPECT_EQ(exit_code_, 0);
             for (const std::string& line : submissions()) {
               std::istringstream words(line);
               std::string facility, rule;
               int round = 0, attempt = 0;
               words >> facility >> round >> attempt >> rule;
               size_t pushed = SIZE_MAX, intended = SIZE_MAX;
               for (const history::StoredEvent& event : events) {
                 if (event.facility != facility || event.round != round || event.attempt != attempt)
                   continue;
                 if (event.kind == "pushed") pushed = static_cast<size_t>(event.seq);
                 if (event.kind == "submit_intended") intended = static_cast<size_t>(event.seq);
               }
               EXPECT_TRUE(intended > known || rule == before) << line;
               EXPECT_TRUE(pushed <= known || rule == after) << line;
             }
             for (int round = 1; round <= rounds_; ++round)
               EXPECT_NE(record_of(events, "update_accepted", round, "alba"), SIZE_MAX);
           });
    first_ = 2;
  }
}

TEST_F(PolicyChange, KeepRounds) {
  brno_is_late_ = false;
  rounds_ = 3;
  const auto kept = [this] {
    std::set<int> rounds;
    const fs::path attempt = read_file(jobs_ / "10101", 4096);
    for (const auto& entry : fs::directory_iterator(attempt.parent_path().parent_path()))
      if (const auto number = plan::parse_round_name(entry.path().filename().string()))
        rounds.insert(*number);
    return rounds;
  };
  change({{"keep_rounds", "2"}}, {{"keep_rounds", "1"}}, [&](const Events&, size_t) {
    EXPECT_EQ(exit_code_, 0);
    EXPECT_THAT(kept(), ElementsAre(3));
  });
  first_ = 5;
  change({{"keep_rounds", "1"}}, {{"keep_rounds", "2"}}, [&](const Events& events, size_t known) {
    EXPECT_EQ(exit_code_, 0);
    std::set<int> expected;
    for (int round = 2; round <= rounds_; ++round)
      if (round == rounds_ || record_of(events, "published", round + 1) > known)
        expected.insert(round);
    EXPECT_THAT(kept(), testing::IsSupersetOf(expected));
    EXPECT_FALSE(kept().contains(1));
  });
}

TEST_F(PolicyChange, KeepUpdatesAndModels) {
  brno_is_late_ = false;
  rounds_ = 4;
  const Settings all, few = {{"keep_updates", "1"}, {"keep_models", "2"}};
  const auto rounds_with = [this](const std::string& name) {
    std::set<int> rounds;
    for (int round = 1; round <= rounds_; ++round)
      if (fs::exists(run_folder().round(round) / name)) rounds.insert(round);
    return rounds;
  };
  first_ = 4;
  change(all, few, [&](const Events&, size_t) {
    EXPECT_EQ(exit_code_, 0);
    EXPECT_THAT(rounds_with("alba/update"), ElementsAre(4));
    EXPECT_THAT(rounds_with("global"), ElementsAre(3, 4));
  });
  first_ = 7;
  change(few, all, [&](const Events& events, size_t known) {
    EXPECT_EQ(exit_code_, 0);
    std::set<int> updates, models;
    for (int round = 1; round <= rounds_; ++round) {
      if (round == rounds_ || record_of(events, "published", round + 1) > known)
        updates.insert(round);
      if (round >= rounds_ - 1 || record_of(events, "published", round + 2) > known)
        models.insert(round);
    }
    EXPECT_THAT(rounds_with("alba/update"), testing::IsSupersetOf(updates));
    EXPECT_THAT(rounds_with("global"), testing::IsSupersetOf(models));
  });
}

}  // namespace
}  // namespace xffl::run
