// Exceptions of the standard library and of LibTorch as Errors.
#pragma once

#include <exception>

#include "xffl/base/error.h"

namespace xffl::train {

/// An Error stays what it is. Memory that is not there becomes kFailed with what may help, the
/// file system's kIo, all else kInternal: a bug.
Error translated(const std::exception& error);

}  // namespace xffl::train
