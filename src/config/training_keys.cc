// The keys of `training`.
#include "bindings.h"
#include "keys.h"

namespace xffl::config {
namespace {

constexpr double kMaxCount = 1e9;
constexpr double kMaxRanks = 1 << 20;

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

const Section& lora_keys() {
  using job::Lora;
  static const Section keys = section<Lora>({
      {"rank", Type::kInteger, "of the adapters; 0: no adapters", bind<&Lora::rank>(), 0, 1 << 16},
      {"alpha", Type::kNumber, "the adapters' product is scaled by alpha / rank",
       bind<&Lora::alpha>(), 0, 1e6},
      {"dropout", Type::kNumber, "of the adapters' inputs", bind<&Lora::dropout>(), 0, 1, true},
      {.name = "target_modules",
       .type = Type::kTexts,
       .help = "the matrices that get adapters, by their names in the model's files",
       .binding = bind<&Lora::target_modules>(),
       .pattern = "(q|k|v|o|gate|up|down)_proj",
       .shape = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj or down_proj"},
  });
  return keys;
}

const Section& outer_keys() {
  using job::Outer;
  static const Section keys = section<Outer>({
      choice<job::OuterOptimizer>("kind", "what is done with the mean change of the weights",
                                  bind<&Outer::kind>()),
      {"learning_rate", Type::kNumber, "of the change", bind<&Outer::learning_rate>(), 0, 1000},
      {"momentum", Type::kNumber, "of sgd and nesterov", bind<&Outer::momentum>(), 0, 1, true},
      {"beta1", Type::kNumber, "of adam", bind<&Outer::beta1>(), 0, 1, true},
      {"beta2", Type::kNumber, "of adam", bind<&Outer::beta2>(), 0, 1, true},
      {"epsilon", Type::kNumber, "of adam", bind<&Outer::epsilon>(), 0, 1},
  });
  return keys;
}

const Section& groups_keys() {
  using job::RankGroups;
  static const Section keys = section<RankGroups>({
      {"count", Type::kInteger, "groups of ranks; 1: no groups", bind<&RankGroups::count>(), 1,
       kMaxRanks},
      {"interval", Type::kInteger, "steps between two exchanges", bind<&RankGroups::interval>(), 1,
       kMaxCount},
      choice<job::Exchange>("exchange", "what the groups average", bind<&RankGroups::exchange>()),
      choice<job::GroupWeighting>("weighting",
                                  "what a group's share of the mean is proportional to",
                                  bind<&RankGroups::weighting>()),
      {.name = "outer",
       .type = Type::kSection,
       .help = "the optimizer that takes the groups' mean change: DiLoCo is nesterov at 0.7",
       .binding = inner<&RankGroups::outer>(),
       .section = &outer_keys()},
  });
  return keys;
}

const Section& pipeline_keys() {
  using job::Pipeline;
  static const Section keys = section<Pipeline>({
      {"stages", Type::kInteger, "parts of the model; 1: no pipeline", bind<&Pipeline::stages>(), 1,
       kMaxRanks},
      choice<job::PipelineSchedule>("schedule", "the order of a stage's micro-batches",
                                    bind<&Pipeline::schedule>()),
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
      {"batch_size", Type::kInteger, "sequences per optimizer step, over all ranks (of a group)",
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
                             "of activations and matrix products; masters keeps the weights fp32",
                             bind<&TrainingSpec::precision>()),
      choice<job::Masters>(
          "masters",
          "with bf16, the exact weights that the optimizer updates: fp32 beside those computed "
          "with, "
          "split: 16 bits more beside them, or none: pure bf16, which loses small updates",
          bind<&TrainingSpec::masters>()),
      choice<job::StateDtype>("moment_dtype", "of AdamW's moments; bf16 only with precision bf16",
                              bind<&TrainingSpec::moment_dtype>()),
      choice<job::StateDtype>(
          "gradient_dtype",
          "of gradients; bf16 only with precision bf16 and one micro-batch a step",
          bind<&TrainingSpec::gradient_dtype>()),
      operational(choice<job::Sharding>(
          "sharding", "what a rank holds a part of only: ZeRO-1, -2, -3, or within groups of ranks",
          bind<&TrainingSpec::sharding>())),
      operational({"shard_group_size", Type::kInteger,
                   "ranks of a group of hybrid and hybrid_zero2; 0: those of a node",
                   bind<&TrainingSpec::shard_group_size>(), 0, 1 << 20}),
      operational(choice<job::Recompute>(
          "recompute",
          "what backward computes again to save memory: norms and activations, or all "
          "but the inputs of blocks",
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
      {"max_tokens", Type::kInteger,
       "a job ends once its loss has fallen on so many tokens; 0: no limit",
       bind<&TrainingSpec::max_tokens>(), 0, 9e15},
      {"validation_interval", Type::kInteger,
       "steps between two validations amid a training; 0: before and after it only",
       bind<&TrainingSpec::validation_interval>(), 0, kMaxCount},
      {"early_stop_patience", Type::kInteger,
       "a training ends after so many validations amid it without a lower mean loss; 0: never",
       bind<&TrainingSpec::early_stop_patience>(), 0, kMaxCount},
      choice<job::EarlyStopKeep>(
          "early_stop_keep",
          "the model that such an end leaves: the best that was measured amid the training",
          bind<&TrainingSpec::early_stop_keep>()),
      {"proximal", Type::kNumber,
       "FedProx: mu of the term that holds the weights near the global ones; 0: none",
       bind<&TrainingSpec::proximal>(), 0, 1e6},
      {"document_mask", Type::kBoolean,
       "attention within a document only, with positions that restart there",
       bind<&TrainingSpec::document_mask>()},
      operational({"deterministic", Type::kBoolean,
                   "the same bits again on the same devices, slower on GPUs",
                   bind<&TrainingSpec::deterministic>()}),
      {"keep_optimizer", Type::kBoolean,
       "keep the optimizer's moments at the facility from one round to the next",
       bind<&TrainingSpec::keep_optimizer>()},
      {.name = "freeze",
       .type = Type::kTexts,
       .help =
           "parameters that are not trained, by their names in the model's files; * and ? fit any",
       .binding = bind<&TrainingSpec::freeze>(),
       .pattern = "[A-Za-z0-9_.*?]{1,500}",
       .shape = "a parameter's name, such as 'model.embed_tokens.*'"},
      {.name = "lora",
       .type = Type::kSection,
       .help = "low-rank adapters: only they are trained, and only they travel",
       .binding = inner<&TrainingSpec::lora>(),
       .section = &lora_keys(),
       .given =
           [](const void* object) {
             return !(static_cast<const TrainingSpec*>(object)->lora == job::Lora{});
           }},
      {.name = "groups",
       .type = Type::kSection,
       .help = "a federation inside one job: ranks in groups with data of their own",
       .binding = inner<&TrainingSpec::groups>(),
       .section = &groups_keys(),
       .given =
           [](const void* object) {
             return !(static_cast<const TrainingSpec*>(object)->groups == job::RankGroups{});
           }},
      {.name = "pipeline",
       .type = Type::kSection,
       .help = "the model's layers in stages, each on ranks of its own",
       .binding = inner<&TrainingSpec::pipeline>(),
       .section = &pipeline_keys(),
       .given =
           [](const void* object) {
             return !(static_cast<const TrainingSpec*>(object)->pipeline == job::Pipeline{});
           },
       .operational = true},
  });
  return keys;
}

}  // namespace xffl::config
