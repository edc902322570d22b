#include <cmath>
#include <cstdio>
#include <optional>

#include "setup.h"
#include "xffl/base/error.h"
#include "xffl/base/json.h"
#include "xffl/train/dataset.h"
#include "xffl/train/device.h"
#include "xffl/train/evaluate.h"

namespace xffl::train_app {
namespace {

std::string format_json(const train::Evaluation& result) {
  Json json{{"tokens", result.tokens},
            {"nll", result.nll()},
            {"perplexity", std::exp(result.nll())},
            {"accuracy", result.accuracy()},
            {"per_sequence", Json::array()}};
  for (const std::optional<double>& nll : result.per_sequence)
    json["per_sequence"].push_back(nll ? Json(*nll) : Json(nullptr));
  return json.dump() + "\n";
}

std::string format_table(const EvaluateOptions& options, const train::Evaluation& result) {
  char text[300];
  std::snprintf(text, sizeof text,
                "sequences         %zu\npredicted tokens  %lld\nloss (nats)       %.6f\nperplexity "
                "       %.4f\naccuracy          %.4f\n",
                result.per_sequence.size(), static_cast<long long>(result.tokens), result.nll(),
                std::exp(result.nll()), result.accuracy());
  return "model             " + options.model + "\ntokens            " + options.tokens + "\n" +
         text;
}

}  // namespace

void evaluate_command(const CommonOptions& common, const EvaluateOptions& options) {
  const job::FloatType precision = parse_float_type("--precision", options.precision);
  const Rank rank = set_up_rank(common);
  if (options.document_mask) train::use_attention_of_any_length(rank.device);
  job::TrainingSpec training;
  training.sharding = parse_enum<job::Sharding>(options.sharding).value();
  train::LoadOptions load = load_options(rank, precision, options.adapter);
  load.sharding = training.sharding;
  // `groups` and `loaded` outlive an error in run_as_rank(): see end_process().
  std::optional<train::ShardGroups> groups;
  train::LoadedModel loaded;
  train::Evaluation result;
  run_as_rank(rank, [&] {
    groups.emplace(*rank.group, training, rank.rendezvous.local_world_size);
    load.groups = groups->groups();
    loaded = train::load_model(options.model, load);
    const train::Dataset data({options.tokens}, train::ModelLimits(loaded.config), 0,
                              options.document_mask);
    train::Pipeline one_stage(*rank.group, 1, rank.device);
    result = train::evaluate(loaded, data, options.batch_size, one_stage, rank.device).value();
  });
  if (!std::isfinite(result.nll())) {
    throw Error(ErrorKind::kFailed, "the loss of " + options.model + " on " + options.tokens +
                                        " is " + std::to_string(result.nll()) +
                                        ", expected a finite number");
  }
  if (!rank.is_first()) return;
  const std::string text = options.json ? format_json(result) : format_table(options, result);
  std::fputs(text.c_str(), stdout);
}

}  // namespace xffl::train_app
