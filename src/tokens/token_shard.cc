#include "xffl/tokens/token_shard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "xffl/base/error.h"
#include "xffl/base/sha256.h"

namespace xffl::tokens {
namespace {

static_assert(std::endian::native == std::endian::little,
              "shards are little-endian; the host must be, too");

constexpr uint32_t kShardVersion = 1;
constexpr uint32_t kTargetsVersion = 2;        // version 1 with targets
constexpr uint64_t kMaxVocabSize = INT32_MAX;  // ids are int32 everywhere else
constexpr uint64_t kMaxSequenceLength = INT32_MAX;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t token_bytes;
  uint64_t vocab_size;
  uint64_t sequence_length;
  uint64_t num_tokens;
  uint64_t num_sequences;
  uint64_t num_documents;
  uint32_t flags;
  uint32_t zero;
};
static_assert(sizeof(Header) == kShardHeaderBytes);

constexpr uint32_t kFlagPacked = 1;
constexpr uint32_t kFlagTargets = 2;

struct ShardLayout {
  size_t token_bytes = 2;
  uint64_t offsets_begin = 0;  // the file offset of the offsets; tokens begin at kShardHeaderBytes
  uint64_t num_offsets = 0;
  uint64_t targets_begin = 0;  // the end of the offsets
  uint64_t num_target_words = 0;
  uint64_t file_bytes = 0;
};

// 2 when every id below `vocab_size` fits in 16 bits, else 4.
size_t token_bytes_for(uint64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

[[noreturn]] void corrupt(const std::filesystem::path& path, const std::string& problem) {
  throw Error(ErrorKind::kCorrupt, "token shard " + path.string() + ": " + problem);
}

void check_in_range(const std::filesystem::path& path, const char* name, uint64_t value,
                    uint64_t max) {
  if (value >= 1 && value <= max) return;
  corrupt(path, std::string(name) + " is " + std::to_string(value) + ", expected 1 to " +
                    std::to_string(max));
}

void check_fields(const Header& header, const std::filesystem::path& path) {
  if (header.version != kShardVersion && header.version != kTargetsVersion) {
    corrupt(path, "format version " + std::to_string(header.version) + ", this program reads " +
                      std::to_string(kShardVersion) + " and " + std::to_string(kTargetsVersion));
  }
  if (header.token_bytes != 2 && header.token_bytes != 4) {
    corrupt(path, "tokens of " + std::to_string(header.token_bytes) + " bytes, expected 2 or 4");
  }
  const uint32_t expected_targets = header.version == kTargetsVersion ? kFlagTargets : 0;
  if ((header.flags & ~kFlagPacked) != expected_targets || header.zero != 0) {
    corrupt(path, "flags are " + std::to_string(header.flags) + " and reserved bytes " +
                      std::to_string(header.zero) + ", which version " +
                      std::to_string(header.version) + " does not have");
  }
  check_in_range(path, "vocab_size", header.vocab_size, kMaxVocabSize);
  check_in_range(path, "sequence_length", header.sequence_length, kMaxSequenceLength);
  check_in_range(path, "num_sequences", header.num_sequences, header.num_tokens);
  check_in_range(path, "num_documents", header.num_documents, header.num_tokens);
  if (header.token_bytes == 2 && token_bytes_for(header.vocab_size) != 2) {
    corrupt(path, "2-byte tokens cannot hold a vocabulary of " + std::to_string(header.vocab_size));
  }
}

void check_counts(const ShardInfo& info, const std::filesystem::path& path) {
  uint64_t capacity = 0;
  const bool overflow = __builtin_mul_overflow(info.num_sequences, info.sequence_length, &capacity);
  if (info.packed && (overflow || capacity != info.num_tokens)) {
    corrupt(path, "packed, but " + std::to_string(info.num_sequences) + " sequences of " +
                      std::to_string(info.sequence_length) + " are not its " +
                      std::to_string(info.num_tokens) + " tokens");
  }
  if (!info.packed && !overflow && capacity < info.num_tokens) {
    corrupt(path, std::to_string(info.num_tokens) + " tokens do not fit in " +
                      std::to_string(info.num_sequences) + " sequences of at most " +
                      std::to_string(info.sequence_length));
  }
  if (!info.packed && info.num_documents != info.num_sequences) {
    corrupt(path, "unpacked, but " + std::to_string(info.num_documents) +
                      " documents are not its " + std::to_string(info.num_sequences) +
                      " sequences");
  }
}

// The layout of a shard with the counts of `info`. Throws kCorrupt naming `path` when a size does
// not fit in 63 bits.
ShardLayout layout_of(const ShardInfo& info, size_t token_bytes,
                      const std::filesystem::path& path) {
  ShardLayout layout;
  layout.token_bytes = token_bytes;
  layout.num_offsets = info.packed ? info.num_documents : info.num_sequences + 1;
  // A limit of 2^56 exceeds any disk and keeps every sum below in range.
  constexpr uint64_t kMaxCount = uint64_t{1} << 56;
  if (info.num_tokens > kMaxCount || layout.num_offsets > kMaxCount) {
    corrupt(path, "the header claims " + std::to_string(info.num_tokens) + " tokens and " +
                      std::to_string(info.num_documents) + " documents");
  }
  const uint64_t tokens_end = kShardHeaderBytes + info.num_tokens * token_bytes;
  layout.offsets_begin = (tokens_end + 7) / 8 * 8;
  layout.targets_begin = layout.offsets_begin + layout.num_offsets * sizeof(uint64_t);
  layout.num_target_words = info.has_targets ? (info.num_tokens + 63) / 64 : 0;
  layout.file_bytes = layout.targets_begin + layout.num_target_words * sizeof(uint64_t);
  return layout;
}

std::array<std::byte, kShardHeaderBytes> encode_header(const ShardInfo& info, size_t token_bytes) {
  Header header{};
  std::memcpy(header.magic, kShardMagic.data(), kShardMagic.size());
  header.version = info.has_targets ? kTargetsVersion : kShardVersion;
  header.token_bytes = static_cast<uint32_t>(token_bytes);
  header.vocab_size = info.vocab_size;
  header.sequence_length = info.sequence_length;
  header.num_tokens = info.num_tokens;
  header.num_sequences = info.num_sequences;
  header.num_documents = info.num_documents;
  header.flags = (info.packed ? kFlagPacked : 0) | (info.has_targets ? kFlagTargets : 0);
  return std::bit_cast<std::array<std::byte, kShardHeaderBytes>>(header);
}

// Reads and checks the header's fields and the file's size. Throws kCorrupt.
std::pair<ShardInfo, ShardLayout> decode_header(std::span<const std::byte> file,
                                                const std::filesystem::path& path) {
  if (file.size() < kShardHeaderBytes) {
    corrupt(path, std::to_string(file.size()) + " bytes, shorter than a header of " +
                      std::to_string(kShardHeaderBytes));
  }
  Header header;
  std::memcpy(&header, file.data(), sizeof header);
  if (std::string_view(header.magic, sizeof header.magic) != kShardMagic) {
    corrupt(path, "not a token shard: it does not begin with \"" + std::string(kShardMagic) + "\"");
  }
  check_fields(header, path);
  const ShardInfo info{header.vocab_size,
                       header.sequence_length,
                       header.num_tokens,
                       header.num_sequences,
                       header.num_documents,
                       (header.flags & kFlagPacked) != 0,
                       (header.flags & kFlagTargets) != 0};
  check_counts(info, path);
  const ShardLayout layout = layout_of(info, header.token_bytes, path);
  if (layout.file_bytes != file.size()) {
    corrupt(path, "has " + std::to_string(file.size()) + " bytes, its header says " +
                      std::to_string(layout.file_bytes) +
                      ": truncated or damaged, encode it again");
  }
  return {info, layout};
}

uint64_t load_offset(const std::byte* table, uint64_t index) {
  uint64_t offset = 0;
  std::memcpy(&offset, table + index * sizeof offset, sizeof offset);
  return offset;
}

// The index of the first of `count` ascending offsets above `value`.
uint64_t first_above(const std::byte* table, uint64_t count, uint64_t value) {
  uint64_t low = 0;
  while (low < count) {
    const uint64_t middle = low + (count - low) / 2;
    load_offset(table, middle) > value ? count = middle : low = middle + 1;
  }
  return low;
}

[[noreturn]] void corrupt_offset(const std::filesystem::path& path, uint64_t index, uint64_t offset,
                                 const std::string& expected) {
  corrupt(path, "offset " + std::to_string(index) + " is " + std::to_string(offset) +
                    ", expected " + expected);
}

// Checks that the offsets begin at 0, ascend by at most the sequence length (when unpacked) and end
// within num_tokens.
void check_offsets(const std::byte* table, uint64_t count, const ShardInfo& info,
                   const std::filesystem::path& path) {
  const uint64_t max_step = info.packed ? info.num_tokens : info.sequence_length;
  uint64_t previous = load_offset(table, 0);
  if (previous != 0) corrupt_offset(path, 0, previous, "0");
  for (uint64_t i = 1; i < count; ++i) {
    const uint64_t offset = load_offset(table, i);
    if (offset <= previous || offset - previous > max_step) {
      corrupt_offset(path, i, offset,
                     std::to_string(previous) + " and 1 to " + std::to_string(max_step) + " more");
    }
    previous = offset;
  }
  if (info.packed && previous >= info.num_tokens) {
    corrupt_offset(path, count - 1, previous, "less than " + std::to_string(info.num_tokens));
  }
  if (!info.packed && previous != info.num_tokens) {
    corrupt_offset(path, count - 1, previous, std::to_string(info.num_tokens));
  }
}

template <class Token>
void copy_tokens(const std::byte* from, std::span<int32_t> to) {
  for (size_t i = 0; i < to.size(); ++i) {
    Token token = 0;
    std::memcpy(&token, from + i * sizeof token, sizeof token);
    to[i] = static_cast<int32_t>(token);
  }
}

constexpr size_t kBufferBytes = size_t{1} << 20;

void check_argument(const std::filesystem::path& path, const char* name, uint64_t value,
                    uint64_t max) {
  if (value >= 1 && value <= max) return;
  throw Error(ErrorKind::kUsage, "cannot write token shard " + path.string() + ": " + name +
                                     " is " + std::to_string(value) + ", expected 1 to " +
                                     std::to_string(max));
}

}  // namespace

std::optional<uint64_t> sequence_length_in(std::span<const std::byte> header) {
  Header fields;
  if (header.size() < sizeof fields) return std::nullopt;
  std::memcpy(&fields, header.data(), sizeof fields);
  if (std::string_view(fields.magic, sizeof fields.magic) != kShardMagic) return std::nullopt;
  return fields.sequence_length;
}

TokenShardReader::TokenShardReader(const std::filesystem::path& path) : file_(path) {
  const auto [info, layout] = decode_header(file_.bytes(), path);
  info_ = info;
  token_bytes_ = layout.token_bytes;
  tokens_ = file_.bytes().data() + kShardHeaderBytes;
  offsets_ = file_.bytes().data() + layout.offsets_begin;
  const std::byte* padding = tokens_ + info_.num_tokens * token_bytes_;
  if (std::any_of(padding, offsets_, [](std::byte b) { return b != std::byte{0}; })) {
    corrupt(path, "the bytes between tokens and offsets are not zero");
  }
  check_offsets(offsets_, layout.num_offsets, info_, path);
  if (!info_.has_targets) return;
  targets_ = file_.bytes().data() + layout.targets_begin;
  const uint64_t used = info_.num_tokens % 64;
  if (used != 0 && target_word(layout.num_target_words - 1) >> used != 0) {
    corrupt(path, "the bits after the last target are not zero");
  }
}

size_t TokenShardReader::length(uint64_t sequence_index) const {
  if (sequence_index >= info_.num_sequences) {
    throw Error(ErrorKind::kInternal, "token shard " + path().string() + ": no sequence " +
                                          std::to_string(sequence_index) + ", the shard has " +
                                          std::to_string(info_.num_sequences) + " sequences");
  }
  if (info_.packed) return info_.sequence_length;
  return load_offset(offsets_, sequence_index + 1) - load_offset(offsets_, sequence_index);
}

void TokenShardReader::read(uint64_t sequence_index, std::span<int32_t> out) const {
  const size_t num_tokens = length(sequence_index);
  if (out.size() < num_tokens) {
    throw Error(ErrorKind::kInternal,
                "token shard " + path().string() + ": a sequence of " + std::to_string(num_tokens) +
                    " tokens read into a buffer for " + std::to_string(out.size()));
  }
  const uint64_t begin = begin_of(sequence_index);
  const std::span<int32_t> ids = out.first(num_tokens);
  const std::byte* from = tokens_ + begin * token_bytes_;
  token_bytes_ == 2 ? copy_tokens<uint16_t>(from, ids) : copy_tokens<uint32_t>(from, ids);
  const auto limit = static_cast<uint32_t>(info_.vocab_size);
  const auto bad = std::find_if(ids.begin(), ids.end(),
                                [limit](int32_t id) { return static_cast<uint32_t>(id) >= limit; });
  if (bad != ids.end()) {
    corrupt(path(), "sequence " + std::to_string(sequence_index) + " has id " +
                        std::to_string(static_cast<uint32_t>(*bad)) + " at position " +
                        std::to_string(bad - ids.begin()) + ", its vocabulary has " +
                        std::to_string(info_.vocab_size) + " ids");
  }
}

uint64_t TokenShardReader::begin_of(uint64_t sequence_index) const {
  return info_.packed ? sequence_index * info_.sequence_length
                      : load_offset(offsets_, sequence_index);
}

uint64_t TokenShardReader::target_word(uint64_t index) const {
  return load_offset(targets_, index);
}

void TokenShardReader::read_targets(uint64_t sequence_index, std::span<uint8_t> out) const {
  const size_t num_tokens = length(sequence_index);
  if (out.size() < num_tokens) {
    throw Error(ErrorKind::kInternal, "token shard " + path().string() + ": the targets of " +
                                          std::to_string(num_tokens) +
                                          " tokens read into a buffer for " +
                                          std::to_string(out.size()));
  }
  if (targets_ == nullptr) {
    std::fill_n(out.begin(), num_tokens, uint8_t{1});
    return;
  }
  const uint64_t begin = begin_of(sequence_index);
  for (size_t i = 0; i < num_tokens; ++i) {
    const uint64_t token = begin + i;
    out[i] = static_cast<uint8_t>(target_word(token / 64) >> token % 64 & 1);
  }
}

uint64_t TokenShardReader::num_targets(uint64_t sequence_index) const {
  const size_t num_tokens = length(sequence_index);
  if (targets_ == nullptr) return num_tokens - 1;
  const uint64_t begin = begin_of(sequence_index) + 1;
  const uint64_t end = begin + num_tokens - 1;
  uint64_t count = 0;
  for (uint64_t at = begin; at < end;) {
    const uint64_t stop = std::min(end, (at / 64 + 1) * 64);
    uint64_t bits = target_word(at / 64) >> at % 64;
    if (stop - at < 64) bits &= (uint64_t{1} << (stop - at)) - 1;
    count += static_cast<uint64_t>(std::popcount(bits));
    at = stop;
  }
  return count;
}

std::vector<uint32_t> TokenShardReader::document_starts(uint64_t sequence_index) const {
  const uint64_t end = length(sequence_index);
  std::vector<uint32_t> starts{0};
  if (!info_.packed) return starts;
  const uint64_t begin = begin_of(sequence_index);
  uint64_t next = first_above(offsets_, info_.num_documents, begin);
  for (; next < info_.num_documents; ++next) {
    const uint64_t start = load_offset(offsets_, next) - begin;
    if (start >= end) break;
    starts.push_back(static_cast<uint32_t>(start));
  }
  return starts;
}

std::vector<uint64_t> TokenShardReader::document_offsets() const {
  std::vector<uint64_t> offsets(info_.num_documents);
  std::memcpy(offsets.data(), offsets_, offsets.size() * sizeof(uint64_t));
  return offsets;
}

struct TokenShardWriter::State {
  const std::filesystem::path path;
  ShardInfo info;
  size_t token_bytes = token_bytes_for(info.vocab_size);
  // Several writers of one path do not disturb each other: the last finish() wins.
  TempFile temp{path, ".tmp-" + random_hex(4)};
  std::vector<std::byte> buffer = std::vector<std::byte>(kShardHeaderBytes);
  std::vector<uint64_t> document_begins;
  std::vector<uint64_t> target_words;

