#include "xffl/exports/tensorboard.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "event_file.h"
#include "report/synthetic_run.h"
#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/history/spending.h"

namespace xffl::exports {
namespace {

namespace fs = std::filesystem;
using test::SyntheticRun;
using testing::HasSubstr;

class Tensorboard : public testing::Test {
 protected:
  // Steps 1 to 10 of round 1, 11 to 20 of round 2, ...
  void write_metrics(int round, int facility, const std::string& more = "") {
    const fs::path path = run_.metrics(round, SyntheticRun::name(facility), 1);
    make_dirs(path.parent_path());
    std::ofstream out(path);
    for (int step = 10 * round - 9; step <= 10 * round; ++step)
      out << "{\"step\":" << step << ",\"loss\":" << 4.0 - 0.125 * step
          << ",\"lr\":0.0001,\"grad_norm\":1.5,\"tokens_per_second\":1000}\n";
    out << more;
  }
  static SyntheticRun two_rounds() {
    SyntheticRun run(2);
    run.round(1, 2);
    run.round(2, 2);
    run.plan(3, 2, /*evaluates=*/true);
    for (int facility = 0; facility < 2; ++facility) run.open(3, facility);
    for (const int facility : {1, 0}) {  // the first job ends last
      job::JobReport report = run.report(3, facility, 1);
      report.update_sha256 = "";
      report.steps = report.samples = report.tokens = 0;
      report.train_loss = report.train_loss_last = 0;
      run.add({3, SyntheticRun::name(facility), 1}, history::UpdateAccepted{"", report, 0, {}});
    }
    run.add({}, history::RunCompleted{SyntheticRun::model(2)});
    return run;
  }
  TensorboardFiles write(const report::RunStory& story, const fs::path& to) {
    return write_tensorboard(story, run_, to);
  }
  static std::map<std::string, std::string> files(const fs::path& folder) {
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.is_regular_file())
        found[entry.path().lexically_relative(folder).string()] = read_file(entry.path(), 1 << 24);
    return found;
  }
  fs::path only_file(const fs::path& folder) {
    for (const auto& entry : fs::directory_iterator(folder)) return entry.path();
    return {};
  }

