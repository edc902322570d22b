// `xffl verify` on runs without damage: completed, running, killed, with removed files.
#include <gmock/gmock.h>

#include <csignal>
#include <set>

#include "support/thrown.h"
#include "verify/verified_run.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/history/audit.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using verify::Verification;

using Verify = test::VerifiedRun;

TEST_F(Verify, ACompletedRunPassesAllChecks) {
  const Verification result = check(everything());
  EXPECT_THAT(failures(result), IsEmpty()) << format_text(result);
  for (const verify::Check& one : result.checks) {
    if (one.name == "statements" || one.name == "signatures") continue;  // no round is signed
    EXPECT_EQ(one.result(), "ok") << one.name;
    EXPECT_THAT(one.not_checked, IsEmpty()) << one.name;
  }
  EXPECT_EQ(result.rounds_published, 2);
  EXPECT_EQ(find(result, "chain").passed, result.events);
  EXPECT_EQ(find(result, "mirror").passed, result.events);
  EXPECT_EQ(find(result, "updates").passed, 4);
  EXPECT_EQ(find(result, "weights").passed, 4);
  EXPECT_EQ(find(result, "replay").passed, 2);
  const std::string chain = history::audit_journal(path() / "journal.db").chains.back();
  EXPECT_THAT(format_text(result),
              HasSubstr("model " + made_->current_sha256() + "\njournal " + chain + "\n"));
}

TEST_F(Verify, AnOmittedCheckIsNeverOk) {
  const Verification result = check();
  for (const char* name : {"files", "replay"}) {
    EXPECT_EQ(find(result, name).result(), "not checked");
    EXPECT_EQ(find(result, name).not_checked.size(), 1u);
  }
  EXPECT_THAT(format_text(result), HasSubstr("not checked  files: --read-data reads them\n"));
}

TEST_F(Verify, ChangesNoFile) {
  const auto listing = [&] {
    std::set<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(path()))
      if (const std::string name = entry.path().filename().string();
          !name.starts_with("journal.db-"))  // SQLite's own
        files.insert(entry.path().string() + " " +
                     (entry.is_regular_file() ? read_file(entry.path(), 1 << 20) : ""));
    return files;
  };
  fs::remove(path() / "r0001/alba/update.blocks");  // a reader of the run would make it again
  const auto before = listing();
  check(everything());
  EXPECT_EQ(listing(), before);
}

TEST_F(Verify, FirstMasterIsMadeAgainFromTheModelOfTheConfiguration) {
  fs::remove_all(path() / "r0000/master");
  const Verification without = check(everything());
  EXPECT_EQ(find(without, "replay").passed, 2) << format_text(without);
  // Without the published model of round 0, the master comes from the input model alone.
  fs::remove_all(path() / "r0000/global");
  const Verification alone = check(everything());
  EXPECT_EQ(find(alone, "replay").passed, 2) << format_text(alone);
  EXPECT_THAT(failures(alone),
              testing::ElementsAre("models: r0000/global", "masters: r0000/master"));
}

// The last value of the model is another finite number.
TEST_F(Verify, FirstMasterIsMadeAgainDespiteADamagedFirstModel) {
  fs::remove_all(path() / "r0000/master");
  const fs::path model = path() / "r0000/global/model.safetensors";
  test::flip_byte(model, static_cast<std::streamoff>(fs::file_size(model) - 2));
  const Verification result = check({.replay = verify::Rounds{}, .scratch = copy_.path()});
  EXPECT_EQ(find(result, "replay").passed, 2) << format_text(result);
}

TEST_F(Verify, ReplayOfTheLastRoundNeedsNoEarlierUpdate) {
  fs::remove_all(path() / "r0001/alba/update");
  verify::Options options = everything();
  options.replay = verify::Rounds{.first = 2, .last = 2};
  EXPECT_EQ(find(check(options), "replay").passed, 1);
  options.replay = verify::Rounds{};
  const Verification all = check(options);
  EXPECT_EQ(find(all, "replay").passed, 1);
  ASSERT_EQ(find(all, "replay").not_checked.size(), 1u);
  EXPECT_EQ(find(all, "replay").not_checked[0].subjects, std::vector<std::string>{"round 1"});
  EXPECT_THAT(format_text(all),
              HasSubstr("not checked  replay: an update is absent or not recorded (round 1)\n"));
}

