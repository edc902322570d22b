#include "xffl/exports/prometheus.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <span>
#include <variant>
#include <vector>

#include "numbers.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::exports {
namespace {

constexpr std::array kRunStates = {"running", "stopped", "completed", "cancelled"};
constexpr std::array kFacilityStates = {"waiting", "sending", "submitted", "accepted",
                                        "failed",  "missing", "paused",    "left"};

std::string escaped(std::string_view value) {
  std::string text;
  for (const char c : value)
    if (c == '\n')
      text += "\\n";
    else if (c == '\\' || c == '"')
      text += std::string{'\\', c};
    else
      text += c;
  return text;
}

using Labels = std::vector<std::pair<std::string_view, std::string_view>>;

// The samples of a metric must stand together, below its one help text.
class Page {
 public:
  void metric(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    header_ = "# HELP " + name_ + " " + std::string(help) + "\n# TYPE " + name_ + " " +
              std::string(type) + "\n";
  }
  void sample(const Labels& labels, double value) {
    text_ += std::exchange(header_, "") + name_;
    for (size_t i = 0; i < labels.size(); ++i)
      text_ += (i == 0 ? "{" : ",") + std::string(labels[i].first) + "=\"" +
               escaped(labels[i].second) + "\"";
    text_ += (labels.empty() ? " " : "} ") + decimal(value) + "\n";
  }
  std::string take() { return std::move(text_); }

 private:
  std::string name_, header_, text_;
};

}  // namespace

RunFigures::Facility* RunFigures::facility_of(const history::RecordedEvent& recorded) {
  return recorded.scope.facility ? &facilities_[*recorded.scope.facility] : nullptr;
}

void RunFigures::add_usage(Facility* facility, const std::optional<job::JobUsage>& usage) {
  if (facility != nullptr && usage && usage->clock_offset)
    facility->clock_offset = usage->clock_offset;
}

void RunFigures::add(const history::RecordedEvent& recorded) {
  const std::optional<Clock::UtcTime> time = parse_utc(recorded.time_utc);
  if (time) last_event_ = time;
  spending_.add(recorded);
  const int round = recorded.scope.round;
  Facility* facility = facility_of(recorded);
  const auto set_state = [&](const char* state) {
    if (facility != nullptr) facility->state = state;
  };
  const auto count = [&](int64_t Facility::*counter) {
    if (facility != nullptr) ++(facility->*counter);
  };
  const auto visit = [&]<class Event>(const Event& event) {
    if constexpr (std::is_same_v<Event, history::RunCreated>) {
      project_ = event.project;
    } else if constexpr (std::is_same_v<Event, history::RunCompleted>) {
      completed_ = true;
    } else if constexpr (std::is_same_v<Event, history::RunCancelled>) {
      cancelled_ = true;
    } else if constexpr (std::is_same_v<Event, history::RoundPlanned>) {
      completed_ = false;
      if (time) planned_[round] = *time;
      for (const FacilityName& name : event.facilities) facilities_[name].state = "waiting";
    } else if constexpr (std::is_same_v<Event, history::Published>) {
      rounds_published_ = std::max(rounds_published_, round);
      if (const auto planned = planned_.find(round); planned != planned_.end() && time)
        round_seconds_ = std::max(0.0, seconds_of(*time) - seconds_of(planned->second));
      planned_.erase(planned_.begin(), planned_.upper_bound(round));
    } else if constexpr (std::is_same_v<Event, history::FacilityPaused>) {
      if (facility != nullptr) facility->paused = true;
    } else if constexpr (std::is_same_v<Event, history::FacilityResumed>) {
      if (facility != nullptr) facility->paused = false;
    } else if constexpr (std::is_same_v<Event, history::FacilityLeft>) {
      if (facility != nullptr) facility->left = true;
    } else if constexpr (std::is_same_v<Event, history::FacilityJoined>) {
      if (facility != nullptr) facility->left = false;
    } else if constexpr (std::is_same_v<Event, history::FacilityMissing>) {
      set_state("missing");
    } else if constexpr (std::is_same_v<Event, history::AttemptOpened>) {
      set_state("sending");
    } else if constexpr (std::is_same_v<Event, history::Pushed>) {
      if (facility != nullptr) facility->sent_bytes += event.moved_bytes;
    } else if constexpr (std::is_same_v<Event, history::Submitted>) {
      set_state("submitted");
    } else if constexpr (std::is_same_v<Event, history::AttemptFailed>) {
      set_state("failed");
      count(&Facility::failed);
      add_usage(facility, event.usage);
    } else if constexpr (std::is_same_v<Event, history::UpdateLost>) {
      set_state("failed");
      count(&Facility::lost);
    } else if constexpr (std::is_same_v<Event, history::UpdateAccepted>) {
      set_state("accepted");
      count(&Facility::accepted);
      add_usage(facility, event.usage);
      if (facility != nullptr)
        for (const job::ValidationResult& set : event.report.validation)
          facility->losses[set.name] = set.nll_before;
    }
  };
  std::visit(visit, recorded.event);
}

