#include "wire.h"

#include <array>

#include "xffl/base/error.h"
#include "xffl/base/sha256.h"

namespace xffl::remote {
namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string_view WireReader::take(size_t count) {
  if (count > rest_.size())
    throw Error(ErrorKind::kCorrupt, std::string(origin_) + ": " + std::to_string(count) +
                                         " bytes expected, " + std::to_string(rest_.size()) +
                                         " left");
  const std::string_view taken = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return taken;
}

uint8_t WireReader::u8() { return static_cast<uint8_t>(take(1)[0]); }

uint32_t WireReader::u32() {
  uint32_t value = 0;
  for (const char c : take(4)) value = value << 8 | static_cast<uint8_t>(c);
  return value;
}

uint64_t WireReader::u64() {
  const uint64_t high = u32();
  return high << 32 | u32();
}

std::string_view WireReader::string() { return take(u32()); }

WireWriter& WireWriter::u8(uint8_t value) {
  bytes_ += static_cast<char>(value);
  return *this;
}

WireWriter& WireWriter::u32(uint32_t value) {
  for (const int shift : {24, 16, 8, 0}) bytes_ += static_cast<char>(value >> shift & 0xff);
  return *this;
}

WireWriter& WireWriter::u64(uint64_t value) {
  return u32(static_cast<uint32_t>(value >> 32)).u32(static_cast<uint32_t>(value));
}

WireWriter& WireWriter::string(std::string_view text) {
  u32(static_cast<uint32_t>(text.size()));
  bytes_ += text;
  return *this;
}

std::string base64_encode(std::string_view bytes, bool padding) {
  std::string text;
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : bytes) {
    bits = bits << 8 | static_cast<uint8_t>(c);
    for (num_bits += 8; num_bits >= 6; num_bits -= 6)
      text += kAlphabet[bits >> (num_bits - 6) & 63];
  }
  if (num_bits > 0) text += kAlphabet[bits << (6 - num_bits) & 63];
  while (padding && text.size() % 4 != 0) text += '=';
  return text;
}

std::optional<std::string> base64_decode(std::string_view text) {
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  std::string bytes;
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    const size_t digit = kAlphabet.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      bytes += static_cast<char>(bits >> num_bits & 0xff);
    }
  }
  if (num_bits >= 6) return std::nullopt;
  return bytes;
}

std::string PublicKey::line() const { return type + " " + base64_encode(blob); }

std::optional<PublicKey> parse_public_key(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  PublicKey key{std::string(line.substr(0, space)), {}};
  line.remove_prefix(space + 1);
  const auto blob = base64_decode(line.substr(0, line.find_first_of(" \r\n")));
  if (!blob) return std::nullopt;
  try {
    if (WireReader(*blob, "public key").string() != key.type) return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
  key.blob = *blob;
  return key;
}

std::string key_fingerprint(std::string_view blob) {
  const std::string hex = sha256_hex(blob);
  std::string digest;
  for (size_t i = 0; i < hex.size(); i += 2)
    digest += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return "SHA256:" + base64_encode(digest, false);
}

}  // namespace xffl::remote
