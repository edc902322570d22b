#include "xffl/train/foreign_error.h"

#include <filesystem>
#include <new>
#include <string>

namespace xffl::train {
namespace {

// LibTorch throws several types for out of memory; only their messages identify the cause.
bool is_out_of_memory(const std::exception& error, const std::string& text) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         text.find("out of memory") != std::string::npos ||
         text.find("can't allocate memory") != std::string::npos;
}

}  // namespace

Error translated(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error)) return *own;
  const std::string text = error.what();
  if (is_out_of_memory(error, text))
    return Error(ErrorKind::kFailed,
                 "out of memory: " + text.substr(0, text.find('\n')) +
                     " (more sharding, recompute: full, a smaller micro_batch_size or offload "
                     "may help)");
  const bool of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&error) != nullptr;
  return Error(of_files ? ErrorKind::kIo : ErrorKind::kInternal, text);
}

}  // namespace xffl::train
