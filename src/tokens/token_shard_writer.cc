#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "shard_layout.h"
#include "xffl/base/error.h"
#include "xffl/base/sha256.h"
#include "xffl/tokens/token_shard.h"

namespace xffl::tokens {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

void check_argument(const std::filesystem::path& path, const char* name, uint64_t value,
                    uint64_t max) {
  if (value >= 1 && value <= max) return;
  throw Error(ErrorKind::kUsage, "cannot write token shard " + path.string() + ": " + name +
                                     " is " + std::to_string(value) + ", expected 1 to " +
                                     std::to_string(max));
}

}  // namespace

struct TokenShardWriter::State {
  std::filesystem::path path;
  std::filesystem::path temp;
  UniqueFd fd;
  ShardInfo info;
  size_t token_bytes = 2;
  std::vector<std::byte> buffer;
  std::vector<uint64_t> document_begins;
  std::vector<uint64_t> target_words;

  ~State() {
    if (!temp.empty()) ::unlink(temp.c_str());
  }

  void flush() {
    write_all(fd.get(), buffer, temp);
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
  void write_header();
  void publish();
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
  const uint64_t tokens_end = kHeaderBytes + info.num_tokens * token_bytes;
  // The first ftruncate cuts the incomplete sequence off, the second adds zero bytes.
  if (::ftruncate(fd.get(), static_cast<off_t>(tokens_end)) != 0 ||
      ::ftruncate(fd.get(), static_cast<off_t>(offsets_begin)) != 0 ||
      ::lseek(fd.get(), static_cast<off_t>(offsets_begin), SEEK_SET) < 0) {
    throw system_error("write " + temp.string(), errno);
  }
  for (const uint64_t offset : document_begins) append(offset);
  if (!info.packed) append(info.num_tokens);
  for (const uint64_t word : target_words) append(word);
  flush();
}

void TokenShardWriter::State::write_header() {
  if (::lseek(fd.get(), 0, SEEK_SET) < 0) throw system_error("write " + temp.string(), errno);
  const auto header = encode_header(info, token_bytes);
  write_all(fd.get(), header, temp);
}

void TokenShardWriter::State::publish() {
  if (::fsync(fd.get()) != 0) throw system_error("write " + temp.string() + " to disk", errno);
  rename_durable(temp, path);
  temp.clear();
}

TokenShardWriter::TokenShardWriter(std::filesystem::path path, uint64_t vocab_size,
                                   uint64_t sequence_length, bool packed, bool has_targets)
    : state_(std::make_unique<State>()) {
  check_argument(path, "vocab_size", vocab_size, kMaxVocabSize);
  check_argument(path, "sequence_length", sequence_length, kMaxSequenceLength);
  state_->info.vocab_size = vocab_size;
  state_->info.sequence_length = sequence_length;
  state_->info.packed = packed;
  state_->info.has_targets = has_targets;
  state_->token_bytes = token_bytes_for(vocab_size);
  std::filesystem::path temp = path;
  temp += ".tmp-" + random_hex(4);
  state_->path = std::move(path);
  state_->fd = open_file(temp, O_WRONLY | O_CREAT | O_EXCL);
  state_->temp = std::move(temp);
  state_->buffer.resize(kHeaderBytes);
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

ShardInfo TokenShardWriter::finish() {
  // Its destructor removes the temp file unless publish() has renamed it.
  const std::unique_ptr<State> state = std::move(state_);
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
  state->write_header();
  state->publish();
  return state->info;
}

}  // namespace xffl::tokens
