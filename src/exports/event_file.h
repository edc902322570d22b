// TensorBoard's event files: TFRecords that hold the Protocol Buffers message Event.
//
// A record is its length (8 bytes, little-endian), the masked CRC of the length, the data, and the
// masked CRC of the data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace xffl::exports {

/// CRC-32C (Castagnoli). Source: RFC 3720, appendix B.4.
uint32_t crc32c(std::string_view bytes);
/// Source: tensorflow/core/lib/hash/crc32c.h, Mask().
uint32_t masked_crc32c(std::string_view bytes);

std::string framed(std::string_view data);

struct Scalar {
  std::string tag;
  double value = 0;
};

// The records of a file. Times are seconds since 1970.

/// The first record of every file.
std::string version_record(double time);
/// Values that have no float32 are left out: a reader would draw them at a wrong place. Empty
/// without values.
std::string scalars_record(double time, int64_t step, const std::vector<Scalar>& scalars);
/// `markdown` is shown on TensorBoard's tab "Text".
std::string text_record(double time, std::string_view tag, std::string_view markdown);

}  // namespace xffl::exports
