// A coordinator is frozen (SIGSTOP) at any step, as a suspended machine or a hanging disk freezes
// it. Another coordinator takes its run over and completes it. Then the first one continues: it
// changes nothing and says why it ends.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <iostream>
#include <random>
#include <thread>

#include "e2e/project.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"
#include "xffl/history/work_files.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using test::expect_undisturbed_result;
using test::Project;
using test::StartedRun;

// The hash of every file and the target of every link in the run's folder. Both coordinators write
// their logs.
std::map<std::string, std::string> content_of(const fs::path& run_folder) {
  std::map<std::string, std::string> content;
  for (const auto& entry : fs::recursive_directory_iterator(run_folder)) {
    const std::string name = fs::relative(entry.path(), run_folder).string();
    if (name == "coordinator.log" || name.starts_with("journal.db")) continue;
    content[name] = entry.is_symlink()        ? fs::read_symlink(entry.path()).string()
                    : entry.is_regular_file() ? sha256_file(entry.path())
                                              : "folder";
  }
  return content;
}

class FrozenCoordinator : public testing::Test {
 protected:
  FrozenCoordinator() {
    project_.set_policy("{on_missing: wait, poll_interval: 20ms, keep_rounds: 1}");
    project_.write_config();
    const auto began = std::chrono::steady_clock::now();
    expected_ = test::undisturbed_sha256(project_);
    undisturbed_time_ = std::chrono::steady_clock::now() - began;
  }

  /// A user finds that the first coordinator cannot be stopped, and removes its lock.
  ProcessResult take_over() const {
    fs::remove(project_.run_folder() / "journal.db.lock");
    return project_.run();
  }

  /// The names that are not in the run's folder as in `content`, or not in both.
  std::vector<std::string> changed_since(const std::map<std::string, std::string>& content) const {
    std::vector<std::string> names;
    const auto now = content_of(project_.run_folder());
    for (const auto& [name, state] : content)
      if (!now.contains(name) || now.at(name) != state) names.push_back(name);
    for (const auto& [name, state] : now)
      if (!content.contains(name)) names.push_back(name);
    return names;
  }

  /// Whether a part of the path names an epoch.
  static bool is_work_file(const fs::path& name) {
    return std::any_of(name.begin(), name.end(), [](const fs::path& part) {
      return history::epoch_of(part.string()).has_value();
    });
  }

  bool is_completed() const { return project_.history().completed; }

