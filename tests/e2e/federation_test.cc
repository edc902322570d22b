// Whole federations through the real program: results and messages, with and without faults.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

#include "e2e/project.h"
#include "support/page_cache.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/process.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/checkpoint/model_folder.h"

namespace xffl {
namespace {

using test::Project;

const std::vector<std::string> kOnceEach = {"alba 1 1", "alba 2 1", "alba 3 1",
                                            "brno 1 1", "brno 2 1", "brno 3 1"};

std::vector<float> values(const std::filesystem::path& model, const std::string& name) {
  const checkpoint::ModelFolder folder(model);
  std::vector<float> result(static_cast<size_t>(folder.spec(name).num_elements()));
  checkpoint::to_float(folder.data(name), folder.spec(name).dtype, result);
  return result;
}

TEST(Federation, PublishesEveryRoundOnce) {
  Project project;
  const ProcessResult result = project.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("3 of 3 rounds published"), std::string::npos) << result.out;
  EXPECT_EQ(project.trainings(), kOnceEach);
  const history::RunState history = project.history();
  EXPECT_TRUE(history.completed);
  EXPECT_EQ(history.done().rounds_published, 3);
  EXPECT_EQ(project.current_sha256(), history.done().model_sha256);
}

// `aggregation.weights` and the two facilities' weights. In a round alba trains 4 steps of 2
// sequences of 3 tokens, and brno 1 step of 2 sequences of 1 token.
struct Weights {
  const char* key;
  double alba, brno;
};
class Weighted : public testing::TestWithParam<Weights> {};

// The reference is the sum by hand: a float32 master and one rounding.
TEST_P(Weighted, MeanIsTheSumByHand) {
  Project project;
  project.set_rounds(1);
  project.set_aggregation(std::string("{weights: ") + GetParam().key + "}");
  project.set_keys("brno", "training: {steps_per_round: 1}");
  project.write_config();
  const ProcessResult result = project.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string name = "model.norm.weight";
  const auto before = values(project.run_folder() / "r0000/master", name);
  const auto alba = values(project.run_folder() / "r0001/alba/update", name);
  const auto brno = values(project.run_folder() / "r0001/brno/update", name);
  const auto after = values(project.run_folder() / "r0001/master", name);
  const double a = GetParam().alba, b = GetParam().brno;
  for (size_t i = 0; i < after.size(); ++i)
    EXPECT_EQ(after[i], static_cast<float>(before[i] + (a * alba[i] + b * brno[i]) / (a + b)));
}

INSTANTIATE_TEST_SUITE_P(Federation, Weighted,
                         testing::Values(Weights{"tokens", 24, 2}, Weights{"samples", 8, 2},
                                         Weights{"equal", 1, 1}),
                         [](const auto& each) { return each.param.key; });

TEST(Federation, IsReproducible) {
  Project project;
  ASSERT_EQ(project.run().exit_code, 0);
  const std::string first = project.current_sha256();
  project.forget_runs();
  ASSERT_EQ(project.run().exit_code, 0);
  EXPECT_EQ(project.current_sha256(), first);
}

// The page cache drops the files of earlier rounds; they stay on the disk.
TEST(Federation, KeepsOnlyFilesThatAreReadAgainInThePageCache) {
  Project project;
  if (!test::has_disk(project.path())) GTEST_SKIP() << "the temporary folder is in memory";
  ASSERT_EQ(project.run().exit_code, 0);
  const auto in_memory = [&](const std::string& folder) {
    return test::bytes_in_memory(project.run_folder() / folder / "model.safetensors");
  };
  EXPECT_EQ(in_memory("r0000/global"), 0u);
  EXPECT_EQ(in_memory("r0001/alba/update"), 0u);
  EXPECT_GT(in_memory("r0003/master"), 0u);
  EXPECT_GT(in_memory("r0003/global"), 0u);
}

TEST(Federation, ReportsACompletedRun) {
  Project project;
  project.set_rounds(1);
  project.write_config();
  ASSERT_EQ(project.run().exit_code, 0);
  const ProcessResult again = project.run();
  EXPECT_EQ(again.exit_code, 0);
  EXPECT_EQ(project.trainings().size(), 2u);
  ASSERT_EQ(project.xffl({"run", "-p", project.path().string(), "--new"}).exit_code, 0);
  EXPECT_EQ(project.trainings().size(), 4u);
  EXPECT_TRUE(project.history("0002").completed);
}

TEST(Federation, RetriesACrashedJob) {
  Project project;
  project.set_fault("brno", "crash@2");
  project.write_config();
  const ProcessResult result = project.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("out of luck"), std::string::npos) << result.err;
  const std::vector<std::string> expected = {"alba 1 1", "alba 2 1", "alba 3 1",
                                             "brno 1 1", "brno 2 2", "brno 3 1"};
  EXPECT_EQ(project.trainings(), expected);
}

