// A run of two local facilities, alba and brno, with a job of each in round 1. The test takes the
// place of the coordinator: it holds the journal.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "support/temp_dir.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"
#include "xffl/history/run_folder.h"
#include "xffl/history/run_history.h"

namespace xffl::test {

class SampleRun : public testing::Test {
 protected:
  SampleRun() : folder_(project() / "runs", RunName("0001")) {
    make_dirs(folder_.path());
    const std::string yaml =
        "project: test\nmodel: model\nrounds: 3\ntraining: {steps_per_round: 4}\nfacilities:\n"
        "  alba: {workdir: work, data: {train: [x.tokens]}}\n"
        "  brno: {workdir: work, data: {train: [x.tokens]}}\n";
    write_file_atomic(folder_.config(), yaml);
    write_file_atomic(project() / "xffl.yaml", yaml);
    history_.emplace(folder_.journal());
    history_->record({}, history::RunCreated{RunName("0001"), "test", "s", "", "c"});
    history_->record({}, history::ModelImported{"m0", "f0", ""});
    plan_round(1);
    submit(1, "alba", 1, "4101");
    submit(1, "brno", 1, "4102");
  }

  void plan_round(int round) {
    history_->record({round}, history::RoundPlanned{
                                  "m0", "p", {FacilityName("alba"), FacilityName("brno")}, false});
  }
  void submit(int round, const std::string& facility, int attempt, const std::string& job) {
    const history::EventScope scope{round, FacilityName(facility), attempt};
    history_->record(scope, history::AttemptOpened{std::string(32, '1')});
    history_->record(scope, history::SubmitIntended{"job", "s"});
    history_->record(scope, history::Submitted{JobId(job), false, {}});
  }

  std::filesystem::path project() const { return dir_ / "project"; }
  std::vector<std::string> command(std::vector<std::string> words) const {
    words.insert(words.end(), {"-p", project().string()});
    return words;
  }
  // `xffl WORDS... -p PROJECT` without a terminal.
  ProcessResult xffl(const std::vector<std::string>& words) const {
    std::vector<std::string> argv = command(words);
    argv.insert(argv.begin(), XFFL_BINARY_DIR "/bin/xffl");
    return run_process({.argv = argv, .timeout = std::chrono::seconds(60)});
  }

  TempDir dir_;
  history::RunFolder folder_;
  std::optional<history::RunHistory> history_;
};

}  // namespace xffl::test
