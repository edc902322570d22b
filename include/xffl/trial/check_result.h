// One result of `xffl doctor`.
#pragma once

#include <string>

namespace xffl::trial {

/// One line of the output.
struct CheckResult {
  enum class Severity { kOk, kWarning, kError };
  Severity severity = Severity::kOk;
  std::string check;    // "certificate"
  std::string message;  // the observation
  std::string fix;      // the user's next step; empty with kOk
  bool operator==(const CheckResult&) const = default;
};

}  // namespace xffl::trial
