#include "validation.h"

#include <cmath>
#include <filesystem>
#include <optional>
#include <string>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/train/evaluate.h"

namespace xffl::train {
namespace {

int64_t num_targets(const Dataset& data) {
  int64_t total = 0;
  for (uint64_t i = 0; i < data.size(); ++i) total += data.num_targets(i);
  return total;
}

}  // namespace

Validation::Validation(const job::JobSpec& spec, const JobContext& context,
                       const ModelLimits& limits, Pipeline& pipeline)
    : spec_(spec), context_(context), pipeline_(pipeline) {
  for (const job::ValidationSet& set : spec.validation) {
    sets_.emplace_back(std::vector<std::filesystem::path>{set.path}, limits,
                       static_cast<uint64_t>(spec.training.validation_samples),
                       spec.training.document_mask);
  }
}

std::vector<double> Validation::measure(const LoadedModel& model, std::string_view when,
                                        StopControl& stop, int64_t steps_done) const {
  std::vector<double> losses;
  for (size_t i = 0; i < sets_.size(); ++i) {
    const std::optional<Evaluation> result =
        evaluate(model, sets_[i], spec_.training.micro_batch_size, pipeline_, context_.device,
                 [&] { return stop.should_finish(steps_done); });
    if (!result) break;
    log_result(i, when, result->nll(), result->tokens);
    losses.push_back(result->nll());
  }
  return losses;
}

void Validation::log_result(size_t index, std::string_view when, double nll, int64_t tokens) const {
  const std::string& name = spec_.validation[index].name;
  if (!std::isfinite(nll)) {
    throw Error(ErrorKind::kFailed, "the validation loss on '" + name + "' (" + std::string(when) +
                                        ") is " + std::to_string(nll) +
                                        ", expected a finite number");
  }
  if (context_.group.rank() != 0) return;
  log::info("validation", {{"set", name},
                           {"when", when},
                           {"loss", nll},
                           {"perplexity", std::exp(nll)},
                           {"tokens", tokens}});
}

std::vector<job::ValidationResult> Validation::results(const std::vector<double>& before,
                                                       const std::vector<double>& after) const {
  std::vector<job::ValidationResult> results;
  for (size_t i = 0; i < after.size(); ++i)
    results.push_back({spec_.validation[i].name, num_targets(sets_[i]), before.at(i), after[i]});
  return results;
}

}  // namespace xffl::train
