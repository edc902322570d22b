// Targets of the loss, and the begins of documents in a sequence.
#include <algorithm>

#include "shard_fixture.h"

namespace xffl::tokens {
namespace {

TEST_F(TokenShard, TargetsHaveTheDocumentedBytes) {
  write_targets(3, false, {{1, 2, 3}, {4, 5}}, {{0, 1, 1}, {0, 1}});
  const unsigned char expected[] = {
      'X', 'F', 'F', 'L', 'T', 'O', 'K', '1', 2, 0, 0, 0, 2,    0, 0, 0, 100, 0, 0, 0, 0, 0, 0,
      0,   3,   0,   0,   0,   0,   0,   0,   0, 5, 0, 0, 0,    0, 0, 0, 0,   2, 0, 0, 0, 0, 0,
      0,   0,   2,   0,   0,   0,   0,   0,   0, 0, 2, 0, 0,    0, 0, 0, 0,   0, 1, 0, 2, 0, 3,
      0,   4,   0,   5,   0,   0,   0,   0,   0, 0, 0, 0, 0,    0, 0, 0, 0,   0, 0, 3, 0, 0, 0,
      0,   0,   0,   0,   5,   0,   0,   0,   0, 0, 0, 0, 0x16, 0, 0, 0, 0,   0, 0, 0};
  EXPECT_EQ(bytes(), std::string(expected, expected + sizeof expected));
}

TEST_F(TokenShard, TargetsAreReadBack) {
  const std::vector<Ids> docs{{1, 2, 3, 4}, {5, 6, 7}, {8, 9}};
  const std::vector<std::vector<uint8_t>> chosen{{0, 0, 1, 1}, {1, 1, 0}, {1, 1}};
  const ShardInfo info = write_targets(4, true, docs, chosen);
  EXPECT_TRUE(info.has_targets);
  EXPECT_EQ(info.num_tokens, 8u) << "the incomplete sequence is dropped, with its targets";
  const TokenShardReader packed(file());
  EXPECT_TRUE(packed.info().has_targets);
  EXPECT_THAT(targets(packed, 0), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(targets(packed, 1), ElementsAre(1, 1, 0, 1));
  EXPECT_EQ(packed.num_targets(0), 2u);
  EXPECT_EQ(packed.num_targets(1), 2u) << "its first token is not predicted";
  EXPECT_THAT(sequence(packed, 1), ElementsAre(5, 6, 7, 8));

  write_targets(4, false, docs, {chosen[0], {}, chosen[2]});
  const TokenShardReader unpacked(file());
  EXPECT_THAT(targets(unpacked, 0), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(targets(unpacked, 1), ElementsAre(1, 1, 1)) << "no targets: all tokens";
  EXPECT_EQ(unpacked.num_targets(1), 2u);
  EXPECT_EQ(unpacked.num_targets(2), 1u);
}

TEST_F(TokenShard, AllTokensAreTargetsByDefault) {
  write_unpacked();
  const TokenShardReader reader(file());
  EXPECT_FALSE(reader.info().has_targets);
  EXPECT_EQ(bytes()[kVersionAt], 1);
  EXPECT_THAT(targets(reader, 0), ElementsAre(1, 1, 1));
  EXPECT_EQ(reader.num_targets(0), 2u);
  EXPECT_EQ(reader.num_targets(1), 0u) << "a single token predicts nothing";
}

TEST_F(TokenShard, CountsTargetsAcrossWords) {
  uint64_t state = 7;
  std::vector<Ids> docs;
  std::vector<std::vector<uint8_t>> chosen;
  for (size_t d = 0; d < 300; ++d) {
    docs.emplace_back(1 + d % 199, 1);
    std::vector<uint8_t>& flags = chosen.emplace_back(docs.back().size());
    for (uint8_t& flag : flags) {
      state = state * 6364136223846793005u + 1;
      flag = static_cast<uint8_t>(state >> 63);
    }
  }
  write_targets(199, false, docs, chosen);
  const TokenShardReader reader(file());
  for (size_t i = 0; i < docs.size(); ++i) {
    ASSERT_THAT(targets(reader, i), testing::ElementsAreArray(chosen[i])) << i;
    ASSERT_EQ(reader.num_targets(i),
              static_cast<uint64_t>(std::count(chosen[i].begin() + 1, chosen[i].end(), 1)))
        << i;
  }
}

TEST_F(TokenShard, WriterRejectsInvalidTargets) {
  EXPECT_EQ(kind_of([&] { write_targets(2, false, {{1, 2}}, {{0, 0}}); }), ErrorKind::kRejected);
  EXPECT_EQ(kind_of([&] { write_targets(2, false, {{1, 2}}, {{1}}); }), ErrorKind::kInternal);
  TokenShardWriter writer(file(), 10, 2, false);
  const std::vector<uint8_t> one{1};
  EXPECT_EQ(kind_of([&] { writer.add_document(Ids{1}, one); }), ErrorKind::kInternal);
}

TEST_F(TokenShard, RejectsHostileTargets) {
  const std::vector<std::vector<uint8_t>> chosen{{0, 1, 1}, {0, 1}};
  for (const bool packed : {true, false}) {
    const auto rewrite = [&] {
      write_targets(packed ? 5 : 3, packed, {{1, 2, 3}, {4, 5}}, chosen);
    };
    rewrite();
    const std::string whole = bytes();
    for (size_t size = 0; size < whole.size(); ++size) {
      set_bytes(whole.substr(0, size));
      expect_corrupt("");
    }
    set_bytes(whole + std::string(8, '\0'));
    expect_corrupt("its header says");
    rewrite();
    patch(whole.size() - 8, uint8_t{0x36});  // bit 5, after the 5 tokens
    expect_corrupt("after the last target");
    rewrite();
    patch(whole.size() - 1, uint8_t{0x80});
    expect_corrupt("after the last target");
    rewrite();
    patch(kVersionAt, uint32_t{1});
    expect_corrupt("which version 1 does not have");
    rewrite();
    patch(kFlagsAt, uint32_t{packed ? 1u : 0u});
    expect_corrupt("which version 2 does not have");
    rewrite();
    patch(kVersionAt, uint32_t{3});
    expect_corrupt("reads 1 and 2");
  }
  write_targets(3, false, {{1, 2, 3}, {4, 5}}, chosen);
  TokenShardReader reader(file());
  std::vector<uint8_t> two(2);
  EXPECT_EQ(kind_of([&] { reader.read_targets(0, two); }), ErrorKind::kInternal);
  EXPECT_EQ(kind_of([&] { reader.num_targets(2); }), ErrorKind::kInternal);
  EXPECT_EQ(kind_of([&] { reader.document_starts(2); }), ErrorKind::kInternal);
}

TEST_F(TokenShard, ReturnsTheDocumentStartsOfASequence) {
  write(100, 4, true, {{1, 2, 3}, {4}, {5, 6, 7, 8, 9, 10, 11, 12}, {13, 14, 15, 16}});
  const TokenShardReader packed(file());
  EXPECT_THAT(packed.document_starts(0), ElementsAre(0, 3));
  EXPECT_THAT(packed.document_starts(1), ElementsAre(0)) << "begins with a document";
  EXPECT_THAT(packed.document_starts(2), ElementsAre(0)) << "within a document";
  EXPECT_THAT(packed.document_starts(3), ElementsAre(0));
  write(100, 5, true, {{1, 2, 3, 4, 5, 6}, {7}, {8}, {9, 10}});
  EXPECT_THAT(TokenShardReader(file()).document_starts(1), ElementsAre(0, 1, 2, 3));
  write_unpacked();
  EXPECT_THAT(TokenShardReader(file()).document_starts(0), ElementsAre(0));
  EXPECT_THAT(TokenShardReader(file()).document_starts(2), ElementsAre(0));
}

// Flips random bits of small shards: the reader throws kCorrupt, or reads the shard to its end.
TEST_F(TokenShard, FlippedBitsAreRejectedOrReadInBounds) {
  uint64_t state = 3;
  const auto random = [&](size_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>((state >> 33) % below);
  };
  for (int round = 0; round < 500; ++round) {
    const bool packed = round % 2 == 0;
    if (round % 50 < 2) {
      write_targets(packed ? 5 : 3, packed, {{1, 2, 3}, {4, 5}}, {{0, 1, 1}, {0, 1}});
    }
    const std::string whole = bytes();
    std::string content = whole;
    for (size_t flips = random(3) + 1; flips > 0; --flips) {
      content[random(content.size())] ^= static_cast<char>(1 << random(8));
    }
    set_bytes(content);
    try {
      const TokenShardReader reader(file());
      for (uint64_t i = 0; i < reader.info().num_sequences; ++i) {
        EXPECT_EQ(targets(reader, i).size(), sequence(reader, i).size());
        EXPECT_LE(reader.num_targets(i), reader.length(i) - 1);
        EXPECT_LT(reader.document_starts(i).back(), reader.length(i));
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCorrupt) << error.what();
    }
    set_bytes(whole);
  }
}

}  // namespace
}  // namespace xffl::tokens
