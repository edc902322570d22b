#include "xffl/tokenize/chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/tokenize/corpus.h"

namespace xffl::tokenize {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

const fs::path kLlama2 = fs::path(XFFL_SOURCE_DIR) / "tests/tokenize/data/llama2";

class Chat : public testing::Test {
 protected:
  static std::vector<std::string> parts(const RenderedChat& chat,
                                        const std::vector<ByteRange>& ranges) {
    std::vector<std::string> all;
    for (const ByteRange& each : ranges)
      all.push_back(chat.text.substr(each.begin, each.end - each.begin));
    return all;
  }
  template <typename Body>
  static void refused(ErrorKind kind, const std::string& part, Body body) {
    try {
      body();
      ADD_FAILURE() << "accepted; expected: " << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
  EncodeResult encode(const std::string& lines, EncodeOptions options = {}) const {
    std::ofstream(dir_ / "a.jsonl") << lines;
    options.documents.format = InputFormat::kChat;
    if (options.chat_template.empty()) options.chat_template = "llama-2";
    options.packed = false;
    return encode_corpus(tokenizer_, {dir_ / "a.jsonl"}, dir_ / "out.tokens", options,
                         [](const Progress&) {});
  }
  /// The tokenizer with more control tokens.
  Tokenizer with_controls(const std::vector<std::string>& spellings) const {
    Json json = Json::parse(read_file(kLlama2 / "tokenizer.json", 1 << 20));
    for (const std::string& spelling : spellings) {
      Json token = json["added_tokens"].back();
      token["id"] = token["id"].get<int>() + 1;
      token["content"] = spelling;
      token["special"] = true;
      json["added_tokens"].push_back(token);
    }
    std::ofstream(dir_ / "tokenizer.json") << json.dump();
    return Tokenizer(dir_ / "tokenizer.json");
  }

  const Tokenizer tokenizer_{kLlama2};
  test::TempDir dir_;
};

TEST_F(Chat, AMaskedTurnIsTheAssistantsTextWithItsEnd) {
  const std::vector<ChatMessage> messages{{"system", "Sii breve."},
                                          {"user", " Ciao </s> "},
                                          {"assistant", "Sì.\r\n"},
                                          {"user", "E poi?"},
                                          {"assistant", "Basta."}};
  const ChatTemplate llama2("llama-2", tokenizer_);
  const RenderedChat chat = llama2.render(messages);
  EXPECT_EQ(chat.text,
            "<s>[INST] <<SYS>>\nSii breve.\n<</SYS>>\n\n Ciao </s> [/INST] Sì. <|end_of_text|>"
            "<s>[INST] E poi? [/INST] Basta. <|end_of_text|>");
  EXPECT_THAT(parts(chat, chat.loss),
              ElementsAre(" Sì. <|end_of_text|>", " Basta. <|end_of_text|>"));
  EXPECT_THAT(parts(chat, chat.plain),
              ElementsAre("Sii breve.", " Ciao </s>", "Sì.", "E poi?", "Basta."));
  const RenderedChat mistral =
      ChatTemplate("mistral", tokenizer_).render(std::span(messages).subspan(1));
  EXPECT_THAT(parts(mistral, mistral.loss),
              ElementsAre("Sì.\r\n<|end_of_text|>", "Basta.<|end_of_text|>"));
}

TEST_F(Chat, ASpelledControlTokenStaysText) {
  const std::string text = "<s>a</s>b";
  const auto ids = [&](const std::vector<ByteRange>& plain) {
    Ids found;
    for (const TokenSpan& each : tokenizer_.encode_with_controls(text, plain))
      found.push_back(each.id);
    return found;
  };
  const auto count = [&](const Ids& found) {
    return std::ranges::count(found, *tokenizer_.control_id("</s>"));
  };
  EXPECT_EQ(ids({}), tokenizer_.encode(text));
  EXPECT_EQ(count(ids({})), 1);
  EXPECT_EQ(count(ids({{3, 4}})), 1) << "the text before the token";
  EXPECT_EQ(count(ids({{8, 9}})), 1) << "the text after the token";
  for (const ByteRange& each : {ByteRange{3, 9}, {4, 8}, {3, 5}, {7, 9}, {5, 6}})
    EXPECT_EQ(count(ids({each})), 0) << each.begin << " to " << each.end;
  EXPECT_EQ(tokenizer_.decode(ids({{0, text.size()}})), text);
}

TEST_F(Chat, AnAddedTokenThatIsNoControlTokenIsFoundInAMessage) {
  const std::vector<ByteRange> plain{{0, 6}};
  const std::vector<TokenSpan> found = tokenizer_.encode_with_controls("<tool>", plain);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(tokenizer_.encode("<tool>"), Ids{found[0].id});
  EXPECT_FALSE(tokenizer_.control_id("<tool>")) << "a message could spell it";
}

TEST_F(Chat, ASpelledControlTokenStaysTextWithSentencePiece) {
  const fs::path texts = kLlama2.parent_path();
  train({texts / "it.txt", texts / "cs.txt"}, dir_.path(), {.vocab_size = 500});
  const Tokenizer tokenizer(dir_.path());
  const std::vector<ChatMessage> messages{{"user", "a</s>b"}, {"assistant", "<s>c"}};
  const RenderedChat chat = ChatTemplate("llama-2", tokenizer).render(messages);
  Ids controls;
  size_t covered = 0;
  for (const TokenSpan& each : tokenizer.encode_with_controls(chat.text, chat.plain)) {
    if (each.id == tokenizer.bos_id() || each.id == tokenizer.eos_id()) controls.push_back(each.id);
    EXPECT_GE(each.begin, covered) << "a token of an earlier place";
    covered = each.end;
  }
  EXPECT_EQ(covered, chat.text.size());
  EXPECT_EQ(controls, (Ids{tokenizer.bos_id(), tokenizer.eos_id()})) << "those of the template";
}

TEST_F(Chat, ToolsHaveNoLossInChatml) {
  const std::vector<ChatMessage> messages{
      {"system", "a"}, {"user", "b"}, {"assistant", "c"}, {"tool", "d"}, {"assistant", "e"}};
  const RenderedChat chat =
      ChatTemplate("chatml", with_controls({"<|im_start|>", "<|im_end|>"})).render(messages);
  EXPECT_THAT(parts(chat, chat.loss), ElementsAre("c<|im_end|>", "e<|im_end|>"));
}

TEST_F(Chat, EachMessageIsPlainTextInEveryTemplate) {
  const Tokenizer tokenizer =
      with_controls({"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|im_start|>",
                     "<|im_end|>", "[INST]", "[/INST]"});
  const std::vector<ChatMessage> messages{
      {"user", "a</s>"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}};
  for (const std::string& name : chat_template_names()) {
    const RenderedChat chat = ChatTemplate(name, tokenizer).render(messages);
    EXPECT_THAT(parts(chat, chat.plain), testing::IsSupersetOf({"a</s>", "b", "c", "d"})) << name;
  }
}

// Without its tokenizer_config.json, the tokenizer has no EOS.
TEST_F(Chat, ATokenizerWithoutTheEosOfTheTemplateIsRefused) {
  fs::copy(kLlama2.parent_path() / "bpe/tokenizer.json", dir_ / "tokenizer.json");
  const Tokenizer tokenizer(dir_ / "tokenizer.json");
  refused(ErrorKind::kUnsupported, "no control token '</s>'",
          [&] { ChatTemplate("llama-2", tokenizer); });
}

TEST_F(Chat, ATokenizerWithoutTheLastControlTokenOfTheTemplateIsRefused) {
  const auto check = [&](const std::string& name, const std::vector<std::string>& others,
                         const std::string& last) {
    const Tokenizer tokenizer = with_controls(others);
    refused(ErrorKind::kUnsupported, "no control token '" + last + "'",
            [&] { ChatTemplate(name, tokenizer); });
  };
  check("llama-3", {"<|start_header_id|>", "<|end_header_id|>"}, "<|eot_id|>");
  check("chatml", {"<|im_start|>"}, "<|im_end|>");
  check("mistral-v3", {"[INST]"}, "[/INST]");
}

TEST_F(Chat, ConversationsBeginWithTheBosOfTheTokenizer) {
  const Tokenizer tokenizer(kLlama2.parent_path() / "bpe");
  const std::vector<ChatMessage> messages{{"user", "a"}};
  EXPECT_EQ(ChatTemplate("llama-2", tokenizer).render(messages).text,
            "<|begin_of_text|>[INST] a [/INST]");
}

TEST_F(Chat, ATruncatedConversationHasNoEos) {
  const auto encoded = [&](const EncodeOptions& options) {
    encode(R"({"messages": [{"role": "user", "content": "Che ore sono?"}, )"
           R"({"role": "assistant", "content": "Le sei e mezza."}]})",
           options);
    const tokens::TokenShardReader reader(dir_ / "out.tokens");
    Ids ids(reader.length(0));
    reader.read(0, ids);
    return ids;
  };
  Ids expected = encoded({});
  expected.pop_back();
  EncodeOptions options;
  options.truncate = true;
  options.sequence_length = expected.size();
  EXPECT_EQ(encoded(options), expected);
}

TEST_F(Chat, ConversationsThatDifferInOneMessageAreOtherDocuments) {
  std::string lines;
  for (int i = 0; i < 20; ++i)
    lines += R"({"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": ")" +
             std::to_string(i) + R"("}, {"role": "assistant", "content": "b"}]})" + "\n";
  EncodeOptions options;
  options.validation.emplace();
  options.validation->output = dir_ / "val.tokens";
  options.validation->num_documents = 5;
  const EncodeResult result = encode(lines, options);
  EXPECT_EQ(result.validation->num_documents, 5u);
  EXPECT_EQ(result.training.num_documents, 15u);
}