  State(std::filesystem::path file, ShardInfo shard) : path(std::move(file)), info(shard) {}

  void flush() {
    write_all(temp.fd(), buffer, temp.path());
    buffer.clear();
  }

  template <class T>
  void append(T value) {
    const size_t at = buffer.size();
    buffer.resize(at + sizeof value);
    std::memcpy(buffer.data() + at, &value, sizeof value);
    if (buffer.size() >= kBufferBytes) flush();
  }

  void append_token(int32_t id) {
    token_bytes == 2 ? append(static_cast<uint16_t>(id)) : append(static_cast<uint32_t>(id));
  }

  void check_document(std::span<const int32_t> ids) const;
  void add_targets(size_t count, std::span<const uint8_t> is_target);
  void drop_incomplete_sequence();
  void write_offsets(uint64_t offsets_begin);
};

void TokenShardWriter::State::check_document(std::span<const int32_t> ids) const {
  const std::string where =
      "token shard " + path.string() + ": document " + std::to_string(document_begins.size()) + " ";
  if (ids.empty()) throw Error(ErrorKind::kRejected, where + "has no tokens");
  if (!info.packed && ids.size() > info.sequence_length) {
    throw Error(ErrorKind::kRejected, where + "has " + std::to_string(ids.size()) +
                                          " tokens, a sequence has at most " +
                                          std::to_string(info.sequence_length));
  }
  for (const int32_t id : ids) {
    if (id >= 0 && static_cast<uint64_t>(id) < info.vocab_size) continue;
    throw Error(ErrorKind::kRejected, where + "has id " + std::to_string(id) +
                                          ", the vocabulary has ids 0 to " +
                                          std::to_string(info.vocab_size - 1));
  }
}

// Adds the targets of the next `count` tokens.
void TokenShardWriter::State::add_targets(size_t count, std::span<const uint8_t> is_target) {
  target_words.resize((info.num_tokens + count + 63) / 64);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t token = info.num_tokens + i;
    const uint64_t bit = is_target.empty() || is_target[i] != 0 ? 1 : 0;
    target_words[token / 64] |= bit << token % 64;
  }
}