TEST(Federation, KeepsItsConfiguration) {
  Project project;
  project.set_fault("brno", "crash!");
  project.write_config();
  EXPECT_EQ(project.run().exit_code, exit_code(ErrorKind::kFailed));
  project.set_rounds(4);
  project.write_config();
  const ProcessResult changed = project.run();
  EXPECT_EQ(changed.exit_code, exit_code(ErrorKind::kConfig));
  EXPECT_NE(changed.err.find("+ rounds: 4"), std::string::npos) << changed.err;
}

// A faulty update that must not reach the global model, and a text of the message that rejects it.
struct Refusal {
  const char* fault;
  const char* named;
};
class RefusedUpdate : public testing::TestWithParam<Refusal> {};

TEST_P(RefusedUpdate, IsNamedAndTheRoundContinuesWithoutIt) {
  Project project;
  project.set_fault("brno", std::string(GetParam().fault) + "@2!");
  project.set_policy("{on_missing: skip, poll_interval: 20ms}");
  project.write_config();
  const ProcessResult result = project.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("brno"), std::string::npos);
  EXPECT_NE(result.err.find(GetParam().named), std::string::npos) << result.err;
  const history::RunState history = project.history();
  EXPECT_EQ(history.rounds.at(1).participants.size(), 2u);
  EXPECT_EQ(history.rounds.at(2).participant_names(), std::vector<std::string>{"alba"});
  EXPECT_EQ(history.rounds.at(3).participants.size(), 2u);
}

TEST_P(RefusedUpdate, StopsARoundThatNeedsAllFacilities) {
  Project project;
  project.set_fault("brno", GetParam().fault);
  project.write_config();
  const ProcessResult stopped = project.run();
  EXPECT_EQ(stopped.exit_code, exit_code(ErrorKind::kFailed));
  EXPECT_NE(stopped.err.find(GetParam().named), std::string::npos) << stopped.err;
  EXPECT_EQ(project.history().done().rounds_published, 0);
  // The fault occurs in first attempts only: brno trains again, alba's update of round 1 is reused.
  for (int round = 1; round < 3; ++round)
    EXPECT_EQ(project.run().exit_code, exit_code(ErrorKind::kFailed));
  const ProcessResult resumed = project.run();
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  const auto trainings = project.trainings();
  EXPECT_EQ(std::count(trainings.begin(), trainings.end(), "alba 1 1"), 1);
  EXPECT_EQ(std::count(trainings.begin(), trainings.end(), "alba 1 2"), 0);
}

INSTANTIATE_TEST_SUITE_P(Faults, RefusedUpdate,
                         testing::Values(Refusal{"nan", "model.norm.weight"},
                                         Refusal{"shape", "model.embed_tokens.weight"},
                                         Refusal{"truncate", "model.safetensors"},
                                         Refusal{"nonce", "nonce"}, Refusal{"forged", "tokens"},
                                         Refusal{"unchanged",
                                                 "every element of the update is zero"}),
                         [](const auto& test) { return std::string(test.param.fault); });

