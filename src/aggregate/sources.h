// The inputs of a mean. Sources checks all inputs against one schema, orders the inputs and reads
// piece by piece.
//
// The arithmetic of the mean is in kernels/cpu/mean.h; a piece of a tensor stays in the cache.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pipeline.h"
#include "xffl/aggregate/aggregate.h"
#include "xffl/checkpoint/model_folder.h"

namespace xffl::aggregate {

inline constexpr size_t kMaxPiece = 2048;  // elements: 16 KiB of float64

/// Calls body(offset, count) for pieces of at most kMaxPiece elements.
template <class Body>
void for_each_piece(uint64_t count, const Body& body) {
  for (uint64_t offset = 0; offset < count; offset += kMaxPiece)
    body(offset, static_cast<size_t>(std::min<uint64_t>(kMaxPiece, count - offset)));
}

/// Rounds once, to nearest with ties to even, to kF32, kF16 or kBF16; `to` may be unaligned and has
/// from.size() * size_bytes(dtype) bytes. At most kMaxPiece elements.
void round_to(std::span<const double> from, checkpoint::Dtype dtype, std::span<std::byte> to);

/// The dot product of two lists of the same length, at most kMaxPiece elements, in float32 within
/// 32 independent sums. Infinite when a product overflows float32.
double dot(std::span<const float> x, std::span<const float> y);

/// Throws kRejected unless every tensor is F32, F16 or BF16.
void require_float(const std::vector<checkpoint::TensorSpec>& tensors, const std::string& model);

/// The bytes of `block` in a tensor's `data`.
std::span<const std::byte> block_bytes(std::span<const std::byte> data, checkpoint::Dtype dtype,
                                       const Block& block);

/// Throws kRejected, with `model`, tensor, index and value, when an element is not finite.
/// `first_index` is the index of the first element of `bytes` in the tensor.
void require_finite(std::span<const std::byte> bytes, const checkpoint::TensorSpec& spec,
                    uint64_t first_index, const std::string& model);

class Sources {
 public:
  /// Opens and orders the inputs. Throws kRejected for weights, order keys and schemas that violate
  /// aggregate.h. The schema is the schema of `inputs[0]` before the ordering.
  explicit Sources(std::vector<Input> inputs);

  /// The schema, sorted by name; dtypes as in `inputs[0]`.
  const std::vector<checkpoint::TensorSpec>& tensors() const { return tensors_; }
  const checkpoint::ModelFolder& first() const { return *models_.front(); }  // by order_key

  size_t size() const { return inputs_.size(); }
  const Input& input(size_t index) const { return inputs_[index]; }  // by order_key
  double total_weight() const { return total_weight_; }

  /// Verifies the bytes of all sources that no reader has verified; no effect without hashes.
  void verify_all() const;

  /// Computes mean[i] = sum(w * x) / sum(w) over the sources, in order.
  class Reader;

 private:
  std::vector<Input> inputs_;
  std::vector<std::unique_ptr<checkpoint::ModelFolder>> models_;
  std::vector<checkpoint::TensorSpec> tensors_;
  double total_weight_ = 0;
};

/// One block of every source, resident during the reader's lifetime.
class Sources::Reader {
 public:
  Reader(const Sources& sources, const Block& block);

  /// The weighted mean of elements offset ... offset + mean.size() - 1 of the block; at most
  /// kMaxPiece. Throws kRejected for a non-finite element.
  void mean(uint64_t offset, std::span<double> mean) const;

  /// The values of input `index`, from `offset` on.
  void load(size_t index, uint64_t offset, std::span<float> values) const;

 private:
  struct Part {
    const checkpoint::TensorSpec& spec;
    std::span<const std::byte> bytes;
    std::string model_name;
    double weight;
    PageWindow window;
  };
  const Sources& sources_;
  const Block block_;
  std::vector<std::unique_ptr<Part>> parts_;
};

}  // namespace xffl::aggregate
