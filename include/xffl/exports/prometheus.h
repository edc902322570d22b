// A run's figures as a text file for Prometheus.
//
// The figures are sums over events: a reader that follows a run adds each new event, and the work
// does not grow with the run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "xffl/base/clock.h"
#include "xffl/base/names.h"
#include "xffl/history/events.h"
#include "xffl/history/spending.h"
#include "xffl/status/status.h"

namespace xffl::exports {

struct PrometheusContext {
  std::string run, version;
  bool has_coordinator = false;  // a process holds the run
  int rounds_planned = 0;        // 0: unknown
  Clock::UtcTime now;
  std::map<FacilityName, status::EndingCredential> credentials{};
};

class RunFigures {
 public:
  /// Events come in their order.
  void add(const history::RecordedEvent& recorded);

  /// The text format 0.0.4: base units, no time stamps. A figure that was not measured is absent.
  ///
  /// Source: prometheus.io/docs/instrumenting/exposition_formats, "Text-based format".
  std::string format(const PrometheusContext& context) const;

 private:
  struct Facility {
    std::string state = "waiting";
    bool paused = false, left = false;
    int64_t accepted = 0, failed = 0, lost = 0, sent_bytes = 0;
    std::optional<double> clock_offset;
    std::map<std::string, double> losses;  // of the newest measured model, by set
  };

  Facility* facility_of(const history::RecordedEvent& recorded);
  void add_usage(Facility* facility, const std::optional<job::JobUsage>& usage);

  std::string project_;
  bool completed_ = false, cancelled_ = false;
  int rounds_published_ = 0;
  std::map<int, Clock::UtcTime> planned_;  // of the rounds without a publication
  std::optional<double> round_seconds_;    // of the newest published round
  std::optional<Clock::UtcTime> last_event_;
  std::map<FacilityName, Facility> facilities_;
  history::Spending spending_;
};

/// Replaces `path` by a rename. Everybody may read the file: the collector is another user.
void write_prometheus(const std::filesystem::path& path, std::string_view text);

}  // namespace xffl::exports