TEST_F(Verify, FilesThatThePolicyRemovesAreNoDamage) {
  test::Project project;
  project.set_rounds(4);
  project.set_policy(
      "{on_missing: wait, poll_interval: 20ms, keep_rounds: 1, keep_updates: 2, keep_models: 1}");
  project.write_config();
  ASSERT_EQ(project.run().exit_code, 0);
  ASSERT_FALSE(fs::exists(project.run_folder() / "r0000/master"));
  ASSERT_FALSE(fs::exists(project.run_folder() / "r0002/alba/update"));
  const Verification result = verify::verify_run(
      history::RunFolder(project.path() / "runs", RunName("0001")), project.path(), everything());
  EXPECT_THAT(failures(result), IsEmpty()) << format_text(result);
  EXPECT_EQ(find(result, "updates").passed, 4);
  EXPECT_EQ(find(result, "updates").not_checked.at(0).reason, "removed by policy.keep_updates");
  EXPECT_EQ(find(result, "models").not_checked.at(0).reason, "removed by policy.keep_models");
  EXPECT_EQ(find(result, "masters").not_checked.at(0).reason, "removed by policy.keep_rounds");
  EXPECT_EQ(find(result, "replay").passed, 1) << "round 4, from the master of round 3";
  // Files that the policy keeps are missing; the last two models always stay.
  fs::remove_all(project.run_folder() / "r0003/alba/update");
  fs::remove_all(project.run_folder() / "r0003/global");
  fs::remove_all(project.run_folder() / "r0003/master");
  EXPECT_THAT(failures(verify::verify_run(
                  history::RunFolder(project.path() / "runs", RunName("0001")), project.path())),
              testing::ElementsAre("updates: r0003/alba/update", "models: r0003/global",
                                   "masters: r0003/master"));
}

TEST_F(Verify, WithoutALimitTheModelOfEachRoundMustBeThere) {
  test::Project project;
  project.set_rounds(3);
  project.set_policy("{poll_interval: 20ms, evaluate_last: false}");
  project.write_config();
  ASSERT_EQ(project.run().exit_code, 0);
  fs::remove_all(project.run_folder() / "r0001/global");
  EXPECT_THAT(failures(verify::verify_run(
                  history::RunFolder(project.path() / "runs", RunName("0001")), project.path())),
              testing::ElementsAre("models: r0001/global"));
}

TEST_F(Verify, ReplayLeavesNothingInItsScratchFolderAndStopsOnRequest) {
  for (const int first : {1, 2}) {  // in round 2, no later round notices the request
    std::stop_source stop;
    verify::Options options = everything();
    options.read_data = false;
    options.replay = verify::Rounds{.first = first};
    options.scratch = copy_.path() / "scratch";
    options.stop = stop.get_token();
    options.on_progress = [&](const std::string&) { stop.request_stop(); };
    try {
      check(options);
      FAIL() << "the replay went on";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCancelled);
    }
    EXPECT_TRUE(fs::is_empty(options.scratch));
  }
}

TEST_F(Verify, ReadingTheDataAndReplayingBlocksStopOnRequest) {
  for (verify::Options options :
       {verify::Options{.read_data = true}, verify::Options{.replay_blocks = 1}}) {
    std::stop_source stop;
    options.scratch = copy_.path() / "scratch";
    options.stop = stop.get_token();
    options.on_progress = [&](const std::string&) { stop.request_stop(); };
    EXPECT_EQ(test::kind_of([&] { check(options); }), ErrorKind::kCancelled);
  }
}

// The scratch folder has the newest master, and for the time of a step the next one.
TEST_F(Verify, ReplayRemovesTheMastersThatItNoLongerNeeds) {
  test::Project project;
  project.set_rounds(3);
  project.write_config();
  ASSERT_EQ(project.run().exit_code, 0);
  verify::Options options{.replay = verify::Rounds{}, .scratch = copy_.path() / "scratch"};
  std::vector<int> masters;
  options.on_progress = [&](const std::string&) {
    masters.push_back(0);
    for (const auto& entry : fs::recursive_directory_iterator(options.scratch))
      masters.back() += entry.path().filename() == "master" ? 1 : 0;
  };
  verify::verify_run(history::RunFolder(project.path() / "runs", RunName("0001")), project.path(),
                     options);
  EXPECT_THAT(masters, testing::ElementsAre(0, 1, 1));
}

// A coordinator that is killed before its submission writes the script of the next one again.
TEST_F(Verify, AJobHasTheScriptOfAnyOfItsSubmissions) {
  std::vector<history::StoredEvent> events = history::read_events(path() / "journal.db");
  const auto intended = std::find_if(events.begin(), events.end(), [](const auto& event) {
    return event.kind == "submit_intended" && event.round == 1 && event.facility == "alba";
  });
  ASSERT_NE(intended, events.end());
  history::StoredEvent earlier = *intended;
  Json payload = parse_json(earlier.payload, earlier.kind);
  payload["script_sha256"] = std::string(64, 'a');
  earlier.payload = payload.dump();
  events.insert(intended, earlier);
  replace_journal(events);
  EXPECT_THAT(failures(check()), IsEmpty());
}

