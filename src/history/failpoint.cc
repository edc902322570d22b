#include "failpoint.h"

#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>

#include "xffl/base/error.h"

namespace xffl::history {

namespace {

struct Failpoint {
  FailpointSide side = FailpointSide::kBefore;
  long append_index = 0;  // 0: none
  std::string stop_kind;  // empty: none
};

// Text that this file does not know is refused: a test with a typing error must not pass.
Failpoint parse(const char* variable) {
  if (variable == nullptr || *variable == '\0') return {};
  const std::string_view text(variable);
  const std::string_view before = "journal:before:";
  const std::string_view after = "journal:after:";
  const std::string_view stop = "journal:stop:";
  Failpoint point;
  if (text.starts_with(stop) && text.size() > stop.size()) {
    point.stop_kind = text.substr(stop.size());
    return point;
  }
  std::string_view number;
  if (text.starts_with(before)) {
    number = text.substr(before.size());
  } else if (text.starts_with(after)) {
    point.side = FailpointSide::kAfter;
    number = text.substr(after.size());
  }
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), point.append_index);
  if (error != std::errc() || end != number.data() + number.size() || point.append_index < 1)
    throw Error(ErrorKind::kUsage,
                "XFFL_FAILPOINT is '" + std::string(text) +
                    "'; expected journal:before:N or journal:after:N, N >= 1, or "
                    "journal:stop:KIND");
  return point;
}

}  // namespace

void failpoint(FailpointSide side, long append_index, std::string_view kind) {
  static const Failpoint point = parse(std::getenv("XFFL_FAILPOINT"));
  if (point.append_index == append_index && point.side == side) ::raise(SIGKILL);
  if (side == FailpointSide::kAfter && !kind.empty() && kind == point.stop_kind) ::raise(SIGSTOP);
}

long next_append_index() {
  static std::atomic<long> count{0};
  return ++count;
}

}  // namespace xffl::history
