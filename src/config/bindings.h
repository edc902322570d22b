// From the table of keys to the fields of the structs: how each type of field is read and written
// as a Value.
#pragma once

#include <type_traits>

#include "keys.h"

namespace xffl::config {

/// The names of an enumeration's values, in order from 0.
template <class Enum>
std::vector<std::string_view> names_of();
template <>
inline std::vector<std::string_view> names_of<AccessKind>() {
  return {"local", "ssh"};
}
template <>
inline std::vector<std::string_view> names_of<SchedulerKind>() {
  return {"process", "slurm"};
}
template <>
inline std::vector<std::string_view> names_of<WeightKind>() {
  return {"tokens", "samples", "equal"};
}
template <>
inline std::vector<std::string_view> names_of<OnMissing>() {
  return {"wait", "skip", "fail"};
}
template <>
inline std::vector<std::string_view> names_of<OnWalltime>() {
  return {"use", "resume"};
}
template <>
inline std::vector<std::string_view> names_of<GpuOption>() {
  return {"gpus-per-node", "gres"};
}
template <>
inline std::vector<std::string_view> names_of<ImageGpu>() {
  return {"none", "nv", "rocm"};
}
template <>
inline std::vector<std::string_view> names_of<PackModels>() {
  return {"auto", "always", "never"};
}
template <class... Enums>
std::vector<std::string_view> job_names(Enums... values) {
  return {job::to_string(values)...};
}
template <>
inline std::vector<std::string_view> names_of<job::UpdateKind>() {
  return job_names(job::UpdateKind::kWeights, job::UpdateKind::kDelta);
}
template <>
inline std::vector<std::string_view> names_of<job::FloatType>() {
  return job_names(job::FloatType::kFloat32, job::FloatType::kBfloat16, job::FloatType::kFloat16);
}
template <>
inline std::vector<std::string_view> names_of<job::ScheduleKind>() {
  return job_names(job::ScheduleKind::kConstant, job::ScheduleKind::kLinear,
                   job::ScheduleKind::kCosine);
}

template <>
inline std::vector<std::string_view> names_of<job::Sharding>() {
  using enum job::Sharding;
  return job_names(kNone, kOptimizer, kGradients, kFull, kHybrid, kHybridZero2);
}
template <>
inline std::vector<std::string_view> names_of<job::Masters>() {
  return job_names(job::Masters::kFloat32, job::Masters::kSplit, job::Masters::kNone);
}
template <>
inline std::vector<std::string_view> names_of<job::StateDtype>() {
  return job_names(job::StateDtype::kFloat32, job::StateDtype::kBfloat16);
}
template <>
inline std::vector<std::string_view> names_of<job::EarlyStopKeep>() {
  return job_names(job::EarlyStopKeep::kBest, job::EarlyStopKeep::kLast);
}
template <>
inline std::vector<std::string_view> names_of<job::Recompute>() {
  return job_names(job::Recompute::kNone, job::Recompute::kCheap, job::Recompute::kFull);
}
template <>
inline std::vector<std::string_view> names_of<job::Offload>() {
  return job_names(job::Offload::kNone, job::Offload::kOptimizer, job::Offload::kParameters);
}

template <>
inline std::vector<std::string_view> names_of<job::PipelineSchedule>() {
  return job_names(job::PipelineSchedule::kGpipe, job::PipelineSchedule::k1F1B);
}
template <>
inline std::vector<std::string_view> names_of<job::Exchange>() {
  return job_names(job::Exchange::kWeights, job::Exchange::kGradients);
}
template <>
inline std::vector<std::string_view> names_of<job::GroupWeighting>() {
  return job_names(job::GroupWeighting::kEqual, job::GroupWeighting::kTokens);
}
template <>
inline std::vector<std::string_view> names_of<job::OuterOptimizer>() {
  using enum job::OuterOptimizer;
  return job_names(kAverage, kSgd, kNesterov, kAdam);
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
  } else if constexpr (std::is_same_v<Field, bool>) {
    return field;
  } else if constexpr (std::is_integral_v<Field>) {
    return static_cast<int64_t>(field);
  } else if constexpr (std::is_same_v<Field, std::filesystem::path>) {
    return field.string();
  } else if constexpr (std::is_same_v<Field, std::vector<Host>>) {
    std::vector<std::string> texts;
    for (const Host& host : field) texts.push_back(to_string(host));
    return texts;
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
  } else if constexpr (std::is_same_v<Field, double> || std::is_same_v<Field, bool>) {
    field = std::get<Field>(value);
  } else if constexpr (std::is_integral_v<Field>) {
    field = static_cast<Field>(std::get<int64_t>(value));
  } else if constexpr (std::is_same_v<Field, std::vector<Host>>) {
    field.clear();
    for (const std::string& text : std::get<std::vector<std::string>>(value))
      if (const auto host = parse_host(text)) field.push_back(*host);
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
inline Binding same_object() {
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

/// Of what may change while a run goes on.
inline Key operational(Key key) {
  key.operational = true;
  return key;
}

template <class Object>
Section section(std::vector<Key> keys) {
  return {.keys = std::move(keys), .fallback = [](const Key& key) -> Value {
            static const Object made{};
            return key.binding.get == nullptr ? Value{} : key.binding.get(&made);
          }};
}

}  // namespace xffl::config
