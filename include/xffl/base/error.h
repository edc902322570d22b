// The one exception type that crosses module borders.
//
// A kind tells the caller how to react to a failure; it maps to one exit code of the programs. A
// message names the failed operation, the observed and the expected value, and the remedy. Callers
// prepend context: "while fetching round 3 from leonardo: ...". An expected outcome is a value, not
// an Error.
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
  kNotFound,     // a file, folder or run does not exist
  kCorrupt,      // a file is damaged or hostile: its bytes do not follow the format
  kRejected,     // well-formed, but with other shapes or hashes than expected, or not finite
  kIo,           // the operating system reported an error: disk full, permissions
  kRemote,       // a facility is unreachable or did not answer in time
  kAuth,         // a facility's login needs the user: renew the credential, trust a host key
  kBusy,         // another coordinator works on this project
  kCancelled,    // stopped on request; run again to continue
  kUnsupported,  // this build lacks the feature or the combination
  kFailed,       // the federation or the training itself failed (quorum missed, loss not finite)
};

/// The word for a kind in messages and logs: "config", "corrupt", ...
std::string_view to_string(ErrorKind kind);

/// The process exit code of a kind; docs/reference/exit_codes.md lists the exit codes.
int exit_code(ErrorKind kind);

class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message, int error_number = 0)
      : kind_(kind), message_(std::move(message)), error_number_(error_number) {}

  ErrorKind kind() const { return kind_; }
  /// The errno of a failed system call; 0 for any other error.
  int error_number() const { return error_number_; }
  const char* what() const noexcept override { return message_.c_str(); }

  /// Prepends `context` and ": " to the message.
  void add_context(std::string_view context);

 private:
  ErrorKind kind_;
  std::string message_;
  int error_number_;
};

/// An Error for a failed system call: "cannot `operation`: <strerror> (errno N)". ENOENT becomes
/// kNotFound, every other number kIo.
Error system_error(std::string_view operation, int error_number);

/// Calls `body` and adds `context` to an Error that `body` throws.
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
