// The names of job.json's enumerations.
#include <array>
#include <utility>

#include "xffl/base/error.h"
#include "xffl/job/job_spec.h"

namespace xffl::job {
namespace {

template <class Enum, size_t count>
using Names = std::array<std::pair<Enum, std::string_view>, count>;

constexpr Names<UpdateKind, 2> kUpdateKinds{
    {{UpdateKind::kWeights, "weights"}, {UpdateKind::kDelta, "delta"}}};
constexpr Names<FloatType, 3> kFloatTypes{
    {{FloatType::kFloat32, "fp32"}, {FloatType::kBfloat16, "bf16"}, {FloatType::kFloat16, "fp16"}}};
constexpr Names<ScheduleKind, 3> kScheduleKinds{{{ScheduleKind::kConstant, "constant"},
                                                 {ScheduleKind::kLinear, "linear"},
                                                 {ScheduleKind::kCosine, "cosine"}}};
constexpr Names<OnStop, 2> kOnStops{
    {{OnStop::kUpdate, "update"}, {OnStop::kCheckpoint, "checkpoint"}}};
constexpr Names<Masters, 3> kMasters{
    {{Masters::kFloat32, "fp32"}, {Masters::kSplit, "split"}, {Masters::kNone, "none"}}};
constexpr Names<StateDtype, 2> kStateDtypes{
    {{StateDtype::kFloat32, "fp32"}, {StateDtype::kBfloat16, "bf16"}}};
constexpr Names<EarlyStopKeep, 2> kEarlyStopKeeps{
    {{EarlyStopKeep::kBest, "best"}, {EarlyStopKeep::kLast, "last"}}};
constexpr Names<Sharding, 6> kShardings{{{Sharding::kNone, "none"},
                                         {Sharding::kOptimizer, "optimizer"},
                                         {Sharding::kGradients, "gradients"},
                                         {Sharding::kFull, "full"},
                                         {Sharding::kHybrid, "hybrid"},
                                         {Sharding::kHybridZero2, "hybrid_zero2"}}};
constexpr Names<Recompute, 3> kRecomputes{
    {{Recompute::kNone, "none"}, {Recompute::kCheap, "cheap"}, {Recompute::kFull, "full"}}};
constexpr Names<Offload, 3> kOffloads{{{Offload::kNone, "none"},
                                       {Offload::kOptimizer, "optimizer"},
                                       {Offload::kParameters, "parameters"}}};
constexpr Names<PipelineSchedule, 2> kPipelineSchedules{
    {{PipelineSchedule::kGpipe, "gpipe"}, {PipelineSchedule::k1F1B, "1f1b"}}};
constexpr Names<Exchange, 2> kExchanges{
    {{Exchange::kWeights, "weights"}, {Exchange::kGradients, "gradients"}}};
constexpr Names<GroupWeighting, 2> kGroupWeightings{
    {{GroupWeighting::kEqual, "equal"}, {GroupWeighting::kTokens, "tokens"}}};
constexpr Names<OuterOptimizer, 4> kOuterOptimizers{{{OuterOptimizer::kAverage, "average"},
                                                     {OuterOptimizer::kSgd, "sgd"},
                                                     {OuterOptimizer::kNesterov, "nesterov"},
                                                     {OuterOptimizer::kAdam, "adam"}}};

template <class Enum, size_t count>
std::string_view name_of(const Names<Enum, count>& names, Enum value) {
  for (const auto& [candidate, name] : names)
    if (candidate == value) return name;
  throw Error(ErrorKind::kInternal, "an enumeration of job.json has an unknown value");
}

template <class Enum, size_t count>
std::optional<Enum> value_of(const Names<Enum, count>& names, std::string_view text) {
  for (const auto& [value, name] : names)
    if (name == text) return value;
  return std::nullopt;
}

}  // namespace

std::string_view to_string(UpdateKind kind) { return name_of(kUpdateKinds, kind); }
std::string_view to_string(FloatType type) { return name_of(kFloatTypes, type); }
std::string_view to_string(ScheduleKind kind) { return name_of(kScheduleKinds, kind); }
std::string_view to_string(OnStop on_stop) { return name_of(kOnStops, on_stop); }
std::string_view to_string(Masters masters) { return name_of(kMasters, masters); }
std::string_view to_string(StateDtype dtype) { return name_of(kStateDtypes, dtype); }
std::string_view to_string(EarlyStopKeep keep) { return name_of(kEarlyStopKeeps, keep); }
std::string_view to_string(Sharding sharding) { return name_of(kShardings, sharding); }
std::string_view to_string(Recompute recompute) { return name_of(kRecomputes, recompute); }
std::string_view to_string(Offload offload) { return name_of(kOffloads, offload); }
std::string_view to_string(PipelineSchedule schedule) {
  return name_of(kPipelineSchedules, schedule);
}
std::string_view to_string(Exchange exchange) { return name_of(kExchanges, exchange); }
std::string_view to_string(GroupWeighting weighting) {
  return name_of(kGroupWeightings, weighting);
}
std::string_view to_string(OuterOptimizer optimizer) {
  return name_of(kOuterOptimizers, optimizer);
}

std::optional<UpdateKind> parse_update_kind(std::string_view text) {
  return value_of(kUpdateKinds, text);
}
std::optional<FloatType> parse_float_type(std::string_view text) {
  return value_of(kFloatTypes, text);
}
std::optional<ScheduleKind> parse_schedule_kind(std::string_view text) {
  return value_of(kScheduleKinds, text);
}
std::optional<OnStop> parse_on_stop(std::string_view text) { return value_of(kOnStops, text); }
std::optional<Masters> parse_masters(std::string_view text) { return value_of(kMasters, text); }
std::optional<StateDtype> parse_state_dtype(std::string_view text) {
  return value_of(kStateDtypes, text);
}
std::optional<EarlyStopKeep> parse_early_stop_keep(std::string_view text) {
  return value_of(kEarlyStopKeeps, text);
}
std::optional<Sharding> parse_sharding(std::string_view text) { return value_of(kShardings, text); }
std::optional<Recompute> parse_recompute(std::string_view text) {
  return value_of(kRecomputes, text);
}
std::optional<Offload> parse_offload(std::string_view text) { return value_of(kOffloads, text); }
std::optional<PipelineSchedule> parse_pipeline_schedule(std::string_view text) {
  return value_of(kPipelineSchedules, text);
}
std::optional<Exchange> parse_exchange(std::string_view text) { return value_of(kExchanges, text); }
std::optional<GroupWeighting> parse_group_weighting(std::string_view text) {
  return value_of(kGroupWeightings, text);
}
std::optional<OuterOptimizer> parse_outer_optimizer(std::string_view text) {
  return value_of(kOuterOptimizers, text);
}

}  // namespace xffl::job
