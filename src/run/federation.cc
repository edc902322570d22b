#include "xffl/run/federation.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "run_parts.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/base/scrub.h"
#include "xffl/base/sha256.h"
#include "xffl/config/load.h"
#include "xffl/facility/job_script.h"
#include "xffl/history/work_files.h"
#include "xffl/run/log_in.h"
#include "xffl/run/stop_rules.h"
#include "xffl/upkeep/credential_watch.h"
#include "xffl/upkeep/purge_guard.h"
#include "xffl/upkeep/retention.h"

namespace xffl::run {

namespace fs = std::filesystem;

namespace {

// The lines that only one of the two texts has, for a message.
std::string differing_lines(const std::string& before, const std::string& now) {
  const auto only_in = [](const std::string& text, const std::string& other, const char* mark) {
    std::string lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);)
      if (("\n" + other).find("\n" + line + "\n") == std::string::npos) lines += mark + line + "\n";
    return lines;
  };
  return only_in(before, now, "  - ") + only_in(now, before, "  + ");
}

bool has_facility(const config::Experiment& experiment, const FacilityName& name) {
  return std::any_of(experiment.facilities.begin(), experiment.facilities.end(),
                     [&](const config::Facility& each) { return each.name == name; });
}

// Acts on users' requests during the rounds.
class RequestWatch {
 public:
  /// Acts on all earlier requests before it returns.
  RequestWatch(facility::Context& context, std::stop_source& stop) {
    poll(context, stop);
    thread_ = std::jthread([&context, &stop, this](std::stop_token end) {
      SystemClock clock;
      while (clock.sleep(std::chrono::milliseconds(200), end)) poll(context, stop);
    });
  }
  bool cancel_requested() const { return cancel_requested_; }

 private:
  void poll(facility::Context& context, std::stop_source& stop) {
    try {
      // Ends all waits of a coordinator that has lost its run.
      if (!context.history.is_writer()) {
        stop.request_stop();
        return;
      }
      std::string unreadable;
      for (const auto& [name, request] : history::pending_requests(context.folder, &unreadable)) {
        if (request.kind == history::Request::Kind::kCancel) {
          cancel_requested_ = true;  // the request stays until the run is cancelled
          stop.request_stop();
          continue;
        }
        act_on(context, request);
        context.history.check_writer();
        history::remove_request(context.folder, name);
      }
      warn_once(unreadable);
    } catch (const std::exception& error) {  // a thread's top
      warn_once(error.what());
    }
  }

  void warn_once(const std::string& problem) {
    if (std::exchange(last_error_, problem) != problem && !problem.empty())
      log::warning("a request failed: will retry", {{"problem", problem}});
  }

  void act_on(facility::Context& context, const history::Request& request) {
    using Kind = history::Request::Kind;
    if (request.kind != Kind::kLeave && request.kind != Kind::kJoin)
      return set_paused(context, request);
    try {
      set_members(context, request);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUsage) throw;
      log::warning("a request is rejected", {{"problem", error.what()}});
    }
  }

  std::atomic<bool> cancel_requested_{false};
  std::string last_error_;  // logged once
  std::jthread thread_;
};

Outcome outcome_of(const facility::Context& context) {
  const plan::Done done = context.history.done();
  return {done.rounds_published, context.folder.global(done.rounds_published), done.model_sha256};
}

// Compares the rules once between two rounds. A planned round is not taken back.
void compare_stop_rules(facility::Context& context) {
  const plan::Done done = context.history.done();
  if (done.stop_rule_met || done.rounds_published == 0 ||
      done.rounds_published >= context.experiment.rounds ||
      context.history.round(done.rounds_published + 1).planned)
    return;
  const auto met = met_rule(context.experiment.policy.stop_when, context.history.progress(),
                            context.services.clock.utc());
  if (!met) return;
  context.history.record({}, *met);
  log::info("a rule completes the run before its last round", {{"rule", met->text()},
                                                               {"rounds", done.rounds_published},
                                                               {"of", context.experiment.rounds}});
}

bool has_rounds_left(const facility::Context& context) {
  const plan::Done done = context.history.done();
  return !done.run_completed && !done.stop_rule_met &&
         done.rounds_published < context.experiment.rounds;
}

