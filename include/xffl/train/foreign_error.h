// Converts exceptions of the standard library and of LibTorch to Errors.
#pragma once

#include <exception>
#include <string_view>
#include <utility>

#include "xffl/base/error.h"

namespace xffl::train {

/// Returns an Error unchanged. Converts out-of-memory errors to kFailed with advice, file system
/// errors to kIo, and all other exceptions, which are bugs, to kInternal.
Error translated(const std::exception& error);

/// Calls `body`; translates its exceptions and adds `context`.
template <class Body>
void with_translated_context(std::string_view context, Body&& body) {
  try {
    std::forward<Body>(body)();
  } catch (const std::exception& error) {
    Error ours = translated(error);
    ours.add_context(context);
    throw ours;
  }
}

}  // namespace xffl::train
