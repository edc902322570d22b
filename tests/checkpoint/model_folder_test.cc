#include "xffl/checkpoint/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "files.h"
#include "support/temp_dir.h"

namespace xffl::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kIndex = "model.safetensors.index.json";

/// Writes a file of one-element tensors with the value 1.
void write_file(const fs::path& path, const std::vector<std::string>& names) {
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) specs.push_back({name, Dtype::kF32, {1}});
  SafetensorsWriter writer(path, specs);
  for (size_t i = 0; i < specs.size(); ++i) writer.write(bytes_of({1}));
  writer.finish();
}

Thrown opening(const fs::path& folder) {
  return thrown_by([&] { ModelFolder model(folder); });
}

const std::vector<TensorSpec> kSpecs{{"b", Dtype::kF32, {3}},
                                     {"none", Dtype::kF32, {0}},
                                     {"a", Dtype::kF32, {2}},
                                     {"c", Dtype::kF32, {1}}};

void write_model(const fs::path& folder, uint64_t max_shard_bytes) {
  ModelWriter writer(folder, kSpecs, max_shard_bytes);
  writer.write(bytes_of({1, 2}));
  writer.write(bytes_of({3}));
  writer.write(bytes_of({4, 5}));
  writer.write(bytes_of({6}));
  writer.finish();
}

void expect_model(const fs::path& folder) {
  const ModelFolder model(folder);
  ASSERT_EQ(model.tensors().size(), 4u);
  EXPECT_EQ(model.tensors()[0].name, "a");  // sorted by name
  EXPECT_EQ(model.spec("b").shape, std::vector<int64_t>{3});
  EXPECT_TRUE(model.contains("c"));
  EXPECT_FALSE(model.contains("d"));
  EXPECT_TRUE(std::ranges::equal(model.data("b"), bytes_of({1, 2, 3})));
  EXPECT_TRUE(std::ranges::equal(model.data("a"), bytes_of({4, 5})));
  EXPECT_TRUE(std::ranges::equal(model.data("c"), bytes_of({6})));
  EXPECT_EQ(model.data("none").size(), 0u);
  EXPECT_THAT(thrown_by([&] { model.data("d"); }).message, HasSubstr("no tensor 'd'"));
}

TEST(ModelFolder, ReadsOneFile) {
  test::TempDir dir;
  write_model(dir / "m", 1000);
  EXPECT_TRUE(fs::exists(dir / "m/model.safetensors"));
  EXPECT_FALSE(fs::exists(dir / "m" / kIndex));
  expect_model(dir / "m");
}

TEST(ModelFolder, ReadsSeveralFiles) {
  for (const uint64_t max_shard_bytes : {uint64_t{0}, uint64_t{4}, uint64_t{12}, uint64_t{20}}) {
    test::TempDir dir;
    write_model(dir / "m", max_shard_bytes);
    EXPECT_FALSE(fs::exists(dir / "m/model.safetensors"));
    expect_model(dir / "m");
    for (const auto& entry : fs::directory_iterator(dir / "m")) {
      EXPECT_NE(entry.path().extension(), ".tmp");
    }
  }
}

TEST(ModelWriter, RejectsBytesThatCrossATensorsEnd) {
  test::TempDir dir;
  {
    ModelWriter writer(dir / "m", kSpecs);
    EXPECT_THAT(thrown_by([&] {
                  writer.write(bytes_of({1, 2, 3, 4}));
                }).message,
                HasSubstr("crosses the end of tensor 'b'"));
    writer.write(bytes_of({1, 2, 3}));
    writer.write(bytes_of({4}));
    EXPECT_THAT(thrown_by([&] { writer.finish(); }).message,
                HasSubstr("tensor 'a' has only 4 of its 8"));
  }
  EXPECT_TRUE(fs::is_empty(dir / "m"));
  ModelWriter writer(dir / "m", {{"x", Dtype::kF32, {1}}});
  writer.write(bytes_of({1}));
  EXPECT_THAT(thrown_by([&] { writer.write(bytes_of({1})); }).message,
              HasSubstr("more than the tensors have"));
}