// alba's first job stops with a checkpoint, and brno has no update in the second round.
TEST_F(Verify, ARunWithASecondAttemptAndAMissingUpdatePasses) {
  test::Project project;
  project.set_rounds(2);
  project.set_policy(
      "{on_missing: skip, poll_interval: 20ms, on_walltime: resume, max_attempts: 1, "
      "evaluate_last: false}");
  project.set_fault("alba", "stopped@1");
  project.set_fault("brno", "crash@2!");
  project.write_config();
  const ProcessResult run = project.run();
  ASSERT_EQ(run.exit_code, 0) << run.err;
  ASSERT_EQ(project.trainings(),
            (std::vector<std::string>{"alba 1 1", "alba 1 2", "alba 2 1", "brno 1 1"}));
  const Verification result = verify::verify_run(
      history::RunFolder(project.path() / "runs", RunName("0001")), project.path(), everything());
  EXPECT_THAT(failures(result), IsEmpty()) << format_text(result);
  EXPECT_EQ(find(result, "nonces").passed, 5) << "of attempts";
  EXPECT_EQ(find(result, "reports").passed, 3);
  EXPECT_EQ(find(result, "jobs").passed, 2 * 3) << "job.json and job.sh";
  EXPECT_EQ(find(result, "replay").passed, 2);
}

// The cause is this machine's, and a finding would stay in verification.json.
TEST_F(Verify, AFileThatCannotBeReadIsNoDamage) {
  const fs::path report = path() / "r0001/alba/report.json";
  fs::remove(report);
  fs::create_directory(report);  // reading a folder fails
  EXPECT_EQ(test::kind_of([&] { check(); }), ErrorKind::kIo);
}

// By this journal, the facilities train adapters of one model in all rounds.
TEST_F(Verify, TheReportsOfAdaptersNameTheModelUnderThem) {
  const std::string adapted(64, 'a');
  rewrite_journal([&](history::StoredEvent& event) {
    if (event.kind != "model_imported" && event.kind != "update_accepted") return;
    Json payload = parse_json(event.payload, event.kind);
    if (event.kind == "model_imported")
      payload["adapted_sha256"] = adapted;
    else
      payload["report"]["base_model_sha256"] = adapted;
    event.payload = payload.dump();
  });
  const Verification result = check();
  EXPECT_EQ(find(result, "events").result(), "ok") << format_text(result);
  EXPECT_EQ(find(result, "reports").result(), "ok") << format_text(result);
}

// The journal keeps the acceptance of an update that is lost later.
TEST_F(Verify, AnUpdateLostBeforeTheMeanIsNotLeftOut) {
  std::vector<history::StoredEvent> events = history::read_events(path() / "journal.db");
  const auto frozen = std::find_if(events.begin(), events.end(), [](const auto& event) {
    return event.kind == "participants_frozen" && event.round == 1;
  });
  ASSERT_NE(frozen, events.end());
  Json payload = parse_json(frozen->payload, frozen->kind);
  for (const char* list : {"facilities", "updates", "weights"}) payload[list].erase(1);  // brno
  frozen->payload = payload.dump();
  events.insert(frozen,
                history::encode({1, FacilityName("brno"), 1}, history::UpdateLost{"damaged"}));
  replace_journal(events);
  const Verification result = check();
  EXPECT_THAT(failures(result), IsEmpty()) << format_text(result);
  EXPECT_EQ(find(result, "participants").passed, 3);
}

// A second attempt brings the update back, and the mean is decided again.
TEST_F(Verify, AnUpdateLostAfterItsMeanWasDecidedIsNoDamage) {
  const FacilityName brno("brno");
  std::vector<history::StoredEvent> events = history::read_events(path() / "journal.db");
  const auto find_event = [&](const std::string& kind, const std::string& facility) {
    return std::find_if(events.begin(), events.end(), [&](const auto& event) {
      return event.kind == kind && event.round == 1 && event.facility == facility;
    });
  };
  const auto accepted = find_event("update_accepted", "brno"),
             frozen = find_event("participants_frozen", "");
  ASSERT_NE(accepted, events.end());
  ASSERT_NE(frozen, events.end());
  history::StoredEvent second = *accepted;
  second.attempt = 2;
  Json payload = parse_json(second.payload, second.kind);
  payload["report"]["key"]["attempt"] = 2;
  second.payload = payload.dump();
  const std::vector<history::StoredEvent> more = {
      history::encode({1, brno, 1}, history::UpdateLost{"damaged"}),
      history::encode({1, brno, 2}, history::AttemptOpened{""}),  // as of an earlier release
      second, *frozen};
  events.insert(frozen + 1, more.begin(), more.end());
  replace_journal(events);
  const Verification result = check();
  for (const char* name : {"events", "participants", "weights"})
    EXPECT_EQ(find(result, name).result(), "ok") << format_text(result);
  EXPECT_EQ(find(result, "participants").passed, 4);
}

