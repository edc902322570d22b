#include <optional>
#include <string>

#include "setup.h"
#include "xffl/base/log.h"
#include "xffl/train/merge.h"

namespace xffl::train_app {
void merge_command(const MergeOptions& options) {
  std::optional<checkpoint::Dtype> dtype;
  if (!options.dtype.empty()) dtype = parse_dtype(options.dtype);
  const std::string hash =
      train::merge_adapter(options.model, options.adapter, options.output, dtype);
  log::info("adapter merged", {{"path", options.output}, {"sha256", hash}});
}

}  // namespace xffl::train_app
