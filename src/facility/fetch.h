// Brings a facility's update here and verifies it; restores a stored update whose files are
// damaged.
#pragma once

#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "site.h"

namespace xffl::facility {

class UpdateFetch {
 public:
  explicit UpdateFetch(Site& site) : site_(site) {}

  bool has_reported(int attempt);
  Event fetch(int attempt, std::stop_token stop);
  /// Fetches an accepted update again when its stored files are damaged. Returns the reason when
  /// the facility does not have it any more, or was not reachable for `max_outage` or until
  /// `gives_up`, which is asked between two tries.
  std::optional<std::string> restore(const history::Accepted& accepted,
                                     std::chrono::seconds max_outage,
                                     const std::function<bool()>& gives_up, std::stop_token stop);
  /// The largest L2 norm of an update's change that is taken; 0: any. Slow the first time.
  double max_change() const;

 private:
  struct Report {
    std::string text;
    job::JobReport parsed;
  };
  // What an update is held against, on this machine.
  struct Expected {
    int64_t max_positions = 0;
    uint64_t max_bytes = 0;
    double base_norm = 0, max_change = 0;  // 0: any
    std::string update_sha256;             // empty: any
  };
  /// Opens what is here first: its damage is not the facility's.
  Expected expected_update() const;
  /// The report of this very attempt. Throws kRejected for another one.
  Report read_report(int attempt, const Expected& expected);
  /// The report, and the update that it names in the archive. Throws kRemote when the report, which
  /// was there before, is not to be seen.
  Report bring(int attempt, const Expected& expected, std::stop_token stop);
  /// Returns the norm of the update's change over its model's; 0: not measured.
  double check_change(const Expected& expected) const;
  history::Accepted keep_accepted(int attempt, const Report& report) const;
  /// The facility answers, has the run's folder, and no report in it.
  bool has_lost(int attempt) const;
  void set_refused_aside(int attempt);
  std::optional<std::string> archive_problem(const history::Accepted& accepted) const;
  // How long a failure that may pass by itself is waited for.
  struct Patience {
    std::chrono::seconds max_outage;
    const std::function<bool()>& gives_up;
    std::stop_token stop;
  };
  template <class Body>
  auto patiently(const Patience& patience, const std::string& doing, Body&& body);
  uint64_t max_update_bytes() const;

  Site& site_;
};

}  // namespace xffl::facility
