#include "hooks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "support/await.h"
#include "support/recorded_syncs.h"
#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/process.h"
#include "xffl/config/load.h"

namespace xffl::observe {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class HooksTest : public testing::Test {
 protected:
  HooksTest() {
    make_dirs(run_.path());
    store_ = history::Store::open(run_.journal());
    log::set_file(folder_ / "log");
  }
  ~HooksTest() override { log::set_file({}); }

  void record(const history::EventScope& scope, const history::Event& event) {
    store_->append(history::encode(scope, event));
  }
  void pause(const std::string& reason) {
    record({.facility = FacilityName("alba")}, history::FacilityPaused{reason});
  }
  Hooks hooks(std::vector<std::string> command,
              std::chrono::seconds timeout = std::chrono::seconds(20)) {
    config::Hooks settings;
    settings.command = std::move(command);
    settings.timeout = timeout;
    return Hooks(settings, run_, "p", folder_.path(), store_->epoch());
  }
  // Appends its standard input to the file "got".
  Hooks keeper() { return hooks({"sh", "-c", "cat >> got; echo $XFFL_EVENT >> kinds"}); }
  void run(Hooks& hooks) { hooks.run(true, {}, {}); }
  std::vector<std::string> texts() const {
    std::vector<std::string> found;
    std::ifstream in(folder_ / "got");
    for (std::string line; std::getline(in, line);)
      found.push_back(parse_json(line, "event").at("text").get<std::string>());
    return found;
  }
  std::string logged() const { return read_file(folder_ / "log", 1 << 20); }

