// A test fixture with one shard in a temporary folder; tests may change the shard's bytes.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/tokens/token_shard.h"

namespace xffl::tokens {

namespace fs = std::filesystem;
using test::kind_of;
using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

// File offsets of the header's fields (docs/reference/token_shards.md).
inline constexpr size_t kVersionAt = 8, kTokenBytesAt = 12, kVocabAt = 16, kLengthAt = 24,
                        kTokensAt = 32, kSequencesAt = 40, kDocumentsAt = 48, kFlagsAt = 56,
                        kZeroAt = 60, kTokenDataAt = 64;

class TokenShard : public testing::Test {
 protected:
  fs::path file(const std::string& name = "a.tokens") const { return dir_ / name; }

  // As write(), with targets: a 0 or 1 for each token.
  ShardInfo write_targets(uint64_t length, bool packed, const std::vector<Ids>& docs,
                          const std::vector<std::vector<uint8_t>>& targets) {
    TokenShardWriter writer(file(), 100, length, packed, true);
    for (size_t i = 0; i < docs.size(); ++i) writer.add_document(docs[i], targets[i]);
    return writer.finish();
  }

  ShardInfo write(uint64_t vocab_size, uint64_t length, bool packed, const std::vector<Ids>& docs) {
    TokenShardWriter writer(file(), vocab_size, length, packed);
    for (const Ids& ids : docs) writer.add_document(ids);
    return writer.finish();
  }

  static std::vector<int> targets(const TokenShardReader& reader, uint64_t index) {
    std::vector<uint8_t> found(reader.length(index));
    reader.read_targets(index, found);
    return {found.begin(), found.end()};
  }
  static Ids sequence(const TokenShardReader& reader, uint64_t index) {
    Ids ids(reader.length(index));
    reader.read(index, ids);
    return ids;
  }

  // Three unpacked documents {1,2,3}, {4}, {5,6} of uint16: tokens at 64, padding 76..79, offsets
  // at 80.
  void write_unpacked() { write(100, 3, false, {{1, 2, 3}, {4}, {5, 6}}); }
  // Two packed sequences of 3 over documents that begin at 0 and 4; offsets at 80.
  void write_packed() { write(100, 3, true, {{1, 2, 3, 4}, {5, 6, 7}}); }
  static constexpr size_t kOffsetsAt = 80;

  std::string bytes() const { return read_file(file(), 1 << 20); }
  void set_bytes(const std::string& content) { std::ofstream(file(), std::ios::binary) << content; }
  template <class T>
  void patch(size_t at, T value) {
    std::string content = bytes();
    std::memcpy(content.data() + at, &value, sizeof value);
    set_bytes(content);
  }

  void expect_corrupt(const std::string& message_part) {
    try {
      TokenShardReader reader(file());
      ADD_FAILURE() << "accepted; expected: " << message_part;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCorrupt) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(message_part));
      EXPECT_THAT(error.what(), HasSubstr(file().string()));
    }
  }

  size_t files_in_dir() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(dir_.path()), fs::directory_iterator()));
  }

  test::TempDir dir_;
};

}  // namespace xffl::tokens
