#include "xffl/checkpoint/dtype.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "xffl/base/error.h"
#include "xffl/kernels/cpu/conversions.h"

namespace xffl::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors' data is little-endian");

struct DtypeInfo {
  Dtype dtype;
  std::string_view name;
  size_t size_bytes;
};

constexpr std::array<DtypeInfo, 10> kDtypes{{
    {Dtype::kF64, "F64", 8},
    {Dtype::kF32, "F32", 4},
    {Dtype::kF16, "F16", 2},
    {Dtype::kBF16, "BF16", 2},
    {Dtype::kI64, "I64", 8},
    {Dtype::kI32, "I32", 4},
    {Dtype::kI16, "I16", 2},
    {Dtype::kI8, "I8", 1},
    {Dtype::kU8, "U8", 1},
    {Dtype::kBool, "BOOL", 1},
}};

const DtypeInfo& info(Dtype dtype) {
  for (const DtypeInfo& entry : kDtypes) {
    if (entry.dtype == dtype) return entry;
  }
  throw Error(ErrorKind::kInternal, "Dtype has an unknown value");
}

const kernels::Conversions& conversions() { return kernels::all_conversions().back(); }

void check_sizes(size_t num_bytes, size_t num_floats, Dtype dtype) {
  if (num_bytes != num_floats * size_bytes(dtype)) {
    throw Error(ErrorKind::kInternal, "converting " + std::string(to_string(dtype)) + ": " +
                                          std::to_string(num_bytes) + " bytes against " +
                                          std::to_string(num_floats) + " floats");
  }
}

[[noreturn]] void throw_unsupported(Dtype dtype) {
  throw Error(ErrorKind::kUnsupported,
              "cannot convert " + std::string(to_string(dtype)) +
                  " to or from float32; supported types are F32, F16 and BF16");
}

/// Scans in blocks that fit the L1 cache, and scans only the block with a hit twice.
template <class Bits>
std::optional<size_t> scan(std::span<const std::byte> bytes, Bits exponent,
                           bool (*any_non_finite)(const std::byte*, size_t, Bits)) {
  constexpr size_t kBlock = 4096;
  const size_t n = bytes.size() / sizeof(Bits);
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t end = std::min(n, begin + kBlock);
    if (!any_non_finite(bytes.data() + begin * sizeof(Bits), end - begin, exponent)) continue;
    for (size_t i = begin; i < end; ++i) {
      Bits bits;
      std::memcpy(&bits, bytes.data() + i * sizeof bits, sizeof bits);
      if ((bits & exponent) == exponent) return i;
    }
  }
  return std::nullopt;
}

}  // namespace

size_t size_bytes(Dtype dtype) { return info(dtype).size_bytes; }
std::string_view to_string(Dtype dtype) { return info(dtype).name; }

std::optional<Dtype> parse_dtype(std::string_view name) {
  for (const DtypeInfo& entry : kDtypes) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

void to_float(std::span<const std::byte> from, Dtype dtype, std::span<float> to) {
  check_sizes(from.size(), to.size(), dtype);
  if (from.empty()) return;
  switch (dtype) {
    case Dtype::kF32:
      std::memcpy(to.data(), from.data(), from.size());
      return;
    case Dtype::kBF16:
      return conversions().bf16_to_float(from.data(), to.data(), to.size());
    case Dtype::kF16:
      return conversions().fp16_to_float(from.data(), to.data(), to.size());
    default:
      throw_unsupported(dtype);
  }
}

void from_float(std::span<const float> from, Dtype dtype, std::span<std::byte> to) {
  check_sizes(to.size(), from.size(), dtype);
  if (from.empty()) return;
  switch (dtype) {
    case Dtype::kF32:
      std::memcpy(to.data(), from.data(), to.size());
      return;
    case Dtype::kBF16:
      return conversions().float_to_bf16(from.data(), to.data(), from.size());
    case Dtype::kF16:
      return conversions().float_to_fp16(from.data(), to.data(), from.size());
    default:
      throw_unsupported(dtype);
  }
}

std::optional<size_t> first_non_finite(std::span<const std::byte> bytes, Dtype dtype) {
  switch (dtype) {
    case Dtype::kBF16:
      return scan<uint16_t>(bytes, 0x7f80, conversions().any_non_finite_16);
    case Dtype::kF16:
      return scan<uint16_t>(bytes, 0x7c00, conversions().any_non_finite_16);
    case Dtype::kF32:
      return scan<uint32_t>(bytes, 0x7f800000u, conversions().any_non_finite_32);
    case Dtype::kF64:
      return scan<uint64_t>(bytes, 0x7ff0000000000000u, conversions().any_non_finite_64);
    default:
      return std::nullopt;  // integers are finite
  }
}

}  // namespace xffl::checkpoint
