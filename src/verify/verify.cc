#include "xffl/verify/verify.h"

#include <algorithm>

#include "recorded_run.h"

namespace xffl::verify {

std::string_view Check::result() const {
  if (!failures.empty()) return "failed";
  return passed > 0 ? "ok" : "not checked";
}

int64_t Verification::num(std::string_view result) const {
  return std::count_if(checks.begin(), checks.end(),
                       [&](const Check& check) { return check.result() == result; });
}

namespace {

// Messages name files by their full path, and findings name them below the run's folder.
void shorten_paths(Check& check, const std::string& folder) {
  for (Failure& failure : check.failures)
    for (size_t at = 0; (at = failure.problem.find(folder, at)) != std::string::npos;)
      failure.problem.erase(at, folder.size());
}

}  // namespace

Verification verify_run(const history::RunFolder& folder,
                        const std::filesystem::path& project_folder, const Options& options) {
  RecordedRun run = read_run(folder, project_folder);
  Verification verification;
  verification.run = folder.run().str();
  verification.project = run.state.project;
  verification.events = static_cast<int64_t>(run.journal.events.size());
  if (!run.journal.events.empty()) {
    verification.chain = run.journal.chains.back();
    verification.last_time = run.journal.events.back().time_utc;
  }
  verification.rounds_published = run.published();
  verification.model_sha256 = run.global_sha256(run.published());
  verification.goes_on = run.goes_on;
  check_journal(run, verification.checks);
  check_config(run, verification.checks);
  check_attempts(run, verification.checks);
  check_rounds(run, verification.checks);
  check_folders(run, options, verification.checks);
  check_replay(run, options, verification.checks);
  check_blocks(run, options, verification.checks);
  check_signatures(run, options, verification.checks);
  // A check without any subject, such as the updates of a run without a round.
  for (Check& check : verification.checks) {
    shorten_paths(check, folder.path().string() + "/");
    if (check.passed == 0 && check.failures.empty() && check.not_checked.empty())
      check.not_checked.push_back({"the run has none yet", {}});
  }
  return verification;
}

std::vector<std::string> not_proven() {
  return {
      "that a facility has trained what its report says, on its data and with its program",
      "the content of metrics files, of coordinator.log, and of job.json but for its key and model",
      "who wrote the journal, without a signature: the hash chain has no key"};
}

}  // namespace xffl::verify