TEST(OnMissing, FailEndsTheRoundAndTheOtherJobs) {
  Project project;
  project.set_fault("alba", "hang!");
  project.set_fault("brno", "nan!");
  project.set_policy("{on_missing: fail, poll_interval: 20ms}");
  project.write_config();
  const ProcessResult result = project.run();
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::kFailed)) << result.err;
  const history::RunState history = project.history();
  const history::FacilityState& alba = history.rounds.at(1).facilities.at(FacilityName("alba"));
  ASSERT_TRUE(alba.current()->failure);
  EXPECT_TRUE(test::job_ends(alba.current()->job_id)) << "alba's job still runs";
}

TEST(OnMissing, SkipContinuesWithoutALateFacilityAtTheDeadline) {
  Project project;
  project.set_fault("brno", "hang@1!");
  project.set_rounds(2);
  project.set_policy("{on_missing: skip, deadline: 8s, poll_interval: 20ms}");
  project.write_config();
  const ProcessResult result = project.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(project.history().rounds.at(1).participant_names(), std::vector<std::string>{"alba"});
  EXPECT_EQ(project.history().rounds.at(2).participants.size(), 2u);
}

TEST(OnMissing, WaitContinuesPastTheDeadlineAndLogsIt) {
  Project project;
  project.set_rounds(1);
  project.set_training_time(2500);
  project.set_policy("{on_missing: wait, deadline: 1s, poll_interval: 20ms}");
  project.write_config();
  const ProcessResult result = project.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(project.history().rounds.at(1).participants.size(), 2u);
  const std::string warning = "the round's deadline has passed: still waiting";
  const size_t first = result.err.find(warning);
  ASSERT_NE(first, std::string::npos) << result.err;
  // One warning per facility.
  const size_t second = result.err.find(warning, first + 1);
  EXPECT_NE(second, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find(warning, second + 1), std::string::npos) << result.err;
}

TEST(MaxChange, RejectsAnUpdateWithALargerNorm) {
  Project project;
  project.set_fault("brno", "huge!");
  project.set_rounds(1);
  project.set_policy("{on_missing: skip, poll_interval: 20ms}");
  project.write_config();
  const ProcessResult result = project.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const history::RoundState round = project.history().rounds.at(1);
  EXPECT_EQ(round.participant_names(), std::vector<std::string>{"alba"});
  const std::string missing = round.facilities.at(FacilityName("brno")).missing.value_or("");
  EXPECT_NE(missing.find("policy.max_change"), std::string::npos) << missing;
  EXPECT_TRUE(std::filesystem::exists(project.run_folder() / "r0001/brno/refused-a1"));
}

// delta = -model: its change has the norm of an honest one.
TEST(MaxChange, RejectsAnUpdateThatTakesTheModelAway) {
  Project project;
  project.set_fault("brno", "negated!");
  project.set_rounds(1);
  for (const std::string limit : {"", ", max_change: 0.9", ", max_change: 0"}) {
    project.set_policy("{on_missing: skip, poll_interval: 20ms" + limit + "}");
    project.write_config();
    const ProcessResult result = project.run();
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(project.history().rounds.at(1).participants.size(),
              limit == ", max_change: 0" ? 2u : 1u)
        << limit;
    project.forget_runs();
  }
}

void edit_config(const Project& project, const std::string& from, const std::string& to) {
  std::string yaml = read_file(project.path() / "xffl.yaml", 1 << 20);
  const size_t at = yaml.find(from);
  ASSERT_NE(at, std::string::npos) << yaml;
  yaml.replace(at, from.size(), to);
  write_file_atomic(project.path() / "xffl.yaml", yaml);
}

