// Whether read_ahead() has an effect here.
#pragma once

#include <sys/mman.h>

#include "xffl/base/file.h"

namespace xffl::test {

/// False on kernels before 5.14, which know no MADV_POPULATE_READ. `file` has one page or more.
inline bool kernel_reads_ahead(const MappedFile& file) {
  return ::madvise(const_cast<std::byte*>(file.bytes().data()), 1, MADV_POPULATE_READ) == 0;
}

}  // namespace xffl::test
