#include "xffl/base/error.h"

#include <cerrno>
#include <system_error>

namespace xffl {

std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInternal:
      return "internal";
    case ErrorKind::kUsage:
      return "usage";
    case ErrorKind::kConfig:
      return "config";
    case ErrorKind::kNotFound:
      return "not found";
    case ErrorKind::kCorrupt:
      return "corrupt";
    case ErrorKind::kRejected:
      return "rejected";
    case ErrorKind::kIo:
      return "io";
    case ErrorKind::kRemote:
      return "remote";
    case ErrorKind::kAuth:
      return "auth";
    case ErrorKind::kBusy:
      return "busy";
    case ErrorKind::kCancelled:
      return "cancelled";
    case ErrorKind::kUnsupported:
      return "unsupported";
    case ErrorKind::kFailed:
      return "failed";
  }
  return "unknown";
}

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInternal:
      return 1;
    case ErrorKind::kUsage:
      return 2;
    case ErrorKind::kConfig:
      return 3;
    case ErrorKind::kNotFound:
      return 4;
    case ErrorKind::kCorrupt:
    case ErrorKind::kRejected:
      return 5;
    case ErrorKind::kIo:
      return 6;
    case ErrorKind::kRemote:
      return 7;
    case ErrorKind::kBusy:
      return 8;
    case ErrorKind::kFailed:
      return 9;
    case ErrorKind::kUnsupported:
      return 10;
    case ErrorKind::kAuth:
      return 11;
    case ErrorKind::kCancelled:
      return 75;  // EX_TEMPFAIL of sysexits.h: run again to continue
  }
  return 1;
}

void Error::add_context(std::string_view context) {
  message_ = std::string(context) + ": " + message_;
}

Error system_error(std::string_view operation, int error_number) {
  ErrorKind kind = error_number == ENOENT ? ErrorKind::kNotFound : ErrorKind::kIo;
  return Error(kind, "cannot " + std::string(operation) + ": " +
                         std::generic_category().message(error_number) + " (errno " +
                         std::to_string(error_number) + ")");
}

}  // namespace xffl
