// What a call throws, as a value.
#pragma once

#include <string>

#include "xffl/base/error.h"

namespace xffl::test {

struct Thrown {
  ErrorKind kind = ErrorKind::kInternal;
  std::string message = "no error was thrown";
};

/// Kind and message of the Error that `body` throws.
template <class Body>
Thrown thrown_by(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  }
  return {};
}

}  // namespace xffl::test
