// The tensors of a model: comparing two models, and assigning tensors to files.
#include <map>

#include "sorted_json.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/model_folder.h"

namespace xffl::checkpoint {
namespace {

bool is_exchangeable(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16;
}

std::string shard_filename(size_t index, size_t count) {
  const auto five_digits = [](size_t number) {
    std::string digits = std::to_string(number);
    digits.insert(0, digits.size() < 5 ? 5 - digits.size() : 0, '0');
    return digits;
  };
  return "model-" + five_digits(index + 1) + "-of-" + five_digits(count) + ".safetensors";
}

std::string format_index(const std::vector<ShardPlan::Shard>& shards) {
  uint64_t total_size = 0;
  SortedJson weight_map = SortedJson::object();
  for (const ShardPlan::Shard& shard : shards) {
    for (const TensorSpec& spec : shard.tensors) {
      total_size += spec.num_bytes();
      weight_map[spec.name] = shard.filename;
    }
  }
  const SortedJson index{{"metadata", {{"total_size", total_size}}}, {"weight_map", weight_map}};
  return index.dump(2) + "\n";
}

}  // namespace

void check_same_schema(const std::vector<TensorSpec>& found,
                       const std::vector<TensorSpec>& expected, bool any_float,
                       std::string_view origin) {
  const auto fail = [&](const std::string& name, const std::string& problem) {
    throw Error(ErrorKind::kRejected,
                std::string(origin) + ": tensor '" + log::printable(name, 200) + "' " + problem);
  };
  std::map<std::string_view, const TensorSpec*> found_by_name;
  for (const TensorSpec& spec : found) {
    if (!found_by_name.emplace(spec.name, &spec).second) fail(spec.name, "appears twice");
  }
  for (const TensorSpec& want : expected) {
    const auto it = found_by_name.find(want.name);
    if (it == found_by_name.end()) fail(want.name, "is missing");
    const TensorSpec& have = *it->second;
    if (have.shape != want.shape) {
      fail(want.name,
           "has the shape " + format_shape(have.shape) + ", expected " + format_shape(want.shape));
    }
    const bool same_dtype = have.dtype == want.dtype || (any_float && is_exchangeable(have.dtype) &&
                                                         is_exchangeable(want.dtype));
    if (!same_dtype) {
      fail(want.name,
           "has the type " + std::string(to_string(have.dtype)) + ", expected " +
               std::string(to_string(want.dtype)) +
               (any_float && is_exchangeable(want.dtype) ? " (or another of F32, F16, BF16)" : ""));
    }
    found_by_name.erase(it);
  }
  if (!found_by_name.empty()) {
    fail(found_by_name.begin()->second->name, "is not a tensor of the expected model");
  }
}

ShardPlan plan_shards(const std::vector<TensorSpec>& tensors, uint64_t max_shard_bytes) {
  ShardPlan plan;
  uint64_t shard_bytes = 0;
  for (const TensorSpec& spec : tensors) {
    const uint64_t size = spec.num_bytes();
    const bool full = !plan.shards.empty() && !plan.shards.back().tensors.empty() &&
                      (shard_bytes > max_shard_bytes || size > max_shard_bytes - shard_bytes);
    if (plan.shards.empty() || full) {
      plan.shards.emplace_back();
      shard_bytes = 0;
    }
    plan.shards.back().tensors.push_back(spec);
    shard_bytes += size;
  }
  if (plan.shards.empty()) plan.shards.emplace_back();
  if (plan.shards.size() == 1) {
    plan.shards.front().filename = "model.safetensors";
    return plan;
  }
  for (size_t i = 0; i < plan.shards.size(); ++i) {
    plan.shards[i].filename = shard_filename(i, plan.shards.size());
  }
  plan.index_json = format_index(plan.shards);
  return plan;
}

}  // namespace xffl::checkpoint
