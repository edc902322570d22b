// The Error that a call throws, as a value.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "xffl/base/error.h"

namespace xffl::test {

struct Thrown {
  ErrorKind kind = ErrorKind::kInternal;
  std::string message = "no error was thrown";
};

/// Kind and message of the Error that `body` throws, or "no error was thrown".
template <class Body>
Thrown thrown_by(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  }
  return {};
}

/// The Error that `body` throws; without one the test fails.
template <class Body>
Error error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return Error(ErrorKind::kInternal, "no error");
}
template <class Body>
ErrorKind kind_of(Body&& body) {
  return error_of(body).kind();
}

/// The message of the Error of this kind that `body` throws; the test fails for any other outcome.
template <class Body>
std::string message_of(ErrorKind kind, Body&& body) {
  const Error error = error_of(body);
  EXPECT_EQ(error.kind(), kind) << error.what();
  return error.what();
}

}  // namespace xffl::test
