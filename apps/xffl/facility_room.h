// Whether there is room for a round in a folder: blocks, files, and what a quota leaves.
//
// Quotas are kept in as many ways as there are file systems, and their tools print for people. So
// none is asked: the bytes are reserved in a file (fallocate), which fails as writing them would,
// and given back at once.
#pragma once

#include <cstdint>
#include <vector>

#include "finding.h"
#include "xffl/remote/session.h"

namespace xffl {

/// "1.5 GB"
std::string gigabytes(uint64_t bytes);

/// Free blocks of a file system against what a round needs.
Finding free_space(const std::string& where, uint64_t free, uint64_t needed);

/// What a session's folder has room for: free space, free files, and whether `needed` bytes can be
/// reserved; each finding says what was not looked at. Throws kRemote, kIo.
std::vector<Finding> examine_room(remote::Session& session, const RemotePath& folder,
                                  uint64_t needed);

}  // namespace xffl
