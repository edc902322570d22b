// Ends the process after an error.
#pragma once

#include <exception>

namespace xffl::train_app {

/// Prints the error to stderr and ends the process with the exit code of its kind. Runs no
/// destructors, not even those of static objects: on a GPU they wait for kernels, and a
/// collective's kernel may wait forever for other ranks.
[[noreturn]] void end_process(const std::exception& error);

}  // namespace xffl::train_app
