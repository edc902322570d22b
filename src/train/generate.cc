#include "xffl/train/generate.h"

#include <torch/types.h>

#include <algorithm>
#include <string>

#include "xffl/base/error.h"
#include "xffl/llama/decoder.h"

namespace xffl::train {
namespace {

void check_prompt(const checkpoint::LlamaConfig& config, const std::vector<int64_t>& prompt,
                  const GenerateOptions& options) {
  if (prompt.empty())
    throw Error(ErrorKind::kUsage, "the prompt is empty: expected at least one id");
  const auto check_id = [&](int64_t id, const char* source) {
    if (id < 0 || id >= config.vocab_size)
      throw Error(ErrorKind::kUsage,
                  std::string(source) + " holds the id " + std::to_string(id) + ", expected 0 to " +
                      std::to_string(config.vocab_size - 1) + ": is this the model's tokenizer?");
  };
  for (const int64_t id : prompt) check_id(id, "the prompt");
  for (const int64_t id : options.stop_ids) check_id(id, "--stop-ids");
  if (static_cast<int64_t>(prompt.size()) >= config.max_position_embeddings)
    throw Error(ErrorKind::kUsage, "the prompt has " + std::to_string(prompt.size()) +
                                       " tokens, but the model's max_position_embeddings is " +
                                       std::to_string(config.max_position_embeddings) +
                                       ": no space for a new token; shorten the prompt");
  if (options.max_new_tokens < 1)
    throw Error(ErrorKind::kUsage, "--max-new-tokens: expected 1 or more, found " +
                                       std::to_string(options.max_new_tokens));
}

}  // namespace

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kContext:
      return "context";
    case FinishReason::kCancelled:
      break;
  }
  return "cancelled";
}

FinishReason generate(llama::Model& model, const std::vector<int64_t>& prompt,
                      const GenerateOptions& options,
                      const std::function<bool(int64_t id)>& on_token) {
  const checkpoint::LlamaConfig& config = model.config();
  check_prompt(config, prompt, options);
  TokenSampler sampler(options.sampling);
  const auto prompt_size = static_cast<int64_t>(prompt.size());
  const int64_t space = config.max_position_embeddings - prompt_size;
  const int64_t limit = std::min(options.max_new_tokens, space);
  llama::Decoder decoder(model, prompt_size + limit);
  std::vector<int64_t> seen = prompt;
  at::Tensor logits_V = decoder.feed(prompt);
  for (int64_t count = 1;; ++count) {
    logits_V = logits_V.cpu().contiguous();
    if (!at::isfinite(logits_V).all().item<bool>())
      throw Error(ErrorKind::kFailed, "the logits after " + std::to_string(seen.size()) +
                                          " tokens are not finite: the model is damaged");
    const int64_t id = sampler.draw(
        {logits_V.const_data_ptr<float>(), static_cast<size_t>(logits_V.numel())}, seen);
    seen.push_back(id);
    if (!on_token(id)) return FinishReason::kCancelled;
    if (std::find(options.stop_ids.begin(), options.stop_ids.end(), id) != options.stop_ids.end())
      return FinishReason::kStop;
    if (count == options.max_new_tokens) return FinishReason::kLength;
    if (count == limit) return FinishReason::kContext;
    logits_V = decoder.feed({id});
  }
}

}  // namespace xffl::train
