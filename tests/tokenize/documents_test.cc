#include "xffl/tokenize/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <cerrno>
#include <fstream>

#include "support/failing_call.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"

namespace xffl::tokenize {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Documents : public testing::Test {
 protected:
  fs::path write(const std::string& name, std::string_view content) const {
    std::ofstream(dir_ / name, std::ios::binary) << content;
    return dir_ / name;
  }

  static std::vector<std::string> texts(const std::vector<fs::path>& inputs,
                                        DocumentOptions options = {}) {
    DocumentReader reader(inputs, options);
    std::vector<std::string> all;
    for (Document document; reader.next(document);) all.push_back(document.text);
    EXPECT_EQ(reader.bytes_read(), reader.total_bytes());
    return all;
  }

  static void expect_error(ErrorKind kind, const std::string& part,
                           const std::vector<fs::path>& inputs, DocumentOptions options = {}) {
    try {
      texts(inputs, options);
      ADD_FAILURE() << "accepted; expected: " << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }

  test::TempDir dir_;
};

TEST_F(Documents, SplitsParagraphsAtBlankLines) {
  const fs::path file = write("a.txt", "\n\nuno\ndue\n\n \t\ntre\n");
  EXPECT_THAT(texts({file}), ElementsAre("uno\ndue", "tre"));
}

TEST_F(Documents, ReadsLinesOrWholeFilesAsDocuments) {
  const fs::path a = write("a.txt", "uno\n\n due \ntre");
  const fs::path b = write("b.txt", "\nčtyři\n\n\n");
  const fs::path blank = write("c.txt", " \n\n");
  EXPECT_THAT(texts({a, b, blank}, {.unit = DocumentUnit::kLine}),
              ElementsAre("uno", " due ", "tre", "čtyři"));
  EXPECT_THAT(texts({a, b, blank}, {.unit = DocumentUnit::kFile}),
              ElementsAre("uno\n\n due \ntre", "čtyři"));
}

TEST_F(Documents, DropsCarriageReturnsAndByteOrderMarks) {
  const fs::path file = write("a.txt", "\xef\xbb\xbfuno\r\ndue\r\n\r\ntre\r\n");
  EXPECT_THAT(texts({file}), ElementsAre("uno\ndue", "tre"));
}

TEST_F(Documents, HaveTheNumberOfTheirFirstLine) {
  const fs::path file = write("a.txt", "uno\n\n\ndue\ntre\n");
  DocumentReader reader({file}, {});
  Document document;
  ASSERT_TRUE(reader.next(document));
  EXPECT_EQ(document.where(), file.string() + ":1");
  ASSERT_TRUE(reader.next(document));
  EXPECT_EQ(document.where(), file.string() + ":4");
}

TEST_F(Documents, ReadsLinesLongerThanTheBuffer) {
  const std::string line(3'000'000, 'x');
  const fs::path file = write("a.txt", line + "\n" + line + "y\n");
  EXPECT_THAT(texts({file}, {.unit = DocumentUnit::kLine}), ElementsAre(line, line + "y"));
}

TEST_F(Documents, UnescapesJsonlTextsAndSkipsBlankTexts) {
  const fs::path file = write("a.jsonl", R"({"text": "già\nora", "id": 1})"
                                         "\n\n"
                                         R"({"text": " "})"
                                         "\n"
                                         R"({"id": 2, "text": "p\u0159es"})");
  EXPECT_THAT(texts({file}), ElementsAre("già\nora", "přes"));
  EXPECT_THAT(texts({write("b.jsonl", R"({"body": "b"})")}, {.text_field = "body"}),
              ElementsAre("b"));
  EXPECT_THAT(texts({write("c.ndjson", R"({"text": "c"})")}), ElementsAre("c"));
}

TEST_F(Documents, ALimitCountsTheDocumentsOfAllInputs) {
  const fs::path a = write("a.txt", "uno\n\n\ndue\n"), b = write("b.txt", "tre\n\nquattro\n");
  const auto limited = [&](uint64_t limit) {
    DocumentReader reader({a, b}, {.limit = limit});
    std::vector<std::string> all;
    for (Document document; reader.next(document);) all.push_back(document.text);
    EXPECT_FALSE(reader.next(*std::make_unique<Document>())) << "a reader that has ended goes on";
    return all;
  };
  EXPECT_THAT(limited(1), ElementsAre("uno"));
  EXPECT_THAT(limited(3), ElementsAre("uno", "due", "tre"));
  EXPECT_THAT(limited(9), ElementsAre("uno", "due", "tre", "quattro"));
  EXPECT_THAT(limited(0), ElementsAre("uno", "due", "tre", "quattro"));
}

TEST_F(Documents, FormatOptionOverridesTheFileName) {
  const fs::path file = write("a.txt", R"({"text": "a"})");
  EXPECT_THAT(texts({file}, {.format = InputFormat::kJsonl}), ElementsAre("a"));
  EXPECT_THAT(texts({file}), ElementsAre(R"({"text": "a"})"));
}

TEST_F(Documents, NamesFileAndLineInJsonlErrors) {
  const std::string good = R"({"text": "a"})"
                           "\n";
  const auto rejected = [&](const std::string& line, const std::string& part) {
    const fs::path file = write("bad.jsonl", good + line + "\n");
    expect_error(ErrorKind::kCorrupt, file.string() + ":2", {file});
    expect_error(ErrorKind::kCorrupt, part, {file});
  };
  rejected("not json", "");
  rejected(R"({"text": "a")", "");
  rejected(R"(["text"])", "expected a JSON object");
  rejected(R"({"title": "t", "body": "b"})", R"(no field "text"; the object has: title, body)");
  rejected(R"({"text": 3})", "should be a string");
  rejected("{\"text\": \"\xff\"}", "not UTF-8");
  rejected(std::string(1000, '[') + std::string(1000, ']'), "");
}

TEST_F(Documents, NamesFileLineAndColumnOfInvalidUtf8) {
  const fs::path latin1 = write("a.txt", "uno\ncitt\xe0 vecchia\n");
  expect_error(ErrorKind::kCorrupt, latin1.string() + ":2: not UTF-8 text: byte 0xe0 at column 5",
               {latin1});
  const fs::path binary = write("b.txt", std::string_view("uno\0due", 7));
  expect_error(ErrorKind::kCorrupt,
               ":1: not UTF-8 text: byte 0x00 at column 4; remove NULs with tr -d '\\000'",
               {binary});
}

TEST_F(Documents, ChecksThatInputsAreRegularFiles) {
  expect_error(ErrorKind::kUsage, "--input", {});
  expect_error(ErrorKind::kNotFound, "absent.txt", {dir_ / "absent.txt"});
  expect_error(ErrorKind::kUsage, "not a regular file", {"/dev/null"});
  expect_error(ErrorKind::kUsage, "is a folder without state.json", {dir_.path()});
  EXPECT_THAT(texts({write("empty.txt", "")}), IsEmpty());
}

// A shard of the text before a bad sector would look whole.
TEST_F(Documents, AReadErrorIsNotTheEndOfTheText) {
  const fs::path file = write("a.txt", "uno\n");
  const int code = test::in_child([&] {
    if (!test::fail_calls(SYS_read, EIO)) return 77;
    DocumentReader reader({file}, {});
    Document document;
    const test::Thrown thrown = test::thrown_by([&] { reader.next(document); });
    const bool names = thrown.message.find(file.string()) != std::string::npos;
    return thrown.kind == ErrorKind::kIo && names ? 0 : 1;
  });
  if (code == 77) GTEST_SKIP() << "this system does not allow seccomp filters";
  EXPECT_EQ(code, 0);
}

TEST_F(Documents, AFolderOfSaveToDiskStandsForItsFilesInOrder) {
  write(
      "state.json",
      R"({"_data_files": [{"filename": "z.arrow"}, {"filename": "a.arrow"}], "_format_type": null})");
  const fs::path text = write("a.txt", "uno");
  EXPECT_THAT(data_files({text, dir_.path()}),
              ElementsAre(text, dir_ / "z.arrow", dir_ / "a.arrow"));
  expect_error(ErrorKind::kNotFound, "z.arrow", {dir_.path()});
  for (const char* name : {"../a.txt", "/etc/passwd", "..", "", "a/"}) {
    write("state.json", std::string(R"({"_data_files": [{"filename": ")") + name + R"("}]})");
    expect_error(ErrorKind::kCorrupt, "expected the name of a file in the folder", {dir_.path()});
  }
  write("dataset_dict.json", R"({"splits": ["train"]})");
  fs::remove(dir_ / "state.json");
  expect_error(ErrorKind::kUsage, "name one, as " + (dir_ / "train").string(), {dir_.path()});
}

// tests/tokenize/same_tables.py reads whole tables.
TEST_F(Documents, ATableIsRefusedWithTheReasonOfTheBuild) {
  const auto refused = [](const fs::path& file, const std::string& part, InputFormat format) {
    if (reads_tables())
      expect_error(ErrorKind::kCorrupt, file.string() + ": " + part, {file}, {.format = format});
    else
      expect_error(ErrorKind::kUnsupported,
                   file.string() + ": this xffl-tokenize was built without libarrow", {file},
                   {.format = format});
  };
  const fs::path parquet = write("a.parquet", "no table"), arrow = write("a.arrow", "no table");
  refused(parquet, "not a readable Parquet file", InputFormat::kAuto);
  refused(arrow, "not a readable Arrow file", InputFormat::kAuto);
  refused(parquet, "not a readable Parquet file", InputFormat::kChat);
  refused(write("b", ""), "not a readable Parquet file", InputFormat::kParquet);
  refused(write("b", ""), "not a readable Arrow file", InputFormat::kArrow);
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  for (const std::string_view good :
       {"", "a", "città", "ř", "漢", "🙂", "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf"}) {
    EXPECT_EQ(find_invalid_utf8(good), good.size()) << good;
  }
  // A continuation byte, overlong forms, a surrogate, beyond U+10FFFF, truncated characters.
  for (const std::string_view bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\xed\xa0\x80",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc3", "\xe6\xbc", "\xf0\x9f\x99",
        "\xc3z"}) {
    EXPECT_EQ(find_invalid_utf8("ab" + std::string(bad)), 2u) << testing::PrintToString(bad);
  }
}

}  // namespace
}  // namespace xffl::tokenize
