// A completed run of two rounds, made once, and copies of it that a test may damage.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "e2e/project.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"
#include "xffl/history/events.h"
#include "xffl/history/store.h"
#include "xffl/verify/verify.h"

namespace xffl::test {

class VerifiedRun : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    made_ = new Project();
    made_->set_rounds(2);
    made_->set_model_rows(300);  // more than one chunk of the smallest size
    made_->set_aggregation(aggregation_);
    made_->write_config();
    const ProcessResult run = made_->run();
    ASSERT_EQ(run.exit_code, 0) << run.err;
  }
  static void TearDownTestSuite() {
    delete made_;
    made_ = nullptr;
  }

  VerifiedRun() {
    std::filesystem::create_directories(runs());
    std::filesystem::copy(
        made_->run_folder(), path(),
        std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
  }

  std::filesystem::path runs() const { return copy_.path() / "runs"; }
  std::filesystem::path path() const { return runs() / "0001"; }
  verify::Verification check(const verify::Options& options = {}) const {
    return verify::verify_run(history::RunFolder(runs(), RunName("0001")), made_->path(), options);
  }
  verify::Options everything() const {
    return {.read_data = true,
            .replay = verify::Rounds{},
            .replay_blocks = 100,
            .scratch = copy_.path()};
  }
  /// "check: subject" of all failures, each once.
  static std::vector<std::string> failures(const verify::Verification& verification) {
    std::vector<std::string> all;
    for (const verify::Check& check : verification.checks)
      for (const verify::Failure& failure : check.failures)
        all.push_back(check.name + ": " + failure.subject);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }
  static const verify::Check& find(const verify::Verification& verification,
                                   const std::string& name) {
    const auto found = std::find_if(verification.checks.begin(), verification.checks.end(),
                                    [&](const auto& check) { return check.name == name; });
    if (found == verification.checks.end())
      throw Error(ErrorKind::kNotFound, "no check has the name " + name);
    return *found;
  }
  /// Replaces the journal and its mirror by consistent ones with changed events.
  template <class Change>
  void rewrite_journal(const Change& change) const {
    std::vector<history::StoredEvent> events = history::read_events(path() / "journal.db");
    for (history::StoredEvent& event : events) change(event);
    replace_journal(events);
  }
  void replace_journal(const std::vector<history::StoredEvent>& events) const {
    for (const char* suffix : {".db", ".db-wal", ".db-shm", ".jsonl"})
      std::filesystem::remove(path() / ("journal" + std::string(suffix)));
    const auto store = history::Store::open(path() / "journal.db");
    for (const history::StoredEvent& event : events) store->append(event);
  }
  /// Changes config.resolved.yaml by a comment, right after the publication of the round.
  void change_configuration_after(int round) const {
    const std::filesystem::path file = path() / "config.resolved.yaml";
    const std::string text = read_file(file, 1 << 20) + "# changed\n";
    write_file_atomic(file, text);
    std::vector<history::StoredEvent> events = history::read_events(path() / "journal.db");
    const auto published = std::find_if(events.begin(), events.end(), [&](const auto& event) {
      return event.kind == "published" && event.round == round;
    });
    ASSERT_NE(published, events.end());
    events.insert(published + 1, history::encode({}, history::ConfigChanged{sha256_hex(text)}));
    replace_journal(events);
  }

  static inline Project* made_ = nullptr;
  static inline std::string aggregation_;
  TempDir copy_;
};

}  // namespace xffl::test
