#include "xffl/train/evaluate.h"

#include <torch/types.h>

#include <algorithm>
#include <numeric>

namespace xffl::train {
namespace {

// Fills this rank's entries of the sums of NLL per sequence; the others stay zero. False: stopped.
bool add_sums(llama::Model& model, const Dataset& data, int64_t batch_size,
              const comm::Group& group, at::Device device, at::Tensor sums_S,
              const std::function<bool()>& should_stop) {
  const auto size = static_cast<uint64_t>(batch_size);
  const auto stride = size * static_cast<uint64_t>(group.size());
  for (uint64_t first = 0; first < data.size(); first += stride) {
    if (should_stop && should_stop()) return false;
    const uint64_t begin = first + size * static_cast<uint64_t>(group.rank());
    if (begin >= data.size()) {  // the last batches are for others, who may need this rank's shards
      const Batch none = empty_batch(device);
      model.nll(none.tokens_BT, none.labels_BT);
      continue;
    }
    std::vector<uint64_t> indices(std::min(size, data.size() - begin));
    std::iota(indices.begin(), indices.end(), begin);
    const Batch batch = data.batch(indices, device);
    const at::Tensor nll_BT = model.nll(batch.tokens_BT, batch.labels_BT, batch.documents);
    sums_S.narrow(0, static_cast<int64_t>(begin), nll_BT.size(0))
        .copy_(nll_BT.sum(1, false, at::kDouble));
  }
  return true;
}

}  // namespace

std::optional<Evaluation> evaluate(llama::Model& model, const Dataset& data, int64_t batch_size,
                                   comm::Group& group, at::Device device,
                                   const std::function<bool()>& should_stop) {
  at::Tensor sums_S = at::zeros({static_cast<int64_t>(data.size())},
                                at::TensorOptions().dtype(at::kDouble).device(device));
  if (!add_sums(model, data, batch_size, group, device, sums_S, should_stop)) return std::nullopt;
  group.all_reduce(sums_S);
  sums_S = sums_S.to(at::kCPU);
  Evaluation result;
  for (uint64_t i = 0; i < data.size(); ++i) {
    const double sum = sums_S.const_data_ptr<double>()[i];
    const int64_t targets = data.num_targets(i);
    result.tokens += targets;
    result.nll_sum += sum;
    result.per_sequence.push_back(targets == 0 ? std::nullopt
                                               : std::optional(sum / static_cast<double>(targets)));
  }
  return result;
}

}  // namespace xffl::train
