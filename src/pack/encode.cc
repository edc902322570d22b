#include <algorithm>
#include <cstring>

#include "block_codec.h"
#include "in_order.h"
#include "input_file.h"
#include "packed_file.h"
#include "xffl/base/error.h"
#include "xffl/pack/pack.h"

namespace xffl::pack {

namespace fs = std::filesystem;

namespace {

struct Slot {
  std::vector<std::byte> raw, reference, packed;
};

struct TooLarge {};

std::optional<InputFile> open_reference(const std::optional<Reference>& reference,
                                        const InputFile& input) {
  if (!reference) return std::nullopt;
  InputFile opened(reference->path);
  if (opened.size_bytes() != input.size_bytes())
    throw Error(ErrorKind::kRejected, opened.path().string() + " has " +
                                          std::to_string(opened.size_bytes()) + " bytes and " +
                                          input.path().string() + " " +
                                          std::to_string(input.size_bytes()) +
                                          ": file and reference must have the same size");
  return opened;
}

}  // namespace

std::optional<checkpoint::ManifestFile> encode(const fs::path& file,
                                               const checkpoint::ManifestFile& raw,
                                               const std::optional<Reference>& reference,
                                               const fs::path& out, uint64_t max_bytes, int threads,
                                               std::stop_token stop) {
  const InputFile input(file);
  const std::optional<InputFile> other = open_reference(reference, input);
  const FileHeader header{kBlockBytes, input.size_bytes(), raw.sha256,
                          reference ? reference->sha256 : ""};
  OutputFile output(out);
  Sha256 raw_hash;
  checkpoint::FileHash packed_hash;
  uint64_t written = 0;
  const auto append = [&](std::span<const std::byte> bytes) {
    output.write(written, bytes);
    packed_hash.update(bytes);
    written += bytes.size();
  };
  append(format_header(header));
  std::vector<Slot> slots(static_cast<size_t>(2 * threads + 1));
  std::vector<BlockCodec> codecs(static_cast<size_t>(threads));
  bool too_large = written > max_bytes;
  const size_t count = too_large ? 0 : header.num_blocks();
  try {
    run_in_order(
        count, slots, threads, [](size_t, Slot&) {},
        [&](size_t block, Slot& slot, int thread) {
          slot.raw.resize(header.bytes_of(block));
          input.read(block * kBlockBytes, slot.raw);
          if (other) {
            slot.reference.resize(slot.raw.size());
            other->read(block * kBlockBytes, slot.reference);
          }
          codecs[static_cast<size_t>(thread)].encode(slot.raw, slot.reference, slot.packed);
        },
        [&](size_t, const Slot& slot) {
          raw_hash.update(slot.raw);
          append(slot.packed);
          if (stop.stop_requested())
            throw Error(ErrorKind::kCancelled, "packing " + file.string() + ": stopped on request");
          if (written > max_bytes) throw TooLarge();
        });
  } catch (const TooLarge&) {
    too_large = true;
  }
  if (too_large) return std::nullopt;
  if (const std::string found = raw_hash.hex();
      found != raw.sha256 || header.raw_bytes != raw.size_bytes)
    throw Error(ErrorKind::kRejected, file.string() + ": expected " +
                                          std::to_string(raw.size_bytes) + " bytes with SHA-256 " +
                                          raw.sha256 + ", found " +
                                          std::to_string(header.raw_bytes) + " with " + found);
  output.keep();
  return packed_hash.finish(out.filename().string());
}

}  // namespace xffl::pack