TEST(ModelFolder, ErrorNamesMissingFilesAndPickledWeights) {
  test::TempDir dir;
  EXPECT_EQ(opening(dir / "none").kind, ErrorKind::kNotFound);
  EXPECT_EQ(opening(dir.path()).kind, ErrorKind::kNotFound);
  write_text(dir / "pytorch_model.bin", "pickle");
  EXPECT_EQ(opening(dir.path()).kind, ErrorKind::kNotFound);
  EXPECT_THAT(opening(dir.path()).message, HasSubstr("pytorch_model.bin) are never read"));
}

TEST(ModelFolder, RejectsTwoModelsInOneFolder) {
  test::TempDir dir;
  write_file(dir / "model.safetensors", {"a"});
  write_text(dir / kIndex, R"({"weight_map":{"a":"model.safetensors"}})");
  EXPECT_THAT(opening(dir.path()).message, HasSubstr("two models in one folder"));
}

TEST(ModelFolder, AnAdapterBesideAModelIsNotRead) {
  test::TempDir dir;
  write_file(dir.path() / kAdapterName, {"a"});
  EXPECT_TRUE(ModelFolder(dir.path()).is_adapter());
  write_file(dir / "model.safetensors", {"b"});
  const ModelFolder model(dir.path());
  EXPECT_FALSE(model.is_adapter());
  EXPECT_TRUE(model.contains("b"));
  EXPECT_FALSE(model.contains("a"));
}

TEST(ModelFolder, IgnoresMetadataInTheIndex) {
  test::TempDir dir;
  write_file(dir / "part-1.safetensors", {"a"});
  write_text(
      dir / kIndex,
      R"({"metadata":{"total_parameters":1,"total_size":4},"weight_map":{"a":"part-1.safetensors"}})");
  EXPECT_EQ(ModelFolder(dir.path()).tensors().size(), 1u);
}

TEST(HostileIndex, RejectsFileNamesOutsideTheFolder) {
  test::TempDir outside;
  write_file(outside / "x.safetensors", {"a"});
  test::TempDir dir;
  const std::string absolute = (outside / "x.safetensors").string();
  for (const std::string& name :
       {std::string("../x.safetensors"), absolute, std::string("sub/x.safetensors"),
        std::string(".x.safetensors"), std::string(".."), std::string(""), std::string("x.bin"),
        std::string("x\\u0000.safetensors"), std::string("..\\\\x.safetensors"),
        std::string(4096, 'x') + ".safetensors"}) {
    write_text(dir / kIndex, R"({"weight_map":{"a":")" + name + "\"}}");
    EXPECT_EQ(opening(dir.path()).kind, ErrorKind::kCorrupt);
    EXPECT_THAT(opening(dir.path()).message, HasSubstr("plain name of a .safetensors file"))
        << name;
  }
}

TEST(HostileIndex, RejectsAMalformedIndex) {
  test::TempDir dir;
  const auto message = [&](std::string_view text) {
    write_text(dir / kIndex, text);
    const Thrown thrown = opening(dir.path());
    EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt);
    return thrown.message;
  };
  EXPECT_THAT(message("[]"), HasSubstr("weight_map"));
  EXPECT_THAT(message("{}"), HasSubstr("weight_map"));
  EXPECT_THAT(message(R"({"weight_map":[]})"), HasSubstr("weight_map"));
  EXPECT_THAT(message(R"({"weight_map":{}})"), HasSubstr("names no tensor"));
  EXPECT_THAT(message(R"({"weight_map":{"a":1}})"), HasSubstr("'a': expected a file name"));
  EXPECT_THAT(message(R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})"),
              HasSubstr("twice"));
  EXPECT_THAT(message(R"({"weight_map":{"a":"x.safetensors"}})"),
              HasSubstr("which is not in the folder"));
  EXPECT_THAT(message(std::string(9u << 20, ' ')), HasSubstr(kIndex));
}

