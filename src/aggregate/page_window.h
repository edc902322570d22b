// The part of a mapped file that is in use: brought in at once, and dropped afterwards, so that a
// process which reads a whole model keeps a few blocks of it resident.
#pragma once

#include <cstddef>
#include <span>

namespace xffl::aggregate {

class PageWindow {
 public:
  /// `bytes` lie in a file mapping and stay readable after the window is gone.
  explicit PageWindow(std::span<const std::byte> bytes);
  ~PageWindow();
  PageWindow(const PageWindow&) = delete;
  PageWindow& operator=(const PageWindow&) = delete;

 private:
  std::byte* begin_;
  size_t size_;
};

}  // namespace xffl::aggregate
