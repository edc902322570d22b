#include "xffl/pack/pack.h"

#include <fcntl.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "in_order.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"
#include "xffl/kernels/cpu/byte_planes.h"

namespace xffl::pack {

namespace fs = std::filesystem;

namespace {

// The header of a packed file, and the raw sizes of its blocks.
constexpr size_t kFileHeaderBytes = 88;
constexpr uint32_t kMaxBlockBytes = 4u << 20;

struct FileHeader {
  uint32_t block_bytes = 0;
  uint64_t raw_bytes = 0;
  std::string raw_sha256;
  std::string reference_sha256;  // empty: packed without a reference

  uint64_t num_blocks() const { return (raw_bytes + block_bytes - 1) / block_bytes; }
  /// The number of raw bytes of a block.
  size_t bytes_of(uint64_t block) const {
    const uint64_t left = raw_bytes - block * block_bytes;
    return static_cast<size_t>(left < block_bytes ? left : block_bytes);
  }
};

constexpr char kMagic[9] = "XFFLPACK";
constexpr uint32_t kVersion = 1;
constexpr size_t kShaBytes = 32;
constexpr uint64_t kMaxRawBytes = 1ull << 50;  // the limit of a manifest

void put_sha(std::byte* to, const std::string& hex) {
  for (size_t i = 0; i < hex.size() / 2; ++i)
    to[i] = static_cast<std::byte>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
}

std::string sha_at(const std::byte* from) { return to_hex({from, kShaBytes}); }

template <class T>
T number_at(const std::byte* from) {
  T number;
  std::memcpy(&number, from, sizeof number);
  return number;
}

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

// Throws kCorrupt, naming `path`, also when `bytes` is shorter than a header.
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

// The codec for one block of a packed file.
//
// A block of n raw bytes consists of two 32-bit little-endian header words (low plane, high plane),
// the two stored planes (n / 2 bytes each before compression), and the last byte of an odd n. The
// upper two bits of a header word give the plane's method (0: stored, 1: zstd, 2: one byte that all
// bytes of the plane equal); the other bits give the plane's stored size.

constexpr int kLevel = 1;  // higher levels gain nothing on these planes
enum Method : uint32_t { kStored = 0, kZstd = 1, kConstant = 2 };
constexpr uint32_t kSizeMask = (1u << 30) - 1;

// The caller adds file and offset to the message.
[[noreturn]] void corrupt(const std::string& problem) { throw Error(ErrorKind::kCorrupt, problem); }

struct Plane {
  Method method;
  size_t bytes;
};

Plane plane_of(const std::byte* header, size_t num_words) {
  uint32_t word;
  std::memcpy(&word, header, sizeof word);
  const uint32_t method = word >> 30;
  const size_t bytes = word & kSizeMask;
  const bool valid = (method == kStored && bytes == num_words) ||
                     (method == kZstd && bytes < num_words && bytes > 0) ||
                     (method == kConstant && bytes == 1 && num_words > 0);
  if (!valid)
    corrupt("a plane of " + std::to_string(num_words) + " bytes cannot be stored by method " +
            std::to_string(method) + " in " + std::to_string(bytes) + " bytes");
  return {static_cast<Method>(method), bytes};
}

constexpr size_t kBlockHeaderBytes = 8;

// The number of bytes after the block's header (kBlockHeaderBytes). Throws kCorrupt for a header
// that no block of `raw_bytes` has.
size_t body_bytes(std::span<const std::byte> header, size_t raw_bytes) {
  const size_t num_words = raw_bytes / 2;
  return plane_of(header.data(), num_words).bytes + plane_of(header.data() + 4, num_words).bytes +
         raw_bytes % 2;
}

// Encodes and decodes single blocks. Not thread-safe: a codec owns buffers and zstd contexts.
class BlockCodec {
 public:
  /// Encodes `raw` into `out`; `reference` has the size of `raw` or is empty.
  void encode(std::span<const std::byte> raw, std::span<const std::byte> reference,
              std::vector<std::byte>& out);
  /// Decodes a block (header and body) into `raw`. Throws kCorrupt.
  void decode(std::span<const std::byte> block, std::span<const std::byte> reference,
              std::span<std::byte> raw);

 private:
  void resize(size_t num_words) {
    low_.resize(num_words);
    high_.resize(num_words);
  }

  /// Appends the plane to `out`; returns its word in the block's header.
  uint32_t put(const std::vector<std::byte>& plane, std::vector<std::byte>& out) {
    const auto word = [](Method method, size_t bytes) {
      return static_cast<uint32_t>(method) << 30 | static_cast<uint32_t>(bytes);
    };
    if (plane.empty()) return word(kStored, 0);
    if (std::memcmp(plane.data(), plane.data() + 1, plane.size() - 1) == 0) {
      out.push_back(plane.front());
      return word(kConstant, 1);
    }
    if (!compress_) compress_.reset(ZSTD_createCCtx());
    if (!compress_) throw std::bad_alloc();
    const size_t begin = out.size();
    out.resize(begin + plane.size());
    // The output buffer is one byte smaller than the plane: zstd fails unless the plane shrinks.
    const size_t bytes = ZSTD_compressCCtx(compress_.get(), out.data() + begin, plane.size() - 1,
                                           plane.data(), plane.size(), kLevel);
    if (!ZSTD_isError(bytes)) {
      out.resize(begin + bytes);
      return word(kZstd, bytes);
    }
    std::copy(plane.begin(), plane.end(), out.begin() + static_cast<std::ptrdiff_t>(begin));
    return word(kStored, plane.size());
  }