TEST(HostileIndex, RejectsAnIndexThatDisagreesWithTheFiles) {
  test::TempDir dir;
  const auto message = [&](std::string_view map) {
    write_text(dir / kIndex, "{\"weight_map\":" + std::string(map) + "}");
    const Thrown thrown = opening(dir.path());
    EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt);
    return thrown.message;
  };
  write_file(dir / "1.safetensors", {"a", "b"});
  write_file(dir / "2.safetensors", {"c"});
  EXPECT_THAT(message(R"({"a":"1.safetensors","c":"2.safetensors"})"),
              HasSubstr("does not name tensor 'b'"));
  EXPECT_THAT(message(R"({"a":"1.safetensors","b":"2.safetensors","c":"2.safetensors"})"),
              HasSubstr("tensor 'b' is not in 2.safetensors"));
  EXPECT_THAT(
      message(
          R"({"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors","d":"2.safetensors"})"),
      HasSubstr("tensor 'd' is not in 2.safetensors"));
  write_file(dir / "2.safetensors", {"b"});
  EXPECT_THAT(message(R"({"a":"1.safetensors","b":"2.safetensors"})"),
              HasSubstr("tensor 'b' is in two files, 1.safetensors and 2.safetensors"));
}

TEST(CopyTokenizerFiles, CopiesTokenizerFilesOnly) {
  test::TempDir from;
  test::TempDir to;
  const std::vector<std::string> wanted{"tokenizer.json",      "tokenizer_config.json",
                                        "tokenizer.model",     "special_tokens_map.json",
                                        "vocab.json",          "merges.txt",
                                        "added_tokens.json",   "generation_config.json",
                                        "chat_template.jinja", "spiece.model"};
  for (const std::string& name : wanted) write_text(from / name, name);
  for (const char* name : {"config.json", "model.safetensors", "manifest.json", "README.md",
                           ".tokenizer.json", "tokenizer.json.tmp"}) {
    write_text(from / name, name);
  }
  fs::create_directory(from / "tokenizer_folder");
  copy_tokenizer_files(from.path(), to / "deep/er");
  std::set<std::string> found;
  for (const auto& entry : fs::directory_iterator(to / "deep/er"))
    found.insert(entry.path().filename().string());
  EXPECT_EQ(found, std::set<std::string>(wanted.begin(), wanted.end()));
}

// Llama 3's tokenizer.json has 9 MB.
TEST(CopyTokenizerFiles, CopiesAFileOfSeveralMegabytes) {
  test::TempDir from;
  test::TempDir to;
  write_text(from / "tokenizer.json", std::string(9u << 20, 'x'));
  copy_tokenizer_files(from.path(), to.path());
  EXPECT_EQ(fs::file_size(to / "tokenizer.json"), 9u << 20);
}

// Hugging Face's cache holds a model as links to files of another folder.
TEST(CopyTokenizerFiles, CopiesTheFilesBehindLinks) {
  test::TempDir from;
  test::TempDir to;
  fs::create_directory(from / "snapshot");
  write_text(from / "blob", "{}");
  fs::create_symlink("../blob", from / "snapshot/tokenizer.json");
  copy_tokenizer_files(from / "snapshot", to.path());
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(to / "tokenizer.json")));
  EXPECT_EQ(fs::file_size(to / "tokenizer.json"), 2u);
}

// The link to itself stands for a file of a file server that does not answer.
TEST(CopyTokenizerFiles, AFileThatCannotBeExaminedIsNotAbsent) {
  test::TempDir from;
  test::TempDir to;
  fs::create_symlink("absent", from / "vocab.json");
  EXPECT_NO_THROW(copy_tokenizer_files(from.path(), to.path()));
  fs::create_symlink("tokenizer.json", from / "tokenizer.json");
  const Thrown thrown = thrown_by([&] { copy_tokenizer_files(from.path(), to.path()); });
  EXPECT_EQ(thrown.kind, ErrorKind::kIo);
  EXPECT_THAT(thrown.message, HasSubstr((from / "tokenizer.json").string()));
}

}  // namespace
}  // namespace xffl::checkpoint
