// How a facility is asked for what is its own affair.
#pragma once

#include <string>
#include <utility>

#include "xffl/base/error.h"
#include "xffl/remote/session.h"

namespace xffl::facility {

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

struct Tail {
  std::string text;
  bool is_whole = true;  // all of the file
};
/// The end of a file, at most so many bytes; empty when there is none.
Tail last_bytes(remote::Session& session, const RemotePath& path, uint64_t count);
/// The end of a file that is for people: no secrets, printable.
std::string last_words(remote::Session& session, const RemotePath& path);

}  // namespace xffl::facility