// alba reports 3 tokens of each sample, and brno 1.
TEST(MaxShare, BoundsAFacilitysWeightInTheMean) {
  Project project;
  project.set_rounds(1);
  project.write_config();
  const auto weights = [&] {
    EXPECT_EQ(project.run().exit_code, 0);
    std::vector<double> recorded;
    for (const history::Participant& each : project.history().rounds.at(1).participants)
      recorded.push_back(each.weight.value_or(0));
    return recorded;
  };
  EXPECT_EQ(weights(), (std::vector<double>{24, 8}));
  const std::string without = project.current_sha256();
  project.forget_runs();
  edit_config(project, "rounds: 1\n", "rounds: 1\naggregation: {max_share: 0.625}\n");
  const std::vector<double> capped = weights();
  EXPECT_EQ(capped.at(1), 8);
  EXPECT_DOUBLE_EQ(capped.at(0) / (capped.at(0) + capped.at(1)), 0.625);
  EXPECT_NE(project.current_sha256(), without);
  const ProcessResult json = project.xffl({"status", "-p", project.path().string(), "--json"});
  const Json parsed = parse_json(json.out, "status");
  EXPECT_DOUBLE_EQ(parsed["rounds_detail"][0]["facilities"]["alba"]["share"], 0.625);
}

// alba, with three quarters of the tokens, sends a random update whose norm is nearly the largest
// that policy.max_change allows: the model moves by no more than alba's share of that norm.
TEST(PoisonedUpdate, MovesTheModelByAtMostItsShareOfMaxChange) {
  constexpr double kMaxShare = 0.625, kMaxChange = 2;
  Project project;
  project.set_rounds(1);
  const auto set_policy = [&](int quorum) {
    project.set_policy("{on_missing: skip, poll_interval: 20ms, max_change: 2, quorum: " +
                       std::to_string(quorum) + "}");
  };
  set_policy(2);  // xffl refuses a max_share that a round of one update cannot keep
  project.set_aggregation("{max_share: 0.625}");
  double moved = 0, base = 0;  // L2 norms, of the master
  const auto run_with_deviation = [&](const std::string& deviation) {
    project.set_environment("alba", "export XFFL_FAKE_STEP=" + deviation);
    project.write_config();
    const ProcessResult result = project.run();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    moved = base = 0;
    const checkpoint::ModelFolder first(project.run_folder() / "r0000/master");
    for (const auto& tensor : first.tensors()) {
      const auto before = values(project.run_folder() / "r0000/master", tensor.name);
      const auto after = values(project.run_folder() / "r0001/master", tensor.name);
      for (size_t i = 0; i < before.size(); ++i) {
        moved += std::pow(double(after[i]) - before[i], 2);
        base += std::pow(double(before[i]), 2);
      }
    }
    moved = std::sqrt(moved);
    base = std::sqrt(base);
    return project.history().rounds.at(1);
  };
  const history::RoundState within = run_with_deviation("0.8");
  ASSERT_EQ(within.participants.size(), 2u);
  std::map<std::string, double> changes;  // by facility
  for (const history::StoredEvent& event : project.events())
    if (event.kind == "update_accepted")
      changes[event.facility] = parse_json(event.payload, "event").at("change").get<double>();
  EXPECT_GT(changes["alba"], kMaxChange * 0.8);
  for (const history::StoredEvent& event : project.events()) {
    if (event.kind != "aggregated") continue;
    const auto cosines = parse_json(event.payload, "event").at("cosines");
    ASSERT_EQ(cosines.size(), 2u) << "one per participant";
    for (const auto& cosine : cosines) EXPECT_LE(std::abs(cosine.get<double>()), 1);
  }
  const double bound = (kMaxShare * kMaxChange + (1 - kMaxShare) * changes["brno"]) * base;
  std::cout << "the model of norm " << base << " moved by " << moved << ", at most " << bound
            << "\n";
  EXPECT_LE(moved, bound);
  EXPECT_GT(moved, bound * 0.75) << "without max_share it would be above the bound";
  project.forget_runs();
  set_policy(1);
  project.set_aggregation("");
  const history::RoundState above = run_with_deviation("1.2");
  EXPECT_EQ(above.participant_names(), std::vector<std::string>{"brno"});
  EXPECT_NEAR(moved, changes["brno"] * base, moved * 0.01);
}

