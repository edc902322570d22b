#include "page_window.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace xffl::aggregate {

namespace {

size_t page_bytes() {
  static const size_t bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

// Both ends are rounded down: the last page may be shared with the next block, which drops it.
PageWindow::PageWindow(std::span<const std::byte> bytes) {
  const size_t page = page_bytes();
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  const size_t before = address % page;
  begin_ = const_cast<std::byte*>(bytes.data()) - before;
  size_ = before + bytes.size();
#ifdef MADV_POPULATE_READ
  // One call instead of a fault for every few pages; kernels before 5.14 just fault.
  if (size_ > 0) (void)::madvise(begin_, size_, MADV_POPULATE_READ);
#endif
}

PageWindow::~PageWindow() {
  const size_t whole = size_ - size_ % page_bytes();
  if (whole > 0) (void)::madvise(begin_, whole, MADV_DONTNEED);
}

}  // namespace xffl::aggregate
