#include <algorithm>
#include <bit>
#include <cstring>

#include "shard_layout.h"
#include "xffl/base/error.h"
#include "xffl/tokens/token_shard.h"

namespace xffl::tokens {
namespace {

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
  throw Error(ErrorKind::kCorrupt, "token shard " + path.string() + ": offset " +
                                       std::to_string(index) + " is " + std::to_string(offset) +
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

}  // namespace

TokenShardReader::TokenShardReader(const std::filesystem::path& path) : file_(path) {
  const auto [info, layout] = decode_header(file_.bytes(), path);
  info_ = info;
  token_bytes_ = layout.token_bytes;
  tokens_ = file_.bytes().data() + kHeaderBytes;
  offsets_ = file_.bytes().data() + layout.offsets_begin;
  const std::byte* padding = tokens_ + info_.num_tokens * token_bytes_;
  if (std::any_of(padding, offsets_, [](std::byte b) { return b != std::byte{0}; })) {
    throw Error(ErrorKind::kCorrupt, "token shard " + path.string() +
                                         ": the bytes between tokens and offsets are not zero");
  }
  check_offsets(offsets_, layout.num_offsets, info_, path);
  if (!info_.has_targets) return;
  targets_ = file_.bytes().data() + layout.targets_begin;
  const uint64_t used = info_.num_tokens % 64;
  if (used != 0 && target_word(layout.num_target_words - 1) >> used != 0) {
    throw Error(ErrorKind::kCorrupt,
                "token shard " + path.string() + ": the bits after the last target are not zero");
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
    throw Error(ErrorKind::kCorrupt,
                "token shard " + path().string() + ": sequence " + std::to_string(sequence_index) +
                    " has id " + std::to_string(static_cast<uint32_t>(*bad)) + " at position " +
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

}  // namespace xffl::tokens
