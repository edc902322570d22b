#include "hooks.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <variant>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/process.h"
#include "xffl/history/work_files.h"

namespace xffl::observe {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxText = 1000;
constexpr uint64_t kMaxDoneBytes = 4096;

std::string text_of(const history::RecordedEvent& recorded) {
  const std::string round = "round " + std::to_string(recorded.scope.round);
  const std::string name = recorded.scope.facility ? recorded.scope.facility->str() : "";
  const auto text = [&]<class Event>(const Event& event) -> std::string {
    if constexpr (std::is_same_v<Event, history::RunStopped>)
      return "the run stopped (" + event.kind + "): " + event.reason;
    else if constexpr (std::is_same_v<Event, history::RunCompleted>)
      return "the run is complete; its last model is " + event.model_sha256;
    else if constexpr (std::is_same_v<Event, history::RunCancelled>)
      return "the run was cancelled";
    else if constexpr (std::is_same_v<Event, history::StopRuleMet>)
      return "no round follows: " + event.text();
    else if constexpr (std::is_same_v<Event, history::RunResumed>)
      return "a coordinator continues the run";
    else if constexpr (std::is_same_v<Event, history::FacilityPaused>)
      return name + " is paused: " + event.reason;
    else if constexpr (std::is_same_v<Event, history::FacilityResumed>)
      return name + " is resumed";
    else if constexpr (std::is_same_v<Event, history::FacilityMissing>)
      return name + " is missing in " + round + ": " + event.reason;
    else if constexpr (std::is_same_v<Event, history::FacilityLeft>)
      return name + " left the run: " + event.reason;
    else if constexpr (std::is_same_v<Event, history::FacilityJoined>)
      return name + " joined the run";
    else if constexpr (std::is_same_v<Event, history::Published>)
      return round + " is published: " + event.model_sha256;
    else if constexpr (std::is_same_v<Event, history::AttemptFailed>)
      return "attempt " + std::to_string(recorded.scope.attempt) + " of " + name + " in " + round +
             " failed: " + event.reason;
    else if constexpr (std::is_same_v<Event, history::UpdateLost>)
      return "the update of " + name + " in " + round + " is lost: " + event.reason;
    else
      return std::string(history::kind_of(event));
  };
  return log::printable(std::visit(text, recorded.event), kMaxText);
}

// Empty without the file.
std::optional<int64_t> read_done(const fs::path& path) {
  if (!fs::exists(path)) return std::nullopt;
  const Json json = parse_json(read_file(path, kMaxDoneBytes), path.string());
  return JsonObject(json, path.string()).integer("seq", 0);
}

// The event to follow from. A journal that has lost its last events (`--accept-loss`) gives their
// numbers to other events.
int64_t first_seq(const fs::path& done_file, const fs::path& journal) {
  const auto newest =
      history::read_newest_events(journal, [](const history::StoredEvent&) { return false; });
  const int64_t seq = newest.empty() ? 0 : newest.back().seq;
  return std::min(seq, read_done(done_file).value_or(seq));
}

}  // namespace

std::string format_hook_event(const std::string& run, const std::string& project,
                              const history::RecordedEvent& recorded) {
  Json json;
  json["schema"] = 1;
  json["id"] = run + "-" + std::to_string(recorded.seq);
  json["time"] = recorded.time_utc;
  json["kind"] = history::kind_of(recorded.event);
  json["project"] = project;
  json["run"] = run;
  json["facility"] = recorded.scope.facility ? Json(recorded.scope.facility->str()) : Json(nullptr);
  json["round"] = recorded.scope.round > 0 ? Json(recorded.scope.round) : Json(nullptr);
  json["text"] = text_of(recorded);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Hooks::Hooks(config::Hooks settings, const history::RunFolder& folder, std::string project,
             fs::path project_folder, int64_t epoch)
    : settings_(std::move(settings)),
      run_(folder.run().str()),
      project_(std::move(project)),
      project_folder_(std::move(project_folder)),
      journal_(folder.journal()),
      done_file_(folder.path() / "hooks.done"),
      epoch_(epoch),
      follower_(journal_, first_seq(done_file_, journal_)) {
  if (read_done(done_file_) != follower_.seq()) keep(follower_.seq());
}

void Hooks::run(bool certain, const std::stop_token& end, const std::stop_token& abort) {
  if (!is_writer()) return;
  size_t dropped = 0;
  follower_.read(
      [&](const history::StoredEvent& stored) {
        if (std::find(settings_.on.begin(), settings_.on.end(), stored.kind) == settings_.on.end())
          return;
        waiting_.push_back(history::decode(stored));
        if (waiting_.size() <= kMaxWaitingEvents) return;
        waiting_.pop_front();
        ++dropped;
      },
      certain);
  if (dropped > 0)
    log::warning("hooks are too slow: the oldest events get no program",
                 {{"events", dropped}, {"waiting", waiting_.size()}});
  while (!waiting_.empty() && !end.stop_requested() && !abort.stop_requested()) {
    if (!is_writer()) return;
    if (!start(waiting_.front(), abort)) return;  // the next coordinator starts it again
    const int64_t seq = waiting_.front().seq;
    waiting_.pop_front();  // ahead of keep(), which may fail, as on a full disk
    keep(seq);
  }
}

bool Hooks::is_writer() const { return history::is_newest_epoch(journal_, epoch_); }

// False when `abort` ended the program.
bool Hooks::start(const history::RecordedEvent& recorded, const std::stop_token& abort) {
  ProcessSpec spec{.argv = settings_.command,
                   .env = {{"XFFL_EVENT", std::string(history::kind_of(recorded.event))}},
                   .cwd = project_folder_,
                   .stdin_text = format_hook_event(run_, project_, recorded),
                   .timeout = settings_.timeout,
                   .max_output_bytes = 4096};
  const auto failed = [&](const std::string& problem) {
    warn(settings_.command.front() + " after the event " +
         std::string(history::kind_of(recorded.event)) + ": " + problem);
  };
  try {
    const ProcessResult result = run_process(spec, abort);
    if (abort.stop_requested() && result.exit_code > 128 && !result.timed_out) return false;
    const std::string said = result.err.empty() ? "" : ": " + log::printable(result.err, 300);
    if (result.timed_out)
      failed("it took longer than hooks.timeout (" + std::to_string(settings_.timeout.count()) +
             " s) and was ended" + said);
    else if (result.exit_code != 0)
      failed("exit code " + std::to_string(result.exit_code) + said);
  } catch (const Error& error) {
    failed(error.what());
  }
  return true;
}

void Hooks::keep(int64_t seq) {
  TempFile file(done_file_, history::work_suffix(epoch_) + ".tmp");
  const std::string text = Json{{"schema", 1}, {"seq", seq}}.dump() + "\n";
  write_all(file.fd(), std::as_bytes(std::span(text)), file.path());
  file.sync();
  if (is_writer()) file.publish();
}

void Hooks::warn(const std::string& problem) {
  if (std::exchange(has_warned_, true))
    log::debug("a hook failed", {{"problem", problem}});
  else
    log::warning("a hook failed; further failures of hooks are debug messages",
                 {{"problem", problem}});
}

}  // namespace xffl::observe
