#include "packed_file.h"

#include <cstring>

#include "xffl/base/error.h"

namespace xffl::pack {
namespace {

constexpr char kMagic[9] = "XFFLPACK";
constexpr uint32_t kVersion = 1;
constexpr size_t kShaBytes = 32;
constexpr uint64_t kMaxRawBytes = 1ull << 50;  // the limit of a manifest

void put_sha(std::byte* to, const std::string& hex) {
  for (size_t i = 0; i < hex.size() / 2; ++i)
    to[i] = static_cast<std::byte>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
}

std::string sha_at(const std::byte* from) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (size_t i = 0; i < kShaBytes; ++i) {
    hex.push_back(kDigits[static_cast<uint8_t>(from[i]) >> 4]);
    hex.push_back(kDigits[static_cast<uint8_t>(from[i]) & 15]);
  }
  return hex;
}

template <class T>
T number_at(const std::byte* from) {
  T number;
  std::memcpy(&number, from, sizeof number);
  return number;
}

}  // namespace

std::array<std::byte, kFileHeaderBytes> format_header(const FileHeader& header) {
  std::array<std::byte, kFileHeaderBytes> bytes{};
  std::memcpy(bytes.data(), kMagic, 8);
  std::memcpy(bytes.data() + 8, &kVersion, 4);
  std::memcpy(bytes.data() + 12, &header.block_bytes, 4);
  std::memcpy(bytes.data() + 16, &header.raw_bytes, 8);
  put_sha(bytes.data() + 24, header.raw_sha256);
  put_sha(bytes.data() + 56, header.reference_sha256);
  return bytes;
}

FileHeader parse_header(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  const auto corrupt = [&](const std::string& problem) {
    return Error(ErrorKind::kCorrupt, path.string() + ": " + problem);
  };
  if (bytes.size() < kFileHeaderBytes)
    throw corrupt("expected a header of " + std::to_string(kFileHeaderBytes) + " bytes, found " +
                  std::to_string(bytes.size()));
  if (std::memcmp(bytes.data(), kMagic, 8) != 0)
    throw corrupt("not a packed file: it does not begin with XFFLPACK");
  if (const auto version = number_at<uint32_t>(bytes.data() + 8); version != kVersion)
    throw corrupt("format version " + std::to_string(version) + ", expected " +
                  std::to_string(kVersion) + ": install the same release of xffl at both ends");
  FileHeader header;
  header.block_bytes = number_at<uint32_t>(bytes.data() + 12);
  header.raw_bytes = number_at<uint64_t>(bytes.data() + 16);
  if (header.block_bytes < 4096 || header.block_bytes > kMaxBlockBytes ||
      header.block_bytes % 2 != 0)
    throw corrupt("has blocks of " + std::to_string(header.block_bytes) +
                  " bytes, expected an even number from 4096 to " + std::to_string(kMaxBlockBytes));
  if (header.raw_bytes >= kMaxRawBytes)
    throw corrupt("has a raw size of " + std::to_string(header.raw_bytes) +
                  " bytes, expected below 2^50");
  header.raw_sha256 = sha_at(bytes.data() + 24);
  header.reference_sha256 = sha_at(bytes.data() + 56);
  if (header.reference_sha256.find_first_not_of('0') == std::string::npos)
    header.reference_sha256.clear();
  return header;
}

}  // namespace xffl::pack
