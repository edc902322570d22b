// How it works: a record belongs to the event that completed its data. A published round brings the
// figures of all its attempts, because their metrics are fetched before the publication and not
// after it. The evaluation's losses come with the acceptance of each report.
#include "xffl/exports/tensorboard.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "event_file.h"
#include "growing_file.h"
#include "numbers.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"

namespace xffl::exports {
namespace {

namespace fs = std::filesystem;
using report::AttemptStory;
using report::RoundStory;
using report::RunStory;

constexpr const char* kGlobal = "global";

// A '.' is not in the alphabet of facilities' names.
std::string folder_of(const FacilityName& facility) {
  return facility.str() == kGlobal ? "global.facility" : facility.str();
}

std::vector<report::StepLoss> steps_of(const AttemptStory& attempt, const history::RunFolder& run) {
  if (attempt.report->steps == 0) return {};
  std::vector<report::StepLoss> steps;
  const fs::path path = run.metrics(attempt.round, attempt.facility, attempt.number);
  try {
    steps = report::parse_metrics(report::read_metrics(path));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kNotFound)  // else of an earlier release, or not fetched
      log::warning("metrics not exported", {{"problem", error.what()}});
  }
  return steps;
}

class Export {
 public:
  Export(const RunStory& story, const history::RunFolder& run, const fs::path& to)
      : story_(story), run_(run), to_(to) {
    for (const AttemptStory& attempt : story.attempts)
      if (attempt.accepted_seq > 0 && attempt.outcome != report::Outcome::kLost)
        accepted_[attempt.round].push_back(&attempt);
    add(kGlobal, text_record(seconds_of(story.first_event), "xffl/run",
                             "run **" + story.run + "** of project **" + story.project + "**"));
  }

  void add_round(const RoundStory& round) {
    const double time = seconds_of(*round.published);
    for (const AttemptStory* attempt : used_attempts(round)) {
      add_steps(*attempt);
      add_losses(*attempt, time);
      if (attempt->change)
        add(kGlobal,
            scalars_record(time, round.number,
                           {{"round/change/" + attempt->facility.str(), *attempt->change}}));
      if (attempt->cosine)
        add(kGlobal,
            scalars_record(time, round.number,
                           {{"round/cosine/" + attempt->facility.str(), *attempt->cosine}}));
    }
    if (round.planned && *round.published >= *round.planned)
      add(kGlobal, scalars_record(time, round.number,
                                  {{"round/seconds", time - seconds_of(*round.planned)}}));
    std::vector<Scalar> used;
    for (const auto& [name, seconds] : round.node_seconds)
      used.push_back({"round/node_seconds/" + name.str(), seconds});
    add(kGlobal, scalars_record(time, round.number, used));
  }

  // A report of round k has the losses of the model of round k - 1.
  void add_losses(const AttemptStory& attempt, double time) {
    std::vector<Scalar> losses;
    for (const job::ValidationResult& set : attempt.report->validation)
      losses.push_back({"round/loss/" + attempt.facility.str() + "/" + set.name, set.nll_before});
    add(kGlobal, scalars_record(time, attempt.round - 1, losses));
  }

  TensorboardFiles finish() {
    TensorboardFiles result;
    for (auto& [folder, file] : files_) {
      with_context("while exporting to " + to_.string(), [&] { file.finish(); });
      ++result.files;
      result.size_bytes += file.size_bytes();
      result.appended_bytes += file.appended_bytes();
    }
    return result;
  }

 private:
  // Returns each facility's newest attempt among those that were accepted ahead of the publication.
  // The journal loses an update only ahead of the publication, so a later event changes no record.
  std::vector<const AttemptStory*> used_attempts(const RoundStory& round) {
    std::map<FacilityName, const AttemptStory*> used;
    for (const AttemptStory* attempt : accepted_[round.number])
      if (attempt->accepted_seq < round.published_seq) used[attempt->facility] = attempt;
    std::vector<const AttemptStory*> sorted;
    for (const auto& [name, attempt] : used) sorted.push_back(attempt);
    return sorted;
  }

  void add_steps(const AttemptStory& attempt) {
    const std::vector<report::StepLoss> steps = steps_of(attempt, run_);
    const std::string folder = folder_of(attempt.facility);
    const double time = seconds_of(*attempt.ended);
    const size_t every = steps.size() / kMaxStepsOfAttempt + 1;
    for (size_t i = 0; i < steps.size(); ++i) {
      if ((i + 1) % every != 0 && i + 1 < steps.size()) continue;
      const report::StepLoss& step = steps[i];
      std::vector<Scalar> scalars = {{"loss/train", step.loss}};
      if (step.learning_rate) scalars.push_back({"lr", *step.learning_rate});
      if (step.grad_norm) scalars.push_back({"grad_norm", *step.grad_norm});
      if (step.tokens_per_second) scalars.push_back({"tokens_per_second", *step.tokens_per_second});
      add(folder, scalars_record(time, step.step, scalars));
    }
    if (steps.empty()) return;
    std::vector<Scalar> losses;
    for (const job::ValidationResult& set : attempt.report->validation)
      if (job::is_measured_after(*attempt.report, set))
        losses.push_back({"loss/validation/" + set.name, set.nll_after});
    add(folder, scalars_record(time, steps.back().step, losses));
  }

  void add(const std::string& folder, const std::string& record) {
    if (!record.empty()) file(folder).add(record);
  }

  GrowingFile& file(const std::string& folder) {
    const auto found = files_.find(folder);
    if (found != files_.end()) return found->second;
    make_dirs(to_ / folder);
    const double time = seconds_of(story_.first_event);
    const std::string name =
        "events.out.tfevents." + std::to_string(static_cast<int64_t>(time)) + ".xffl." + story_.run;
    require_no_other(to_ / folder, name);
    GrowingFile& file = files_.try_emplace(folder, to_ / folder / name).first->second;
    file.add(version_record(time));
    return file;
  }

  // TensorBoard would mix the curves of two runs.
  static void require_no_other(const fs::path& folder, const std::string& name) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string other = entry.path().filename().string();
      if (other != name && other.find("tfevents") != std::string::npos)
        throw Error(ErrorKind::kRejected, folder.string() + " has the events of another run, " +
                                              log::printable(other, 200) +
                                              ": export to another folder");
    }
  }

  const RunStory& story_;
  const history::RunFolder& run_;
  const fs::path to_;
  std::map<int, std::vector<const AttemptStory*>> accepted_;  // by round, in their order
  std::map<std::string, GrowingFile> files_;
};

}  // namespace

TensorboardFiles write_tensorboard(const RunStory& story, const history::RunFolder& run,
                                   const fs::path& to) {
  struct Completed {
    int64_t seq = 0;
    const RoundStory* round = nullptr;
    const AttemptStory* evaluation = nullptr;
  };
  std::vector<Completed> all;
  for (const auto& [number, round] : story.rounds)
    if (round.published_seq > 0) all.push_back({round.published_seq, &round, nullptr});
  for (const AttemptStory& attempt : story.attempts)
    if (attempt.accepted_seq > 0 && attempt.report->update_sha256.empty())
      all.push_back({attempt.accepted_seq, nullptr, &attempt});
  std::sort(all.begin(), all.end(),
            [](const Completed& a, const Completed& b) { return a.seq < b.seq; });
  Export exported(story, run, to);
  for (const Completed& one : all)
    if (one.round != nullptr)
      exported.add_round(*one.round);
    else
      exported.add_losses(*one.evaluation, seconds_of(*one.evaluation->ended));
  return exported.finish();
}

}  // namespace xffl::exports
