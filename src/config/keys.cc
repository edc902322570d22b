#include "keys.h"

#include "bindings.h"

namespace xffl::config {
namespace {

constexpr double kMaxCount = 1e9;

const Section& schedule_keys() {
  using job::Schedule;
  static const Section keys = section<Schedule>({
      choice<job::ScheduleKind>("kind", "how the rate falls after the warm-up",
                                bind<&Schedule::kind>()),
      {"warmup_steps", Type::kInteger,
       "steps from 0 up to learning_rate, counted over the whole federation",
       bind<&Schedule::warmup_steps>(), 0, kMaxCount},
      {"min_ratio", Type::kNumber, "the last rate as a share of learning_rate",
       bind<&Schedule::min_ratio>(), 0, 1},
  });
  return keys;
}

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
       .help = "of a round, from its first submission; 0s: none",
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
  });
  return keys;
}

}  // namespace

const Section& training_keys() {
  using job::TrainingSpec;
  constexpr double kMaxBatch = 1 << 24, kMaxInt64 = 9223372036854775807.0;
  static const Section keys = section<TrainingSpec>({
      {.name = "steps_per_round",
       .type = Type::kInteger,
       .help = "optimizer steps of a facility in one round",
       .binding = bind<&TrainingSpec::steps>(),
       .min = 1,
       .max = kMaxCount,
       .fallback = "required, here or in each facility"},
      {"batch_size", Type::kInteger, "sequences per optimizer step, over all ranks",
       bind<&TrainingSpec::batch_size>(), 1, kMaxBatch},
      {"micro_batch_size", Type::kInteger,
       "sequences per rank and forward pass; gradients accumulate over the rest",
       bind<&TrainingSpec::micro_batch_size>(), 1, kMaxBatch},
      {"learning_rate", Type::kNumber, "the highest rate, after the warm-up",
       bind<&TrainingSpec::learning_rate>(), 0, 1000},
      {.name = "schedule",
       .type = Type::kSection,
       .help = "of the learning rate, over rounds * steps_per_round steps",
       .binding = inner<&TrainingSpec::schedule>(),
       .section = &schedule_keys()},
      {"weight_decay", Type::kNumber, "of AdamW, decoupled; not on norms and biases",
       bind<&TrainingSpec::weight_decay>(), 0, 1000},
      {"beta1", Type::kNumber, "of AdamW", bind<&TrainingSpec::beta1>(), 0, 1, true},
      {"beta2", Type::kNumber, "of AdamW", bind<&TrainingSpec::beta2>(), 0, 1, true},
      {"epsilon", Type::kNumber, "of AdamW", bind<&TrainingSpec::epsilon>(), 0, 1},
      {"max_grad_norm", Type::kNumber, "global L2 norm that gradients are clipped to; 0: never",
       bind<&TrainingSpec::max_grad_norm>(), 0, 1e12},
      {"seed", Type::kInteger, "of the order of the samples", bind<&TrainingSpec::seed>(), 0,
       kMaxInt64},
      choice<job::FloatType>("precision",
                             "of activations and matrix products; the trained weights stay fp32",
                             bind<&TrainingSpec::precision>()),
      operational(choice<job::Sharding>(
          "sharding", "what a rank holds a part of only: ZeRO-1, -2, -3, or within groups of ranks",
          bind<&TrainingSpec::sharding>())),
      operational({"shard_group_size", Type::kInteger,
                   "ranks of a group of hybrid and hybrid_zero2; 0: those of a node",
                   bind<&TrainingSpec::shard_group_size>(), 0, 1 << 20}),
      operational(choice<job::Recompute>(
          "recompute",
          "what backward computes again to save memory: full is all but the inputs "
          "of blocks",
          bind<&TrainingSpec::recompute>())),
      operational(choice<job::Offload>(
          "offload", "what lives in the host's memory: the optimizer's state, or parameters too",
          bind<&TrainingSpec::offload>())),
      {"validation_samples", Type::kInteger, "sequences measured of each validation set; 0: all",
       bind<&TrainingSpec::validation_samples>(), 0, 9e15},
      {"train_samples", Type::kInteger, "use only the first so many sequences; 0: all",
       bind<&TrainingSpec::train_samples>(), 0, 9e15},
      operational({"checkpoint_interval", Type::kInteger,
                   "steps between two checkpoints inside a job, from which a repeated job goes on; "
                   "0: none",
                   bind<&TrainingSpec::checkpoint_interval>(), 0, kMaxCount}),
      operational({"keep_checkpoints", Type::kInteger, "of those of one job, the newest so many",
                   bind<&TrainingSpec::keep_checkpoints>(), 1, 1000}),
  });
  return keys;
}

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