/// Returns false ahead of a round with members that the experiment lacks, and with `may_return`
/// ahead of the first round, too.
bool run_rounds(facility::Context& context, upkeep::RetentionWorker& cleaner, bool may_return,
                std::stop_token stop) {
  import_model(context);
  cleaner.after_last();
  for (;;) {
    compare_stop_rules(context);
    const auto plan = current_plan(context);
    if (!plan && has_rounds_left(context)) {  // all members that the experiment knows have left
      if (may_return && !knows_all_members(context)) return false;
      throw Error(ErrorKind::kConfig,
                  "no member of the run is left in xffl.yaml: correct the section of the facility "
                  "that has joined, or let another one join by `xffl join`");
    }
    if (!plan) break;
    const bool is_planned = context.history.round(plan->round).planned;
    if (std::exchange(may_return, true) && !is_planned && !knows_all_members(context)) return false;
    if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped on request");
    if (plan->evaluates) {
      cancel_leftovers(context, plan->round - 1, stop);
      if (context.history.done().stop_rule_met) release_allocations(context, plan);
      evaluate_last(context, *plan, stop);
      break;
    }
    run_round(context, *plan, stop);
    cleaner.after(*plan);
  }
  if (context.history.state().completed) return true;
  cleaner.finish(stop);
  // No later coordinator cleans up a completed run.
  if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped on request");
  if (!context.experiment.policy.evaluate_last) drop_evaluation(context, stop);
  if (context.history.done().stop_rule_met) release_allocations(context);
  cancel_leftovers(context, context.history.done().rounds_published + 1, stop);
  context.models.check_global(context.history.done().rounds_published);
  context.history.record(
      {}, history::RunCompleted{.model_sha256 = context.history.done().model_sha256});
  return true;
}

// The configuration on record. A coordinator that was killed after it wrote the text `now` has not
// recorded it.
std::string read_config(const history::RunFolder& folder, const history::RunState& run_state,
                        const std::string& now) {
  std::string text = read_file(folder.config(), 4 << 20);
  if (sha256_hex(text) != run_state.config_sha256 && text != now)
    throw Error(ErrorKind::kCorrupt,
                folder.config().string() + " is damaged: its SHA-256 differs from the journal's " +
                    run_state.config_sha256 +
                    "; copy the file from a backup, or undo the last change of xffl.yaml");
  return text;
}

// The folder of the project as `path` of an earlier configuration had it: `now` is the same path
// in the present folder. Empty when `now` lies elsewhere, or the paths have no common end.
std::string earlier_project(const fs::path& path, const fs::path& now, const fs::path& present) {
  const std::string inside = "/" + now.lexically_relative(present).string();
  const std::string whole = path.string();
  const bool same_end = inside.size() > 1 && !inside.starts_with("/..") && whole.ends_with(inside);
  return same_end ? whole.substr(0, whole.size() - inside.size()) : "";
}

// The identity of an earlier configuration with the present path of the project's folder, which may
// have been moved or copied, or is reached through a link.
std::string identity_here(const config::Experiment& earlier, const config::Experiment& now) {
  std::string text = config::format_training_identity(earlier);
  const fs::path& present = now.project_folder;
  std::string before = earlier_project(earlier.model, now.model, present);
  for (const config::Facility& facility : now.facilities)
    if (before.empty() && facility.access == config::AccessKind::kLocal &&
        has_facility(earlier, facility.name))
      before = earlier_project(earlier.facility(facility.name).workdir.str(),
                               facility.workdir.str(), present);
  if (before.empty()) return text;
  before += '/';
  const std::string after = present.string() + "/";
  for (size_t at = 0; (at = text.find(before, at)) != std::string::npos; at += after.size())
    text.replace(at, before.size(), after);
  return text;
}

}  // namespace

std::string advice_of_new_run(const config::Experiment& experiment,
                              const history::RunFolder& folder,
                              const history::RunState& run_state) {
  std::string advice = "start another with `xffl run --new`";
  if (!run_state.completed && !run_state.cancelled)
    advice += " (end this one's jobs with `xffl cancel --run " + folder.run().str() + "`)";
  if (run_state.done().rounds_published == 0) return advice;
  const bool adapts = experiment.facilities.front().training.lora.rank > 0;
  return advice + ": from this one's newest model with `" + (adapts ? "adapter" : "model") + ": " +
         folder.current().string() + "` in xffl.yaml";
}

