// The memory for the bytes that servers may send ahead of their readers.
#pragma once

#include "xffl/base/memory_shares.h"

namespace xffl::remote {

/// Of all downloads together, beyond the minimum of each: at a round trip of 50 ms, 5 Gbit/s.
/// A reader that is slower than its server, because of its disk, holds its whole share.
inline MemoryShares& receive_memory() {
  static MemoryShares whole(32u << 20);
  return whole;
}

}  // namespace xffl::remote
