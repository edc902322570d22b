#include <string>

#include "commands.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/job/job_spec.h"
#include "xffl/train/merge.h"

namespace xffl::train_app {
namespace {

std::optional<checkpoint::Dtype> merged_dtype(const std::string& text) {
  if (text.empty()) return std::nullopt;
  const std::optional<job::FloatType> type = job::parse_float_type(text);
  if (!type)
    throw Error(ErrorKind::kUsage, "--dtype is '" + text + "', expected fp32, bf16 or fp16");
  if (*type == job::FloatType::kBfloat16) return checkpoint::Dtype::kBF16;
  return *type == job::FloatType::kFloat16 ? checkpoint::Dtype::kF16 : checkpoint::Dtype::kF32;
}

}  // namespace

void merge_command(const MergeOptions& options) {
  const std::string hash = train::merge_adapter(options.model, options.adapter, options.output,
                                                merged_dtype(options.dtype));
  log::info("adapter merged", {{"path", options.output}, {"sha256", hash}});
}

}  // namespace xffl::train_app