  /// False before the first event and after the last one, and while the frozen coordinator keeps
  /// the database locked.
  bool is_under_way() {
    try {
      return !project_.events().empty() && !is_completed();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("another program holds the database"),
                std::string::npos)
          << error.what();
      ++locked_;
      return false;
    }
  }

  /// The first one, frozen, is the process of `run`.
  /// At an instant before it creates a work file it may still create the file, under a name of its
  /// own epoch; the next start of a coordinator removes such files.
  void expect_harmless(StartedRun& run, const std::string& context,
                       bool may_create_work_files = false) {
    const bool was_completed = is_completed();
    const ProcessResult second = take_over();
    // Another thread of the first one is inside a transaction: nobody can take over.
    if (second.exit_code == exit_code(ErrorKind::kIo) &&
        second.err.find("another program holds the database") != std::string::npos) {
      ++locked_;
      run.signal(SIGCONT);
      EXPECT_EQ(run.finish(), 0) << context << read_file(project_.log(), 1 << 20);
      return expect_undisturbed_result(project_, expected_, context);
    }
    ASSERT_EQ(second.exit_code, 0) << context << second.err;
    expect_undisturbed_result(project_, expected_, context);
    const auto content = content_of(project_.run_folder());
    const size_t events = project_.events().size();
    run.signal(SIGCONT);
    const int code = run.finish();
    const std::string log = read_file(project_.log(), 1 << 20);
    if (!was_completed) {
      ++taken_over_;
      EXPECT_EQ(code, exit_code(ErrorKind::kBusy)) << context << log;
      EXPECT_NE(log.find("another coordinator has taken the journal"), std::string::npos)
          << context << log;
    }
    const std::vector<std::string> changed = changed_since(content);
    for (const std::string& name : changed)
      EXPECT_TRUE(may_create_work_files && !content.contains(name) && is_work_file(name))
          << context << ": " << name << log;
    if (!changed.empty()) {
      std::cout << context << ": created " << testing::PrintToString(changed) << "\n";
      EXPECT_EQ(project_.run().exit_code, 0) << context;
    }
    EXPECT_EQ(project_.events().size(), events) << context;
    expect_undisturbed_result(project_, expected_, context);  // no second training
    for (const auto& [name, hash] : content)
      EXPECT_EQ(history::epoch_of(fs::path(name).filename().string()), std::nullopt)
          << context << ": left behind " << name;
  }

  /// Freezes at `kind`:stop:1, 2, ...; a sample of the steps, or with XFFL_CAMPAIGN all.
  void freeze_at_each(const std::string& kind, int first, int stride) {
    const bool all = std::getenv("XFFL_CAMPAIGN") != nullptr;
    int frozen = 0;
    for (int step = all ? 1 : first;; step += all ? 1 : stride) {
      const std::string failpoint = kind + ":stop:" + std::to_string(step);
      StartedRun run = project_.start_run({{"XFFL_FAILPOINT", failpoint}});
      if (!run.await_stop()) {  // the run has fewer steps
        EXPECT_EQ(run.finish(), 0) << failpoint << read_file(project_.log(), 1 << 20);
        expect_undisturbed_result(project_, expected_, failpoint);
        break;
      }
      ++frozen;
      expect_harmless(run, failpoint);
      if (HasFailure()) return;
      project_.forget_runs();
      fs::remove(project_.log());
    }
    std::cout << frozen << " steps frozen (" << kind << "), " << locked_
              << " of them inside a transaction\n";
    EXPECT_GE(frozen - locked_, 3);
  }

  Project project_;
  std::string expected_;
  std::chrono::duration<double> undisturbed_time_{};
  int locked_ = 0;      // the frozen coordinator kept the database locked
  int taken_over_ = 0;  // frozen coordinators whose run was not completed
};

// After a record, before its effect.
TEST_F(FrozenCoordinator, AfterARecordChangesNothing) { freeze_at_each("journal", 3, 9); }

// Between the check of the epoch and the effect: a deletion, rename, submission or publication.
TEST_F(FrozenCoordinator, BetweenCheckAndEffectChangesNothing) { freeze_at_each("writer", 4, 23); }

// At any instruction: at instants of the time that an undisturbed run takes. A coordinator that is
// frozen inside SQLite's transaction keeps the database locked: nobody can take over, and it
// continues undisturbed. An instant before the first event or after the last one counts for
// nothing.
TEST_F(FrozenCoordinator, AtRandomInstantsChangesNothing) {
  const char* campaign = std::getenv("XFFL_CAMPAIGN");
  const int trials = campaign != nullptr ? std::max(20, std::atoi(campaign)) : 3;
  std::mt19937 random(11);
  int trial = 0;
  for (; trial < trials || (taken_over_ < 2 && trial < trials + 20); ++trial) {
    StartedRun run = project_.start_run();
    const std::chrono::duration<double> wait =
        undisturbed_time_ * std::uniform_real_distribution<double>(0.1, 0.9)(random);
    std::this_thread::sleep_for(wait);
    run.signal(SIGSTOP);
    const std::string context = "after " + std::to_string(wait.count()) + " s";
    if (is_under_way()) {
      expect_harmless(run, context, true);
    } else {
      run.signal(SIGCONT);
      EXPECT_EQ(run.finish(), 0) << context << read_file(project_.log(), 1 << 20);
      expect_undisturbed_result(project_, expected_, context);
    }
    if (HasFailure()) return;
    project_.forget_runs();
    fs::remove(project_.log());
  }
  std::cout << taken_over_ << " of " << trial << " frozen coordinators were taken over, " << locked_
            << " were inside a transaction\n";
  EXPECT_GE(taken_over_, 2);
}

}  // namespace
}  // namespace xffl
