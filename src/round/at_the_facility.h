// How a facility is asked for what is its own affair.
#pragma once

#include <string>
#include <utility>

#include "xffl/base/error.h"
#include "xffl/remote/session.h"

namespace xffl::round {

/// What a facility answers wrongly (files that vanish, nonsense instead of SFTP, a missing command)
/// is its own affair, as a lost link is: asked again it may be mended, and the others go on
/// meanwhile.
template <class Body>
auto at_the_facility(Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt && error.kind() != ErrorKind::kNotFound &&
        error.kind() != ErrorKind::kUnsupported)
      throw;
    throw Error(ErrorKind::kRemote, error.what());
  }
}

/// The end of a file, at most so many bytes; empty when there is none.
std::string last_bytes(remote::Session& session, const RemotePath& path, uint64_t count);

}  // namespace xffl::round
