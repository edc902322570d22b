#include <algorithm>

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
  uint64_t offset = 0;  // of the block
  std::vector<std::byte> packed, reference, raw;
};

FileHeader read_header(const InputFile& input) {
  std::vector<std::byte> bytes(std::min<uint64_t>(kFileHeaderBytes, input.size_bytes()));
  input.read(0, bytes);
  return parse_header(bytes, input.path());
}

// What the packed file is of, against what is expected of it.
void check_header(const FileHeader& header, const fs::path& path,
                  const checkpoint::ManifestFile& raw, const std::optional<Reference>& reference) {
  const auto refuse = [&](const std::string& what, const std::string& found,
                          const std::string& expected) {
    throw Error(ErrorKind::kRejected, path.string() + ": is packed " + what + " " +
                                          (found.empty() ? "nothing" : found) + ", expected " +
                                          (expected.empty() ? "nothing" : expected));
  };
  if (header.raw_sha256 != raw.sha256) refuse("from", header.raw_sha256, raw.sha256);
  if (header.raw_bytes != raw.size_bytes)
    refuse("from bytes:", std::to_string(header.raw_bytes), std::to_string(raw.size_bytes));
  const std::string expected = reference ? reference->sha256 : "";
  if (header.reference_sha256 != expected) refuse("against", header.reference_sha256, expected);
}

class Decoding {
 public:
  Decoding(const InputFile& input, const FileHeader& header)
      : input_(input), header_(header), offset_(kFileHeaderBytes) {}

  /// The next block's bytes; blocks follow each other.
  void take(uint64_t block, Slot& slot) {
    slot.offset = offset_;
    at(block, offset_, [&] {
      slot.packed.resize(kBlockHeaderBytes);
      need(kBlockHeaderBytes);
      input_.read(offset_, slot.packed);
      const size_t body = body_bytes(slot.packed, header_.bytes_of(block));
      need(kBlockHeaderBytes + body);
      slot.packed.resize(kBlockHeaderBytes + body);
      input_.read(offset_ + kBlockHeaderBytes, std::span(slot.packed).subspan(kBlockHeaderBytes));
    });
    offset_ += slot.packed.size();
  }

  void finish() const {
    if (offset_ != input_.size_bytes())
      throw Error(ErrorKind::kCorrupt, input_.path().string() + ": " +
                                           std::to_string(input_.size_bytes() - offset_) +
                                           " bytes follow the last block, which ends at offset " +
                                           std::to_string(offset_));
  }

  template <class Body>
  void at(uint64_t block, uint64_t offset, Body body) const {
    try {
      body();
    } catch (Error& error) {
      if (error.kind() == ErrorKind::kCorrupt)
        error.add_context(input_.path().string() + ", block " + std::to_string(block) +
                          " at offset " + std::to_string(offset));
      throw;
    }
  }

 private:
  void need(size_t bytes) const {
    const uint64_t left = input_.size_bytes() - offset_;
    if (left < bytes)
      throw Error(ErrorKind::kCorrupt,
                  "the file ends " + std::to_string(bytes - left) + " bytes too early");
  }

  const InputFile& input_;
  const FileHeader& header_;
  uint64_t offset_;
};

}  // namespace

checkpoint::ManifestFile decode(const fs::path& packed, const checkpoint::ManifestFile& raw,
                                const std::optional<Reference>& reference, const fs::path& out,
                                int threads) {
  const InputFile input(packed);
  const FileHeader header = read_header(input);
  check_header(header, packed, raw, reference);
  std::optional<InputFile> other;
  if (reference) other.emplace(reference->path);
  if (other && other->size_bytes() != header.raw_bytes)
    throw Error(ErrorKind::kCorrupt, other->path().string() + ": is damaged: it has " +
                                         std::to_string(other->size_bytes()) + " bytes, expected " +
                                         std::to_string(header.raw_bytes));
  OutputFile output(out);
  checkpoint::FileHash hash;
  Decoding decoding(input, header);
  std::vector<Slot> slots(static_cast<size_t>(2 * threads + 1));
  std::vector<BlockCodec> codecs(static_cast<size_t>(threads));
  run_in_order(
      header.num_blocks(), slots, threads,
      [&](size_t block, Slot& slot) { decoding.take(block, slot); },
      [&](size_t block, Slot& slot, int thread) {
        slot.raw.resize(header.bytes_of(block));
        if (other) {
          slot.reference.resize(slot.raw.size());
          other->read(block * header.block_bytes, slot.reference);
        }
        decoding.at(block, slot.offset, [&] {
          codecs[static_cast<size_t>(thread)].decode(slot.packed, slot.reference, slot.raw);
        });
        output.write(block * header.block_bytes, slot.raw);
      },
      [&](size_t, const Slot& slot) { hash.update(slot.raw); });
  decoding.finish();
  checkpoint::ManifestFile made = hash.finish(out.filename().string());
  if (made.sha256 != raw.sha256)
    throw Error(ErrorKind::kCorrupt,
                packed.string() + ": unpacked, it has SHA-256 " + made.sha256 + ", expected " +
                    raw.sha256 + ": it is damaged" +
                    (reference ? ", or its reference " + reference->path.string() + " is" : ""));
  output.keep();
  return made;
}

}  // namespace xffl::pack
