// The one exception type that crosses module borders.
//
// A kind is what the caller can do about a failure; it maps to one exit code of the programs. A
// message says what failed, what was found against what was expected, and what to do. Context is
// put in front on the way out: "while fetching round 3 from leonardo: ...". An expected outcome is
// a value, not an Error.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>

namespace xffl {

enum class ErrorKind {
  kInternal,     // a bug in xffl: report it
  kUsage,        // wrong command line
  kConfig,       // wrong xffl.yaml or template: edit it
  kNotFound,     // a file, folder or run that should exist does not
  kCorrupt,      // a file is damaged or hostile: its bytes do not follow the format
  kRejected,     // well-formed, but not what was asked for (shapes, hashes, non-finite values)
  kIo,           // the operating system refused: disk full, permissions
  kRemote,       // a facility could not be reached or did not answer in time
  kAuth,         // a facility's log-in needs a person: renew the credential, trust a host key
  kBusy,         // another coordinator works on this project
  kCancelled,    // stopped on request; run again to continue
  kUnsupported,  // a feature or combination that this build does not have
  kFailed,       // the federation or the training itself failed (quorum missed, loss not finite)
};

/// "config", "corrupt", ...: the word used in messages and logs.
std::string_view to_string(ErrorKind kind);

/// The process exit code of a kind; docs/reference/exit_codes.md lists them.
int exit_code(ErrorKind kind);

class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message) : kind_(kind), message_(std::move(message)) {}

  ErrorKind kind() const { return kind_; }
  const char* what() const noexcept override { return message_.c_str(); }

  /// Puts `context` and ": " in front of the message.
  void add_context(std::string_view context);

 private:
  ErrorKind kind_;
  std::string message_;
};

/// An Error for a failed system call: "cannot `doing`: <strerror> (errno N)". ENOENT becomes
/// kNotFound, the rest kIo.
Error system_error(std::string_view doing, int error_number);

/// Calls `body`; an Error that leaves it gains `context`.
template <class Body>
decltype(auto) with_context(std::string_view context, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (Error& error) {
    error.add_context(context);
    throw;
  }
}

}  // namespace xffl
