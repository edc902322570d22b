#include "shard_fixture.h"
#include "support/recorded_syncs.h"

namespace xffl::tokens {
namespace {

TEST_F(TokenShard, PackedSequencesSpanDocumentsAndDropTheIncompleteEnd) {
  const ShardInfo written = write(100, 3, true, {{1, 2, 3, 4}, {5, 6}, {7, 8}, {9}});
  const TokenShardReader reader(file());
  for (const ShardInfo& info : {written, reader.info()}) {
    EXPECT_EQ(info.vocab_size, 100u);
    EXPECT_EQ(info.sequence_length, 3u);
    EXPECT_EQ(info.num_tokens, 9u);
    EXPECT_EQ(info.num_sequences, 3u);
    EXPECT_EQ(info.num_documents, 4u);
    EXPECT_TRUE(info.packed);
  }
  EXPECT_THAT(sequence(reader, 0), ElementsAre(1, 2, 3));
  EXPECT_THAT(sequence(reader, 2), ElementsAre(7, 8, 9));
  EXPECT_THAT(reader.document_offsets(), ElementsAre(0, 4, 6, 8));

  const ShardInfo dropped = write(100, 3, true, {{1, 2, 3, 4}, {5, 6}, {7, 8}});
  EXPECT_EQ(dropped.num_tokens, 6u);
  EXPECT_EQ(dropped.num_documents, 2u);
  EXPECT_THAT(TokenShardReader(file()).document_offsets(), ElementsAre(0, 4));
}

TEST_F(TokenShard, UnpackedKeepsEachDocumentAsItsOwnSequence) {
  write_unpacked();
  const TokenShardReader reader(file());
  EXPECT_EQ(reader.info().num_sequences, 3u);
  EXPECT_EQ(reader.info().num_documents, 3u);
  EXPECT_EQ(reader.info().num_tokens, 6u);
  EXPECT_FALSE(reader.info().packed);
  EXPECT_EQ(reader.length(1), 1u);
  EXPECT_THAT(sequence(reader, 0), ElementsAre(1, 2, 3));
  EXPECT_THAT(sequence(reader, 1), ElementsAre(4));
  EXPECT_THAT(sequence(reader, 2), ElementsAre(5, 6));
  EXPECT_THAT(reader.document_offsets(), ElementsAre(0, 3, 4));
}

TEST_F(TokenShard, TokensAreTwoBytesUpToAVocabularyOf65536) {
  write(65536, 2, true, {{0, 65535}});
  EXPECT_EQ(bytes().size(), 64u + 8 + 8);
  EXPECT_EQ(bytes()[kTokenBytesAt], 2);
  EXPECT_THAT(sequence(TokenShardReader(file()), 0), ElementsAre(0, 65535));
  write(65537, 3, true, {{0, 65535, 65536}});
  EXPECT_EQ(bytes().size(), 64u + 16 + 8);
  EXPECT_EQ(bytes()[kTokenBytesAt], 4);
  EXPECT_THAT(sequence(TokenShardReader(file()), 0), ElementsAre(0, 65535, 65536));
}

TEST_F(TokenShard, HasTheDocumentedBytes) {
  write(300, 2, false, {{1, 299}, {2}});
  const unsigned char expected[] = {
      'X', 'F', 'F', 'L', 'T', 'O', 'K', '1', 1, 0, 0, 0, 2, 0, 0, 0, 44, 1, 0,  0, 0, 0, 0, 0,
      2,   0,   0,   0,   0,   0,   0,   0,   3, 0, 0, 0, 0, 0, 0, 0, 2,  0, 0,  0, 0, 0, 0, 0,
      2,   0,   0,   0,   0,   0,   0,   0,   0, 0, 0, 0, 0, 0, 0, 0, 1,  0, 43, 1, 2, 0, 0, 0,
      0,   0,   0,   0,   0,   0,   0,   0,   2, 0, 0, 0, 0, 0, 0, 0, 3,  0, 0,  0, 0, 0, 0, 0};
  EXPECT_EQ(bytes(), std::string(expected, expected + sizeof expected));
}

TEST_F(TokenShard, LargeShardIsReadBack) {
  std::vector<Ids> docs;
  int32_t next = 0;
  for (int d = 0; d < 2000; ++d) {
    Ids ids(static_cast<size_t>(1 + d % 997));
    for (int32_t& id : ids) id = next = (next + 7919) % 70000;
    docs.push_back(ids);
  }
  write(70000, 997, false, docs);
  const TokenShardReader reader(file());
  ASSERT_EQ(reader.info().num_sequences, docs.size());
  for (size_t i = 0; i < docs.size(); ++i) ASSERT_EQ(sequence(reader, i), docs[i]) << i;
}

TEST_F(TokenShard, FileAppearsOnlyAtFinish) {
  {
    TokenShardWriter writer(file(), 10, 2, true);
    writer.add_document(Ids{1, 2});
    EXPECT_FALSE(fs::exists(file()));
  }
  EXPECT_EQ(files_in_dir(), 0u);
  write(10, 2, true, {{1, 2}});
  EXPECT_EQ(files_in_dir(), 1u);
}

// A power loss could otherwise leave the final name without the tokens.
TEST_F(TokenShard, IsSyncedWhole) {
  test::synced_sizes.clear();
  write_unpacked();
  EXPECT_TRUE(test::is_synced(file()));
}

TEST_F(TokenShard, WritersOfOnePathDoNotDisturbEachOther) {
  TokenShardWriter first(file(), 10, 2, true), second(file(), 10, 2, true);
  first.add_document(Ids{1, 2});
  second.add_document(Ids{3, 4, 5, 6});
  first.finish();
  EXPECT_THAT(sequence(TokenShardReader(file()), 0), ElementsAre(1, 2));
  second.finish();
  EXPECT_THAT(sequence(TokenShardReader(file()), 1), ElementsAre(5, 6)) << "the last writer wins";
  EXPECT_EQ(files_in_dir(), 1u);
}

TEST_F(TokenShard, RejectsTooFewTokensForOneSequenceAndLeavesNoFile) {
  EXPECT_EQ(kind_of([&] { write(10, 4, true, {{1, 2, 3}}); }), ErrorKind::kRejected);
  EXPECT_EQ(kind_of([&] { write(10, 4, false, {}); }), ErrorKind::kRejected);
  EXPECT_EQ(files_in_dir(), 0u);
}

TEST_F(TokenShard, WriterRejectsBadDocumentsAndContinues) {
  TokenShardWriter writer(file(), 10, 2, false);
  EXPECT_EQ(kind_of([&] { writer.add_document(Ids{}); }), ErrorKind::kRejected);
  EXPECT_EQ(kind_of([&] { writer.add_document(Ids{1, 2, 3}); }), ErrorKind::kRejected);
  EXPECT_EQ(kind_of([&] { writer.add_document(Ids{1, 10}); }), ErrorKind::kRejected);
  EXPECT_EQ(kind_of([&] { writer.add_document(Ids{-1}); }), ErrorKind::kRejected);
  writer.add_document(Ids{9});
  EXPECT_EQ(writer.finish().num_tokens, 1u);
  EXPECT_EQ(kind_of([&] { writer.add_document(Ids{1}); }), ErrorKind::kInternal);
  EXPECT_EQ(kind_of([&] { writer.finish(); }), ErrorKind::kInternal);
}

TEST_F(TokenShard, WriterRejectsInvalidSizes) {
  for (const uint64_t size : {uint64_t{0}, uint64_t{1} << 31, UINT64_MAX}) {
    EXPECT_EQ(kind_of([&] { TokenShardWriter(file(), size, 2, true); }), ErrorKind::kUsage);
    EXPECT_EQ(kind_of([&] { TokenShardWriter(file(), 2, size, true); }), ErrorKind::kUsage);
  }
}

TEST_F(TokenShard, ReaderRejectsInvalidArguments) {
  write_unpacked();
  const TokenShardReader reader(file());
  EXPECT_EQ(kind_of([&] { reader.length(3); }), ErrorKind::kInternal);
  Ids two(2);
  EXPECT_EQ(kind_of([&] { reader.read(0, two); }), ErrorKind::kInternal);
  EXPECT_EQ(kind_of([&] { TokenShardReader(file("absent")); }), ErrorKind::kNotFound);
}

TEST_F(TokenShard, RejectsEveryTruncationAndExtension) {
  for (const bool packed : {true, false}) {
    packed ? write_packed() : write_unpacked();
    const std::string whole = bytes();
    for (size_t size = 0; size < whole.size(); ++size) {
      set_bytes(whole.substr(0, size));
      expect_corrupt("");
    }
    set_bytes(whole + '\0');
    expect_corrupt("its header says");
  }
}

TEST_F(TokenShard, RejectsHostileHeaders) {
  const auto expect_rejected = [&](size_t at, auto value, const std::string& part, bool packed) {
    SCOPED_TRACE("byte " + std::to_string(at));
    packed ? write_packed() : write_unpacked();
    patch(at, value);
    expect_corrupt(part);
  };
  for (const bool packed : {true, false}) {
    expect_rejected(0, 'x', "not a token shard", packed);
    expect_rejected(kVersionAt, uint32_t{2}, "version 2", packed);
    for (const uint32_t bad : {0u, 1u, 3u, 8u, UINT32_MAX}) {
      expect_rejected(kTokenBytesAt, bad, "expected 2 or 4", packed);
    }
    expect_rejected(kTokenBytesAt, uint32_t{4}, "its header says", packed);
    for (const uint64_t bad : {uint64_t{0}, uint64_t{1} << 31, uint64_t{1} << 63, UINT64_MAX}) {
      expect_rejected(kVocabAt, bad, "vocab_size", packed);
      expect_rejected(kLengthAt, bad, "sequence_length", packed);
      expect_rejected(kTokensAt, bad, "", packed);
      expect_rejected(kSequencesAt, bad, "", packed);
      expect_rejected(kDocumentsAt, bad, "", packed);
    }
    expect_rejected(kVocabAt, uint64_t{65537}, "cannot hold a vocabulary", packed);
    expect_rejected(kLengthAt, uint64_t{1}, packed ? "are not its" : "do not fit", packed);
    expect_rejected(kTokensAt, uint64_t{7}, packed ? "are not its" : "offset 3", packed);
    expect_rejected(kSequencesAt, uint64_t{4}, "", packed);
    expect_rejected(kDocumentsAt, uint64_t{4}, packed ? "its header says" : "documents are not",
                    packed);
    expect_rejected(kFlagsAt, uint32_t{2}, "flags", packed);
    expect_rejected(kZeroAt, uint32_t{1}, "reserved", packed);
    expect_rejected(kFlagsAt, uint32_t{3}, "flags", packed);
    expect_rejected(kFlagsAt, uint32_t{packed ? 0u : 1u}, "", packed);
  }
}

TEST_F(TokenShard, RejectsSizesWhoseProductsOverflow) {
  // (2^31 - 1) * (2^33 + 9) is 2^64 + num_tokens.
  write_packed();
  patch(kLengthAt, uint64_t{INT32_MAX});
  patch(kSequencesAt, (uint64_t{1} << 33) + 9);
  patch(kTokensAt, 5 * (uint64_t{1} << 31) - 9);
  expect_corrupt("are not its");
  // num_tokens * token_bytes wraps: 2^63 * 2.
  write_unpacked();
  patch(kTokensAt, (uint64_t{1} << 63) + 6);
  patch(kLengthAt, uint64_t{INT32_MAX});
  patch(kSequencesAt, uint64_t{1} << 40);
  patch(kDocumentsAt, uint64_t{1} << 40);
  expect_corrupt("the header claims");
  // num_offsets * 8 wraps: 2^61 + 4 offsets.
  write_packed();
  patch(kTokensAt, uint64_t{1} << 61);
  patch(kLengthAt, uint64_t{1} << 30);
  patch(kSequencesAt, uint64_t{1} << 31);
  patch(kDocumentsAt, uint64_t{1} << 61);
  expect_corrupt("the header claims");
}

TEST_F(TokenShard, RejectsHostileOffsets) {
  const auto expect_rejected = [&](size_t index, uint64_t value, bool packed) {
    SCOPED_TRACE("offset " + std::to_string(index) + " = " + std::to_string(value));
    packed ? write_packed() : write_unpacked();
    patch(kOffsetsAt + 8 * index, value);
    expect_corrupt("offset");
  };
  expect_rejected(0, 1, true);
  expect_rejected(1, 0, true);
  expect_rejected(1, 6, true);
  expect_rejected(1, UINT64_MAX, true);
  expect_rejected(0, 1, false);  // the first is not 0
  expect_rejected(1, 0, false);  // an empty sequence
  expect_rejected(1, 4, false);  // longer than sequence_length, and the next would be empty
  expect_rejected(2, 3, false);  // equal to its predecessor
  expect_rejected(2, UINT64_MAX, false);  // far out of range
  expect_rejected(3, 5, false);           // the end is not num_tokens
  expect_rejected(3, 7, false);
}

TEST_F(TokenShard, RejectsAnOverlongSequence) {
  write(100, 3, false, {{1}, {2, 3}, {4, 5, 6}});
  patch(kOffsetsAt + 8, uint64_t{2});
  EXPECT_NO_THROW(TokenShardReader{file()});  // still legal: 2, 1, 3
  patch(kOffsetsAt + 16, uint64_t{6});
  expect_corrupt("offset 2");
}

TEST_F(TokenShard, RejectsNonZeroPadding) {
  write_unpacked();
  patch(kOffsetsAt - 1, char{1});
  expect_corrupt("not zero");
}

TEST_F(TokenShard, ReadRejectsAnIdBeyondTheVocabulary) {
  write_packed();
  patch(kTokenDataAt + 2 * 4, uint16_t{100});
  const TokenShardReader reader(file());
  EXPECT_THAT(sequence(reader, 0), ElementsAre(1, 2, 3));
  try {
    sequence(reader, 1);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
    EXPECT_THAT(error.what(), HasSubstr("sequence 1 has id 100 at position 1"));
  }
  write(70000, 1, true, {{1}});
  patch(kTokenDataAt, UINT32_MAX);  // negative as an int32
  EXPECT_EQ(kind_of([&] { sequence(TokenShardReader(file()), 0); }), ErrorKind::kCorrupt);
}

TEST_F(TokenShard, RejectsAFolder) {
  EXPECT_NO_THROW(write_packed());
  EXPECT_ANY_THROW(TokenShardReader(dir_.path()));
}

}  // namespace
}  // namespace xffl::tokens
