// The hooks and the file for Prometheus of the real `xffl run`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

#include "e2e/project.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using test::Project;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kPolicy = "{on_missing: wait, poll_interval: 20ms, evaluate_last: false}";

class ObservedRun : public testing::Test {
 protected:
  void configure(const std::string& sections, const std::string& policy = kPolicy) {
    project_.set_policy(policy + "\n" + sections);
    project_.write_config();
  }
  std::vector<Json> hook_events() const {
    std::vector<Json> events;
    std::ifstream in(project_.path() / "got");
    for (std::string line; std::getline(in, line);) events.push_back(parse_json(line, "event"));
    return events;
  }
  // "kind id" of each event that a hook got.
  std::vector<std::string> hooked() const {
    std::vector<std::string> found;
    for (const Json& event : hook_events())
      found.push_back(event.at("kind").get<std::string>() + " " +
                      event.at("id").get<std::string>());
    return found;
  }
  // The same by the journal.
  std::vector<std::string> recorded(const std::string& kinds) const {
    std::vector<std::string> found;
    for (const history::StoredEvent& event : project_.events())
      if (kinds.find(event.kind) != std::string::npos)
        found.push_back(event.kind + " 0001-" + std::to_string(event.seq));
    return found;
  }
  static int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
    return found;
  }

  Project project_;
};

TEST_F(ObservedRun, StartsHooksForTheirEvents) {
  configure("hooks: {on: [published, run_completed], command: [sh, -c, 'cat >> got']}");
  const ProcessResult result = project_.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(hooked(), recorded("published run_completed"));
  EXPECT_EQ(hooked().size(), 4u);
  EXPECT_THAT(result.err, Not(HasSubstr("hook")));
}

TEST_F(ObservedRun, IsNotDelayedByAHangingHook) {
  configure(
      "hooks: {on: [published, run_completed], timeout: 1s, command: [sh, -c, 'echo x >> starts; "
      "yes > /dev/stderr']}");
  const auto began = std::chrono::steady_clock::now();
  const ProcessResult result = project_.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60));
  EXPECT_EQ(project_.trainings(), test::kOnceEach);
  EXPECT_TRUE(fs::exists(project_.path() / "starts"));
  EXPECT_EQ(count(result.err, "warning a hook failed"), 1) << "one warning:\n" << result.err;
  EXPECT_THAT(result.err, HasSubstr("longer than hooks.timeout (1 s)"));
}

TEST_F(ObservedRun, GoesOnWithoutTheHooksProgram) {
  configure("hooks: {on: [published], command: [./no-such-program]}");
  const ProcessResult result = project_.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("no-such-program"));
  EXPECT_EQ(project_.count_events("published"), 3);
}

// Killed between the journal's record and the hook.
TEST_F(ObservedRun, StartsTheHooksOfAKilledCoordinator) {
  const std::string hooks =
      "hooks: {on: [published, run_completed], command: [sh, -c, 'cat >> got']}";
  configure(hooks);
  ASSERT_EQ(project_.run().exit_code, 0);
  const std::vector<std::string> expected = recorded("published run_completed");
  int64_t first_published = 0;
  for (const history::StoredEvent& event : project_.events())
    if (event.kind == "published" && first_published == 0) first_published = event.seq;
  project_.forget_runs();
  fs::remove(project_.path() / "got");

  const ProcessResult killed =
      project_.run({{"XFFL_FAILPOINT", "journal:after:" + std::to_string(first_published)}});
  ASSERT_EQ(killed.exit_code, 128 + SIGKILL) << killed.err;
  EXPECT_EQ(project_.count_events("published"), 1);
  EXPECT_EQ(hook_events().size(), 0u);
  ASSERT_EQ(project_.run().exit_code, 0);
  EXPECT_EQ(hooked(), recorded("published run_completed"));
  EXPECT_EQ(hooked().size(), expected.size());
}

// Its observers would follow the journal of its successor.
TEST_F(ObservedRun, StartsNoHookAfterATakeOver) {
  configure(
      "observe: {prometheus: xffl.prom}\n"
      "hooks: {on: [published, run_completed], command: [sh, -c, 'cat >> got']}");
  test::StartedRun frozen =
      project_.start_run({{"XFFL_FAILPOINT", "journal:stop:participants_frozen"}});
  ASSERT_TRUE(frozen.await_stop());
  fs::remove(project_.run_folder() / "journal.db.lock");
  const ProcessResult second = project_.run();
  ASSERT_EQ(second.exit_code, 0) << second.err;
  const fs::path done = project_.run_folder() / "hooks.done",
                 figures = project_.path() / "xffl.prom";
  const std::string last_done = read_file(done, 100), last_figures = read_file(figures, 1 << 20);
  ASSERT_EQ(hooked(), recorded("published run_completed"));

  frozen.signal(SIGCONT);
  EXPECT_EQ(frozen.finish(), exit_code(ErrorKind::kBusy));
  EXPECT_EQ(hooked(), recorded("published run_completed"));
  EXPECT_EQ(read_file(done, 100), last_done);
  EXPECT_EQ(read_file(figures, 1 << 20), last_figures);
}

TEST_F(ObservedRun, TellsHooksOfItsStop) {
  project_.set_fault("alba", "crash");
  configure("hooks: {command: [sh, -c, 'cat >> got']}",
            "{on_missing: fail, max_attempts: 1, poll_interval: 20ms}");
  EXPECT_NE(project_.run().exit_code, 0);
  EXPECT_EQ(hooked(), recorded("run_stopped facility_missing"));
  ASSERT_FALSE(hook_events().empty());
  EXPECT_EQ(hook_events().back().at("kind"), "run_stopped");
}

TEST_F(ObservedRun, WritesTheFileForPrometheus) {
  configure("observe: {prometheus: xffl.prom}");
  ASSERT_EQ(project_.run().exit_code, 0);
  const std::string text = read_file(project_.path() / "xffl.prom", 1 << 20);
  EXPECT_THAT(text, HasSubstr("xffl_rounds_published_total 3\n"));
  EXPECT_THAT(text, HasSubstr("xffl_run_state{state=\"completed\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("xffl_attempts_total{facility=\"alba\",outcome=\"accepted\"} 3\n"));
}

TEST_F(ObservedRun, GoesOnWithoutTheFileForPrometheus) {
  for (const std::string file :
       {"/dev/full/xffl.prom", "/proc/xffl.prom", "no/such/folder/x.prom"}) {
    configure("observe: {prometheus: '" + file + "'}");
    const ProcessResult result = project_.run();
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(count(result.err, "the file for Prometheus is not written"), 1) << result.err;
    project_.forget_runs();
  }
}

}  // namespace
}  // namespace xffl
