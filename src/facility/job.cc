#include <optional>
#include <utility>

#include "site.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"
#include "xffl/base/shell.h"
#include "xffl/facility/job_script.h"
#include "xffl/facility/kept_allocation.h"

namespace xffl::facility {
namespace {

constexpr int kCancels = 5;                             // tries for a job that still runs
constexpr std::chrono::milliseconds kCancelPause{500};  // between the first two tries; doubles

// The step of a line of metrics.jsonl, within a job of `spec`; none for a line without a step and a
// loss, such as a validation's. The trainer counts the steps of all rounds, other trainers may
// count those of the job.
std::optional<history::TrainingProgress> progress_of(const std::string& line,
                                                     const job::JobSpec& spec) try {
  const Json json = parse_json(line, "metrics.jsonl");
  JsonObject object(json, "metrics.jsonl");
  const int64_t first = spec.training.first_step, step = object.integer("step", 0);
  // A round of epochs has its number of steps in the line.
  return history::TrainingProgress{
      spec.key.attempt, object.integer_or("job_step", step > first ? step - first : step, 0),
      object.integer_or("job_steps", spec.training.steps, 0), object.number("loss"),
      object.number_or("tokens_per_second", 0)};
} catch (const Error&) {
  return std::nullopt;
}

}  // namespace

std::string FacilityJob::script(int attempt) const {
  return with_context("the job script cannot be made until its template is corrected", [&] {
    return job_script(site_.settings, site_.spec(attempt), name({site_.plan.round, attempt}),
                      site_.folder(attempt), site_.context.services.programs, next_folder());
  });
}

// No job follows an evaluation, also when a rule has ended the training before the last round.
std::optional<RemotePath> FacilityJob::next_folder() const {
  if (site_.plan.evaluates) return std::nullopt;
  return next_attempt_folder(site_.context.experiment, site_.facility, site_.plan.round);
}

std::string FacilityJob::name(AttemptNumber attempt) const {
  job::JobKey key = site_.spec(attempt.attempt).key;
  key.round = attempt.round;
  return job_name(site_.context.identity, key, site_.state(attempt.round));
}

submit::JobRequest FacilityJob::request(int attempt) const {
  return {.name = name({site_.plan.round, attempt}),
          .script = {},
          .folder = site_.folder(attempt),
          .kept_allocation = kept_allocation(attempt),
          .may_requeue = site_.settings.may_requeue,
          .nodes_folder = site_.settings.on_compute_nodes(site_.folder(attempt))};
}

submit::SubmittedJob FacilityJob::submitted(int attempt, const JobId& job) const {
  const AttemptNumber now{site_.plan.round, attempt};
  const AttemptNumber first = first_attempt(now, job, site_.states());
  return {job, name(now), first == now ? "" : name(first)};
}

history::SubmitIntended FacilityJob::prepare_submission(int attempt) {
  const std::string text = script(attempt);
  site_.context.history.write_file(site_.archive() / "job.sh", text);
  const submit::JobShape shape = site_.settings.shape();
  const bool keeps = next_folder().has_value();
  return {.job_name = name({site_.plan.round, attempt}),
          .script_sha256 = sha256_hex(text),
          .nodes = shape.nodes,
          .walltime_s = shape.walltime.count(),
          .keep_s = keeps ? shape.keep_allocation.count() : 0};
}

JobId FacilityJob::submit(int attempt, std::stop_token stop) {
  submit::JobRequest wanted = request(attempt);
  try {
    wanted.script = script(attempt);
  } catch (const Error& error) {  // the template has changed since the intent: no rejected job
    if (error.kind() != ErrorKind::kConfig && error.kind() != ErrorKind::kNotFound) throw;
    throw Error(ErrorKind::kIo, error.what());
  }
  site_.context.history.check_writer();
  return site_.scheduler->submit(wanted, stop);
}

StagedScript FacilityJob::staged(int attempt) const {
  return {.round = site_.plan.round,
          .attempt = attempt,
          .job_name = name({site_.plan.round, attempt}),
          .folder = site_.folder(attempt),
          .command = {},
          .job = {}};
}

// `cd` complains about a folder that is missing by then; Slurm fails such a job without a message.
StagedScript FacilityJob::stage(int attempt) {
  StagedScript staged = this->staged(attempt);
  const std::string text = script(attempt), file(plan::kStagedScript);
  site_.context.history.check_writer();
  at_the_facility([&] { write_text_atomic(*site_.session, staged.folder / file, text); });
  staged.command = "cd " + quote_for_shell(staged.folder.str()) + " && " +
                   std::string(site_.settings.scheduler.manager().submit_by_hand) + " " + file;
  return staged;
}

std::vector<JobId> FacilityJob::find(int attempt, std::stop_token stop) {
  return at_the_facility([&] { return site_.scheduler->find(request(attempt), stop); });
}

submit::JobStatus FacilityJob::query(int attempt, const JobId& job, bool decides,
                                     std::stop_token stop) {
  submit::SubmittedJob asked = submitted(attempt, job);
  asked.presumed_gone = decides;
  return at_the_facility(
      [&] { return site_.scheduler->query(std::span(&asked, 1), stop).at(job); });
}

// A successful cancel command does not prove the end of the job: the controller may die before it
// acts.
void FacilityJob::cancel(int attempt, const JobId& job, std::stop_token stop) {
  const submit::SubmittedJob target = submitted(attempt, job);
  Nanoseconds pause = kCancelPause;
  for (int times = 1;; ++times, pause *= 2) {
    site_.context.history.check_writer();
    const submit::JobStatus status = at_the_facility([&] {
      site_.scheduler->cancel(target, stop);
      return site_.scheduler->query(std::span(&target, 1), stop).at(job);
    });
    const bool runs = status.state == submit::JobState::kPending ||
                      status.state == submit::JobState::kHeld ||
                      status.state == submit::JobState::kRunning;
    if (!runs || status.is_ending) return;
    if (times == kCancels)
      throw Error(ErrorKind::kRemote, "job " + job.str() + " is " + status.native + " after " +
                                          std::to_string(times) + " cancellations");
    site_.sleep(pause, stop);
  }
}

// The fence also stops the job that holds the claim when the scheduler requeues the job.
void FacilityJob::fence(int attempt) {
  site_.context.history.check_writer();
  at_the_facility([&] { site_.session->make_dirs(site_.folder(attempt) / plan::kFence); });
}

std::optional<submit::KeptAllocation> FacilityJob::kept_allocation(int attempt) const {
  return kept_allocation_for(site_.context.experiment, site_.facility, site_.plan.round, attempt,
                             site_.states());
}

void FacilityJob::release_allocation() {
  for (const int round : {site_.plan.round, site_.plan.round - 1}) try {
      if (!next_attempt_folder(site_.context.experiment, site_.facility, round)) continue;
      const auto kept = kept_allocation_of(site_.facility, round, site_.states());
      if (!kept) continue;
      site_.context.history.check_writer();
      site_.scheduler->release(*kept, {});
    } catch (const Error& error) {
      log::warning("a kept allocation was not released: it expires by itself",
                   {site_.name_field(), {"problem", error.what()}});
    }
}

std::string FacilityJob::output_tail(int attempt) {
  try {
    const std::string text =
        printable_tail(*site_.session, site_.folder(attempt) / submit::kJobOutput);
    if (!text.empty()) return text;
    // The fence may have made the folder again.
    const RemotePath folder = site_.folder(attempt);
    if (site_.session->stat(folder / plan::kJobFile)) return "(no output)";
    return "(no output: the job's folder " + folder.str() + " was removed)";
  } catch (const Error& error) {
    return std::string("(not readable: ") + error.what() + ")";
  }
}

// Shows the last complete line of the job's metrics.
void FacilityJob::show_progress(int attempt) {
  if (!site_.context.observer.on_training) return;
  try {
    std::string text =
        last_bytes(*site_.session, site_.folder(attempt) / plan::kMetricsFile, 2048).text;
    text.resize(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n'));
    const std::string line = text.substr(text.rfind('\n') + 1);
    if (line.empty() || line == last_metrics_line_) return;
    last_metrics_line_ = line;
    if (const auto progress = progress_of(line, site_.spec(attempt)))
      site_.context.live.show_training(site_.plan.round, site_.facility.facility, *progress);
    const std::lock_guard lock(site_.context.observer_mutex);
    site_.context.observer.on_training(site_.plan.round, site_.facility.facility, line);
  } catch (const Error& error) {
    log::debug("no progress to show", {{"problem", error.what()}});
  }
}

}  // namespace xffl::facility