void require_same_training(const config::Experiment& experiment, const history::RunFolder& folder,
                           const history::RunState& run_state) {
  const config::Experiment earlier = config::parse_experiment(
      read_config(folder, run_state, config::format_experiment(experiment)), folder.config(),
      experiment.project_folder);
  // A run may get further facilities.
  config::Experiment known = experiment;
  std::erase_if(known.facilities,
                [&](const config::Facility& each) { return !has_facility(earlier, each.name); });
  const std::string before = identity_here(earlier, known);
  const std::string now = config::format_training_identity(known);
  // A run without an imported model has trained nothing.
  if (before == now || (run_state.initial_sha256.empty() && earlier.project == experiment.project))
    return;
  throw Error(ErrorKind::kConfig, "xffl.yaml has changed since run " + folder.run().str() +
                                      " began, and a run's training is fixed:\n" +
                                      differing_lines(before, now) +
                                      "Change it back to continue this run, or " +
                                      advice_of_new_run(experiment, folder, run_state) + ".");
}

std::optional<plan::RoundPlan> current_plan(const facility::Context& context) {
  return plan::next_round(context.experiment, context.identity, context.history.done());
}

void cancel_now(facility::Context& context, std::stop_token stop) {
  const bool begun = !context.history.state().initial_sha256.empty();
  if (begun) try {
      const auto plan = current_plan(context);
      if (context.history.done().stop_rule_met) release_allocations(context, plan);
      if (plan) cancel_round(context, *plan, "the run was cancelled", stop);
      const int last = context.history.done().rounds_published;
      cancel_leftovers(context, plan ? plan->round - 1 : last + 1, stop);
    } catch (const Error& error) {
      throw Error(error.kind(), std::string(error.what()) +
                                    "\nThe cancellation stays on record: `xffl cancel`, or `xffl "
                                    "run`, which trains nothing more, repeats it.");
    }
  context.history.record({}, history::RunCancelled{});
  for (const auto& [name, request] : history::pending_requests(context.folder))
    history::remove_request(context.folder, name);
  log::info("run cancelled", {{"run", context.folder.run().str()}});
}

