// Hostile safetensors files: each known kind of damage and the reader's message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "files.h"
#include "support/temp_dir.h"

namespace xffl::checkpoint {
namespace {

using testing::HasSubstr;

/// The reader's error for a file of these bytes; checks that the error names the file.
std::string read_error(std::string_view bytes) {
  test::TempDir dir;
  write_text(dir / "evil.safetensors", bytes);
  const Thrown thrown = thrown_by([&] { SafetensorsFile file(dir / "evil.safetensors"); });
  EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt);
  EXPECT_THAT(thrown.message, HasSubstr("evil.safetensors"));
  EXPECT_LT(thrown.message.size(), 1000u);
  return thrown.message;
}

std::string header_error(std::string_view header, size_t data_size = 0) {
  return read_error(with_header(header, data_size));
}

std::string length_only(uint64_t length, size_t rest = 100) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + std::string(rest, '{');
}

/// {"t": {dtype, shape, data_offsets}} with these JSON texts.
std::string tensor(std::string_view shape, std::string_view offsets,
                   std::string_view dtype = "\"F32\"") {
  return "{\"t\":{\"dtype\":" + std::string(dtype) + ",\"shape\":" + std::string(shape) +
         ",\"data_offsets\":" + std::string(offsets) + "}}";
}

TEST(HostileLength, RejectsFilesShorterThanTheLength) {
  EXPECT_THAT(read_error(""), HasSubstr("0 bytes"));
  EXPECT_THAT(read_error("1234567"), HasSubstr("7 bytes"));
}

TEST(HostileLength, RejectsALengthBeyondTheFile) {
  EXPECT_THAT(read_error(length_only(101)), HasSubstr("truncated"));
}

TEST(HostileLength, RejectsALengthAboveTheLimit) {
  EXPECT_THAT(read_error(length_only((8u << 20) + 1)),
              HasSubstr("at most 8388608 bytes, found 8388609"));
  EXPECT_THAT(read_error(length_only(100u << 20)), HasSubstr("found 104857600"));
}

TEST(HostileLength, RejectsALengthThatWrapsAround) {
  EXPECT_THAT(read_error(length_only(uint64_t{1} << 63)), HasSubstr("found 9223372036854775808"));
  EXPECT_THAT(read_error(length_only(UINT64_MAX)), HasSubstr("found 18446744073709551615"));
  EXPECT_THAT(read_error(length_only(UINT64_MAX - 7)), HasSubstr("found 18446744073709551608"));
}

TEST(HostileLength, RejectsALengthOfZero) {
  EXPECT_THAT(read_error(length_only(0)), HasSubstr("starts with '{'"));
}

TEST(HostileJson, RejectsAHeaderThatIsNotAnObject) {
  EXPECT_THAT(header_error("[]"), HasSubstr("starts with '{'"));
  EXPECT_THAT(header_error(" {}"), HasSubstr("starts with '{'"));
  EXPECT_THAT(header_error("\xef\xbb\xbf{}"), HasSubstr("starts with '{'"));
}

TEST(HostileJson, RejectsInvalidJson) {
  EXPECT_THAT(header_error("{\"t\":"), HasSubstr("not JSON"));
  EXPECT_THAT(header_error("{}{}"), HasSubstr("not JSON"));
  EXPECT_THAT(header_error(std::string_view("{}\0\0", 4)), HasSubstr("not JSON"));
  EXPECT_THAT(header_error("{\"a\xff\":1}"), HasSubstr("not JSON"));
}

TEST(HostileJson, RejectsAPickle) {
  EXPECT_THAT(read_error("\x80\x04\x95...a pickle, not a model"), HasSubstr("header of at most"));
}

TEST(HostileJson, RejectsAnArchive) {
  const std::string rest(200, '\0');
  EXPECT_THAT(read_error("PK\x03\x04" + rest), HasSubstr("header of at most"));         // zip
  EXPECT_THAT(read_error("model.safetensors" + rest), HasSubstr("header of at most"));  // tar
  EXPECT_THAT(read_error("\x1f\x8b\x08" + rest), HasSubstr("truncated"));               // gzip
}

TEST(HostileJson, RejectsDeepNesting) {
  EXPECT_THAT(header_error("{\"t\":" + std::string(1'000'000, '[')), HasSubstr("deeper than 4"));
  EXPECT_THAT(header_error(R"({"t":{"shape":[[[1]]]}})"), HasSubstr("deeper than 4"));
}

