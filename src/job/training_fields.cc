#include "training_fields.h"

namespace xffl::job {
namespace {

constexpr int64_t kMaxSteps = 1'000'000'000;
constexpr int64_t kMaxBatch = 1 << 24;
constexpr int64_t kMaxRanks = 1 << 20;
constexpr size_t kMaxNames = 10'000;
constexpr size_t kMaxNameBytes = 500;

/// A number from 0 to below 1.
double read_share(JsonObject& object, std::string_view key) {
  const double share = read_number(object, key, 0, 1);
  if (share == 1) object.fail(key, "should be below 1, found 1");
  return share;
}

uint64_t read_seed(JsonObject& object) {
  const Json& seed = object.at("seed");
  if (!seed.is_number_unsigned()) {
    object.fail("seed", "should be an integer from 0 to 2^64 - 1");
  }
  return seed.get<uint64_t>();
}

Schedule read_schedule(JsonObject object) {
  Schedule schedule;
  schedule.kind =
      read_enum(object, "kind", parse_schedule_kind, "\"constant\", \"linear\" or \"cosine\"");
  schedule.warmup_steps = read_count(object, "warmup_steps", 0, kMaxSteps);
  schedule.total_steps = read_count(object, "total_steps", 0, kMaxSteps);
  schedule.min_ratio = read_number(object, "min_ratio", 0, 1);
  object.refuse_other_keys();
  return schedule;
}

Json write_schedule(const Schedule& schedule) {
  return Json{{"kind", to_string(schedule.kind)},
              {"warmup_steps", schedule.warmup_steps},
              {"total_steps", schedule.total_steps},
              {"min_ratio", schedule.min_ratio}};
}

// Names and globs of names: printable, not empty, no blanks.
std::vector<std::string> read_names(JsonObject& object, std::string_view key) {
  std::vector<std::string> names;
  for (const Json& item : read_array(object, key, kMaxNames)) {
    const Json holder{{"name", item}};
    JsonObject view(holder, item_where(object, key, names.size()));
    names.push_back(read_text(view, "name", kMaxNameBytes));
    if (names.back().empty() || names.back().find(' ') != std::string::npos)
      view.fail("name", "should be a name, found '" + names.back() + "'");
  }
  return names;
}

Lora read_lora(JsonObject object) {
  Lora lora;
  lora.rank = read_count(object, "rank", 0, 1 << 16);
  lora.alpha = read_number(object, "alpha", 0, 1e6);
  lora.dropout = read_share(object, "dropout");
  lora.target_modules = read_names(object, "target_modules");
  if (lora.rank > 0 && lora.target_modules.empty())
    object.fail("target_modules", "should name at least one module when rank is not 0");
  object.refuse_other_keys();
  return lora;
}

Json write_lora(const Lora& lora) {
  return Json{{"rank", lora.rank},
              {"alpha", lora.alpha},
              {"dropout", lora.dropout},
              {"target_modules", lora.target_modules}};
}

Outer read_outer(JsonObject object) {
  Outer outer;
  outer.kind = read_enum(object, "kind", parse_outer_optimizer, "average, sgd, nesterov or adam");
  outer.learning_rate = read_number(object, "learning_rate", 0, 1e3);
  outer.momentum = read_share(object, "momentum");
  outer.beta1 = read_share(object, "beta1");
  outer.beta2 = read_share(object, "beta2");
  outer.epsilon = read_number(object, "epsilon", 0, 1);
  object.refuse_other_keys();
  return outer;
}

Json write_outer(const Outer& outer) {
  return Json{{"kind", to_string(outer.kind)}, {"learning_rate", outer.learning_rate},
              {"momentum", outer.momentum},    {"beta1", outer.beta1},
              {"beta2", outer.beta2},          {"epsilon", outer.epsilon}};
}

RankGroups read_groups(JsonObject object) {
  RankGroups groups;
  groups.count = read_count(object, "count", 1, kMaxRanks);
  groups.interval = read_count(object, "interval", 1, kMaxSteps);
  groups.exchange = read_enum(object, "exchange", parse_exchange, "weights or gradients");
  groups.weighting = read_enum(object, "weighting", parse_group_weighting, "equal or tokens");
  groups.outer = read_outer(object.object("outer"));
  object.refuse_other_keys();
  return groups;
}

Json write_groups(const RankGroups& groups) {
  return Json{{"count", groups.count},
              {"interval", groups.interval},
              {"exchange", to_string(groups.exchange)},
              {"weighting", to_string(groups.weighting)},
              {"outer", write_outer(groups.outer)}};
}

Pipeline read_pipeline(JsonObject object) {
  Pipeline pipeline;
  pipeline.stages = read_count(object, "stages", 1, kMaxRanks);
  pipeline.schedule = read_enum(object, "schedule", parse_pipeline_schedule, "gpipe or 1f1b");
  object.refuse_other_keys();
  return pipeline;
}

Json write_pipeline(const Pipeline& pipeline) {
  return Json{{"stages", pipeline.stages}, {"schedule", to_string(pipeline.schedule)}};
}

}  // namespace

TrainingSpec read_training(JsonObject object) {
  TrainingSpec training;
  training.steps = read_count(object, "steps", 0, kMaxSteps);
  training.first_step = read_count(object, "first_step", 0, kMaxSteps);
  training.batch_size = read_count(object, "batch_size", 1, kMaxBatch);
  training.micro_batch_size = read_count(object, "micro_batch_size", 1, kMaxBatch);
  training.learning_rate = read_number(object, "learning_rate", 0, 1e3);
  training.schedule = read_schedule(object.object("schedule"));
  training.weight_decay = read_number(object, "weight_decay", 0, 1e3);
  training.beta1 = read_share(object, "beta1");
  training.beta2 = read_share(object, "beta2");
  training.epsilon = read_number(object, "epsilon", 0, 1);
  training.max_grad_norm = read_number(object, "max_grad_norm", 0, 1e12);
  training.seed = read_seed(object);
  training.precision = read_float_type(object, "precision");
  training.masters = read_enum(object, "masters", parse_masters, "fp32, split or none");
  training.moment_dtype = read_enum(object, "moment_dtype", parse_state_dtype, "fp32 or bf16");
  training.gradient_dtype = read_enum(object, "gradient_dtype", parse_state_dtype, "fp32 or bf16");
  training.sharding = read_enum(object, "sharding", parse_sharding,
                                "none, optimizer, gradients, full, hybrid or hybrid_zero2");
  training.shard_group_size = read_count(object, "shard_group_size", 0, kMaxRanks);
  training.recompute = read_enum(object, "recompute", parse_recompute, "none, cheap or full");
  training.offload = read_enum(object, "offload", parse_offload, "none, optimizer or parameters");
  training.validation_samples = read_count(object, "validation_samples");
  training.train_samples = read_count(object, "train_samples");
  training.checkpoint_interval = read_count(object, "checkpoint_interval", 0, kMaxSteps);
  training.keep_checkpoints = read_count(object, "keep_checkpoints", 1, kMaxSteps);
  training.max_tokens = read_count(object, "max_tokens");
  training.validation_interval = read_count(object, "validation_interval", 0, kMaxSteps);
  training.early_stop_patience = read_count(object, "early_stop_patience", 0, kMaxSteps);
  training.early_stop_keep =
      read_enum(object, "early_stop_keep", parse_early_stop_keep, "best or last");
  training.proximal = read_number(object, "proximal", 0, 1e6);
  training.document_mask = object.boolean("document_mask");
  training.deterministic = object.boolean("deterministic");
  training.keep_optimizer = object.boolean("keep_optimizer");
  training.freeze = read_names(object, "freeze");
  training.lora = read_lora(object.object("lora"));
  training.groups = read_groups(object.object("groups"));
  training.pipeline = read_pipeline(object.object("pipeline"));
  object.refuse_other_keys();
  return training;
}

Json write_training(const TrainingSpec& training) {
  return Json{{"steps", training.steps},
              {"first_step", training.first_step},
              {"batch_size", training.batch_size},
              {"micro_batch_size", training.micro_batch_size},
              {"learning_rate", training.learning_rate},
              {"schedule", write_schedule(training.schedule)},
              {"weight_decay", training.weight_decay},
              {"beta1", training.beta1},
              {"beta2", training.beta2},
              {"epsilon", training.epsilon},
              {"max_grad_norm", training.max_grad_norm},
              {"seed", training.seed},
              {"precision", to_string(training.precision)},
              {"masters", to_string(training.masters)},
              {"moment_dtype", to_string(training.moment_dtype)},
              {"gradient_dtype", to_string(training.gradient_dtype)},
              {"sharding", to_string(training.sharding)},
              {"shard_group_size", training.shard_group_size},
              {"recompute", to_string(training.recompute)},
              {"offload", to_string(training.offload)},
              {"validation_samples", training.validation_samples},
              {"train_samples", training.train_samples},
              {"checkpoint_interval", training.checkpoint_interval},
              {"keep_checkpoints", training.keep_checkpoints},
              {"max_tokens", training.max_tokens},
              {"validation_interval", training.validation_interval},
              {"early_stop_patience", training.early_stop_patience},
              {"early_stop_keep", to_string(training.early_stop_keep)},
              {"proximal", training.proximal},
              {"document_mask", training.document_mask},
              {"deterministic", training.deterministic},
              {"keep_optimizer", training.keep_optimizer},
              {"freeze", training.freeze},
              {"lora", write_lora(training.lora)},
              {"groups", write_groups(training.groups)},
              {"pipeline", write_pipeline(training.pipeline)}};
}

}  // namespace xffl::job
