#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "mean_kernels.h"
#include "norms.h"
#include "page_window.h"
#include "pipeline.h"
#include "sources.h"
#include "xffl/aggregate/aggregate.h"
#include "xffl/base/error.h"

namespace xffl::aggregate {

using checkpoint::Dtype;
using checkpoint::TensorSpec;

namespace {

bool all_zero(std::span<const std::byte> bytes, Dtype dtype) {
  std::array<float, kMaxPiece> values;
  const size_t size = size_bytes(dtype);
  for (size_t at = 0; at < bytes.size(); at += kMaxPiece * size) {
    const auto piece = bytes.subspan(at, std::min(kMaxPiece * size, bytes.size() - at));
    const std::span<float> x(values.data(), piece.size() / size);
    to_float(piece, dtype, x);
    if (!std::all_of(x.begin(), x.end(), [](float value) { return value == 0.0f; })) return false;
  }
  return true;
}

// Whether `update` equals `base`, rounded to the update's type.
bool same_values(std::span<const std::byte> update, Dtype update_dtype,
                 std::span<const std::byte> base, Dtype base_dtype) {
  if (update_dtype == base_dtype) return std::memcmp(update.data(), base.data(), base.size()) == 0;
  std::array<float, kMaxPiece> values;
  std::array<std::byte, kMaxPiece * sizeof(float)> rounded;
  const size_t to_size = size_bytes(update_dtype);
  const size_t from_size = size_bytes(base_dtype);
  const size_t count = base.size() / from_size;
  for (size_t at = 0; at < count; at += kMaxPiece) {
    const size_t n = std::min(kMaxPiece, count - at);
    to_float(base.subspan(at * from_size, n * from_size), base_dtype, std::span(values.data(), n));
    from_float(std::span(values.data(), n), update_dtype, std::span(rounded.data(), n * to_size));
    if (std::memcmp(rounded.data(), update.data() + at * to_size, n * to_size) != 0) return false;
  }
  return true;
}

// Bounds the influence of one update on the mean.
void require_norm(double norm, double max_norm, const std::string& name) {
  if (norm <= max_norm) return;
  char numbers[120];
  std::snprintf(numbers, sizeof numbers, "%.4g, more than the %.4g", norm, max_norm);
  throw Error(ErrorKind::kRejected,
              name + ": the L2 norm of its change is " + numbers +
                  " of the limit (policy.max_change times the norm of the input model): the "
                  "training has diverged, or this is not an update of this model");
}

}  // namespace

double check_update(const std::filesystem::path& update, const std::filesystem::path& base,
                    bool delta, bool allow_unchanged, double max_norm) {
  const checkpoint::ModelFolder found(update);
  const checkpoint::ModelFolder expected(base);
  const std::string name = update.string();
  check_same_schema(found.tensors(), expected.tensors(), /*any_float=*/true, name);
  require_float(found.tensors(), name);
  std::atomic<bool> changed = allow_unchanged;
  const bool measures = max_norm > 0;
  SharedSum squares;
  for_each_block(BlockList(found.tensors()), thread_count(0), [&](const Block& block) {
    const TensorSpec& spec = found.tensors()[block.tensor_index];
    const auto bytes = block_bytes(found.data(spec.name), spec.dtype, block);
    const PageWindow window(bytes);
    require_finite(bytes, spec, block.begin, name);
    if (measures && delta) squares.add(sum_of_squares(bytes, spec.dtype));
    if (changed.load(std::memory_order_relaxed) && (delta || !measures)) return;
    if (delta) {
      if (!all_zero(bytes, spec.dtype)) changed = true;
      return;
    }
    const Dtype base_dtype = expected.spec(spec.name).dtype;
    const auto base_bytes = block_bytes(expected.data(spec.name), base_dtype, block);
    const PageWindow base_window(base_bytes);
    if (measures)
      squares.add(sum_of_squared_differences(bytes, spec.dtype, base_bytes, base_dtype));
    if (!same_values(bytes, spec.dtype, base_bytes, base_dtype)) changed = true;
  });
  if (!changed)
    throw Error(ErrorKind::kRejected, name +
                                          (delta ? ": every element of the update is zero"
                                                 : ": the update equals the input model") +
                                          "; the facility has not trained (check its job's log)");
  const double norm = std::sqrt(squares.sum());
  if (measures) require_norm(norm, max_norm, name);
  return norm;
}

}  // namespace xffl::aggregate
