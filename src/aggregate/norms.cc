#include "norms.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "mean_kernels.h"
#include "page_window.h"
#include "pipeline.h"
#include "sources.h"
#include "xffl/aggregate/aggregate.h"

namespace xffl::aggregate {

using checkpoint::Dtype;

namespace {

// Independent sums, one per lane of a vector register.
constexpr size_t kLanes = 32;

double squares_of(std::span<const float> x) {
  std::array<float, kLanes> sums{};
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += x[i + lane] * x[i + lane];
  double sum = 0;
  for (; i < x.size(); ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (const float lane : sums) sum += static_cast<double>(lane);
  return sum;
}

}  // namespace

double sum_of_squares(std::span<const std::byte> bytes, Dtype dtype) {
  std::array<float, kMaxPiece> values;
  const size_t size = size_bytes(dtype);
  double sum = 0;
  for (size_t at = 0; at < bytes.size(); at += kMaxPiece * size) {
    const auto piece = bytes.subspan(at, std::min(kMaxPiece * size, bytes.size() - at));
    const std::span<float> x(values.data(), piece.size() / size);
    to_float(piece, dtype, x);
    sum += squares_of(x);
  }
  return sum;
}

double sum_of_squared_differences(std::span<const std::byte> bytes, Dtype dtype,
                                  std::span<const std::byte> from, Dtype from_dtype) {
  std::array<float, kMaxPiece> values, others;
  const size_t size = size_bytes(dtype), from_size = size_bytes(from_dtype);
  const size_t count = bytes.size() / size;
  double sum = 0;
  for (size_t at = 0; at < count; at += kMaxPiece) {
    const size_t n = std::min(kMaxPiece, count - at);
    to_float(bytes.subspan(at * size, n * size), dtype, std::span(values.data(), n));
    to_float(from.subspan(at * from_size, n * from_size), from_dtype, std::span(others.data(), n));
    for (size_t i = 0; i < n; ++i) values[i] -= others[i];
    sum += squares_of(std::span<const float>(values.data(), n));
  }
  return sum;
}

double l2_norm(const std::filesystem::path& folder) {
  const checkpoint::ModelFolder model(folder);
  require_float(model.tensors(), folder.string());
  SharedSum squares;
  for_each_block(BlockList(model.tensors()), thread_count(0), [&](const Block& block) {
    const checkpoint::TensorSpec& spec = model.tensors()[block.tensor_index];
    const auto bytes = block_bytes(model.data(spec.name), spec.dtype, block);
    const PageWindow window(bytes);
    squares.add(sum_of_squares(bytes, spec.dtype));
  });
  return std::sqrt(squares.sum());
}

}  // namespace xffl::aggregate