// The model takes sequences of 64 tokens; the data has sequences of 2.
TEST(Tokens, MoreThanTheSequencesOfTheDataHoldAreRejected) {
  Project project;
  project.set_rounds(1);
  project.set_policy("{on_missing: skip, poll_interval: 20ms}");
  std::string header(64, '\0');
  header.replace(0, 8, "XFFLTOK1");
  header[24] = 2;  // sequence_length
  write_file_atomic(project.path() / "shard.tokens", header);
  const std::string by_key = "sequence_length: 2, train: [/data/unused.tokens]";
  const std::string by_header = "train: ['" + (project.path() / "shard.tokens").string() + "']";
  for (const std::string& data : {by_key, by_header}) {
    project.write_config();
    edit_config(project, "train: [/data/unused.tokens]", data);  // of alba
    const ProcessResult result = project.run();
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const history::RoundState round = project.history().rounds.at(1);
    EXPECT_EQ(round.participant_names(), std::vector<std::string>{"brno"}) << data;
    const std::string missing = round.facilities.at(FacilityName("alba")).missing.value_or("");
    EXPECT_NE(missing.find("tokens: found 24, expected 1 .. 16 (8 samples x 2 tokens)"),
              std::string::npos)
        << missing;
    project.forget_runs();
  }
  // The limit comes from the shard with the longer sequences, in any order. A shard that only jobs
  // can read may have longer ones.
  header[24] = 8;
  write_file_atomic(project.path() / "long.tokens", header);
  const auto quoted = [&](const char* name) {
    return "'" + (project.path() / name).string() + "'";
  };
  const std::string shorter = quoted("shard.tokens"), longer = quoted("long.tokens");
  for (const std::string& both :
       {shorter + ", " + longer, longer + ", " + shorter, shorter + ", /data/unused.tokens"}) {
    project.write_config();
    edit_config(project, "train: [/data/unused.tokens]", "train: [" + both + "]");
    const ProcessResult result = project.run();
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(project.history().rounds.at(1).participants.size(), 2u) << both;
    project.forget_runs();
  }
}

// The journal and `xffl logs` have a job's output, but not the secrets in it.
TEST(Secrets, InAJobsOutputAreNotStored) {
  Project project;
  const std::string secret = "hf_abcdefghijklmnopqrstuvwxyz0123";
  project.set_rounds(1);
  project.set_fault("brno", "crash!");
  project.set_policy("{on_missing: skip, poll_interval: 20ms}");
  project.write_config();
  // The job prints the secret; xffl.yaml only names the file.
  const auto file = project.path() / "token";
  write_file_atomic(file, "HF_TOKEN=" + secret + "\n");
  std::string yaml = read_file(project.path() / "xffl.yaml", 1 << 20);
  const std::string key = "environment:\n";
  const size_t at = yaml.find(key, yaml.find("  brno:"));
  ASSERT_NE(at, std::string::npos) << yaml;
  yaml.insert(at + key.size(), "      - cat '" + file.string() + "'\n");
  write_file_atomic(project.path() / "xffl.yaml", yaml);
  const ProcessResult result = project.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const ProcessResult logs = project.xffl({"logs", "brno", "-p", project.path().string()});
  EXPECT_NE(logs.out.find("HF_TOKEN=[removed]"), std::string::npos) << logs.out << logs.err;
  std::string all = result.out + result.err + logs.out + logs.err;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(project.path() / "runs"))
    if (entry.is_regular_file()) all += read_file(entry.path(), 1 << 24);
  EXPECT_NE(all.find("HF_TOKEN=[removed]"), std::string::npos) << "the output was not kept at all";
  EXPECT_EQ(all.find(secret), std::string::npos);
}

