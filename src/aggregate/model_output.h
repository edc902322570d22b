// Shared by the functions of aggregate.h that write models: pieces of a block, checks, progress.
#pragma once

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "mean_kernels.h"
#include "output_folder.h"
#include "pipeline.h"
#include "sources.h"
#include "xffl/aggregate/aggregate.h"
#include "xffl/base/error.h"

namespace xffl::aggregate {

inline std::vector<checkpoint::TensorSpec> with_dtype(std::vector<checkpoint::TensorSpec> tensors,
                                                      checkpoint::Dtype dtype) {
  for (checkpoint::TensorSpec& spec : tensors) spec.dtype = dtype;
  return tensors;
}

inline void require_output_dtype(checkpoint::Dtype dtype) {
  using checkpoint::Dtype;
  if (dtype != Dtype::kF32 && dtype != Dtype::kF16 && dtype != Dtype::kBF16)
    throw Error(ErrorKind::kUsage,
                "models are written as F32, F16 or BF16, not " + std::string(to_string(dtype)));
}

// Calls body(offset, count) for pieces of at most kMaxPiece elements.
template <class Body>
void for_each_piece(uint64_t count, const Body& body) {
  for (uint64_t offset = 0; offset < count; offset += kMaxPiece)
    body(offset, static_cast<size_t>(std::min<uint64_t>(kMaxPiece, count - offset)));
}

inline std::span<std::byte> piece_of(Bytes& bytes, checkpoint::Dtype dtype, uint64_t offset,
                                     size_t count) {
  const size_t size = size_bytes(dtype);
  return std::span(bytes).subspan(offset * size, count * size);
}

// Rejects a mean outside the range of the output's type.
inline void require_in_range(const Bytes& bytes, checkpoint::TensorSpec spec,
                             checkpoint::Dtype dtype, const Block& block) {
  spec.dtype = dtype;
  require_finite(bytes, spec, block.begin,
                 "the result as " + std::string(to_string(dtype)) + " (out of its range)");
}

// Serialises the caller's callback over several writers.
class Progress {
 public:
  Progress(const Options& options, uint64_t total_bytes)
      : options_(options), total_bytes_(total_bytes) {}

  Write counted(OutputFolder& folder) {
    return [this, &folder](std::span<const std::byte> bytes) {
      if (options_.spare != nullptr) options_.spare->release(bytes.size());
      folder.write(bytes);
      if (!options_.on_progress) return;
      const std::lock_guard lock(mutex_);
      done_bytes_ += bytes.size();
      options_.on_progress(done_bytes_, total_bytes_);
    };
  }

 private:
  const Options& options_;
  const uint64_t total_bytes_;
  std::mutex mutex_;
  uint64_t done_bytes_ = 0;
};

}  // namespace xffl::aggregate