namespace {

// A mistake in a template ends a command ahead of its first connection.
void require_script(const config::Experiment& experiment, const FacilityName& facility,
                    const facility::Services& services) {
  with_context("the job script of " + facility.str(), [&] {
    return facility::render_script(experiment, facility::preview_state(), facility, 1,
                                   services.programs);
  });
}

// Records the changes that a run permits (access to facilities, the jobs' resources, waits).
void accept_changes(const config::Experiment& experiment, const history::RunFolder& folder,
                    history::RunHistory& history) {
  const std::string now = config::format_experiment(experiment);
  const std::string hash = sha256_hex(now);
  if (hash == history.state().config_sha256) return;
  require_same_training(experiment, folder, history.state());
  if (history.state().completed) return;  // the changes no longer have an effect
  const std::string before = read_config(folder, history.state(), now);
  const config::Experiment earlier =
      config::parse_experiment(before, folder.config(), experiment.project_folder);
  const history::RunState run_state = history.state();
  if (!run_state.initial_sha256.empty())
    for (const config::Facility& facility : experiment.facilities)
      if (!has_facility(earlier, facility.name) && !run_state.joined.contains(facility.name) &&
          !run_state.left.contains(facility.name))
        history.record({.facility = facility.name}, history::FacilityJoined{});
  history.write_file(folder.config(), now);
  history.record({}, history::ConfigChanged{.config_sha256 = hash});
  log::info("the run continues with a changed configuration",
            {{"lines", differing_lines(before, now)}});
}

// Models appear after the run's first event.
void require_no_models(const history::RunFolder& folder) {
  const auto exists = [](const fs::path& path) {
    std::error_code unknown;  // an unreadable place may hold models
    return fs::symlink_status(path, unknown).type() != fs::file_type::not_found;
  };
  for (const fs::path& path : {folder.current(), folder.round(0)})
    if (exists(path))
      throw Error(ErrorKind::kCorrupt,
                  "the journal of run " + folder.run().str() + " is lost: " + path.string() +
                      " exists, and " + folder.journal().string() +
                      " has no event; nothing was changed. Copy journal.db, or its mirror "
                      "journal.jsonl, from a backup to " +
                      folder.path().string() +
                      " (after a copy of journal.jsonl: `xffl journal repair`), then `xffl run`; "
                      "or start another run with `xffl run --new`");
}

void create_run(const config::Experiment& experiment, const history::RunFolder& folder,
                history::RunHistory& history) {
  require_no_models(folder);
  const std::string text = config::format_experiment(experiment);
  history.write_file(folder.config(), text);
  history.record({}, history::RunCreated{.run = folder.run(),
                                         .project = experiment.project.str(),
                                         .secret = random_hex(16),
                                         .tag = random_hex(4),
                                         .config_sha256 = sha256_hex(text)});
}

// The error of a coordinator that has lost its run, else `error`: after a take-over, files may be
// absent and facilities may answer in many ways.
Error cause_of(const Error& error, const history::RunFolder& folder, history::RunHistory& history) {
  try {
    history.check_writer();
  } catch (const Error& taken_over) {
    if (taken_over.kind() != ErrorKind::kBusy) return error;
    history::remove_work_files(folder, history::first_round_in_work(history), history.epoch());
    return taken_over;
  }
  return error;
}

// Records the reason for `xffl status`. When the journal is not writable, only the log has the
// reason.
void note_end(history::RunHistory& history, const Error& error) {
  constexpr size_t kMaxReason = 4000;
  const history::RunState run_state = history.state();
  if (!run_state.identity || run_state.completed || run_state.cancelled) return;
  if (error.kind() == ErrorKind::kBusy) return;  // another coordinator has the run now
  try {
    history.record({}, history::RunStopped{.kind = std::string(to_string(error.kind())),
                                           .reason = scrubbed(error.what()).substr(0, kMaxReason)});
  } catch (const Error& problem) {
    log::warning("the reason of the run's end is not in the journal",
                 {{"problem", problem.what()}});
  }
}

/// Coordinates the run to its end; none when it needs xffl.yaml again, for the next round's new
/// members. `continues`: the same process has coordinated the earlier rounds.
std::optional<Outcome> coordinate(const config::Experiment& experiment,
                                  const history::RunFolder& folder, facility::Services& services,
                                  std::stop_token stop, const facility::Observer& observer,
                                  history::RunHistory& history, bool continues) {
  if (!history.state().identity) create_run(experiment, folder, history);
  if (!continues && observer.on_begin) observer.on_begin(history.epoch());
  if (history.state().cancelled)
    throw Error(ErrorKind::kFailed, "run " + folder.run().str() +
                                        " was cancelled: start another with `xffl run --new`");
  if (!continues && !history.state().completed) {
    const auto left = history.state().left;
    for (const config::Facility& facility : experiment.facilities)
      if (!left.contains(facility.name)) require_script(experiment, facility.name, services);
  }
  if (!continues) {  // later, read_again() accepts the changes
    if (!history.state().completed) history::check_location(history, folder);
    history::take_over_work_files(folder, history::first_round_in_work(history), history.epoch());
    accept_changes(experiment, folder, history);
  }
  const history::RunState before = history.state();
  if (!continues && !before.completed && (!before.rounds.empty() || before.stopped))
    history.record({}, history::RunResumed{.keeps_budgets = true});
  history::StatusFile live(folder.live(), services.clock, &history);
  facility::Context context{
      experiment, folder, services, observer, history, live, *history.state().identity};
  context.models.make_first = [&](const fs::path& round) { make_first_models(experiment, round); };

  const std::jthread credential_watch = upkeep::start_credential_watch(context);
  const std::jthread purge_guard = upkeep::start_purge_guard(context);
  const LoginServer login_server(folder.login(), history,
                                 [&](const FacilityName& name, const remote::Ask& ask) {
                                   const config::Facility& facility = experiment.facility(name);
                                   if (services.log_in) services.log_in(facility, ask);
                                 });
  std::stop_source any_stop;
  std::stop_callback forward(stop, [&] { any_stop.request_stop(); });
  RequestWatch watch(context, any_stop);
  upkeep::RetentionWorker cleaner(context);
  try {
    if (watch.cancel_requested() && !before.completed)
      throw Error(ErrorKind::kCancelled, "the run was cancelled before");
    if (!run_rounds(context, cleaner, !continues, any_stop.get_token())) return std::nullopt;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCancelled || !watch.cancel_requested()) throw;
    history.check_writer();
    cancel_now(context, stop);
    throw Error(ErrorKind::kFailed, "run " + folder.run().str() + " was cancelled on request");
  }
  return outcome_of(context);
}

// Jobs have the run's name: the folder must survive a power loss before the first job.
void make_run_folder(const history::RunFolder& folder) {
  make_dirs(folder.path());
  const fs::path runs = fs::absolute(folder.path()).parent_path();
  for (const auto& parent : {runs, runs.parent_path()}) fsync_dir(parent);
}

