#include "event_file.h"

#include <array>
#include <bit>
#include <cmath>

namespace xffl::exports {
namespace {

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
    table[i] = crc;
  }
  return table;
}();

template <class Number>
std::string little_endian(Number value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(value); ++i)
    bytes += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xff);
  return bytes;
}

// A message of Protocol Buffers; the fields in the order of the calls.
class Message {
 public:
  Message& integer(int field, uint64_t value) {
    key(field, 0);
    varint(value);
    return *this;
  }
  Message& fixed64(int field, double value) {
    key(field, 1);
    bytes_ += little_endian(std::bit_cast<uint64_t>(value));
    return *this;
  }
  Message& fixed32(int field, float value) {
    key(field, 5);
    bytes_ += little_endian(std::bit_cast<uint32_t>(value));
    return *this;
  }
  Message& bytes(int field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return bytes(field, value.bytes_); }
  const std::string& text() const { return bytes_; }

 private:
  void key(int field, int wire_type) {
    varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire_type));
  }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// Field numbers of event.proto, summary.proto, tensor.proto and tensor_shape.proto.
constexpr int kEventTime = 1, kEventStep = 2, kEventVersion = 3, kEventSummary = 5;
constexpr int kSummaryValue = 1;
constexpr int kValueTag = 1, kValueSimple = 2, kValueTensor = 8, kValueMetadata = 9;
constexpr int kMetadataPlugin = 1, kMetadataDataClass = 4, kPluginName = 1;
constexpr int kTensorType = 1, kTensorShape = 2, kTensorStrings = 8, kShapeDim = 2, kDimSize = 1;
constexpr uint64_t kDataClassTensor = 2, kTypeString = 7;

std::string event_record(double time, int64_t step, const Message& summary) {
  Message event;
  event.fixed64(kEventTime, time).integer(kEventStep, static_cast<uint64_t>(step));
  return framed(event.message(kEventSummary, summary).text());
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8u;
}

std::string framed(std::string_view data) {
  const std::string length = little_endian(uint64_t{data.size()});
  std::string record = length + little_endian(masked_crc32c(length));
  record += data;
  return record + little_endian(masked_crc32c(data));
}

std::string version_record(double time) {
  return framed(Message().fixed64(kEventTime, time).bytes(kEventVersion, "brain.Event:2").text());
}

std::string scalars_record(double time, int64_t step, const std::vector<Scalar>& scalars) {
  Message summary;
  for (const Scalar& scalar : scalars) {
    const auto value = static_cast<float>(scalar.value);
    if (!std::isfinite(value)) continue;
    summary.message(kSummaryValue,
                    Message().bytes(kValueTag, scalar.tag).fixed32(kValueSimple, value));
  }
  return summary.text().empty() ? "" : event_record(time, step, summary);
}

std::string text_record(double time, std::string_view tag, std::string_view markdown) {
  const Message plugin = Message().bytes(kPluginName, "text");
  const Message metadata =
      Message().message(kMetadataPlugin, plugin).integer(kMetadataDataClass, kDataClassTensor);
  const Message shape = Message().message(kShapeDim, Message().integer(kDimSize, 1));
  const Message tensor = Message()
                             .integer(kTensorType, kTypeString)
                             .message(kTensorShape, shape)
                             .bytes(kTensorStrings, markdown);
  Message value;
  value.bytes(kValueTag, tag).message(kValueTensor, tensor).message(kValueMetadata, metadata);
  return event_record(time, 0, Message().message(kSummaryValue, value));
}

}  // namespace xffl::exports
