// `xffl status --watch` and `xffl attach` on a terminal and in a pipe. This process takes the place
// of the coordinator: it holds the journal and writes live.json.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <set>
#include <thread>

#include "support/await.h"
#include "support/on_terminal.h"
#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/process.h"
#include "xffl/history/run_folder.h"
#include "xffl/history/run_history.h"

namespace xffl {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

constexpr int kFacilities = 14;
const std::string kHash(64, 'a');
using test::Environment;

// The live view on a terminal.
class View : public test::OnTerminal {
 public:
  using OnTerminal::OnTerminal;
  bool await_text(const std::string& text) {
    return await([&] { return screen.shows(text) && screen.shows("updated"); });
  }
  // Waits for a whole frame after this call.
  bool await_frame() {
    return await([&, before = screen.synchronized_updates()] {
      return screen.synchronized_updates() > before;
    });
  }
};

class Watch : public testing::Test {
 protected:
  Watch() : folder_(project() / "runs", RunName("0001")) {
    make_dirs(folder_.path());
    std::string yaml =
        "project: test\nmodel: model\nrounds: 3\ntraining: {steps_per_round: 4}\nfacilities:\n";
    std::vector<FacilityName> names;
    for (int i = 0; i < kFacilities; ++i) {
      yaml += "  " + name(i).str() + ": {workdir: work, data: {train: [x.tokens]}}\n";
      names.push_back(name(i));
    }
    write_file_atomic(folder_.config(), yaml);
    history_.emplace(folder_.journal());
    history_->record({}, history::RunCreated{RunName("0001"), "test", "s", "", "c"});
    history_->record({}, history::ModelImported{"m0", "f0", ""});
    history_->record({1}, history::RoundPlanned{"m0", "p", names, false});
    for (int i = 0; i < kFacilities; ++i) {
      const history::EventScope scope{1, name(i), 1};
      history_->record(scope, history::AttemptOpened{std::string(32, '1')});
      history_->record(scope, history::SubmitIntended{"job", "s"});
      history_->record(scope, history::Submitted{JobId(std::to_string(4100 + i)), false, {}});
    }
    live_.emplace(folder_.live(), clock_);
    for (int i = 0; i < kFacilities; ++i) live_->show(1, name(i), "running, time limit in 3 h");
    EXPECT_TRUE(test::await([&] { return history::read_activities(folder_.live()).size() == 14; }));
  }