// The project's xffl.yaml, or `known` when it cannot continue the run, or an error of this machine
// keeps it from the run folder.
config::Experiment read_again(const config::Experiment& known, const history::RunFolder& folder,
                              history::RunHistory& history, const facility::Services& services) {
  try {
    config::Experiment experiment = config::load_experiment(known.project_folder);
    require_same_training(experiment, folder, history.state());
    for (const config::Facility& facility : experiment.facilities)
      if (!has_facility(known, facility.name)) require_script(experiment, facility.name, services);
    accept_changes(experiment, folder, history);
    return experiment;
  } catch (const std::exception& error) {
    history.check_writer();
    log::warning("the round begins without its new facility: correct xffl.yaml",
                 {{"round", history.done().rounds_published + 1}, {"problem", error.what()}});
    return known;
  }
}

facility::StagedScript stage_job_in(const config::Experiment& experiment,
                                    const history::RunFolder& folder, facility::Services& services,
                                    const FacilityName& facility, history::RunHistory& history,
                                    std::stop_token stop) {
  if (!history.state().identity) create_run(experiment, folder, history);
  if (history.state().cancelled || history.state().completed)
    throw Error(ErrorKind::kUsage,
                "run " + folder.run().str() + " has ended: `xffl run --new` " + "starts another");
  history::check_location(history, folder);
  history::take_over_work_files(folder, history::first_round_in_work(history), history.epoch());
  accept_changes(experiment, folder, history);
  require_script(experiment, facility, services);
  history::StatusFile live(folder.live(), services.clock, &history);
  const facility::Observer none;
  facility::Context context{
      experiment, folder, services, none, history, live, *history.state().identity};
  context.models.make_first = [&](const fs::path& round) { make_first_models(experiment, round); };
  import_model(context);
  compare_stop_rules(context);
  const auto plan = current_plan(context);
  if (plan) record_plan(context, *plan);
  for (const plan::FacilityPlan& each : plan ? plan->facilities : decltype(plan->facilities){})
    if (each.facility == facility)
      return facility::FacilityDriver(context, *plan, each).stage(std::move(stop));
  experiment.facility(facility);  // or kNotFound
  throw Error(ErrorKind::kUsage,
              facility.str() + " has no job in the next round: `xffl status` has the state");
}

}  // namespace

facility::StagedScript stage_job(const config::Experiment& experiment,
                                 const history::RunFolder& folder, facility::Services& services,
                                 const FacilityName& facility, std::stop_token stop) {
  make_run_folder(folder);
  history::RunHistory history(folder.journal());
  // Without a reason on record, this command's end looks like the death of a coordinator.
  const auto end_with = [&](const Error& reason) {
    if (!history.state().stopped) note_end(history, reason);
  };
  try {
    facility::StagedScript staged =
        stage_job_in(experiment, folder, services, facility, history, std::move(stop));
    end_with(Error(ErrorKind::kCancelled,
                   "a job of " + facility.str() + " is staged for its submission by hand"));
    return staged;
  } catch (const Error& error) {
    end_with(error);
    throw;
  }
}

Outcome run_federation(const config::Experiment& experiment, const history::RunFolder& folder,
                       facility::Services& services, std::stop_token stop,
                       const facility::Observer& observer) {
  make_run_folder(folder);
  history::RunHistory history(folder.journal());
  try {
    config::Experiment present = experiment;
    for (bool continues = false;; continues = true) {
      if (auto outcome = coordinate(present, folder, services, stop, observer, history, continues))
        return *std::move(outcome);
      present = read_again(present, folder, history, services);
    }
  } catch (const Error& error) {
    const Error cause = cause_of(error, folder, history);
    note_end(history, cause);
    throw cause;
  } catch (const fs::filesystem_error& error) {
    const Error cause = cause_of(Error(ErrorKind::kIo, error.what()), folder, history);
    note_end(history, cause);
    throw cause;
  } catch (const std::system_error& error) {  // no thread could be started
    const Error cause = cause_of(
        Error(ErrorKind::kIo, std::string("this machine refused a thread: ") + error.what()),
        folder, history);
    note_end(history, cause);
    throw cause;
  } catch (const std::exception& error) {
    note_end(history, Error(ErrorKind::kInternal, error.what()));
    throw;
  }
}

}  // namespace xffl::run
