#include "xffl/aggregate/sampled_step.h"

#include <algorithm>
#include <array>
#include <utility>

#include "pipeline.h"
#include "sources.h"
#include "xffl/base/error.h"

namespace xffl::aggregate {

using checkpoint::Dtype;
using checkpoint::TensorSpec;

struct SampledStep::State {
  Sources sources;
};

uint64_t num_blocks(const std::vector<TensorSpec>& tensors) { return BlockList(tensors).size(); }

SampledBlock block_at(const std::vector<TensorSpec>& tensors, uint64_t index) {
  const Block block = BlockList(tensors).at(index);
  return {tensors[block.tensor_index].name, block.begin, block.count};
}

std::span<const std::byte> bytes_of(const checkpoint::ModelFolder& model,
                                    const SampledBlock& block) {
  return block_bytes(model.data(block.tensor), model.spec(block.tensor).dtype,
                     Block{.begin = block.begin, .count = block.count});
}

SampledStep::SampledStep(std::vector<Input> updates, const std::vector<TensorSpec>& master)
    : state_(std::make_unique<State>(Sources(std::move(updates)))) {
  check_same_schema(state_->sources.tensors(), master, /*any_float=*/true, "the updates");
}
SampledStep::~SampledStep() = default;

void SampledStep::apply(const SampledBlock& block, bool deltas, const ServerRule& rule,
                        std::span<float> master) const {
  if (!rule.optimizer.state.empty())
    throw Error(ErrorKind::kInternal, "a server optimizer with a state has no sampled step");
  const std::vector<TensorSpec>& tensors = state_->sources.tensors();
  const auto spec = std::lower_bound(
      tensors.begin(), tensors.end(), block.tensor,
      [](const TensorSpec& each, const std::string& name) { return each.name < name; });
  if (spec == tensors.end() || spec->name != block.tensor)
    throw Error(ErrorKind::kRejected, "the updates have no tensor '" + block.tensor + "'");
  const Sources::Reader reader(
      state_->sources, {static_cast<size_t>(spec - tensors.begin()), block.begin, block.count});
  for_each_piece(block.count, [&](uint64_t offset, size_t count) {
    std::array<double, kMaxPiece> values;
    const std::span<float> part = master.subspan(offset, count);
    ServerPiece piece{.deltas = deltas,
                      .master = part,
                      .settings = rule.settings,
                      .values = std::span(values.data(), count)};
    reader.mean(offset, piece.values);
    rule.optimizer.step(piece);
    round_to(piece.values, Dtype::kF32, std::as_writable_bytes(part));
    TensorSpec as_float = *spec;
    as_float.dtype = Dtype::kF32;
    require_finite(std::as_bytes(part), as_float, block.begin + offset, "the new model");
  });
}

}  // namespace xffl::aggregate