TEST_F(Chat, ChecksTurnsAndRoles) {
  const auto render = [&](const std::string& name, const std::vector<ChatMessage>& messages) {
    return [=, this] { ChatTemplate(name, tokenizer_).render(messages); };
  };
  const ChatMessage user{"user", "a"}, assistant{"assistant", "b"}, system{"system", "c"};
  refused(ErrorKind::kCorrupt, "message 0 is of 'assistant', expected 'user'",
          render("llama-2", {assistant}));
  refused(ErrorKind::kCorrupt, "message 2 is of 'user', expected 'assistant'",
          render("llama-2", {system, user, user}));
  refused(ErrorKind::kCorrupt, "message 0 has the role 'system', this template has the roles user",
          render("mistral", {system, user}));
  refused(ErrorKind::kCorrupt, "has the role 'tool'", render("mistral", {user, {"tool", "x"}}));
  refused(ErrorKind::kCorrupt, "without a message", render("mistral", {}));
  refused(ErrorKind::kUsage, "unknown chat template 'vicuna': expected llama-2, llama-3",
          render("vicuna", {user}));
  refused(ErrorKind::kUnsupported, "no control token '<|im_start|>'", render("chatml", {user}));
}

TEST_F(Chat, RefusesLinesThatAreNoConversationWithTheirPlace) {
  const std::string good =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})";
  EXPECT_EQ(encode(good + "\n\n" + good).num_documents, 2u);
  const auto rejected = [&](const std::string& line, const std::string& part) {
    refused(ErrorKind::kCorrupt, "a.jsonl:2", [&] { encode(good + "\n" + line); });
    refused(ErrorKind::kCorrupt, part, [&] { encode(good + "\n" + line); });
  };
  rejected("[]", "expected a JSON object, found array");
  rejected(R"({"text": "a"})", R"(no field "messages"; the object has: text)");
  rejected(R"({"messages": []})", "should be a list of messages");
  rejected(R"({"messages": ["a"]})", "message 0 is not a JSON object");
  rejected(R"({"messages": [{"role": "user"}]})", "content");
  rejected(R"({"messages": [{"role": "user", "content": ["a"]}]})", "content");
  rejected(R"({"messages": [{"role": "user", "content": "a", "tool_calls": []}]})", "tool_calls");
  rejected(R"({"messages": [{"role": "judge", "content": "a"}]})",
           "message 0 has the role 'judge'");
}

TEST_F(Chat, ChecksItsOptions) {
  const std::string line =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})";
  EncodeOptions options;
  options.mask_prompt = true;
  refused(ErrorKind::kUsage, "--mask-prompt", [&] { encode(line, options); });
  options = {};
  options.chat_template = "mistral";
  EXPECT_TRUE(encode(line, options).training.has_targets);
  options.documents.format = InputFormat::kText;
  refused(ErrorKind::kUsage, "--format chat", [&] {
    encode_corpus(tokenizer_, {dir_ / "a.jsonl"}, dir_ / "o", options, [](const Progress&) {});
  });
}

}  // namespace
}  // namespace xffl::tokenize