  std::filesystem::path project() const { return dir_ / "project"; }
  static FacilityName name(int i) { return FacilityName("site" + std::to_string(10 + i)); }
  std::vector<std::string> status(std::vector<std::string> more) const {
    std::vector<std::string> arguments = {"status", "-p", project().string(), "--watch", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  View on_terminal(unsigned short rows, unsigned short columns, const Environment& environment = {},
                   std::vector<std::string> more = {}) const {
    return {status(std::move(more)), rows, columns, environment};
  }
  void train(int i, int step) { live_->show_training(1, name(i), {1, step, 4, 5.0 - step, 1000}); }
  // The coordinator ends, by the user's wish.
  void stop_run() {
    history_->record({}, history::RunStopped{"cancelled", "stopped on request"});
    end_coordinator();
  }
  void complete_run() {
    history_->record({}, history::RunCompleted{"m0"});
    end_coordinator();
  }
  void end_coordinator() {
    live_.reset();
    history_.reset();
  }

  test::TempDir dir_;
  SystemClock clock_;
  history::RunFolder folder_;
  std::optional<history::RunHistory> history_;
  std::optional<history::StatusFile> live_;
};

// Each line once, none wider than the window, none in its last column.
void expect_whole(const View& view) {
  const std::vector<std::string> lines = view.screen.lines();
  const std::set<std::string> different(lines.begin(), lines.end());
  EXPECT_EQ(different.size(), lines.size()) << testing::PrintToString(lines);
  EXPECT_EQ(view.screen.full_lines(), 0u) << testing::PrintToString(lines);
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines.front(), HasSubstr("run 0001 of test: running"));
  EXPECT_THAT(lines.back(), HasSubstr("updated 20"));
}

TEST_F(Watch, DrawsOneFrameInPlaceAndFollowsTheWindow) {
  live_->show(1, name(0), "pending (\u6771\u4eac \U0001f600 e\u0301" + std::string(300, 'x') + ")");
  View view = on_terminal(24, 80);
  ASSERT_TRUE(view.await_text("updated"));
  ASSERT_TRUE(view.await_text("(\u6771\u4eac"));
  expect_whole(view);
  EXPECT_EQ(view.screen.lines().size(), 17u) << "a line, titles, 14 facilities, a line";
  struct Window {
    unsigned short rows, columns;
  };
  for (const Window window : {Window{10, 40}, {50, 200}, {10, 200}, {24, 80}, {4, 20}, {24, 80}}) {
    view.resize(window.rows, window.columns);
    ASSERT_TRUE(view.await_frame());
    // A terminal may tell two sizes in a row: the last frame counts.
    ASSERT_TRUE(view.await([&] { return !view.screen.lines().empty(); }));
    if (window.columns >= 40) expect_whole(view);
    EXPECT_LT(view.screen.lines().size(), window.rows);
    if (window.rows == 10) {
      EXPECT_TRUE(view.screen.shows("... 8 more: xffl status"));
    }
  }
  train(3, 2);
  ASSERT_TRUE(view.await_text("2/4"));
  expect_whole(view);
  EXPECT_TRUE(view.screen.shows("3.0000"));
  complete_run();
  EXPECT_EQ(view.finish(), 0);
  EXPECT_TRUE(view.screen.shows("run 0001 of test: completed")) << "the last frame stays";
  EXPECT_THAT(view.bytes, Not(HasSubstr("\033[?1049"))) << "no alternate screen";
}

TEST_F(Watch, KeepsTheTextAboveTheFrame) {
  View view({"status", "-p", project().string(), "--watch"}, 24, 80, {});
  ASSERT_TRUE(view.await_text("updated"));
  EXPECT_TRUE(view.bytes.starts_with("\r\n\r\n")) << "the earlier text moves up";
}

TEST_F(Watch, DrawsOnlyAfterAChange) {
  View view = on_terminal(24, 80);
  ASSERT_TRUE(view.await_text("updated"));
  const size_t before = view.bytes.size();
  std::atomic<bool> over = false;
  std::thread wait([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    over = true;
  });
  view.await([&] { return over.load(); });
  wait.join();
  EXPECT_EQ(view.bytes.size(), before);
}

// A frozen coordinator changes no file.
TEST_F(Watch, ShowsTheSilenceOfACoordinatorWithoutAChange) {
  std::filesystem::last_write_time(folder_.live(), std::filesystem::file_time_type::clock::now() -
                                                       std::chrono::minutes(5) +
                                                       std::chrono::seconds(3));
  View view = on_terminal(24, 200);
  ASSERT_TRUE(view.await_text("updated"));
  EXPECT_TRUE(view.await_text("no sign of life of the coordinator")) << view.bytes;
}

TEST_F(Watch, ReturnsTheCoordinatorsExitCode) {
  View view = on_terminal(24, 80);
  ASSERT_TRUE(view.await_text("updated"));
  stop_run();
  EXPECT_EQ(view.finish(), exit_code(ErrorKind::kCancelled));
  EXPECT_TRUE(view.screen.shows("stopped on request"));
  EXPECT_TRUE(view.screen.shows("continue with: xffl run"));
  // A second reader gets the same answer, also without a terminal.
  std::vector<std::string> argv = status({});
  argv.insert(argv.begin(), XFFL_BINARY_DIR "/bin/xffl");
  EXPECT_EQ(run_process({.argv = argv}).exit_code, exit_code(ErrorKind::kCancelled));
}

TEST_F(Watch, GoesOnAfterAnErrorThatPasses) {
  View view = on_terminal(24, 200);
  ASSERT_TRUE(view.await_text("updated"));
  std::filesystem::rename(folder_.journal(), dir_ / "away.db");
  EXPECT_TRUE(
      view.await([&] { return view.bytes.find("the run is not read now") != std::string::npos; }));
  std::filesystem::rename(dir_ / "away.db", folder_.journal());
  train(3, 2);
  EXPECT_TRUE(view.await_text("2/4")) << view.bytes;
  stop_run();
  EXPECT_EQ(view.finish(), exit_code(ErrorKind::kCancelled));
}

TEST_F(Watch, EndsWithAnErrorForACancelledRun) {
  history_->record({}, history::RunCancelled{});
  end_coordinator();
  std::vector<std::string> argv = status({});
  argv.insert(argv.begin(), XFFL_BINARY_DIR "/bin/xffl");
  const ProcessResult result = run_process({.argv = argv, .timeout = std::chrono::seconds(60)});
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::kFailed)) << result.out;
  EXPECT_THAT(result.err, HasSubstr("run 0001 was cancelled"));
}

// `xffl status --watch && next` does not start `next` in the middle of a run.
TEST_F(Watch, EndsWithAnErrorOnCtrlC) {
  View view = on_terminal(24, 80);
  ASSERT_TRUE(view.await_text("updated"));
  view.type("\x03");
  EXPECT_EQ(view.finish(), exit_code(ErrorKind::kCancelled));
  EXPECT_TRUE(view.screen.shows("run 0001 of test: running")) << "the last frame stays";
}

TEST_F(Watch, ColoursFollowNoColorAndTheOption) {
  live_->show(1, name(0), "paused: authentication needed, pushing: Permission denied");
  const std::string yellow = "\033[33m";
  struct Case {
    Environment environment;
    std::vector<std::string> options;
    bool coloured;
  };
  for (const Case& each :
       std::initializer_list<Case>{{{}, {}, true},
                                   {{{"NO_COLOR", ""}}, {}, true},
                                   {{{"NO_COLOR", "1"}}, {}, false},
                                   {{}, {"--color=never"}, false},
                                   {{{"NO_COLOR", "1"}}, {"--color", "always"}, true}}) {
    View view = on_terminal(24, 80, each.environment, each.options);
    ASSERT_TRUE(view.await_text("authentication needed"));
    EXPECT_EQ(view.bytes.find(yellow) != std::string::npos, each.coloured)
        << testing::PrintToString(each.environment) << testing::PrintToString(each.options);
    expect_whole(view);
  }
}

