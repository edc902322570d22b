// config.json of a model and adapter_config.json: a written configuration is read back.
#include "fuzz.h"
#include "xffl/checkpoint/llama_config.h"
#include "xffl/checkpoint/lora.h"

using namespace xffl;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  const auto model =
      fuzz::accepted([&] { return checkpoint::parse_llama_config(input, "config.json"); });
  if (model) {
    fuzz::expect(model->num_heads % model->num_kv_heads == 0 && model->head_dim % 2 == 0,
                 "heads have equal shares");
    fuzz::expect(model->num_parameters() > 0, "the number of parameters does not overflow");
    const std::string text = checkpoint::format_llama_config(*model);
    fuzz::expect(checkpoint::parse_llama_config(text, "config.json") == *model,
                 "a written configuration is read back", text);
  }
  const auto lora =
      fuzz::accepted([&] { return checkpoint::parse_lora_config(input, "adapter_config.json"); });
  if (lora) {
    fuzz::expect(lora->rank > 0 && !lora->target_modules.empty(), "an adapter has matrices");
    const std::string text = checkpoint::format_lora_config(*lora);
    fuzz::expect(checkpoint::parse_lora_config(text, "adapter_config.json") == *lora,
                 "a written configuration is read back", text);
  }
  return 0;
}