void TokenShardWriter::State::drop_incomplete_sequence() {
  if (info.packed) {
    info.num_sequences = info.num_tokens / info.sequence_length;
    info.num_tokens = info.num_sequences * info.sequence_length;
    while (!document_begins.empty() && document_begins.back() >= info.num_tokens) {
      document_begins.pop_back();
    }
  } else {
    info.num_sequences = document_begins.size();
  }
  info.num_documents = document_begins.size();
  if (!info.has_targets) return;
  target_words.resize((info.num_tokens + 63) / 64);
  const uint64_t used = info.num_tokens % 64;
  if (used != 0) target_words.back() &= (uint64_t{1} << used) - 1;
}

void TokenShardWriter::State::write_offsets(uint64_t offsets_begin) {
  const uint64_t tokens_end = kShardHeaderBytes + info.num_tokens * token_bytes;
  // The first ftruncate cuts the incomplete sequence off; the second ftruncate adds zero bytes.
  if (::ftruncate(temp.fd(), static_cast<off_t>(tokens_end)) != 0 ||
      ::ftruncate(temp.fd(), static_cast<off_t>(offsets_begin)) != 0 ||
      ::lseek(temp.fd(), static_cast<off_t>(offsets_begin), SEEK_SET) < 0) {
    throw system_error("write " + temp.path().string(), errno);
  }
  for (const uint64_t offset : document_begins) append(offset);
  if (!info.packed) append(info.num_tokens);
  for (const uint64_t word : target_words) append(word);
  flush();
}