TEST_F(Watch, ColumnsNarrowsTheFrame) {
  View view = on_terminal(24, 80, {{"COLUMNS", "50"}});
  ASSERT_TRUE(view.await_text("updated"));
  for (const std::string& line : view.screen.lines()) EXPECT_LT(line.size(), 50u) << line;
}

TEST_F(Watch, ADumbTerminalGetsAFramePerChange) {
  View view = on_terminal(60, 80, {{"TERM", "dumb"}});
  ASSERT_TRUE(view.await_text("updated"));
  train(0, 3);
  ASSERT_TRUE(view.await_text("3/4"));
  EXPECT_THAT(view.bytes, Not(HasSubstr("\033")));
  complete_run();
  EXPECT_EQ(view.finish(), 0);
}

// The output of `xffl ARGUMENTS...` in a pipe, while `meanwhile` runs with a function that awaits a
// text of the output.
using AwaitText = std::function<bool(const std::string&)>;
ProcessResult in_pipe(const test::TempDir& dir, std::vector<std::string> arguments,
                      const std::function<void(const AwaitText&)>& meanwhile) {
  const std::string out = (dir / "out").string();
  std::vector<std::string> argv = {"sh", "-c", "out=$1; shift; exec \"$@\" >\"$out\"",
                                   "sh", out,  XFFL_BINARY_DIR "/bin/xffl"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  ProcessResult result;
  std::thread command(
      [&] { result = run_process({.argv = argv, .timeout = std::chrono::minutes(2)}); });
  meanwhile([&](const std::string& text) {
    return test::await(
        [&] {
          return std::filesystem::exists(out) &&
                 read_file(out, 1 << 20).find(text) != std::string::npos;
        },
        std::chrono::seconds(30));
  });
  command.join();
  result.out = read_file(out, 1 << 20);
  return result;
}

TEST_F(Watch, APipeGetsAFramePerChangeWithAllFacilities) {
  const ProcessResult result = in_pipe(dir_, status({}), [&](const AwaitText& await) {
    EXPECT_TRUE(await("updated"));
    train(13, 1);
    EXPECT_TRUE(await("1/4"));
    complete_run();
  });
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, Not(HasSubstr("\033")));
  EXPECT_THAT(result.out, Not(HasSubstr(" more: ")));
  EXPECT_THAT(result.out, AllOf(HasSubstr("site10"), HasSubstr("site23"), HasSubstr("time limit")));
}

// A kill changes no file of the run: the lock alone tells that nobody holds it.
TEST_F(Watch, EndsWhenTheCoordinatorIsKilled) {
  end_coordinator();
  const auto ready = dir_ / "ready";
  const pid_t coordinator = ::fork();
  if (coordinator == 0) {
    const history::RunHistory holder(folder_.journal());
    write_file_atomic(ready, "");
    for (;;) ::pause();
  }
  EXPECT_TRUE(test::await([&] { return std::filesystem::exists(ready); }));
  const ProcessResult result = in_pipe(dir_, status({}), [&](const AwaitText& await) {
    EXPECT_TRUE(await("updated"));
    ::kill(coordinator, SIGKILL);
    ::waitpid(coordinator, nullptr, 0);
  });
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("continue with: xffl run")) << result.err;
}

TEST_F(Watch, PrintsAJsonLinePerChange) {
  const ProcessResult result = in_pipe(dir_, status({"--json"}), [&](const AwaitText& await) {
    EXPECT_TRUE(await("\"site23\""));
    train(13, 1);
    EXPECT_TRUE(await("\"tokens_per_second\""));
    complete_run();
  });
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<Json> lines;
  for (size_t at = 0, end = 0; (end = result.out.find('\n', at)) != std::string::npos; at = end + 1)
    lines.push_back(parse_json(result.out.substr(at, end - at), "status"));
  ASSERT_GE(lines.size(), 3u) << result.out;
  for (const Json& line : lines) EXPECT_EQ(line.at("schema"), 1);
  EXPECT_EQ(lines.front().at("state"), "running");
  EXPECT_EQ(lines[1].at("rounds_detail")[0]["facilities"]["site23"]["training"]["step"], 1);
  EXPECT_EQ(lines.back().at("state"), "completed");
  EXPECT_THAT(result.out, testing::StartsWith("{\"schema\":1,"));
}

TEST_F(Watch, AttachEndsWithTheWholeStatus) {
  const ProcessResult result =
      in_pipe(dir_, {"attach", "-p", project().string()}, [&](const AwaitText& await) {
        EXPECT_TRUE(await("updated"));
        complete_run();
      });
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("\nround 1: training\n  site10: submitted\n"));
}

}  // namespace
}  // namespace xffl
