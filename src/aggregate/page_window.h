// A part of a file mapping: read ahead by the constructor, dropped by the destructor, so that a
// process that reads a whole model keeps only a few blocks resident.
#pragma once

#include <cstddef>
#include <span>

namespace xffl::aggregate {

class PageWindow {
 public:
  /// `bytes` are in a file mapping and stay readable after the window's end.
  explicit PageWindow(std::span<const std::byte> bytes);
  ~PageWindow();
  PageWindow(const PageWindow&) = delete;
  PageWindow& operator=(const PageWindow&) = delete;

 private:
  std::byte* begin_;
  size_t size_;
};

}  // namespace xffl::aggregate