TokenShardWriter::TokenShardWriter(std::filesystem::path path, uint64_t vocab_size,
                                   uint64_t sequence_length, bool packed, bool has_targets) {
  check_argument(path, "vocab_size", vocab_size, kMaxVocabSize);
  check_argument(path, "sequence_length", sequence_length, kMaxSequenceLength);
  state_ = std::make_unique<State>(std::move(path), ShardInfo{.vocab_size = vocab_size,
                                                              .sequence_length = sequence_length,
                                                              .packed = packed,
                                                              .has_targets = has_targets});
}

TokenShardWriter::~TokenShardWriter() = default;
TokenShardWriter::TokenShardWriter(TokenShardWriter&&) noexcept = default;

void TokenShardWriter::add_document(std::span<const int32_t> ids,
                                    std::span<const uint8_t> is_target) {
  if (!state_) throw Error(ErrorKind::kInternal, "a document was added to a finished token shard");
  State& state = *state_;
  if (!is_target.empty() && (!state.info.has_targets || is_target.size() != ids.size())) {
    throw Error(ErrorKind::kInternal, "token shard " + state.path.string() + ": " +
                                          std::to_string(is_target.size()) + " targets for " +
                                          std::to_string(ids.size()) + " tokens" +
                                          (state.info.has_targets ? "" : ", without targets"));
  }
  state.check_document(ids);
  if (state.info.has_targets) state.add_targets(ids.size(), is_target);
  state.document_begins.push_back(state.info.num_tokens);
  for (const int32_t id : ids) state.append_token(id);
  state.info.num_tokens += ids.size();
}