TEST(HostileJson, RejectsTooManyTensors) {
  std::string header = "{";
  for (int i = 0; i <= 20'000; ++i) {
    header += (i > 0 ? ",\"" : "\"") + std::to_string(i) +
              R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  EXPECT_THAT(header_error(header + "}"), HasSubstr("at most 20000 tensors, found 20001"));
}

TEST(HostileJson, RejectsAMillionKeysOrObjectsQuickly) {
  for (const std::string value : {"1", "{}", "[]"}) {
    std::string header = "{";
    for (int i = 0; header.size() < (8u << 20) - 20; ++i) {
      header += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":" + value;
    }
    EXPECT_THAT(header_error(header + "}"), HasSubstr("an object has more than 20001 keys"));
  }
  std::string header = "{\"t\":[";
  while (header.size() < (8u << 20) - 20) header += header.back() == '[' ? "{}" : ",{}";
  EXPECT_THAT(header_error(header + "]}"), HasSubstr("tensor 't': expected an object"));
}

TEST(HostileJson, RejectsDuplicateKeys) {
  const std::string one = R"("t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_THAT(header_error("{" + one + "," + one + "}", 4), HasSubstr("'t' appears twice"));
  EXPECT_THAT(
      header_error(R"({"t":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}})", 4),
      HasSubstr("'dtype' appears twice"));
  EXPECT_THAT(header_error(R"({"__metadata__":{"a":"1","a":"2"}})"),
              HasSubstr("'a' appears twice"));
}

TEST(HostileJson, RejectsMalformedMetadata) {
  EXPECT_THAT(header_error(R"({"__metadata__":[]})"),
              HasSubstr("__metadata__: expected an object"));
  EXPECT_THAT(header_error(R"({"__metadata__":{"a":1}})"), HasSubstr("'a': expected a string"));
}

TEST(HostileName, RejectsNamesOutsideTheAlphabet) {
  const auto named = [](const std::string& name) {
    return header_error("{\"" + name + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4);
  };
  for (const char* name :
       {"", "a b", "../x", "a/b", "a\\u0000b", "a\\nb", "w\xc3\xa9ight", "\\u202eabc"}) {
    EXPECT_THAT(named(name), HasSubstr("tensor name '")) << name;
  }
  EXPECT_THAT(named(std::string(201, 'x')), HasSubstr("1 to 200 characters"));
  // The message holds no control characters.
  const std::string message = named("\\u001b[2Jgone");
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
}

TEST(HostileTensor, RejectsIncompleteTensors) {
  EXPECT_THAT(header_error(R"({"t":5})"), HasSubstr("tensor 't': expected an object"));
  EXPECT_THAT(header_error(R"({"t":{"dtype":"F32","shape":[1]}})"),
              HasSubstr("'data_offsets' is missing"));
  EXPECT_THAT(header_error(R"({"t":{"dtype":"F32","data_offsets":[0,4]}})"),
              HasSubstr("'shape' is missing"));
  EXPECT_THAT(header_error(R"({"t":{"shape":[1],"data_offsets":[0,4]}})"),
              HasSubstr("'dtype' is missing"));
  EXPECT_THAT(
      header_error(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"path":"/etc"}})"),
      HasSubstr("unknown key 'path'"));
}

TEST(HostileTensor, RejectsUnknownDtypes) {
  EXPECT_THAT(header_error(tensor("[1]", "[0,4]", "\"F8_E4M3\""), 4),
              HasSubstr("'F8_E4M3' is not known"));
  EXPECT_THAT(header_error(tensor("[1]", "[0,4]", "3"), 4), HasSubstr("dtype: expected a string"));
}

