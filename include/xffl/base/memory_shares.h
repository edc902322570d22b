// Divides an amount of memory among the buffers of simultaneous transfers.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>

namespace xffl {

/// An amount of memory that its users divide equally: one transfer gets large buffers, and each of
/// many simultaneous transfers gets small ones. Thread-safe.
class MemoryShares {
 public:
  explicit constexpr MemoryShares(size_t total_bytes) : total_bytes_(total_bytes) {}

  /// Counts as one user while it exists. The MemoryShares must outlive it.
  class Share {
   public:
    explicit Share(MemoryShares& whole) : whole_(whole) { ++whole_.num_users_; }
    ~Share() { --whole_.num_users_; }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    /// The total divided by the present number of users, at least `least` and at most `most`.
    size_t bytes(size_t least, size_t most) const {
      return std::clamp(whole_.total_bytes_ / whole_.num_users_, least, most);
    }

   private:
    MemoryShares& whole_;
  };

 private:
  const size_t total_bytes_;
  std::atomic<size_t> num_users_ = 0;
};

}  // namespace xffl
