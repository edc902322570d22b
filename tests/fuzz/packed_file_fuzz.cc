// A packed file: decoding it leaves the expected file or none, and packing any bytes is lossless.
#include <algorithm>
#include <cstring>

#include "fuzz.h"
#include "xffl/base/sha256.h"
#include "xffl/pack/pack.h"

using namespace xffl;
using checkpoint::ManifestFile;
using pack::Reference;

namespace {

constexpr size_t kHeaderBytes = 88;
constexpr uint64_t kMaxRawBytes = 64u << 10;
constexpr int kThreads = 1;

struct Paths {
  fuzz::Folder folder;
  std::filesystem::path packed = folder / "a.xpk", raw = folder / "a", reference = folder / "b",
                        out = folder / "out";
};

// The bytes of a reference file: neither constant nor equal to an input.
std::string reference_bytes(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 + (i >> 8));
  return bytes;
}

std::string hex_of(std::string_view bytes) { return to_hex(std::as_bytes(std::span(bytes))); }

// Decodes the input as the packed form of the file that its own header names, so that the decoder
// reaches the blocks.
void decode_as_claimed(const Paths& paths, std::string_view input) {
  if (input.size() < kHeaderBytes) input = {};
  ManifestFile raw{"a", 0, std::string(64, '0')};
  std::optional<Reference> reference;
  if (!input.empty()) {
    std::memcpy(&raw.size_bytes, input.data() + 16, 8);
    raw.sha256 = hex_of(input.substr(24, 32));
    const std::string claimed = hex_of(input.substr(56, 32));
    if (claimed != std::string(64, '0')) {
      reference = Reference{paths.reference, claimed};
      fuzz::write_bytes(paths.reference, reference_bytes(std::min(raw.size_bytes, kMaxRawBytes)));
    }
  }
  const auto made = fuzz::accepted(
      [&] { return pack::decode(paths.packed, raw, reference, paths.out, kThreads); });
  fuzz::expect(std::filesystem::exists(paths.out) == made.has_value(), "an error leaves no file");
  if (!made) return;
  fuzz::expect(made->sha256 == raw.sha256 && sha256_file(paths.out) == raw.sha256,
               "an unpacked file has the expected hash");
  fuzz::expect(std::filesystem::file_size(paths.out) == raw.size_bytes, "and the expected size");
  std::filesystem::remove(paths.out);
}

void pack_and_unpack(const Paths& paths, std::string_view input) {
  const bool against = input.size() % 2 == 0;
  fuzz::write_bytes(paths.raw, input);
  const ManifestFile raw{"a", input.size(), sha256_hex(input)};
  std::optional<Reference> reference;
  if (against) {
    const std::string bytes = reference_bytes(input.size());
    fuzz::write_bytes(paths.reference, bytes);
    reference = Reference{paths.reference, sha256_hex(bytes)};
  }
  const auto packed = pack::encode(paths.raw, raw, reference, paths.packed, UINT64_MAX, kThreads);
  fuzz::expect(packed && packed->sha256 == sha256_file(paths.packed), "any file is packed");
  pack::decode(paths.packed, raw, reference, paths.out, kThreads);
  fuzz::expect(read_file(paths.out, kMaxRawBytes * 32) == input, "packing is lossless");
  std::filesystem::remove(paths.out);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Paths paths;
  const std::string_view input = fuzz::text_of(data, size);
  uint64_t claimed_bytes = 0;
  if (size >= kHeaderBytes) std::memcpy(&claimed_bytes, data + 16, 8);
  fuzz::write_bytes(paths.packed, input);
  // A larger claim needs a file of that size, because constant planes take a few bytes a block.
  if (claimed_bytes <= kMaxRawBytes || claimed_bytes >= uint64_t{1} << 40)
    decode_as_claimed(paths, input);
  pack_and_unpack(paths, input);
  return 0;
}
