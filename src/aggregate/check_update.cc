#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "sources.h"
#include "xffl/base/error.h"

namespace xffl::aggregate {

using checkpoint::Dtype;
using checkpoint::TensorSpec;

namespace {

// The least part of the input model, in the model's own direction, that an update must leave.
// Honest training turns the model into new directions and shrinks it by weight decay alone.
constexpr double kMinRemaining = 0.1;

using Buffer = std::array<float, kMaxPiece>;

// The next elements of a tensor, from `at` on, at most kMaxPiece; empty at the end of the tensor.
std::span<float> next_piece(std::span<const std::byte> bytes, Dtype dtype, size_t at,
                            Buffer& buffer) {
  const size_t size = size_bytes(dtype);
  const std::span<float> x(buffer.data(), std::min(kMaxPiece, bytes.size() / size - at));
  to_float(bytes.subspan(at * size, x.size() * size), dtype, x);
  return x;
}

bool all_zero(std::span<const std::byte> bytes, Dtype dtype) {
  Buffer buffer;
  for (size_t at = 0; at < bytes.size() / size_bytes(dtype); at += kMaxPiece) {
    const auto x = next_piece(bytes, dtype, at, buffer);
    if (!std::all_of(x.begin(), x.end(), [](float value) { return value == 0.0f; })) return false;
  }
  return true;
}

// True when `update` equals `base`, rounded to the update's type.
bool same_values(std::span<const std::byte> update, Dtype update_dtype,
                 std::span<const std::byte> base, Dtype base_dtype) {
  if (update_dtype == base_dtype) return std::memcmp(update.data(), base.data(), base.size()) == 0;
  Buffer buffer;
  std::array<std::byte, kMaxPiece * sizeof(float)> rounded;
  const size_t size = size_bytes(update_dtype);
  for (size_t at = 0; at < base.size() / size_bytes(base_dtype); at += kMaxPiece) {
    const auto x = next_piece(base, base_dtype, at, buffer);
    from_float(x, update_dtype, std::span(rounded.data(), x.size() * size));
    if (std::memcmp(rounded.data(), update.data() + at * size, x.size() * size) != 0) return false;
  }
  return true;
}

// The sum of squares of the elements, or of their differences from `base` unless `base` is empty.
// Sums in float32 within a piece and in float64 over the pieces. Infinite when a square overflows
// float32.
double sum_of_squares(std::span<const std::byte> bytes, Dtype dtype,
                      std::span<const std::byte> base = {}, Dtype base_dtype = Dtype::kF32) {
  Buffer values, others;
  double sum = 0;
  for (size_t at = 0; at < bytes.size() / size_bytes(dtype); at += kMaxPiece) {
    const auto x = next_piece(bytes, dtype, at, values);
    if (!base.empty()) {
      const auto from = next_piece(base, base_dtype, at, others);
      for (size_t i = 0; i < x.size(); ++i) x[i] -= from[i];
    }
    sum += dot(x, x);
  }
  return sum;
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

// <update, base> and <base, base>, summed over the elements.
struct Overlap {
  std::atomic<double> with_base = 0, of_base = 0;
};

void add_overlap(std::span<const std::byte> bytes, Dtype dtype, std::span<const std::byte> base,
                 Dtype base_dtype, Overlap& overlap) {
  Buffer values, others;
  double with_base = 0, of_base = 0;
  for (size_t at = 0; at < bytes.size() / size_bytes(dtype); at += kMaxPiece) {
    const auto x = next_piece(bytes, dtype, at, values);
    const auto from = next_piece(base, base_dtype, at, others);
    with_base += dot(x, from);
    of_base += dot(from, from);
  }
  overlap.with_base += with_base;
  overlap.of_base += of_base;
}

// An update that takes the model away, such as delta = -model, can have the norm of an honest one.
void require_remaining(const checkpoint::ModelFolder& update, const checkpoint::ModelFolder& base,
                       bool delta, const std::string& name) {
  Overlap overlap;
  for_each_block(BlockList(update.tensors()), [&](const Block& block) {
    const TensorSpec& spec = update.tensors()[block.tensor_index];
    const Dtype base_dtype = base.spec(spec.name).dtype;
    const auto bytes = block_bytes(update.data(spec.name), spec.dtype, block);
    const auto base_bytes = block_bytes(base.data(spec.name), base_dtype, block);
    update.verify(bytes);
    base.verify(base_bytes);
    const PageWindow window(bytes), base_window(base_bytes);
    add_overlap(bytes, spec.dtype, base_bytes, base_dtype, overlap);
  });
  const double remaining = overlap.with_base / overlap.of_base + (delta ? 1.0 : 0.0);
  if (remaining >= kMinRemaining) return;
  char number[32];
  std::snprintf(number, sizeof number, "%.3g", remaining);
  throw Error(ErrorKind::kRejected,
              name + ": the update leaves " + number +
                  " of the input model: an update must leave at least 0.1, unless "
                  "policy.max_change is 0");
}

float largest_value(Dtype dtype) {
  if (dtype == Dtype::kF16) return 65504.0f;
  return dtype == Dtype::kBF16 ? 0x1.fep127f : std::numeric_limits<float>::max();
}

// The norms bound each element of the changed model: half of the range leaves room for the rounding
// of their sums.
bool norms_are_in_range(double base_norm, double norm, const checkpoint::ModelFolder& base) {
  return std::all_of(base.tensors().begin(), base.tensors().end(), [&](const TensorSpec& spec) {
    return base_norm + norm < static_cast<double>(largest_value(spec.dtype)) / 2;
  });
}

// The mean of updates that stay in the range of the published type is in the range, too. Deltas are
// added to the float32 master, which may exceed `base` by half a step of the type: their results
// must be below the largest value.
void require_in_range(const checkpoint::ModelFolder& update, const checkpoint::ModelFolder& base,
                      bool delta, const std::string& name) {
  for_each_block(BlockList(update.tensors()), [&](const Block& block) {
    const TensorSpec& spec = update.tensors()[block.tensor_index];
    const Dtype base_dtype = base.spec(spec.name).dtype;
    if (!delta && spec.dtype == base_dtype) return;  // finite weights
    const auto bytes = block_bytes(update.data(spec.name), spec.dtype, block);
    const auto base_bytes = block_bytes(base.data(spec.name), base_dtype, block);
    update.verify(bytes);
    base.verify(base_bytes);
    const PageWindow window(bytes), base_window(base_bytes);
    const float largest = largest_value(base_dtype);
    Buffer values, others;
    for (size_t at = 0; at < block.count; at += kMaxPiece) {
      const auto x = next_piece(bytes, spec.dtype, at, values);
      const auto from = next_piece(base_bytes, base_dtype, at, others);
      for (size_t i = 0; i < x.size(); ++i) {
        const float value = delta ? from[i] + x[i] : x[i];
        const bool is_in_range =
            delta ? x[i] == 0.0f || std::abs(value) < largest : std::abs(value) <= largest;
        if (is_in_range) continue;
        char numbers[120];
        std::snprintf(numbers, sizeof numbers, "%.9g, out of the range of %s (up to %.9g)",
                      static_cast<double>(value), std::string(to_string(base_dtype)).c_str(),
                      static_cast<double>(largest));
        throw Error(ErrorKind::kRejected,
                    name + ": tensor '" + spec.name + "' " + checkpoint::format_shape(spec.shape) +
                        ", element " + std::to_string(block.begin + at + i) + " becomes " +
                        numbers +
                        ", the type of the published model: the training has diverged, or this is "
                        "not an update of this model");
      }
    }
  });
}

}  // namespace

double check_update(const std::filesystem::path& update, const std::filesystem::path& base,
                    bool delta, const ChangeLimit& limit, const checkpoint::Hashes& update_hashes,
                    const checkpoint::Hashes& base_hashes) {
  const checkpoint::ModelFolder found(update, update_hashes);
  const checkpoint::ModelFolder expected(base, base_hashes);
  const std::string name = update.string();
  check_same_schema(found.tensors(), expected.tensors(), /*any_float=*/true, name);
  require_float(found.tensors(), name);
  std::atomic<bool> changed = false;
  const bool measures = limit.norm > 0;
  std::atomic<double> squares = 0;
  for_each_block(BlockList(found.tensors()), [&](const Block& block) {
    const TensorSpec& spec = found.tensors()[block.tensor_index];
    const auto bytes = block_bytes(found.data(spec.name), spec.dtype, block);
    found.verify(bytes);
    const PageWindow window(bytes);
    require_finite(bytes, spec, block.begin, name);
    if (measures && delta) squares += sum_of_squares(bytes, spec.dtype);
    if (changed.load(std::memory_order_relaxed) && (delta || !measures)) return;
    if (delta) {
      if (!all_zero(bytes, spec.dtype)) changed = true;
      return;
    }
    const Dtype base_dtype = expected.spec(spec.name).dtype;
    const auto base_bytes = block_bytes(expected.data(spec.name), base_dtype, block);
    expected.verify(base_bytes);
    const PageWindow base_window(base_bytes);
    if (measures) squares += sum_of_squares(bytes, spec.dtype, base_bytes, base_dtype);
    if (!same_values(bytes, spec.dtype, base_bytes, base_dtype)) changed = true;
  });
  if (!changed)
    throw Error(ErrorKind::kRejected, name +
                                          (delta ? ": every element of the update is zero"
                                                 : ": the update equals the input model") +
                                          "; the facility has not trained (check its job's log)");
  const double norm = std::sqrt(squares);
  if (measures) require_norm(norm, limit.norm, name);
  // A smaller change leaves enough of the model.
  if (measures && limit.base_norm > 0 && norm >= (1 - kMinRemaining) * limit.base_norm)
    require_remaining(found, expected, delta, name);
  if (!measures || limit.base_norm == 0 || !norms_are_in_range(limit.base_norm, norm, expected))
    require_in_range(found, expected, delta, name);
  return norm;
}

double l2_norm(const std::filesystem::path& folder, const checkpoint::Hashes& hashes) {
  const checkpoint::ModelFolder model(folder, hashes);
  require_float(model.tensors(), folder.string());
  std::atomic<double> squares = 0;
  for_each_block(BlockList(model.tensors()), [&](const Block& block) {
    const TensorSpec& spec = model.tensors()[block.tensor_index];
    const auto bytes = block_bytes(model.data(spec.name), spec.dtype, block);
    model.verify(bytes);
    const PageWindow window(bytes);
    squares += sum_of_squares(bytes, spec.dtype);
  });
  return std::sqrt(squares);
}

}  // namespace xffl::aggregate