void TokenShardWriter::complete() {
  std::unique_ptr<State> state = std::move(state_);
  if (!state) throw Error(ErrorKind::kInternal, "a token shard was finished twice");
  const uint64_t num_tokens = state->info.num_tokens;
  state->flush();
  state->drop_incomplete_sequence();
  if (state->info.num_sequences == 0) {
    throw Error(ErrorKind::kRejected, "token shard " + state->path.string() + ": " +
                                          std::to_string(num_tokens) +
                                          " tokens do not fill one sequence of " +
                                          std::to_string(state->info.sequence_length) +
                                          "; provide more text or a shorter sequence length");
  }
  const std::vector<uint64_t>& words = state->target_words;
  if (state->info.has_targets &&
      std::all_of(words.begin(), words.end(), [](uint64_t word) { return word == 0; })) {
    throw Error(ErrorKind::kRejected, "token shard " + state->path.string() + ": none of its " +
                                          std::to_string(state->info.num_tokens) +
                                          " tokens is a target of the loss");
  }
  const ShardLayout layout = layout_of(state->info, state->token_bytes, state->path);
  state->write_offsets(layout.offsets_begin);
  write_at(state->temp.fd(), 0, encode_header(state->info, state->token_bytes), state->temp.path());
  state->temp.sync();
  complete_ = std::move(state);
}

ShardInfo TokenShardWriter::finish() {
  if (!complete_) complete();
  const std::unique_ptr<State> state = std::move(complete_);
  state->temp.publish();
  return state->info;
}

}  // namespace xffl::tokens
