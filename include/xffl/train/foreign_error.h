// Exceptions of the standard library and of LibTorch as Errors.
#pragma once

#include <exception>
#include <string_view>
#include <utility>

#include "xffl/base/error.h"

namespace xffl::train {

/// An Error stays what it is. Memory that is not there becomes kFailed with what may help, the
/// file system's kIo, all else kInternal: a bug.
Error translated(const std::exception& error);

/// Calls `body`; an exception that leaves it is translated and gains `context`.
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
