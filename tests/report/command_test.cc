// `xffl report` on a run of an earlier release, which was killed in its second round.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <thread>

#include "support/await.h"
#include "support/temp_dir.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/process.h"
#include "xffl/history/events.h"
#include "xffl/history/store.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ReportCommand : public testing::Test {
 protected:
  ReportCommand() {
    const ProcessResult result = run_process(
        {.argv = {"tar", "-xzf", XFFL_SOURCE_DIR "/tests/golden/run/killed_in_round_2.tar.gz", "-C",
                  folder_.path().string()}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  ProcessResult report(std::vector<std::string> arguments) const {
    std::vector<std::string> argv = {XFFL_BINARY_DIR "/bin/xffl", "report", "-p",
                                     (folder_ / "project").string()};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return run_process({.argv = argv, .timeout = std::chrono::seconds(120)});
  }
  fs::path page() const { return folder_ / "project/runs/0001/report.html"; }

  test::TempDir folder_;
};

TEST_F(ReportCommand, WritesTheDefaultFileAndOverwritesIt) {
  for (int time = 0; time < 2; ++time) {
    const ProcessResult result = report({});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("runs/0001/report.html"));
  }
  const std::string text = read_file(page(), 1 << 20);
  EXPECT_THAT(text, HasSubstr("xffl run --run 0001"));
  EXPECT_THAT(text, HasSubstr("complete up to event 24 "));
  for (const auto& entry : fs::directory_iterator(page().parent_path()))
    EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
}

TEST_F(ReportCommand, PrintsTextAndJson) {
  const ProcessResult text = report({"--text"});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("killed, or the machine crashed"));
  const ProcessResult json = report({"--json"});
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const Json parsed = parse_json(json.out, "report");
  EXPECT_EQ(parsed.at("schema"), 1);
  EXPECT_EQ(parsed.at("rounds_published"), 1);
  EXPECT_FALSE(fs::exists(page()));
}

TEST_F(ReportCommand, WatchEndsWithoutACoordinator) {
  const ProcessResult result = report({"--watch", "1", "--output", (folder_ / "x.html").string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_file(folder_ / "x.html", 1 << 20).find("http-equiv=\"refresh\""),
            std::string::npos);
}

// This process takes the place of the coordinator: it holds the journal.
TEST_F(ReportCommand, WatchRewritesThePageUntilTheCoordinatorEnds) {
  auto store = history::Store::open(page().parent_path() / "journal.db");
  ProcessResult result;
  std::thread command([&] { result = report({"--watch", "1"}); });
  const auto shows = [&](const std::string& text) {
    return fs::exists(page()) && read_file(page(), 1 << 20).find(text) != std::string::npos;
  };
  EXPECT_TRUE(test::await([&] { return shows("http-equiv=\"refresh\" content=\"1\""); }));
  EXPECT_TRUE(shows("complete up to event 24 "));
  store->append(history::encode({}, history::RunResumed{}));
  EXPECT_TRUE(test::await([&] { return shows("complete up to event 25 "); }));
  store.reset();
  command.join();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(shows("http-equiv=\"refresh\"")) << "the last page";
}

TEST_F(ReportCommand, WatchGoesOnAfterAnErrorThatPasses) {
  const fs::path journal = page().parent_path() / "journal.db", away = folder_ / "away.db";
  auto store = history::Store::open(journal);
  const pid_t command = start_detached({.argv = {XFFL_BINARY_DIR "/bin/xffl", "report", "-p",
                                                 (folder_ / "project").string(), "--watch", "1"}},
                                       folder_ / "output");
  const auto shows = [](const fs::path& file, const std::string& text) {
    return fs::exists(file) && read_file(file, 1 << 20).find(text) != std::string::npos;
  };
  EXPECT_TRUE(test::await([&] { return shows(page(), "complete up to event 24 "); }));
  fs::rename(journal, away);
  EXPECT_TRUE(test::await([&] { return shows(folder_ / "output", "the report is not written"); }));
  fs::rename(away, journal);
  store->append(history::encode({}, history::RunResumed{}));
  EXPECT_TRUE(test::await([&] { return shows(page(), "complete up to event 25 "); }));
  store.reset();
  EXPECT_EQ(wait_for_exit(command), 0) << read_file(folder_ / "output", 1 << 20);
}

// An error at each system call that writes the page: the earlier page stays, whole.
TEST_F(ReportCommand, AFullOrReadOnlyDiskLeavesTheEarlierPage) {
  const std::string faults = XFFL_BINARY_DIR "/bin/xffl-call-faults";
  const fs::path out = folder_ / "out";
  fs::create_directory(out);
  const auto disturbed = [&](const std::string& call, const std::string& error) {
    return run_process(
        {.argv = {faults, (folder_ / "calls").string(), call, "1+", error,
                  XFFL_BINARY_DIR "/bin/xffl", "report", "-p", (folder_ / "project").string(),
                  "--output", (out / "report.html").string()},
         .env = {{"XFFL_CALL_FAULTS_BELOW", out.string()}},
         .timeout = std::chrono::seconds(120)});
  };
  if (run_process({.argv = {faults, (folder_ / "calls").string(), "openat", "0", "kill", "true"}})
          .exit_code != 0)
    GTEST_SKIP() << "this machine does not run xffl-call-faults";
  write_file_atomic(out / "report.html", "the earlier page");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"openat", "EROFS"}, {"write", "ENOSPC"}, {"fsync", "EIO"}, {"rename", "EACCES"}};
  for (const auto& [call, error] : cases) {
    const ProcessResult result = disturbed(call, error);
    EXPECT_NE(result.exit_code, 0) << call;
    EXPECT_LT(result.exit_code, 128) << call << ": " << result.err;
    EXPECT_THAT(result.err, HasSubstr("while writing the report")) << call;
    EXPECT_EQ(read_file(out / "report.html", 1 << 20), "the earlier page") << call;
    EXPECT_EQ(std::distance(fs::directory_iterator(out), {}), 1) << call << ": no other file stays";
  }
}

TEST_F(ReportCommand, AnOutputThatCannotBeWrittenIsAnErrorOfTheCommand) {
  for (const char* path : {"/proc/report.html", "/dev/full/x.html", "/nowhere/report.html"}) {
    const ProcessResult result = report({"--output", path});
    EXPECT_NE(result.exit_code, 0) << path;
    EXPECT_THAT(result.err, HasSubstr("while writing the report")) << path;
    EXPECT_THAT(result.err, HasSubstr(path)) << path;
  }
}

}  // namespace
}  // namespace xffl
