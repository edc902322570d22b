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
  uint64_t offset = 0;  // of the block in the packed file
  std::vector<std::byte> packed, reference, raw;
};

FileHeader read_header(const InputFile& input) {
  std::vector<std::byte> bytes(std::min<uint64_t>(kFileHeaderBytes, input.size_bytes()));
  input.read(0, bytes);
  return parse_header(bytes, input.path());
}

// Checks that the packed file belongs to this raw file and this reference.
void check_header(const FileHeader& header, const fs::path& path,
                  const checkpoint::ManifestFile& raw, const std::optional<Reference>& reference) {
  const auto check = [&](const std::string& field, const std::string& found,
                         const std::string& expected) {
    if (found == expected) return;
    throw Error(ErrorKind::kRejected, path.string() + ": its " + field + " is " +
                                          (found.empty() ? "none" : found) + ", expected " +
                                          (expected.empty() ? "none" : expected));
  };
  check("raw SHA-256", header.raw_sha256, raw.sha256);
  check("raw size in bytes", std::to_string(header.raw_bytes), std::to_string(raw.size_bytes));
  check("reference SHA-256", header.reference_sha256, reference ? reference->sha256 : "");
}

// Reads the blocks in order and adds file, block and offset to errors.
class BlockReader {
 public:
  BlockReader(const InputFile& input, const FileHeader& header)
      : input_(input), header_(header), offset_(kFileHeaderBytes) {}

  /// Reads the next block, whose index is `block`.
  void read_next(uint64_t block, Slot& slot) {
    slot.offset = offset_;
    with_position(block, offset_, [&] {
      slot.packed.resize(kBlockHeaderBytes);
      require(kBlockHeaderBytes);
      input_.read(offset_, slot.packed);
      const size_t body = body_bytes(slot.packed, header_.bytes_of(block));
      require(kBlockHeaderBytes + body);
      slot.packed.resize(kBlockHeaderBytes + body);
      input_.read(offset_ + kBlockHeaderBytes, std::span(slot.packed).subspan(kBlockHeaderBytes));
    });
    offset_ += slot.packed.size();
  }

  void require_end() const {
    if (offset_ != input_.size_bytes())
      throw Error(ErrorKind::kCorrupt, input_.path().string() + ": " +
                                           std::to_string(input_.size_bytes() - offset_) +
                                           " bytes follow the last block, which ends at offset " +
                                           std::to_string(offset_));
  }

  template <class Body>
  void with_position(uint64_t block, uint64_t offset, Body body) const {
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
  void require(size_t bytes) const {
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
    throw Error(ErrorKind::kCorrupt, other->path().string() + ": damaged reference: found " +
                                         std::to_string(other->size_bytes()) + " bytes, expected " +
                                         std::to_string(header.raw_bytes));
  OutputFile output(out);
  checkpoint::FileHash hash;
  BlockReader reader(input, header);
  std::vector<Slot> slots(static_cast<size_t>(2 * threads + 1));
  std::vector<BlockCodec> codecs(static_cast<size_t>(threads));
  run_in_order(
      header.num_blocks(), slots, threads,
      [&](size_t block, Slot& slot) { reader.read_next(block, slot); },
      [&](size_t block, Slot& slot, int thread) {
        slot.raw.resize(header.bytes_of(block));
        if (other) {
          slot.reference.resize(slot.raw.size());
          other->read(block * header.block_bytes, slot.reference);
        }
        reader.with_position(block, slot.offset, [&] {
          codecs[static_cast<size_t>(thread)].decode(slot.packed, slot.reference, slot.raw);
        });
        output.write(block * header.block_bytes, slot.raw);
      },
      [&](size_t, const Slot& slot) { hash.update(slot.raw); });
  reader.require_end();
  checkpoint::ManifestFile made = hash.finish(out.filename().string());
  if (made.sha256 != raw.sha256)
    throw Error(ErrorKind::kCorrupt,
                packed.string() + ": the unpacked file has SHA-256 " + made.sha256 + ", expected " +
                    raw.sha256 + ": the packed file" +
                    (reference ? " or the reference " + reference->path.string() : "") +
                    " is damaged");
  output.keep();
  return made;
}

}  // namespace xffl::pack