  test::TempDir folder_;
  const history::RunFolder run_{folder_ / "runs", RunName("0001")};
  std::unique_ptr<history::Store> store_;
};

TEST_F(HooksTest, GetTheEventAsOneLineOfJson) {
  Hooks hooks = keeper();
  pause("the login of \x1b[31mthe site\nfails, password=hunter2");
  record({2, FacilityName("alba"), 1}, history::AttemptOpened{std::string(32, 'a')});
  run(hooks);
  std::ifstream in(folder_ / "got");
  std::string line, more;
  std::getline(in, line);
  EXPECT_FALSE(std::getline(in, more)) << more;
  const Json json = parse_json(line, "event");
  EXPECT_EQ(json.begin().key(), "schema");
  EXPECT_EQ(json.at("schema"), 1);
  EXPECT_EQ(json.at("id"), "0001-1");
  EXPECT_EQ(json.at("kind"), "facility_paused");
  EXPECT_EQ(json.at("run"), "0001");
  EXPECT_EQ(json.at("project"), "p");
  EXPECT_EQ(json.at("facility"), "alba");
  EXPECT_TRUE(json.at("round").is_null());
  EXPECT_TRUE(parse_utc(json.at("time").get<std::string>()));
  EXPECT_THAT(json.at("text").get<std::string>(), HasSubstr("alba is paused: the login of "));
  EXPECT_THAT(line, Not(HasSubstr("hunter2")));
  EXPECT_THAT(line, Not(HasSubstr("u001b")));
  EXPECT_EQ(read_file(folder_ / "kinds", 100), "facility_paused\n");
}

TEST(HookEvent, NamesTheRoundAndTheAttempt) {
  history::RecordedEvent failed;
  failed.scope = {2, FacilityName("alba"), 3};
  failed.event = history::AttemptFailed{.reason = "NODE_FAIL"};
  const Json json = parse_json(format_hook_event("0001", "p", failed), "event");
  EXPECT_EQ(json.at("round"), 2);
  EXPECT_EQ(json.at("text"), "attempt 3 of alba in round 2 failed: NODE_FAIL");
}

TEST_F(HooksTest, StartOncePerEventAlsoAcrossCoordinators) {
  pause("before hooks were configured");
  Hooks first = keeper();
  pause("1");
  run(first);
  run(first);
  pause("2");
  Hooks second = keeper();  // the first one was killed between the record and the program
  run(second);
  EXPECT_THAT(texts(), ElementsAre("alba is paused: 1", "alba is paused: 2"));
}

// `xffl journal repair --accept-loss` has removed the events 3 to 57.
TEST_F(HooksTest, StartForEventsWithTheNumbersOfLostOnes) {
  for (const char* reason : {"1", "2"}) pause(reason);
  write_file_atomic(run_.path() / "hooks.done", R"({"schema": 1, "seq": 57})");
  keeper();  // a coordinator without an event
  pause("3");
  Hooks next = keeper();
  run(next);
  EXPECT_THAT(texts(), ElementsAre("alba is paused: 3"));
}

// The coordinator was frozen while its first hook ran.
TEST_F(HooksTest, OfACoordinatorThatHasLostItsRunDoNotStart) {
  Hooks late = hooks({"sh", "-c", "cat >> got; touch first; until [ -e go ]; do sleep 0.02; done"});
  for (const char* reason : {"1", "2"}) pause(reason);
  const fs::path done_file = run_.path() / "hooks.done";
  const std::string done = read_file(done_file, 100);
  std::unique_ptr<history::Store> successor;
  std::jthread take_over([&] {
    EXPECT_TRUE(test::await([&] { return fs::exists(folder_ / "first"); }));
    fs::remove(run_.journal().string() + ".lock");
    successor = history::Store::open(run_.journal());
    std::ofstream(folder_ / "go") << "go";
  });
  run(late);
  take_over.join();
  run(late);
  EXPECT_THAT(texts(), ElementsAre("alba is paused: 1"));
  EXPECT_EQ(read_file(done_file, 100), done);
  fs::remove(done_file);
  keeper();
  EXPECT_FALSE(fs::exists(done_file)) << "the successor's to write";

  write_file_atomic(done_file, done);
  store_ = std::move(successor);
  Hooks next = keeper();
  run(next);
  EXPECT_THAT(texts(), ElementsAre("alba is paused: 1", "alba is paused: 1", "alba is paused: 2"))
      << "the first program's end is not on record";
}

// A mail or a call each half second, as long as the disk is full.
TEST_F(HooksTest, AnEventThatCannotBeNotedIsNotRepeated) {
  Hooks hooks = keeper();
  pause("x");
  const fs::path temporary =
      run_.path() / ("hooks.done.e" + std::to_string(store_->epoch()) + ".tmp");
  make_dirs(temporary);
  for (int look = 0; look < 2; ++look) try {
      run(hooks);
    } catch (const Error&) {
    }
  EXPECT_EQ(texts().size(), 1u);
}

// Hooks are off while their file is damaged.
TEST_F(HooksTest, TheirLastEventIsDurable) {
  Hooks hooks = keeper();
  pause("1");
  test::synced_sizes.clear();
  run(hooks);
  EXPECT_TRUE(test::is_synced(run_.path() / "hooks.done"));
}

TEST_F(HooksTest, ThatFailAreLoggedOnceAndTheNextEventComes) {
  Hooks failing = hooks({"sh", "-c", "echo its reason >&2; echo x >> starts; exit 3"});
  for (int i = 0; i < 3; ++i) pause("x");
  run(failing);
  EXPECT_EQ(read_file(folder_ / "starts", 100), "x\nx\nx\n");
  EXPECT_THAT(logged(), HasSubstr("exit code 3: its reason"));
  const std::string log = logged();
  size_t warnings = 0;
  for (size_t at = 0; (at = log.find("warning", at)) != std::string::npos; ++at) ++warnings;
  EXPECT_EQ(warnings, 1u) << log;
}

// A code above 128 is not always a signal: a failed ssh ends with 255.
TEST_F(HooksTest, ThatEndWithAHighCodeAreOver) {
  Hooks failing = hooks({"sh", "-c", "cat >> got; exit 255"});
  for (const char* reason : {"1", "2"}) pause(reason);
  run(failing);
  run(failing);
  EXPECT_THAT(texts(), ElementsAre("alba is paused: 1", "alba is paused: 2"));
  EXPECT_THAT(logged(), HasSubstr("exit code 255"));
}

TEST_F(HooksTest, ThatCannotStartAreNoError) {
  Hooks missing = hooks({"./no-such-program"});
  pause("x");
  run(missing);
  EXPECT_THAT(logged(), HasSubstr("no-such-program"));
}

TEST_F(HooksTest, ThatHangAreEndedWithTheirChildren) {
  Hooks hanging =
      hooks({"sh", "-c", "sleep 1000 & echo $! > child; sleep 1000"}, std::chrono::seconds(1));
  pause("x");
  const auto began = std::chrono::steady_clock::now();
  run(hanging);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
  EXPECT_THAT(logged(), HasSubstr("it took longer than hooks.timeout (1 s)"));
  const auto child = process_info(std::stoi(read_file(folder_ / "child", 100)));
  EXPECT_TRUE(!child || !child->alive());
}

TEST_F(HooksTest, ThatFloodTheirOutputCostNoMemory) {
  Hooks flooding =
      hooks({"sh", "-c", "head -c 50000000 /dev/zero | tee /dev/stderr; echo done >> got2"});
  pause("x");
  run(flooding);
  EXPECT_EQ(read_file(folder_ / "got2", 100), "done\n");
}

TEST_F(HooksTest, KeepAnEventWhoseProgramWasAborted) {
  Hooks hanging =
      hooks({"sh", "-c", "[ -e got ] || exec cat > got; touch second; exec sleep 1000"});
  for (const char* reason : {"1", "2", "3"}) pause(reason);
  std::stop_source abort;
  std::jthread stopper([&] {
    EXPECT_TRUE(test::await([&] { return fs::exists(folder_ / "second"); }));
    abort.request_stop();
  });
  hanging.run(true, {}, abort.get_token());
  Hooks next = keeper();
  run(next);
  EXPECT_THAT(texts(), ElementsAre("alba is paused: 1", "alba is paused: 2", "alba is paused: 3"));
}

TEST_F(HooksTest, DropTheOldestOfTooManyEvents) {
  Hooks slow = hooks({"sh", "-c", "cat > part; mv part got; sleep 1000"});
  const size_t events = kMaxWaitingEvents + 5;
  for (size_t i = 0; i < events; ++i) pause(std::to_string(i));
  std::stop_source abort;
  std::jthread stopper([&] {
    EXPECT_TRUE(test::await([&] { return fs::exists(folder_ / "got"); }));
    abort.request_stop();
  });
  slow.run(true, {}, abort.get_token());
  EXPECT_THAT(logged(), HasSubstr("the oldest events get no program"));
  EXPECT_THAT(texts(), ElementsAre("alba is paused: 5")) << "the first program";
}

TEST_F(HooksTest, RefuseADamagedFileOfTheirOwn) {
  std::ofstream(run_.path() / "hooks.done") << "{\"seq\": -1}";
  EXPECT_THROW(keeper(), Error);
}

// The names in `hooks.on`, as the reference of keys lists them, are kinds of events.
TEST(HookKinds, AreKindsOfEvents) {
  std::set<std::string, std::less<>> kinds;
  for (const history::EventFields& one : history::event_fields()) kinds.emplace(one.kind);
  const std::string reference = config::key_reference();
  const std::string begin = "| `hooks.on` | an event: ", end = ", or a list of them";
  const size_t from = reference.find(begin);
  ASSERT_NE(from, std::string::npos);
  std::istringstream listed(
      reference.substr(from + begin.size(), reference.find(end, from) - from - begin.size()));
  int count = 0;
  for (std::string word; listed >> word;) {
    if (word.back() == ',') word.pop_back();
    if (word == "or") continue;
    EXPECT_TRUE(kinds.contains(word)) << word;
    ++count;
  }
  EXPECT_EQ(count, 13);
  for (const std::string& kind : config::Hooks().on) EXPECT_TRUE(kinds.contains(kind)) << kind;
}

}  // namespace
}  // namespace xffl::observe