  /// The plane's bytes: `from` for a stored plane, else decoded into `buffer`.
  const std::byte* get(const Plane& plane, const std::byte* from, std::vector<std::byte>& buffer) {
    if (plane.method == kStored) return from;
    if (plane.method == kConstant) {
      std::fill(buffer.begin(), buffer.end(), *from);
      return buffer.data();
    }
    if (!decompress_) decompress_.reset(ZSTD_createDCtx());
    if (!decompress_) throw std::bad_alloc();
    const size_t bytes =
        ZSTD_decompressDCtx(decompress_.get(), buffer.data(), buffer.size(), from, plane.bytes);
    if (ZSTD_isError(bytes))
      corrupt(std::string("zstd cannot read a plane: ") + ZSTD_getErrorName(bytes));
    if (bytes != buffer.size())
      corrupt("a plane has " + std::to_string(bytes) + " bytes, expected " +
              std::to_string(buffer.size()));
    return buffer.data();
  }

  std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> compress_{nullptr, ZSTD_freeCCtx};
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> decompress_{nullptr, ZSTD_freeDCtx};
  std::vector<std::byte> low_, high_;
};

void BlockCodec::encode(std::span<const std::byte> raw, std::span<const std::byte> reference,
                        std::vector<std::byte>& out) {
  const size_t num_words = raw.size() / 2;
  resize(num_words);
  if (reference.empty())
    kernels::split_words(raw.data(), low_.data(), high_.data(), num_words);
  else
    kernels::split_difference(raw.data(), reference.data(), low_.data(), high_.data(), num_words);
  out.resize(kBlockHeaderBytes);
  const uint32_t words[2] = {put(low_, out), put(high_, out)};
  std::memcpy(out.data(), words, sizeof words);
  if (raw.size() % 2 != 0) out.push_back(raw.back());
}

void BlockCodec::decode(std::span<const std::byte> block, std::span<const std::byte> reference,
                        std::span<std::byte> raw) {
  const size_t num_words = raw.size() / 2;
  if (block.size() < kBlockHeaderBytes ||
      block.size() - kBlockHeaderBytes != body_bytes(block, raw.size()))
    corrupt("a block has " + std::to_string(block.size()) +
            " bytes, which contradicts the sizes in its header");
  const Plane low_plane = plane_of(block.data(), num_words);
  const Plane high_plane = plane_of(block.data() + 4, num_words);
  const std::byte* body = block.data() + kBlockHeaderBytes;
  resize(num_words);
  const std::byte* low = get(low_plane, body, low_);
  const std::byte* high = get(high_plane, body + low_plane.bytes, high_);
  if (reference.empty())
    kernels::join_words(low, high, raw.data(), num_words);
  else
    kernels::join_difference(low, high, reference.data(), raw.data(), num_words);
  if (raw.size() % 2 != 0) raw.back() = block.back();
}

// A regular file, which must keep its size while open. Several threads may read the file.
class InputFile {
 public:
  explicit InputFile(fs::path path) : path_(std::move(path)), file_(open_regular(path_)) {}

  uint64_t size_bytes() const { return file_.size_bytes; }
  const fs::path& path() const { return path_; }
  /// Fills `out`. Throws kRejected when the file ends before `out` is full.
  void read(uint64_t offset, std::span<std::byte> out) const {
    if (read_at(file_.fd.get(), offset, out, path_) != out.size())
      throw Error(ErrorKind::kRejected, path_.string() +
                                            ": the file shrank during reading: it ends " +
                                            "before byte " + std::to_string(offset + out.size()));
  }

 private:
  fs::path path_;
  RegularFile file_;
};

// A new file under its final name; the destructor removes the file unless the caller has called
// keep(). Several threads may write the file.
class OutputFile {
 public:
  explicit OutputFile(fs::path path)
      : path_(std::move(path)), fd_(open_file(path_, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW)) {}
  ~OutputFile() {
    if (!kept_) ::unlink(path_.c_str());
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(uint64_t offset, std::span<const std::byte> bytes) {
    write_at(fd_.get(), offset, bytes, path_);
    start_write_back(fd_.get(), offset, bytes.size());
  }
  /// Syncs the file; the destructor then does not remove it.
  void keep() {
    if (::fsync(fd_.get()) != 0) throw system_error("fsync " + path_.string(), errno);
    kept_ = true;
  }

 private:
  fs::path path_;
  UniqueFd fd_;
  bool kept_ = false;
};

struct Slot {
  uint64_t offset = 0;  // decode: the offset of the block in the packed file
  std::vector<std::byte> packed, reference, raw;
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
