#include "bpe_steps.h"

#include "code_points.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::tokenize {
namespace {

constexpr size_t kMaxSteps = 16;

class FallbackReader {
 public:
  FallbackReader(const Json& file, BpeSpec& spec) : top_(file, spec.origin), spec_(spec) {}

  void run() {
    const bool normalizes = top_.has("normalizer"), splits = top_.has("pre_tokenizer");
    if (normalizes == splits)
      refuse_bpe(spec_.origin,
                 "byte_fallback with both a normalizer and a pre_tokenizer, or none, is");
    normalizes ? read_normalizer(top_.at("normalizer")) : read_metaspace(top_.at("pre_tokenizer"));
    read_decoder(top_.has("decoder") ? top_.at("decoder") : Json());
  }

 private:
  bool is_replace(const Json& json, std::string_view from, std::string_view to) const {
    return json.is_object() && json.value("type", "") == "Replace" && json.contains("pattern") &&
           json["pattern"] == Json{{"String", from}} && json.contains("content") &&
           json["content"] == to;
  }

  // Prepend, where there is one, and Replace.
  void read_normalizer(const Json& json) {
    std::vector<Json> steps = steps_of(json, "normalizers", spec_.origin + ": normalizer");
    if (JsonObject first(steps[0], spec_.origin + ": normalizer");
        first.string("type") == "Prepend") {
      if (first.string("prepend") != kSpaceMark) refuse_step(spec_.origin, "normalizer", steps[0]);
      spec_.prefix = Prefix::kEach;
      steps.erase(steps.begin());
    }
    if (steps.size() != 1 || !is_replace(steps[0], " ", kSpaceMark))
      refuse_step(spec_.origin, "with byte_fallback the normalizer", json);
    for (const AddedToken& token : spec_.added_tokens) {
      if (token.normalized)
        refuse_bpe(spec_.origin, "an added token that is normalized ('" +
                                     log::printable(token.content, 60) + "') is");
    }
  }

  void read_metaspace(const Json& json) {
    JsonObject step(json, spec_.origin + ": pre_tokenizer");
    if (step.string("type") != "Metaspace" || step.string("replacement") != kSpaceMark ||
        step.boolean_or("split", true))
      refuse_step(spec_.origin, "with byte_fallback the pre_tokenizer", json);
    const std::string scheme = step.string("prepend_scheme");
    if (scheme == "always") {
      spec_.prefix = Prefix::kMissing;
    } else if (scheme == "first") {
      spec_.prefix = Prefix::kFirst;
    } else if (scheme != "never") {
      refuse_bpe(spec_.origin,
                 "Metaspace's prepend_scheme '" + log::printable(scheme, 40) + "' is");
    }
  }

  // Replace, ByteFallback, Fuse, and Strip where there is one.
  void read_decoder(const Json& json) {
    if (json.is_null()) refuse_step(spec_.origin, "decoder", json);
    const std::vector<Json> steps = steps_of(json, "decoders", spec_.origin + ": decoder");
    const auto is = [&](size_t i, std::string_view type) {
      return steps[i].is_object() && steps[i].value("type", "") == type;
    };
    const bool known = (steps.size() == 3 || steps.size() == 4) &&
                       is_replace(steps[0], kSpaceMark, " ") && is(1, "ByteFallback") &&
                       is(2, "Fuse");
    if (!known) refuse_step(spec_.origin, "with byte_fallback the decoder", json);
    if (steps.size() == 3) return;
    JsonObject strip(steps[3], spec_.origin + ": decoder");
    if (!is(3, "Strip") || strip.string("content") != " " || strip.integer("start") != 1 ||
        strip.integer("stop") != 0)
      refuse_step(spec_.origin, "with byte_fallback the decoder", steps[3]);
    spec_.strips_space = true;
  }

  JsonObject top_;
  BpeSpec& spec_;
};

}  // namespace

std::vector<Json> steps_of(const Json& json, const char* list, const std::string& where) {
  JsonObject step(json, where);
  if (step.string("type") != "Sequence") return {json};
  const Json& steps = step.at(list);
  if (!steps.is_array() || steps.empty() || steps.size() > kMaxSteps) {
    step.fail(list, "should be a list of 1 to " + std::to_string(kMaxSteps) + " steps");
  }
  return {steps.begin(), steps.end()};
}

void refuse_bpe(const std::string& origin, const std::string& what) {
  throw Error(ErrorKind::kUnsupported,
              origin + ": " + what +
                  " not supported: byte-level BPE as in Llama 3 and GPT-2 is, and Llama 2's with "
                  "byte_fallback; where the model has a tokenizer.model, use that");
}

void refuse_step(const std::string& origin, const std::string& step, const Json& found) {
  const bool typed = found.is_object() && found.contains("type") && found["type"].is_string();
  const std::string name = typed ? "'" + found["type"].get<std::string>() + "'" : found.dump();
  refuse_bpe(origin, step + " " + log::printable(name, 200) + " is");
}

void read_byte_fallback_steps(const Json& file, BpeSpec& spec) { FallbackReader(file, spec).run(); }

}  // namespace xffl::tokenize
