#include "keys.h"

#include <type_traits>

namespace xffl::config {
namespace {

constexpr double kMaxCount = 1e9;

/// The names of an enumeration's values, in order from 0.
template <class Enum>
std::vector<std::string_view> names_of();
template <>
std::vector<std::string_view> names_of<AccessKind>() {
  return {"local"};
}
template <>
std::vector<std::string_view> names_of<SchedulerKind>() {
  return {"process"};
}
template <>
std::vector<std::string_view> names_of<WeightKind>() {
  return {"tokens", "samples", "equal"};
}
template <>
std::vector<std::string_view> names_of<OnMissing>() {
  return {"wait", "skip", "fail"};
}
template <class... Enums>
std::vector<std::string_view> job_names(Enums... values) {
  return {job::to_string(values)...};
}
template <>
std::vector<std::string_view> names_of<job::UpdateKind>() {
  return job_names(job::UpdateKind::kWeights, job::UpdateKind::kDelta);
}
template <>
std::vector<std::string_view> names_of<job::FloatType>() {
  return job_names(job::FloatType::kFloat32, job::FloatType::kBfloat16, job::FloatType::kFloat16);
}
template <>
std::vector<std::string_view> names_of<job::ScheduleKind>() {
  return job_names(job::ScheduleKind::kConstant, job::ScheduleKind::kLinear,
                   job::ScheduleKind::kCosine);
}

template <class Field>
constexpr bool is_duration = false;
template <class Rep, class Period>
constexpr bool is_duration<std::chrono::duration<Rep, Period>> = true;

template <class Field>
Value to_value(const Field& field) {
  if constexpr (std::is_enum_v<Field>) {
    return std::string(names_of<Field>().at(static_cast<size_t>(field)));
  } else if constexpr (is_duration<Field>) {
    return static_cast<int64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(field).count());
  } else if constexpr (std::is_integral_v<Field>) {
    return static_cast<int64_t>(field);
  } else if constexpr (std::is_same_v<Field, std::filesystem::path>) {
    return field.string();
  } else if constexpr (requires { field.str(); }) {
    return field.str();
  } else if constexpr (std::is_constructible_v<Value, Field>) {
    return field;
  } else {
    return {};  // a struct: its section's keys describe it
  }
}

template <class Field>
void from_value(Field& field, const Value& value) {
  if constexpr (std::is_enum_v<Field>) {
    const auto names = names_of<Field>();
    for (size_t i = 0; i < names.size(); ++i)
      if (names[i] == std::get<std::string>(value)) field = static_cast<Field>(i);
  } else if constexpr (is_duration<Field>) {
    field = std::chrono::duration_cast<Field>(std::chrono::milliseconds(std::get<int64_t>(value)));
  } else if constexpr (std::is_integral_v<Field>) {
    field = static_cast<Field>(std::get<int64_t>(value));
  } else if constexpr (std::is_same_v<Field, double>) {
    field = std::get<double>(value);
  } else if constexpr (std::is_constructible_v<Field, std::string>) {
    field = Field(std::get<std::string>(value));
  } else if constexpr (std::is_constructible_v<Value, Field>) {
    field = std::get<Field>(value);
  }
}

template <class Member>
struct MemberOf;
template <class Object, class Field>
struct MemberOf<Field Object::*> {
  using Class = Object;
};

/// The binding of a key to a field.
template <auto kMember>
Binding bind() {
  using Object = typename MemberOf<decltype(kMember)>::Class;
  return {
      .get =
          [](const void* object) { return to_value(static_cast<const Object*>(object)->*kMember); },
      .set = [](void* object,
                const Value& value) { from_value(static_cast<Object*>(object)->*kMember, value); }};
}

/// The binding of a section to the struct that its keys describe.
template <auto kMember>
Binding inner() {
  using Object = typename MemberOf<decltype(kMember)>::Class;
  return {.inner = [](void* object) -> void* { return &(static_cast<Object*>(object)->*kMember); }};
}

/// The binding of a section whose keys describe the same struct.
Binding same_object() {
  return {.inner = [](void* object) { return object; }};
}

template <class Enum>
Key choice(std::string_view name, std::string_view help, Binding binding) {
  return {.name = name,
          .type = Type::kChoice,
          .help = help,
          .binding = binding,
          .choices = names_of<Enum>()};
}

template <class Object>
Section section(std::vector<Key> keys) {
  return {.keys = std::move(keys), .fallback = [](const Key& key) -> Value {
            static const Object made{};
            return key.binding.get == nullptr ? Value{} : key.binding.get(&made);
          }};
}

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
  });
  return keys;
}

const Section& data_keys() {
  static const Section keys = section<Facility>({
      {.name = "train",
       .type = Type::kSitePaths,
       .help = "token shards to train on, one or a list",
       .binding = bind<&Facility::train_data>(),
       .required = true},
      {.name = "validation",
       .type = Type::kValidationSets,
       .help = "token shards measured before and after each training, by name",
       .binding = bind<&Facility::validation>()},
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
      {.name = "precision",
       .type = Type::kChoice,
       .help = "of activations and matrix products; the trained weights stay fp32",
       .binding = bind<&TrainingSpec::precision>(),
       .choices = job_names(job::FloatType::kFloat32, job::FloatType::kBfloat16)},
      {"validation_samples", Type::kInteger, "sequences measured of each validation set; 0: all",
       bind<&TrainingSpec::validation_samples>(), 0, 9e15},
      {"train_samples", Type::kInteger, "use only the first so many sequences; 0: all",
       bind<&TrainingSpec::train_samples>(), 0, 9e15},
  });
  return keys;
}

const Section& facility_keys() {
  static const Section keys = section<Facility>({
      choice<AccessKind>("access", "how files and commands reach the facility",
                         bind<&Facility::access>()),
      choice<SchedulerKind>("scheduler", "what starts its jobs", bind<&Facility::scheduler>()),
      {.name = "workdir",
       .type = Type::kSitePath,
       .help = "folder at the facility under which xffl's files live",
       .binding = bind<&Facility::workdir>(),
       .fallback = "work/<facility>"},
      {.name = "template",
       .type = Type::kHostPath,
       .help = "your own job script template",
       .binding = bind<&Facility::template_file>(),
       .fallback = "the shipped one of the scheduler"},
      {"world_size", Type::kInteger, "ranks of a job", bind<&Facility::world_size>(), 1, 1e6},
      {.name = "trainer",
       .type = Type::kTrainer,
       .help = "builtin; {program: PATH}: xffl-train at another place; {command: [WORD, ...]}: "
               "any program that honours job.json, '--job FILE' is appended",
       .fallback = "builtin"},
      {.name = "environment",
       .type = Type::kEnvironment,
       .help = "before the trainer starts: a list of shell lines, or a mapping NAME: value",
       .binding = bind<&Facility::environment>()},
      {.name = "training",
       .type = Type::kSection,
       .help = "what differs here from the training of all",
       .binding = inner<&Facility::training>(),
       .section = &training_keys()},
      {.name = "data",
       .type = Type::kSection,
       .help = "token shards at the facility",
       .binding = same_object(),
       .required = true,
       .section = &data_keys()},
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
       .section = &policy_keys()},
      {.name = "facilities",
       .type = Type::kFacilities,
       .help = "who trains, by name",
       .required = true,
       .section = &facility_keys()},
  });
  return keys;
}

}  // namespace xffl::config
