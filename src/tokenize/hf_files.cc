// How it works: for BPE, HF's LlamaTokenizer reads tokenizer.model itself. For unigram, none of its
// classes does in transformers 5: tokenizer.json describes the same model to the tokenizers
// library, with the steps that transformers 4 converts a LLaMA's SentencePiece model to
// (convert_slow_tokenizer.LlamaConverter).
#include "hf_files.h"

#include <sentencepiece_processor.h>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"

namespace xffl::tokenize {
namespace {

constexpr const char* kSpace = "\xe2\x96\x81";  // U+2581, SentencePiece's space

Json common_config() {
  Json config;
  config["unk_token"] = "<unk>";
  config["bos_token"] = "<s>";
  config["eos_token"] = "</s>";
  config["pad_token"] = nullptr;
  config["clean_up_tokenization_spaces"] = false;
  return config;
}

// "legacy" is HF's name for the treatment of spaces that SentencePiece itself has.
Json llama_config() {
  Json config = common_config();
  config["tokenizer_class"] = "LlamaTokenizer";
  config["add_bos_token"] = true;
  config["add_eos_token"] = false;
  config["add_prefix_space"] = true;
  config["legacy"] = true;
  config["use_default_system_prompt"] = false;
  return config;
}

Json special_tokens() {
  Json tokens = Json::array();
  for (const char* content : {"<unk>", "<s>", "</s>"})
    tokens.push_back({{"id", tokens.size()},
                      {"content", content},
                      {"single_word", false},
                      {"lstrip", false},
                      {"rstrip", false},
                      {"normalized", false},
                      {"special", true}});
  return tokens;
}

// "<s>" before a text; before each of a pair.
Json template_processing() {
  const auto bos = [](int type) {
    return Json{{"SpecialToken", {{"id", "<s>"}, {"type_id", type}}}};
  };
  const auto text = [](const char* id, int type) {
    return Json{{"Sequence", {{"id", id}, {"type_id", type}}}};
  };
  const Json ids = Json::array({1}), tokens = Json::array({"<s>"});
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({bos(0), text("A", 0)})},
          {"pair", Json::array({bos(0), text("A", 0), bos(1), text("B", 1)})},
          {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", ids}, {"tokens", tokens}}}}}};
}

Json replace(const char* from, const char* to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

Json sequence(const char* key, Json steps) {
  return {{"type", "Sequence"}, {key, std::move(steps)}};
}

Json unigram(std::string_view bytes) {
  sentencepiece::SentencePieceProcessor model;
  const auto status = model.LoadFromSerializedProto(bytes);
  if (!status.ok()) throw Error(ErrorKind::kInternal, "the new model: " + status.ToString());
  Json vocabulary = Json::array();
  for (int id = 0; id < model.GetPieceSize(); ++id)
    vocabulary.push_back(Json::array({model.IdToPiece(id), double{model.GetScore(id)}}));
  return {{"type", "Unigram"},
          {"unk_id", model.unk_id()},
          {"vocab", std::move(vocabulary)},
          {"byte_fallback", model.PieceToId("<0x00>") != model.unk_id()}};
}

Json tokenizers_file(std::string_view model) {
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", special_tokens()},
      {"normalizer",
       sequence("normalizers",
                Json::array({{{"type", "Prepend"}, {"prepend", kSpace}}, replace(" ", kSpace)}))},
      {"pre_tokenizer", nullptr},
      {"post_processor", template_processing()},
      {"decoder",
       sequence("decoders",
                Json::array({replace(kSpace, " "),
                             {{"type", "ByteFallback"}},
                             {{"type", "Fuse"}},
                             {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}))},
      {"model", unigram(model)}};
}

}  // namespace

std::filesystem::path write_hf_files(std::string_view model, ModelType type,
                                     const std::filesystem::path& folder) {
  Json config = llama_config();
  if (type == ModelType::kUnigram) {
    write_file_atomic(folder / "tokenizer.json", tokenizers_file(model).dump(1) + "\n");
    config = common_config();
    config["tokenizer_class"] = "PreTrainedTokenizerFast";
  }
  write_file_atomic(folder / "tokenizer_config.json", config.dump(2) + "\n");
  return folder / "tokenizer_config.json";
}

}  // namespace xffl::tokenize