std::string RunFigures::format(const PrometheusContext& context) const {
  const std::string_view run_state = cancelled_                ? "cancelled"
                                     : completed_              ? "completed"
                                     : context.has_coordinator ? "running"
                                                               : "stopped";
  Page page;
  page.metric("xffl_run_info", "gauge", "The run of this file; always 1.");
  page.sample({{"project", project_}, {"run", context.run}, {"version", context.version}}, 1);
  page.metric("xffl_run_state", "gauge", "1 for the present state of the run, 0 for the others.");
  for (const std::string_view state : kRunStates)
    page.sample({{"state", state}}, state == run_state);
  page.metric("xffl_rounds_published_total", "counter", "Published rounds.");
  page.sample({}, rounds_published_);
  if (context.rounds_planned > 0) {
    page.metric("xffl_rounds_planned", "gauge", "Rounds of the experiment.");
    page.sample({}, context.rounds_planned);
  }
  if (round_seconds_) {
    page.metric("xffl_round_duration_seconds", "gauge",
                "From the plan to the publication of the newest published round.");
    page.sample({}, *round_seconds_);
  }
  const bool has_ended = completed_ || cancelled_;
  if (last_event_) {
    page.metric("xffl_last_event_timestamp_seconds", "gauge", "Time of the newest event.");
    page.sample({}, seconds_of(*last_event_));
    page.metric("xffl_heartbeat_timestamp_seconds", "gauge",
                "Last time at which a coordinator held the run, as far as this file knows.");
    page.sample(
        {}, seconds_of(context.has_coordinator && !has_ended ? std::max(context.now, *last_event_)
                                                             : *last_event_));
  }
  page.metric("xffl_facility_state", "gauge",
              "1 for the present state of the facility, 0 for the others.");
  for (const auto& [name, facility] : facilities_)
    for (const std::string_view state : kFacilityStates)
      page.sample({{"facility", name.str()}, {"state", state}},
                  state == (facility.left     ? "left"
                            : facility.paused ? "paused"
                                              : std::string_view(facility.state)));
  page.metric("xffl_attempts_total", "counter", "Ended attempts.");
  for (const auto& [name, facility] : facilities_)
    for (const auto& [outcome, attempts] : {std::pair("accepted", facility.accepted),
                                            {"failed", facility.failed},
                                            {"lost", facility.lost}})
      page.sample({{"facility", name.str()}, {"outcome", outcome}}, static_cast<double>(attempts));
  page.metric("xffl_node_seconds", "gauge",
              "Node-seconds that jobs have used, and the whole walltimes of open jobs.");
  for (const auto& [name, facility] : facilities_)
    page.sample({{"facility", name.str()}}, spending_.node_seconds(name));
  page.metric("xffl_moved_bytes_total", "counter", "Bytes of models that were moved.");
  for (const auto& [name, facility] : facilities_)
    page.sample({{"facility", name.str()}, {"direction", "sent"}},
                static_cast<double>(facility.sent_bytes));
  page.metric("xffl_validation_loss_nats", "gauge",
              "Validation loss of the newest measured global model.");
  for (const auto& [name, facility] : facilities_)
    for (const auto& [set, loss] : facility.losses)
      page.sample({{"facility", name.str()}, {"set", set}}, loss);
  page.metric("xffl_clock_offset_seconds", "gauge",
              "Clock of the facility minus the clock of the coordinator.");
  for (const auto& [name, facility] : facilities_)
    if (facility.clock_offset) page.sample({{"facility", name.str()}}, *facility.clock_offset);
  page.metric("xffl_credential_expiry_timestamp_seconds", "gauge",
              "End of a certificate that ends within two hours.");
  for (const auto& [name, credential] : context.credentials)
    page.sample({{"facility", name.str()}}, seconds_of(credential.ends));
  return page.take();
}

void write_prometheus(const std::filesystem::path& path, std::string_view text) {
  TempFile file(path, "." + std::to_string(::getpid()) + ".tmp", 0644);
  if (::fchmod(file.fd(), 0644) != 0) throw system_error("chmod " + file.path().string(), errno);
  write_all(file.fd(), std::as_bytes(std::span(text)), file.path());
  file.sync();
  file.publish();
}

}  // namespace xffl::exports
