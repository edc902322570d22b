// Whether read_ahead() has an effect here.
#pragma once

#include <sys/mman.h>

#include "xffl/base/file.h"

namespace xffl::test {

/// False on kernels before 5.14, which know no MADV_POPULATE_READ, and under QEMU, which ignores
/// every unknown advice and answers 0. `file` has one page or more.
inline bool kernel_reads_ahead(const MappedFile& file) {
  constexpr int kNoAdvice = 1'000'000;
  auto* page = const_cast<std::byte*>(file.bytes().data());
  return ::madvise(page, 1, kNoAdvice) != 0 && ::madvise(page, 1, MADV_POPULATE_READ) == 0;
}

}  // namespace xffl::test
