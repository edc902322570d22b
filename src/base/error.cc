#include "xffl/base/error.h"

#include <array>
#include <cerrno>
#include <system_error>

namespace xffl {

namespace {

struct KindInfo {
  ErrorKind kind;
  std::string_view name;
  int exit_code;
};

constexpr auto kKinds = std::to_array<KindInfo>({
    {ErrorKind::kInternal, "internal", 1},
    {ErrorKind::kUsage, "usage", 2},
    {ErrorKind::kConfig, "config", 3},
    {ErrorKind::kNotFound, "not found", 4},
    {ErrorKind::kCorrupt, "corrupt", 5},
    {ErrorKind::kRejected, "rejected", 5},
    {ErrorKind::kIo, "io", 6},
    {ErrorKind::kRemote, "remote", 7},
    {ErrorKind::kAuth, "auth", 11},
    {ErrorKind::kBusy, "busy", 8},
    {ErrorKind::kCancelled, "cancelled", 75},  // EX_TEMPFAIL of sysexits.h: run again to continue
    {ErrorKind::kUnsupported, "unsupported", 10},
    {ErrorKind::kFailed, "failed", 9},
});
static_assert([] {
  for (size_t i = 0; i < kKinds.size(); ++i)
    if (kKinds[i].kind != static_cast<ErrorKind>(i)) return false;
  return kKinds.back().kind == ErrorKind::kFailed;
}());

}  // namespace

std::string_view to_string(ErrorKind kind) { return kKinds[static_cast<size_t>(kind)].name; }

int exit_code(ErrorKind kind) { return kKinds[static_cast<size_t>(kind)].exit_code; }

void Error::add_context(std::string_view context) {
  message_ = std::string(context) + ": " + message_;
}

Error system_error(std::string_view operation, int error_number) {
  ErrorKind kind = error_number == ENOENT ? ErrorKind::kNotFound : ErrorKind::kIo;
  return Error(kind,
               "cannot " + std::string(operation) + ": " +
                   std::generic_category().message(error_number) + " (errno " +
                   std::to_string(error_number) + ")",
               error_number);
}

}  // namespace xffl