// Both jobs run on for a moment after their reports.
TEST(Federation, LeavesNoZombies) {
  Project project;
  for (const char* name : {"alba", "brno"}) project.set_fault(name, "lingers!");
  project.set_rounds(4);
  project.set_hold();
  project.write_config();
  for (const char* name : {"alba", "brno"}) {
    project.release(name);
    project.hold(name, 4);
  }
  auto run = project.start_run();
  ASSERT_TRUE(project.await_events("published", 3));
  ASSERT_TRUE(project.await_events("submitted", 8));
  const auto zombies = [&] {
    int count = 0;
    for (const ProcessInfo& process : list_processes()) {
      if (process.alive()) continue;
      std::string stat;
      std::getline(std::ifstream("/proc/" + std::to_string(process.pid) + "/stat"), stat);
      std::istringstream fields(stat.substr(stat.rfind(')') + 1));
      char state = '?';
      pid_t parent = 0;
      if (fields >> state >> parent && parent == run.pid()) ++count;
    }
    return count;
  };
  EXPECT_TRUE(test::await([&] { return zombies() == 0; }));
  for (const char* name : {"alba", "brno"}) project.release(name, 4);
  EXPECT_EQ(run.finish(), 0);
}

// Shells and service managers usually begin programs with a soft limit of 1024.
TEST(Federation, RaisesItsSoftLimitOfFileDescriptors) {
  Project project;
  project.set_rounds(1);
  rlimit before{}, raised{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = 256, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  auto run = project.start_held_run();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_EQ(::prlimit(run.pid(), RLIMIT_NOFILE, nullptr, &raised), 0);
  EXPECT_EQ(raised.rlim_cur, std::min<rlim_t>(before.rlim_max, 65'536));
  EXPECT_EQ(raised.rlim_max, before.rlim_max);
  project.release();
  EXPECT_EQ(run.finish(), 0);
}

TEST(OnMissing, SkipNeedsItsQuorum) {
  Project project;
  project.set_fault("brno", "nan!");
  project.set_policy("{on_missing: skip, quorum: 2, poll_interval: 20ms}");
  project.write_config();
  const ProcessResult result = project.run();
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::kFailed));
  EXPECT_NE(result.err.find("1 of 2 updates, 2 needed"), std::string::npos) << result.err;
}

TEST(Status, PrintsTextAndJson) {
  Project project;
  ASSERT_EQ(project.run().exit_code, 0);
  const ProcessResult text = project.xffl({"status", "-p", project.path().string()});
  EXPECT_NE(text.out.find("completed, 3 of 3 rounds"), std::string::npos) << text.out << text.err;
  const ProcessResult json = project.xffl({"status", "-p", project.path().string(), "--json"});
  const Json parsed = parse_json(json.out, "status");
  EXPECT_EQ(parsed["rounds_published"], 3);
  EXPECT_EQ(parsed["rounds_detail"][0]["facilities"]["alba"]["report"]["tokens"], 24);
  EXPECT_EQ(project.xffl({"status", "-p", "/nonexistent"}).exit_code,
            exit_code(ErrorKind::kNotFound));
}

TEST(Logs, ShowTheCoordinatorAndAJob) {
  Project project;
  project.set_fault("brno", "crash@1");
  project.set_rounds(1);
  project.set_policy("{on_missing: skip, max_attempts: 1, poll_interval: 20ms}");
  project.write_config();
  ASSERT_EQ(project.run().exit_code, 0);
  const std::string p = project.path().string();
  EXPECT_NE(project.xffl({"logs", "-p", p}).out.find("global model published"), std::string::npos);
  EXPECT_NE(project.xffl({"logs", "-p", p, "brno"}).out.find("out of luck"), std::string::npos);
}

// alba's job stops with a checkpoint instead of an update; the next attempt follows at once and
// does not count towards max_attempts.
TEST(Walltime, ResumesAStoppedTraining) {
  Project project;
  ASSERT_EQ(project.run().exit_code, 0);
  const std::string expected = project.current_sha256();
  project.forget_runs();
  project.set_policy(
      "{on_missing: wait, poll_interval: 20ms, on_walltime: resume, max_attempts: 1}");
  project.set_fault("alba", "stopped@2");
  project.write_config();
  const ProcessResult result = project.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(project.current_sha256(), expected);
  EXPECT_EQ(project.trainings(),
            (std::vector<std::string>{"alba 1 1", "alba 2 1", "alba 2 2", "alba 3 1", "brno 1 1",
                                      "brno 2 1", "brno 3 1"}));
}

}  // namespace
}  // namespace xffl
