// The table of TrainingSpec.
#include "xffl/job/fields.h"
#include "xffl/job/job_spec.h"

namespace xffl::job {
namespace {

// The name of a parameter or matrix, perhaps with * and ?.
std::string validate_parameter_name(std::string_view text) {
  if (!text.empty() && text.find(' ') == std::string_view::npos) return {};
  return "should be a name, found '" + std::string(text) + "'";
}

const FieldTable& schedule_fields() {
  static const FieldTable fields({
      field("kind", &Schedule::kind, "the rate's decay after the warm-up"),
      field("warmup_steps", &Schedule::warmup_steps,
            "steps from 0 up to learning_rate, counted over the whole federation",
            {.max = kMaxSteps}),
      field("total_steps", &Schedule::total_steps, "", {.file = FileKind::kJson, .max = kMaxSteps}),
      field("min_ratio", &Schedule::min_ratio, "the last rate as a share of learning_rate",
            {.max = 1}),
      field("decay_ratio", &Schedule::decay_ratio,
            "with wsd, the share of all steps in which the rate falls, at the end",
            {.max = 1, .omit_default = true, .omit_empty = true, .since = 5}),
  });
  return fields;
}

const FieldTable& lora_fields() {
  static const FieldTable fields({
      field("rank", &Lora::rank, "the rank of the adapters; 0: no adapters", {.max = 1 << 16}),
      field("alpha", &Lora::alpha, "the adapters' product is multiplied by alpha / rank",
            {.max = 1e6}),
      field("rank_stabilized", &Lora::rank_stabilized,
            "multiplies by alpha / sqrt(rank) instead: rsLoRA, PEFT's use_rslora",
            {.omit_default = true, .omit_empty = true, .since = 5}),
      field("weight_decomposed", &Lora::weight_decomposed,
            "trains the length of each adapted row, too: DoRA, PEFT's use_dora",
            {.omit_default = true, .omit_empty = true, .since = 5}),
      field("dropout", &Lora::dropout, "the dropout of the adapters' inputs",
            {.max = 1, .below_max = true}),
      field("target_modules", &Lora::target_modules,
            "the matrices that get adapters, by their names in the model's files",
            {.max = 500,
             .pattern = "(q|k|v|o|gate|up|down)_proj",
             .shape = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj or down_proj",
             .validate = validate_parameter_name}),
      field("modules_to_save", &Lora::modules_to_save,
            "trained whole beside the adapters, as after an extension of the vocabulary",
            {.max = 500,
             .pattern = "embed_tokens|lm_head",
             .shape = "embed_tokens or lm_head",
             .validate = validate_parameter_name,
             .omit_default = true,
             .omit_empty = true,
             .since = 5}),
  });
  return fields;
}

const FieldTable& outer_fields() {
  static const FieldTable fields({
      field("kind", &Outer::kind, "the optimizer of the weights' mean change"),
      field("learning_rate", &Outer::learning_rate, "the learning rate of the outer optimizer",
            {.max = 1000}),
      field("momentum", &Outer::momentum, "the momentum of sgd and nesterov",
            {.max = 1, .below_max = true}),
      field("beta1", &Outer::beta1, "beta 1 of adam", {.max = 1, .below_max = true}),
      field("beta2", &Outer::beta2, "beta 2 of adam", {.max = 1, .below_max = true}),
      field("epsilon", &Outer::epsilon, "epsilon of adam", {.max = 1}),
  });
  return fields;
}

const FieldTable& groups_fields() {
  static const FieldTable fields({
      field("count", &RankGroups::count, "groups of ranks; 1: no groups",
            {.min = 1, .max = kMaxShardRanks}),
      field("interval", &RankGroups::interval, "steps between two exchanges",
            {.min = 1, .max = kMaxSteps}),
      field("exchange", &RankGroups::exchange,
            "the quantity that the groups average: weights or gradients"),
      field("weighting", &RankGroups::weighting, "a group's share of the mean"),
      field("outer", &RankGroups::outer,
            "the optimizer that takes the groups' mean change: DiLoCo is nesterov at 0.7",
            {.table = &outer_fields()}),
  });
  return fields;
}

const FieldTable& pipeline_fields() {
  static const FieldTable fields({
      field("stages", &Pipeline::stages, "parts of the model; 1: no pipeline",
            {.min = 1, .max = kMaxShardRanks}),
      field("schedule", &Pipeline::schedule, "the order of a stage's micro-batches"),
  });
  return fields;
}

}  // namespace

const FieldTable& training_fields() {
  using T = TrainingSpec;
  constexpr double kMaxInt64 = 9223372036854775807.0;
  static const FieldTable fields({
      field("epochs_per_round", &T::epochs,
            "passes over a facility's data in one round, also a fraction; 0: steps_per_round steps",
            {.file = FileKind::kYaml, .max = 1e6, .omit_default = true}),
      field("steps_per_round", &T::steps, "optimizer steps of a facility in one round",
            {.file = FileKind::kYaml,
             .min = 1,
             .max = kMaxSteps,
             .default_text = "required, here or in each facility, without epochs_per_round",
             .applies =
                 [](const void* training) { return static_cast<const T*>(training)->epochs == 0; },
             .condition = "epochs_per_round 0"}),
      field("steps", &T::steps, "", {.file = FileKind::kJson, .max = kMaxSteps}),
      field("epochs", &T::epochs, "",
            {.file = FileKind::kJson, .max = 1e6, .omit_empty = true, .since = 5}),
      field("total_rounds", &T::total_rounds, "",
            {.file = FileKind::kJson, .max = 1e6, .omit_empty = true, .since = 5}),
      field("first_step", &T::first_step, "", {.file = FileKind::kJson, .max = kMaxSteps}),
      field("batch_size", &T::batch_size,
            "sequences per optimizer step, over all ranks (of a group)",
            {.min = 1, .max = kMaxBatchSize}),
      field("micro_batch_size", &T::micro_batch_size,
            "sequences per rank and forward pass; gradients accumulate over the rest",
            {.min = 1, .max = kMaxBatchSize}),
      field("learning_rate", &T::learning_rate, "the highest rate, after the warm-up",
            {.max = 1000}),
      field("schedule", &T::schedule,
            "the course of the learning rate over rounds * steps_per_round steps",
            {.table = &schedule_fields()}),
      field("optimizer", &T::optimizer, "the optimizer, as torch.optim's AdamW, Adam or SGD",
            {.omit_default = true, .omit_empty = true, .since = 5}),
      field("momentum", &T::momentum, "the momentum of sgd; 0: none",
            {.max = 1, .below_max = true, .omit_default = true, .omit_empty = true, .since = 5}),
      field("nesterov", &T::nesterov, "Nesterov's momentum, of sgd with a momentum",
            {.omit_default = true, .omit_empty = true, .since = 5}),
      field(
          "weight_decay", &T::weight_decay,
          "the weight decay: decoupled with adamw, added to the gradient with adam and sgd; norms "
          "and biases have none",
          {.max = 1000}),
      field("beta1", &T::beta1, "beta 1 of adamw and adam", {.max = 1, .below_max = true}),
      field("beta2", &T::beta2, "beta 2 of adamw and adam", {.max = 1, .below_max = true}),
      field("epsilon", &T::epsilon, "epsilon of adamw and adam", {.max = 1}),
      field("max_grad_norm", &T::max_grad_norm,
            "the global L2 norm to which gradients are clipped; 0: no clipping", {.max = 1e12}),
      field("seed", &T::seed, "the seed of the order of the samples", {.max = kMaxInt64}),
      field("precision", &T::precision,
            "the number type of activations and matrix products; masters keeps the weights fp32"),
      field("masters", &T::masters,
            "with bf16, the exact weights that the optimizer updates: fp32 beside the computing "
            "weights, split: 16 bits more beside them, or none: pure bf16, which loses small "
            "updates"),
      field("moment_dtype", &T::moment_dtype,
            "the number type of the optimizer's moments; bf16 only with precision bf16"),
      field(
          "gradient_dtype", &T::gradient_dtype,
          "the number type of gradients; bf16 only with precision bf16 and one micro-batch a step"),
      field("sharding", &T::sharding,
            "tensors sharded across ranks: ZeRO-1, -2, -3, or within groups of ranks",
            {.operational = true}),
      field("shard_group_size", &T::shard_group_size,
            "ranks of a group of hybrid and hybrid_zero2; 0: the ranks of a node",
            {.max = kMaxShardRanks, .operational = true}),
      field("recompute", &T::recompute,
            "activations that backward computes again to save memory: norms and activation "
            "functions, or all but the inputs of blocks",
            {.operational = true}),
      field("attention", &T::attention,
            "the kernel of a GPU's attention: the fastest one, or always this one; CPUs have one "
            "kernel",
            {.omit_default = true, .operational = true, .omit_empty = true}),
      field("offload", &T::offload,
            "state in the host's memory: the optimizer's, or parameters too",
            {.operational = true}),
      field("validation_samples", &T::validation_samples,
            "sequences measured of each validation set; 0: all",
            {.max = kMaxCount, .operational = true}),
      field("validation_batch_size", &T::validation_batch_size,
            "sequences per rank and forward pass of a validation; 0: micro_batch_size",
            {.max = kMaxBatchSize, .omit_default = true, .operational = true, .omit_empty = true}),
      field("train_samples", &T::train_samples,
            "number of sequences to use, from the first; 0: all", {.max = kMaxCount}),
      field("checkpoint_interval", &T::checkpoint_interval,
            "steps between two checkpoints inside a job, from which a repeated job continues; 0: "
            "none",
            {.max = kMaxSteps, .operational = true}),
      field("keep_checkpoints", &T::keep_checkpoints, "number of newest checkpoints kept per job",
            {.min = 1, .max = kMaxSteps, .operational = true}),
      field("max_tokens", &T::max_tokens,
            "the number of target tokens after which a job ends; 0: no limit", {.max = kMaxCount}),
      field("validation_interval", &T::validation_interval,
            "steps between two mid-training validations; 0: before and after training only",
            {.max = kMaxSteps}),
      field(
          "early_stop_patience", &T::early_stop_patience,
          "the number of mid-training validations in a row without a lower mean loss after which a "
          "job ends; 0: never",
          {.max = kMaxSteps}),
      field("early_stop_keep", &T::early_stop_keep,
            "the model after an early stop: the last one, or the best one measured mid-training"),
      field("proximal", &T::proximal,
            "FedProx: mu of the term that holds the weights near the global ones; 0: none",
            {.max = 1e6}),
      field("document_mask", &T::document_mask,
            "attention within a document only, with positions that restart there"),
      field("deterministic", &T::deterministic,
            "true: the same bits in each run on the same devices; slower on GPUs",
            {.operational = true}),
      field("keep_optimizer", &T::keep_optimizer,
            "keep the optimizer's moments at the facility from one round to the next"),
      field("freeze", &T::freeze,
            "parameters that are not trained, by their names in the model's files; * and ? match "
            "any characters; with lora, the adapters of these matrices",
            {.max = 500,
             .pattern = "[A-Za-z0-9_.*?]{1,500}",
             .shape = "a parameter's name, such as 'model.embed_tokens.*'",
             .validate = validate_parameter_name}),
      field("lora", &T::lora, "low-rank adapters: only they are trained, and only they travel",
            {.table = &lora_fields(), .omit_default = true}),
      field("groups", &T::groups,
            "a federation inside one job: ranks in groups with data of their own",
            {.table = &groups_fields(), .omit_default = true}),
      field("pipeline", &T::pipeline, "the model's layers in stages, each on ranks of its own",
            {.table = &pipeline_fields(), .omit_default = true, .operational = true}),
  });
  return fields;
}

}  // namespace xffl::job
