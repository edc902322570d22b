#include "keys.h"

#include "bindings.h"

namespace xffl::config {
namespace {

const Section& aggregation_keys() {
  static const Section keys = section<Aggregation>({
      choice<WeightKind>("weights", "what a facility's share of the mean is proportional to",
                         bind<&Aggregation::weights>()),
      choice<job::UpdateKind>("update",
                              "what facilities send back: trained minus given model, or the model",
                              bind<&Aggregation::update>()),
      choice<job::FloatType>("update_dtype", "numbers of what facilities send back",
                             bind<&Aggregation::update_dtype>()),
      choice<job::FloatType>("publish_dtype",
                             "numbers of the published model; the master stays fp32",
                             bind<&Aggregation::publish_dtype>()),
  });
  return keys;
}

constexpr double kSecond = 1000, kDay = 86'400'000;

const Section& policy_keys() {
  static const Section keys = section<RoundPolicy>({
      choice<OnMissing>("on_missing", "what a round does without a facility's update",
                        bind<&RoundPolicy::on_missing>()),
      {.name = "quorum",
       .type = Type::kInteger,
       .help = "facilities that must take part; 0: all, or with on_missing: skip at least 1",
       .binding = bind<&RoundPolicy::quorum>(),
       .max = 10'000},
      {.name = "deadline",
       .type = Type::kDuration,
       .help =
           "of a round, from its first submission; 0s: none; on_missing says what then happens, "
           "wait: people are told",
       .binding = bind<&RoundPolicy::deadline>(),
       .max = 3650 * kDay,
       .multiple = 1000},
      {.name = "max_attempts",
       .type = Type::kInteger,
       .help = "trainings tried per facility and round before it counts as missing",
       .binding = bind<&RoundPolicy::max_attempts>(),
       .min = 1,
       .max = 100},
      {.name = "poll_interval",
       .type = Type::kDuration,
       .help = "between two looks at a facility's jobs",
       .binding = bind<&RoundPolicy::poll_interval>(),
       .min = 10,
       .max = 3600 * kSecond},
      {.name = "keep_rounds",
       .type = Type::kInteger,
       .help = "rounds whose files stay at the facilities",
       .binding = bind<&RoundPolicy::keep_rounds>(),
       .min = 1,
       .max = 1e6},
      {.name = "max_outage",
       .type = Type::kDuration,
       .help = "how long a facility may be out of reach before it counts as missing",
       .binding = bind<&RoundPolicy::max_outage>(),
       .min = kSecond,
       .max = 3650 * kDay,
       .multiple = 1000},
      choice<OnWalltime>("on_walltime",
                         "a training that stopped on the warning before its walltime: use the "
                         "update with the tokens that it has seen, or resume it in another job",
                         bind<&RoundPolicy::on_walltime>()),
      {.name = "rerun_budget",
       .type = Type::kInteger,
       .help = "jobs repeated per facility and round for failed nodes, pre-emption or walltime; "
               "they are no attempts",
       .binding = bind<&RoundPolicy::rerun_budget>(),
       .max = 1000},
      {.name = "evaluate_last",
       .type = Type::kBoolean,
       .help = "after the last round, have facilities with validation sets measure the last global "
               "model, in one more job each",
       .binding = bind<&RoundPolicy::evaluate_last>()},
      {.name = "max_change",
       .type = Type::kNumber,
       .help =
           "an update is refused when the L2 norm of its change is more than so many times that "
           "of the model that was given; 0: no limit",
       .binding = bind<&RoundPolicy::max_change>(),
       .max = 1e12},
  });
  return keys;
}

}  // namespace

const Section& experiment_keys() {
  static const Section keys = section<Experiment>({
      {.name = "project",
       .type = Type::kProjectName,
       .help = "a name, part of folders and job names",
       .binding = bind<&Experiment::project>(),
       .required = true},
      {.name = "model",
       .type = Type::kHostPath,
       .help = "Hugging Face folder that round 1 starts from",
       .binding = bind<&Experiment::model>(),
       .required = true},
      {.name = "adapter",
       .type = Type::kHostPath,
       .help = "with training.lora: folder of the adapter that round 1 starts from, as PEFT writes "
               "it; without it a fresh one",
       .binding = bind<&Experiment::adapter>(),
       .fallback = "a fresh adapter"},
      {"rounds", Type::kInteger, "rounds of training and averaging", bind<&Experiment::rounds>(), 1,
       1e6},
      {.name = "training",
       .type = Type::kSection,
       .help = "of every facility, unless it says otherwise",
       .section = &training_keys()},
      {.name = "aggregation",
       .type = Type::kSection,
       .help = "how updates become the next global model",
       .binding = inner<&Experiment::aggregation>(),
       .section = &aggregation_keys()},
      {.name = "policy",
       .type = Type::kSection,
       .help = "what a round waits for",
       .binding = inner<&Experiment::policy>(),
       .section = &policy_keys(),
       .operational = true},
      {.name = "facilities",
       .type = Type::kFacilities,
       .help = "who trains, by name",
       .required = true,
       .section = &facility_keys()},
  });
  return keys;
}

}  // namespace xffl::config