  test::TempDir folder_;
  const history::RunFolder run_{folder_ / "runs", RunName("0001")};
};

TEST_F(Tensorboard, WritesOneFileForTheRunAndOneForEachFacility) {
  for (int round = 1; round <= 2; ++round)
    for (int facility = 0; facility < 2; ++facility) write_metrics(round, facility);
  const TensorboardFiles written = write(two_rounds().story(), folder_ / "tb");
  const auto found = files(folder_ / "tb");
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(written.files, 3);
  EXPECT_TRUE(found.contains("global/events.out.tfevents.1772366410.xffl.0001"));
  EXPECT_TRUE(found.contains("site1/events.out.tfevents.1772366410.xffl.0001"));
  // For the test with TensorBoard's own reader.
  if (const char* keep = std::getenv("XFFL_KEEP"))
    fs::copy(folder_ / "tb", keep, fs::copy_options::recursive);
}

TEST_F(Tensorboard, HasTheNodeSecondsOfEachFacilityAtThePublication) {
  SyntheticRun run(2);
  run.plan(1, 2);
  run.open(1, 0);
  run.accept(1, 0);
  run.open(1, 1);
  run.publish(1, {0});
  history::Spending spending;
  for (const history::StoredEvent& event : run.events()) spending.add(history::decode(event));
  const report::RunStory story = run.story();
  const report::RoundStory& round = story.rounds.at(1);
  ASSERT_GT(spending.node_seconds(SyntheticRun::name(0)), 0);
  ASSERT_NE(spending.node_seconds(SyntheticRun::name(0)),
            spending.node_seconds(SyntheticRun::name(1)));
  write(story, folder_ / "tb");
  std::vector<Scalar> expected;
  for (int facility = 0; facility < 2; ++facility) {
    const FacilityName name = SyntheticRun::name(facility);
    EXPECT_EQ(round.node_seconds.at(name), spending.node_seconds(name));
    expected.push_back({"round/node_seconds/" + name.str(), spending.node_seconds(name)});
  }
  const std::string record = scalars_record(
      std::chrono::duration<double>(round.published->time_since_epoch()).count(), 1, expected);
  EXPECT_THAT(read_file(only_file(folder_ / "tb/global"), 1 << 20), HasSubstr(record));
}

TEST_F(Tensorboard, HasNoCurvesOfAnUpdateThatWasLost) {
  SyntheticRun run(1);
  run.plan(1, 2);
  for (int facility = 0; facility < 2; ++facility) {
    run.open(1, facility);
    run.accept(1, facility);
    write_metrics(1, facility);
  }
  run.add({1, SyntheticRun::name(0), 1}, history::UpdateLost{"both copies are damaged"});
  run.add({1, SyntheticRun::name(0)}, history::FacilityMissing{"the facility is unreachable"});
  run.publish(1, {1});
  write(run.story(), folder_ / "tb");
  EXPECT_FALSE(fs::exists(folder_ / "tb/site0"));
  EXPECT_TRUE(fs::exists(folder_ / "tb/site1"));
}

TEST_F(Tensorboard, HasNoLossThatAStoppedJobDidNotMeasure) {
  SyntheticRun run(1);
  run.plan(1, 2);
  for (int facility = 0; facility < 2; ++facility) {
    run.open(1, facility);
    job::JobReport report = run.report(1, facility, 1);
    report.stopped_early = facility == 0;
    if (report.stopped_early) report.validation.at(0).nll_after = 0;
    run.add({1, SyntheticRun::name(facility), 1},
            history::UpdateAccepted{SyntheticRun::hash('1'), report, 0, {}});
    write_metrics(1, facility);
  }
  run.publish(1, {0, 1});
  write(run.story(), folder_ / "tb");
  const auto curves = [&](const char* site) {
    return read_file(only_file(folder_ / "tb" / site), 1 << 20);
  };
  EXPECT_THAT(curves("site0"), testing::Not(HasSubstr("loss/validation/it")));
  EXPECT_THAT(curves("site1"), HasSubstr("loss/validation/it"));
}

// TensorBoard reads a file that grows: bytes that it has read must not change.
TEST_F(Tensorboard, EachEventOnlyAppends) {
  for (int round = 1; round <= 2; ++round)
    for (int facility = 0; facility < 2; ++facility) write_metrics(round, facility);
  const SyntheticRun run = two_rounds();
  std::map<std::string, std::string> before;
  for (size_t n = 2; n <= run.events().size(); ++n) {
    const std::vector<history::StoredEvent> events(run.events().begin(),
                                                   run.events().begin() + static_cast<long>(n));
    const report::RunStory story = report::make_story(events, run.context());
    const TensorboardFiles grown = write(story, folder_ / "grown");
    const TensorboardFiles whole = write(story, folder_ / ("whole" + std::to_string(n)));
    EXPECT_EQ(whole.appended_bytes, whole.size_bytes);
    EXPECT_EQ(grown.size_bytes, whole.size_bytes);
    const auto now = files(folder_ / "grown");
    ASSERT_EQ(now, files(folder_ / ("whole" + std::to_string(n)))) << n << " events";
    for (const auto& [name, content] : before) EXPECT_TRUE(now.at(name).starts_with(content));
    before = now;
  }
  EXPECT_EQ(write(run.story(), folder_ / "grown").appended_bytes, 0u);
}

TEST_F(Tensorboard, CompletesATornFile) {
  write_metrics(1, 0);
  const report::RunStory story = two_rounds().story();
  write(story, folder_ / "tb");
  const auto whole = files(folder_ / "tb");
  for (const auto& [name, content] : whole)
    fs::resize_file(folder_ / "tb" / name, content.size() / 2 + 3);
  write(story, folder_ / "tb");
  EXPECT_EQ(files(folder_ / "tb"), whole);
}

void expect_rejected(const std::function<void()>& body, const std::string& text) {
  try {
    body();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRejected);
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

TEST_F(Tensorboard, RefusesAFileThatIsNoEarlierExport) {
  const report::RunStory story = two_rounds().story();
  write(story, folder_ / "tb");
  const fs::path file = only_file(folder_ / "tb/global");
  const std::string whole = read_file(file, 1 << 20);
  std::string changed = whole;
  changed[100] ^= 1;
  std::ofstream(file, std::ios::binary) << changed;
  expect_rejected([&] { write(story, folder_ / "tb"); }, "byte 100 differs");
  EXPECT_EQ(read_file(file, 1 << 20), changed);
  std::ofstream(file, std::ios::binary) << whole << "more";
  expect_rejected([&] { write(story, folder_ / "tb"); },
                  "it has " + std::to_string(whole.size() + 4) + " bytes");
  fs::remove(file);
  fs::create_symlink("/dev/null", file);
  EXPECT_THROW(write(story, folder_ / "tb"), Error);
}

TEST_F(Tensorboard, RefusesTheFolderOfAnotherRun) {
  make_dirs(folder_ / "tb/global");
  std::ofstream(folder_ / "tb/global/events.out.tfevents.1.host") << "x";
  expect_rejected([&] { write(two_rounds().story(), folder_ / "tb"); },
                  "has the events of another run");
}

TEST_F(Tensorboard, WaitsForNoOtherWriter) {
  const report::RunStory story = two_rounds().story();
  write(story, folder_ / "tb");
  const UniqueFd held = open_file(only_file(folder_ / "tb/global"), O_RDONLY);
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
  try {
    write(story, folder_ / "tb");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBusy);
  }
}

TEST_F(Tensorboard, ThinsLongMetricsAndSkipsHostileOnes) {
  std::string lines;
  for (int step = 11; step <= 20'000; ++step)
    lines += "{\"step\":" + std::to_string(step) + ",\"loss\":1}\n";
  write_metrics(1, 0, lines + "{\"step\":1e99,\"loss\":1}\nnonsense\n");
  const fs::path link = run_.metrics(1, SyntheticRun::name(1), 1);
  make_dirs(link.parent_path());
  fs::create_symlink("/etc/passwd", link);
  write(two_rounds().story(), folder_ / "tb");
  const auto found = files(folder_ / "tb");
  EXPECT_EQ(found.count("site1/events.out.tfevents.1772366410.xffl.0001"), 0u);
  const std::string& steps = found.at("site0/events.out.tfevents.1772366410.xffl.0001");
  size_t records = 0;
  for (size_t at = 0; (at = steps.find("loss/train", at)) != std::string::npos; ++at) ++records;
  EXPECT_GT(records, 900u);
  EXPECT_LE(records, size_t{kMaxStepsOfAttempt} + 1);
}

TEST_F(Tensorboard, TellsAFacilityNamedGlobalFromTheRun) {
  SyntheticRun run(1);
  report::RunStory story = two_rounds().story();
  for (report::AttemptStory& attempt : story.attempts)
    if (attempt.facility == SyntheticRun::name(0)) attempt.facility = FacilityName("global");
  const fs::path path = run_.metrics(1, FacilityName("global"), 1);
  make_dirs(path.parent_path());
  std::ofstream(path) << "{\"step\":1,\"loss\":1}\n";
  write(story, folder_ / "tb");
  EXPECT_TRUE(fs::exists(folder_ / "tb/global.facility"));
}

}  // namespace
}  // namespace xffl::exports
