// How an error ends the process.
#pragma once

#include <exception>

namespace xffl::train_app {

/// Prints the error to stderr and ends the process with the exit code of its kind. No destructor
/// runs, neither of static objects: on a GPU these wait for kernels, and a collective's kernel
/// waits for ranks that may never come.
[[noreturn]] void end_process(const std::exception& error);

}  // namespace xffl::train_app
