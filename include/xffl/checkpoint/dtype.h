// Element types of tensors in files, and conversion between the floating-point types.
//
// float32 -> bf16/fp16 rounds to nearest, ties to even. A NaN becomes a quiet NaN, and an overflow
// becomes infinity; the conversion keeps fp16 subnormals. bf16/fp16 -> float32 is exact. PyTorch
// converts the same way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace xffl::checkpoint {

enum class Dtype { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

size_t size_bytes(Dtype dtype);
/// safetensors' names: "F32", "BF16", ...
std::string_view to_string(Dtype dtype);
std::optional<Dtype> parse_dtype(std::string_view name);

/// Converts to float32. `to` has from.size() / size_bytes(dtype) elements. `dtype` is kF32, kF16 or
/// kBF16. `from` may be unaligned.
void to_float(std::span<const std::byte> from, Dtype dtype, std::span<float> to);
/// Converts from float32. `to` has from.size() * size_bytes(dtype) bytes.
void from_float(std::span<const float> from, Dtype dtype, std::span<std::byte> to);

/// The index of the first NaN or infinity in a floating-point tensor; integers are always finite.
std::optional<size_t> first_non_finite(std::span<const std::byte> bytes, Dtype dtype);

}  // namespace xffl::checkpoint
