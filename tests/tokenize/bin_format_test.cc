#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>

#include "support/failing_call.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/tokenize/corpus.h"

namespace {

std::atomic<size_t> most_bytes_of_a_read = SIZE_MAX;

}  // namespace

extern "C" ssize_t read(int fd, void* to, size_t size) {
  return ::syscall(SYS_read, fd, to, std::min(size, most_bytes_of_a_read.load()));
}

namespace xffl::tokenize {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

class BinFormat : public testing::Test {
 protected:
  template <typename T>
  fs::path write(const std::vector<T>& ids, const std::string& name = "a.bin") const {
    std::ofstream(dir_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(ids.data()),
               static_cast<std::streamsize>(ids.size() * sizeof(T)));
    return dir_ / name;
  }
  static DocumentOptions options(IdType type) {
    DocumentOptions options;
    options.format = InputFormat::kBin;
    options.id_type = type;
    return options;
  }
  static std::vector<Ids> documents(const fs::path& path, const DocumentOptions& options) {
    DocumentReader reader({path}, options);
    std::vector<Ids> all;
    for (Document document; reader.next(document);) all.push_back(document.ids);
    EXPECT_EQ(reader.bytes_read(), reader.total_bytes());
    return all;
  }
  static void refused(const fs::path& path, const DocumentOptions& options,
                      const std::string& part) {
    try {
      documents(path, options);
      ADD_FAILURE() << "accepted; expected: " << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
      EXPECT_THAT(error.what(), HasSubstr(path.string()));
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
  test::TempDir dir_;
};

TEST_F(BinFormat, ReadsEveryTypeInRows) {
  DocumentOptions rows = options(IdType::kUint16);
  rows.row_ids = 2;
  EXPECT_THAT(documents(write<uint16_t>({1, 65535, 3}), rows), ElementsAre(Ids{1, 65535}, Ids{3}));
  rows.id_type = IdType::kInt16;
  EXPECT_THAT(documents(write<int16_t>({1, 32767, 3}), rows), ElementsAre(Ids{1, 32767}, Ids{3}));
  rows.id_type = IdType::kInt32;
  EXPECT_THAT(documents(write<int32_t>({1, 70000, 3}), rows), ElementsAre(Ids{1, 70000}, Ids{3}));
  rows.id_type = IdType::kUint32;
  EXPECT_THAT(documents(write<uint32_t>({1, 70000}), rows), ElementsAre(Ids{1, 70000}));
  EXPECT_THAT(documents(write<uint32_t>({}), rows), ElementsAre());
}

TEST_F(BinFormat, EndsDocumentsAfterAnId) {
  DocumentOptions end = options(IdType::kUint16);
  end.end_id = 9;
  EXPECT_THAT(documents(write<uint16_t>({1, 2, 9, 9, 3}), end),
              ElementsAre(Ids{1, 2, 9}, Ids{9}, Ids{3}));
}

TEST_F(BinFormat, ReadsFilesLargerThanTheBuffer) {
  std::vector<uint16_t> ids(1'500'001);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint16_t>(i % 5000);
  DocumentOptions rows = options(IdType::kUint16);
  rows.row_ids = 1000;
  const std::vector<Ids> found = documents(write(ids), rows);
  ASSERT_EQ(found.size(), 1501u);
  Ids all;
  for (const Ids& row : found) all.insert(all.end(), row.begin(), row.end());
  EXPECT_TRUE(std::equal(all.begin(), all.end(), ids.begin(), ids.end()));
}

// A shared file system may answer with fewer bytes, also with a part of an id.
TEST_F(BinFormat, ReadsOnAfterAShortRead) {
  std::vector<uint16_t> ids(2000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint16_t>(i);
  const fs::path file = write(ids);
  DocumentOptions rows = options(IdType::kUint16);
  rows.row_ids = ids.size();
  most_bytes_of_a_read = 1001;
  const std::vector<Ids> found = documents(file, rows);
  most_bytes_of_a_read = SIZE_MAX;
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(std::equal(found[0].begin(), found[0].end(), ids.begin(), ids.end()));
}

TEST_F(BinFormat, RefusesDamagedFilesWithTheirPlace) {
  refused(write<char>({1, 2, 3}), options(IdType::kUint16),
          "has 3 bytes, expected a multiple of 2");
  refused(write<int32_t>({1, -1}), options(IdType::kInt32), "id 1 is -1, expected 0 or more");
  refused(write<uint32_t>({1, 4000000000}), options(IdType::kUint32), "id 1 is 4000000000");
  DocumentOptions rows = options(IdType::kInt16);
  rows.row_ids = 4;
  rows.whole_rows = true;
  refused(write<int16_t>({1, 2, 3, 4, 5, 6}), rows, "has 12 bytes, expected a multiple of 8");
  EncodeOptions encode{.documents = options(IdType::kInt32), .vocab_size = 10};
  try {
    encode_ids({write<int32_t>({1, 2, 10})}, dir_ / "a.tokens", encode, [](const Progress&) {});
    ADD_FAILURE() << "an id beyond the vocabulary was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("id 0: element 2 is 10, expected a token id 0 to 9"));
  }
}

TEST_F(BinFormat, AReadErrorIsNotTheEndOfTheIds) {
  const fs::path file = write<uint16_t>({1, 2, 3});
  const int code = test::in_child([&] {
    if (!test::fail_calls(SYS_read, EIO)) return 77;
    DocumentReader reader({file}, options(IdType::kUint16));
    Document document;
    const test::Thrown thrown = test::thrown_by([&] { reader.next(document); });
    const bool names = thrown.message.find(file.string()) != std::string::npos;
    return thrown.kind == ErrorKind::kIo && names ? 0 : 1;
  });
  if (code == 77) GTEST_SKIP() << "this system does not allow seccomp filters";
  EXPECT_EQ(code, 0);
}

TEST_F(BinFormat, HasTheValidationDocumentsOfTheSameIdsInLines) {
  std::vector<int16_t> ids;
  std::ofstream lines(dir_ / "a.ids");
  for (int16_t row = 0; row < 50; ++row) {
    for (const int16_t id : {row, int16_t{7}}) ids.push_back(id);
    lines << '[' << row << (row % 2 == 0 ? ",7]\n" : ",  7]\n");
  }
  lines.close();
  const auto shards = [&](const fs::path& input, EncodeOptions encode) {
    encode.vocab_size = 100;
    encode.sequence_length = 2;
    encode.packed = false;
    ValidationSplit split;
    split.output = dir_ / "val.tokens";
    split.num_documents = 9;
    encode.validation = split;
    encode_ids({input}, dir_ / "train.tokens", encode, [](const Progress&) {});
    return read_file(dir_ / "train.tokens", 1 << 20) + read_file(dir_ / "val.tokens", 1 << 20);
  };
  EncodeOptions bin;
  bin.documents = options(IdType::kInt16);
  bin.documents.row_ids = 2;
  EXPECT_TRUE(shards(write(ids), bin) == shards(dir_ / "a.ids", {}));
}

}  // namespace
}  // namespace xffl::tokenize