TEST_F(Verify, ARunningRunIsCheckedUpToItsLastEvent) {
  test::Project project;
  test::StartedRun run = project.start_held_run();
  ASSERT_TRUE(project.await_held_training("alba"));
  const ProcessResult result = project.xffl({"verify", "-p", project.path().string()});
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("the run goes on"));
  run.signal(SIGTERM);
  run.finish();
}

TEST_F(Verify, AKilledRunIsChecked) {
  test::Project project;
  test::StartedRun run = project.start_run({{"XFFL_FAILPOINT", "journal:stop:aggregated"}});
  ASSERT_TRUE(run.await_stop());
  run.kill();
  const ProcessResult result =
      project.xffl({"verify", "-p", project.path().string(), "--replay", "--read-data", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.out;
  const Json json = parse_json(result.out, "verify");
  EXPECT_EQ(json.at("rounds_published"), 0);
  EXPECT_EQ(json.at("model_sha256"), project.history().initial_sha256);
  for (const Json& one : json.at("checks")) {
    if (one.at("check") == "replay") {
      EXPECT_EQ(one.at("passed"), 1) << "of round 1";
    }
    if (one.at("check") == "masters") {
      EXPECT_EQ(one.at("passed"), 2) << "of rounds 0 and 1";
    }
  }
}

// CURRENT moves right before the publication is recorded.
TEST_F(Verify, AModelThatIsCurrentBeforeItsRecordIsNoDamage) {
  std::vector<history::StoredEvent> events = history::read_events(path() / "journal.db");
  const auto published = std::find_if(events.begin(), events.end(), [](const auto& event) {
    return event.kind == "published" && event.round == 2;
  });
  ASSERT_NE(published, events.end());
  events.erase(published, events.end());
  replace_journal(events);
  const Verification result = check();
  EXPECT_EQ(result.rounds_published, 1);
  EXPECT_THAT(failures(result), IsEmpty()) << format_text(result);
  EXPECT_EQ(find(result, "current").passed, 1);
}

// Each event is written to the mirror second.
TEST_F(Verify, AMirrorThatLacksTheNewestEventIsNoDamage) {
  const std::string mirror = read_file(path() / "journal.jsonl", 1 << 20);
  write_file_atomic(path() / "journal.jsonl",
                    mirror.substr(0, mirror.rfind('\n', mirror.size() - 2) + 1));
  const Verification result = check();
  EXPECT_THAT(failures(result), IsEmpty()) << format_text(result);
  EXPECT_EQ(find(result, "mirror").passed, result.events - 1);
  ASSERT_EQ(find(result, "mirror").not_checked.size(), 1u);
  EXPECT_EQ(find(result, "mirror").not_checked[0].subjects, std::vector<std::string>{"1 events"});
}

// A file is no place for the masters.
TEST_F(Verify, TheProgramReplaysInTheScratchFolder) {
  const ProcessResult refused =
      made_->xffl({"verify", "-p", made_->path().string(), "-w", copy_.path().string(), "--replay",
                   "--scratch", "/dev/null"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("cannot create the folder /dev/null"));
}

TEST_F(Verify, TheProgramPrintsJsonAndItsExitCodeNamesDamage) {
  const std::vector<std::string> arguments = {
      "verify", "-p", made_->path().string(), "-w", copy_.path().string(), "--json"};
  const ProcessResult good = made_->xffl(arguments);
  ASSERT_EQ(good.exit_code, 0) << good.err;
  EXPECT_EQ(parse_json(good.out, "verify").at("schema"), 1);
  EXPECT_EQ(parse_json(good.out, "verify").at("ok"), true);
  test::flip_byte(path() / "config.resolved.yaml", 3);
  const ProcessResult bad = made_->xffl(arguments);
  EXPECT_EQ(bad.exit_code, 5);
  EXPECT_EQ(parse_json(bad.out, "verify").at("ok"), false);
  EXPECT_THAT(bad.err, HasSubstr("failed"));
}

TEST_F(Verify, TheProgramReplaysAllRoundsOfARange) {
  const auto replayed = [&](const std::string& rounds) {
    const ProcessResult result = made_->xffl({"verify", "-p", made_->path().string(), "-w",
                                              copy_.path().string(), "--replay", rounds, "--json"});
    const Json json = parse_json(result.out, "verify");
    for (const Json& one : json.at("checks"))
      if (one.at("check") == "replay") return one.at("passed").get<int>();
    return -1;
  };
  EXPECT_EQ(replayed("2"), 1);
  EXPECT_EQ(replayed("1-2"), 2);
}

TEST_F(Verify, TheProgramReadsTheDataOnRequest) {
  const fs::path model = path() / "r0001/global/model.safetensors";
  test::flip_byte(model, static_cast<std::streamoff>(fs::file_size(model) - 1));
  std::vector<std::string> arguments = {"verify", "-p", made_->path().string(), "-w",
                                        copy_.path().string()};
  EXPECT_EQ(made_->xffl(arguments).exit_code, 0) << "the fast checks read no tensors";
  arguments.emplace_back("--read-data");
  const ProcessResult result = made_->xffl(arguments);
  EXPECT_EQ(result.exit_code, 5) << result.err;
  EXPECT_THAT(result.out, HasSubstr("files: r0001/global"));
}

// Changes to a model outside of blocks that are known in advance would never be found.
TEST_F(Verify, TheProgramChoosesOtherBlocksEachTime) {
  const auto seed = [&](const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {
        "verify",          "-p", made_->path().string(), "-w", copy_.path().string(),
        "--replay-blocks", "1"};
    words.insert(words.end(), more.begin(), more.end());
    const std::string text = made_->xffl(words).out;
    const size_t at = text.find("values of the models, seed ");
    return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
  };
  const std::string first = seed();
  EXPECT_NE(first, "");
  EXPECT_NE(first, seed());
  EXPECT_EQ(seed({"--seed", "7"}), seed({"--seed", "7"}));
}

TEST_F(Verify, TheReportShowsTheNewestResults) {
  const std::string project = made_->path().string(), runs = copy_.path().string();
  const auto report = [&] {
    const ProcessResult result = made_->xffl({"report", "-p", project, "-w", runs, "--text"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  EXPECT_THAT(report(), HasSubstr("`xffl verify` checks them"));
  ASSERT_EQ(made_->xffl({"verify", "-p", project, "-w", runs, "--replay"}).exit_code, 0);
  test::flip_byte(path() / "journal.jsonl", 30);
  ASSERT_EQ(made_->xffl({"verify", "-p", project, "-w", runs}).exit_code, 5);
  const std::string text = report();
  EXPECT_THAT(text, HasSubstr("FAILED: mirror"));
  EXPECT_THAT(text, HasSubstr("ok: replay"));  // of the first verification
  EXPECT_THAT(text, HasSubstr("ok: chain"));
}

// A run's folder on a file system that permits no writes.
TEST_F(Verify, AReadOnlyFolderIsCheckedAllTheSame) {
  const ProcessResult result = run_process(
      {.argv =
           {"unshare", "--mount", "sh", "-ec",
            "mount --bind \"$1\" \"$1\" || exit 77; mount -o remount,bind,ro \"$1\" || exit 77\n"
            "! touch \"$1/x\" 2>/dev/null\nexec \"$0\" verify -p \"$2\" -w \"$3\" --replay "
            "--read-data",
            XFFL_BINARY_DIR "/bin/xffl", path().string(), made_->path().string(),
            copy_.path().string()},
       .timeout = std::chrono::seconds(120)});
  if (result.exit_code == 77 || result.err.find("unshare") != std::string::npos)
    GTEST_SKIP() << "no mount namespace: " << result.err;
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("0 failed"));
  EXPECT_THAT(result.err, HasSubstr("the result is not kept"));
  EXPECT_FALSE(fs::exists(path() / "verification.json"));
}

TEST_F(Verify, WrongArgumentsAreRefused) {
  for (const char* rounds : {"0", "3-2", "all,1", "99999999999"}) {
    const ProcessResult result =
        made_->xffl({"verify", "-p", made_->path().string(), "--replay", rounds});
    EXPECT_EQ(result.exit_code, 2) << rounds;
    EXPECT_THAT(result.err, HasSubstr("--replay is '")) << rounds;
  }
  const ProcessResult none = made_->xffl({"verify", "-p", copy_.path().string() + "/runs"});
  EXPECT_EQ(none.exit_code, 4);
}

}  // namespace
}  // namespace xffl