TEST(HostileTensor, RejectsMalformedShapes) {
  EXPECT_THAT(header_error(tensor("4", "[0,4]"), 4), HasSubstr("shape: expected a list"));
  EXPECT_THAT(header_error(tensor("[-1]", "[0,4]"), 4), HasSubstr("found -1"));
  EXPECT_THAT(header_error(tensor("[1.0]", "[0,4]"), 4), HasSubstr("found 1.0"));
  EXPECT_THAT(header_error(tensor("[1e400]", "[0,4]"), 4), HasSubstr("not JSON"));
  EXPECT_THAT(header_error(tensor("[\"1\"]", "[0,4]"), 4), HasSubstr("found \"1\""));
  EXPECT_THAT(header_error(tensor("[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4),
              HasSubstr("at most 8 dimensions, found 9"));
}

TEST(HostileTensor, RejectsShapesWhoseProductOverflows) {
  EXPECT_THAT(header_error(tensor("[4294967296,4294967296]", "[0,0]")), HasSubstr("overflows"));
  EXPECT_THAT(header_error(tensor("[9223372036854775808]", "[0,0]")), HasSubstr("too large"));
  EXPECT_THAT(header_error(tensor("[9223372036854775807]", "[0,4]")), HasSubstr("overflows"));
  // 2^62 elements of 4 bytes wrap to zero bytes.
  EXPECT_THAT(header_error(tensor("[4611686018427387904]", "[0,0]")), HasSubstr("overflows"));
  EXPECT_THAT(header_error(tensor("[18446744073709551616]", "[0,0]")),
              HasSubstr("expected an integer"));
}

TEST(HostileOffsets, RejectsMalformedOffsets) {
  EXPECT_THAT(header_error(tensor("[1]", "[0]"), 4), HasSubstr("list of two numbers"));
  EXPECT_THAT(header_error(tensor("[1]", "[0,4,8]"), 4), HasSubstr("list of two numbers"));
  EXPECT_THAT(header_error(tensor("[1]", "[-4,0]"), 4), HasSubstr("found -4"));
  EXPECT_THAT(header_error(tensor("[1]", "[8,4]"), 4), HasSubstr("lies before the start"));
}

TEST(HostileOffsets, RejectsASizeThatDisagreesWithTheShape) {
  EXPECT_THAT(header_error(tensor("[2]", "[0,4]"), 4),
              HasSubstr("expected 8 bytes for F32 [2], found 4"));
  EXPECT_THAT(header_error(tensor("[0]", "[0,4]"), 4), HasSubstr("expected 0 bytes"));
}

TEST(HostileOffsets, RejectsDataBeyondTheFile) {
  EXPECT_THAT(header_error(tensor("[2]", "[0,8]"), 4),
              HasSubstr("ends at 8, the file's data at 4"));
  EXPECT_THAT(header_error(tensor("[1]", "[18446744073709551612,18446744073709551615]"), 4),
              HasSubstr("expected 4 bytes"));
  EXPECT_THAT(header_error(tensor("[1]", "[18446744073709551608,18446744073709551612]"), 4),
              HasSubstr("a gap of"));
}

TEST(HostileOffsets, RejectsAGap) {
  EXPECT_THAT(header_error(tensor("[1]", "[4,8]"), 8), HasSubstr("a gap of 4 bytes"));
}

TEST(HostileOffsets, RejectsOverlappingTensors) {
  EXPECT_THAT(header_error(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                           R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                           8),
              HasSubstr("tensor 'b': its data at 4 overlaps the data of 'a'"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                           R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                           4),
              HasSubstr("overlaps"));
}

TEST(HostileOffsets, RejectsAnEmptyTensorInsideAnother) {
  EXPECT_THAT(header_error(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                           R"("b":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})",
                           8),
              HasSubstr("overlaps"));
}

TEST(HostileOffsets, RejectsDataWithoutATensor) {
  EXPECT_THAT(header_error(tensor("[1]", "[0,4]"), 1000),
              HasSubstr("expected 4 bytes of data, found 1000"));
  EXPECT_THAT(header_error("{}", 1), HasSubstr("expected 0 bytes of data, found 1"));
}

TEST(HostileFile, RejectsEveryTruncation) {
  const std::string whole = with_header(tensor("[64]", "[0,256]"), 256);
  test::TempDir dir;
  write_text(dir / "a", whole);
  EXPECT_NO_THROW(SafetensorsFile(dir / "a"));
  for (size_t size = 0; size < whole.size(); ++size) {
    write_text(dir / "a", whole.substr(0, size));
    ASSERT_EQ(thrown_by([&] { SafetensorsFile file(dir / "a"); }).kind, ErrorKind::kCorrupt)
        << size;
  }
}

TEST(HostileFile, AnyFlippedBitOfTheHeaderIsRejectedOrReadInBounds) {
  const std::string whole = with_header(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("b":{"dtype":"BF16","shape":[],"data_offsets":[16,18]}})",
      18);
  test::TempDir dir;
  for (size_t bit = 0; bit < (whole.size() - 18) * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    write_text(dir / "a", flipped);
    // kCorrupt, or (a flip in a name) a readable file with all data in bounds.
    try {
      const SafetensorsFile file(dir / "a");
      for (const TensorSpec& spec : file.tensors())
        ASSERT_EQ(file.data(spec.name).size(), spec.num_bytes());
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kCorrupt) << error.what();
    }
  }
}

}  // namespace
}  // namespace xffl::checkpoint
