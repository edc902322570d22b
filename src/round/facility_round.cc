#include "facility_round.h"

#include <algorithm>

#include "job_script.h"
#include "xffl/aggregate/aggregate.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/checkpoint/model_folder.h"
#include "xffl/transfer/transfer.h"

namespace xffl::round {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

namespace {

constexpr uint64_t kMaxReportBytes = 1 << 20;
constexpr milliseconds kFirstBackoff{1000};
constexpr milliseconds kLastBackoff{15 * 60 * 1000};

void pause(Clock& clock, milliseconds duration, std::stop_token stop) {
  if (!clock.sleep(duration, stop)) throw Error(ErrorKind::kCancelled, "stopped on request");
}

// What a facility itself did wrong; anything else is about this machine or the link.
bool is_the_facilitys_fault(ErrorKind kind) {
  return kind == ErrorKind::kRejected || kind == ErrorKind::kCorrupt ||
         kind == ErrorKind::kNotFound || kind == ErrorKind::kUnsupported;
}

}  // namespace

FacilityRound::FacilityRound(Context& context, const plan::RoundPlan& plan,
                             const plan::FacilityPlan& facility)
    : context_(context),
      plan_(plan),
      facility_(facility),
      settings_(context.experiment.facility(facility.facility)),
      session_(context.world.connect(settings_)),
      scheduler_(context.world.scheduler(settings_)),
      began_(context.world.clock.monotonic()),
      began_utc_(context.world.clock.utc()) {}

// A lost link says nothing about what happened: the body looks up its own effects, so it may be
// called again.
template <class Body>
auto FacilityRound::with_retries(std::stop_token stop, std::string_view doing, Body&& body) {
  for (milliseconds backoff = kFirstBackoff;; backoff = std::min(backoff * 2, kLastBackoff)) {
    try {
      return body();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kRemote) throw;
      log::warning("facility does not answer", {{"facility", facility_.facility.str()},
                                                {"while", doing},
                                                {"problem", error.what()},
                                                {"retry_seconds", backoff.count() / 1000}});
    }
    pause(context_.world.clock, backoff, stop);
  }
}

FacilityOutcome FacilityRound::run(std::stop_token stop) {
  const FacilityState state = context_.ledger.facility(plan_.round, facility_.facility);
  if (state.accepted) {
    fetch_again_if_damaged(*state.accepted, stop);
    return {state.accepted, ""};
  }
  if (state.missing) return {std::nullopt, *state.missing};
  for (;;) {
    const std::optional<Attempt> attempt = open_attempt();
    if (!attempt) {
      const FacilityState now = context_.ledger.facility(plan_.round, facility_.facility);
      return give_up("no attempt left (policy.max_attempts is " +
                     std::to_string(context_.experiment.policy.max_attempts) +
                     "); the last one: " + now.attempts.back().failure.value_or("unknown"));
    }
    const std::optional<Failure> failure = run_attempt(*attempt, stop);
    if (!failure) return {context_.ledger.facility(plan_.round, facility_.facility).accepted, ""};
    context_.ledger.record("attempt_failed", plan_.round, facility_.facility, attempt->number,
                           {{"reason", failure->reason}});
    log::warning("attempt failed", {{"facility", facility_.facility.str()},
                                    {"round", plan_.round},
                                    {"attempt", attempt->number},
                                    {"reason", failure->reason}});
    if (!failure->another_attempt_may_help) return give_up(failure->reason);
  }
}

FacilityOutcome FacilityRound::give_up(const std::string& reason) {
  context_.ledger.record("facility_missing", plan_.round, facility_.facility, 0,
                         {{"reason", reason}});
  return {std::nullopt, reason};
}

// The attempt in progress, else a new one while the budget lasts.
std::optional<Attempt> FacilityRound::open_attempt() {
  const FacilityState state = context_.ledger.facility(plan_.round, facility_.facility);
  const Attempt* current = state.current();
  if (current != nullptr && !current->failure) return *current;
  const int number = current == nullptr ? 1 : current->number + 1;
  if (number - state.attempts_before_resume > context_.experiment.policy.max_attempts)
    return std::nullopt;
  Attempt attempt{.number = number};
  context_.ledger.record("attempt_opened", plan_.round, facility_.facility, number,
                         {{"nonce", spec(attempt).key.nonce}});
  return attempt;
}

std::optional<FacilityRound::Failure> FacilityRound::run_attempt(const Attempt& attempt,
                                                                 std::stop_token stop) {
  push(attempt, stop);
  for (JobId id = submit(attempt, stop);;) {
    switch (wait(attempt, id, stop)) {
      case Ending::kReported:
        return accept(attempt, stop);
      case Ending::kNoReport:
        // A second start of an attempt leaves at once, because the first holds the claim: that one
        // is the job.
        if (const auto other = find_other(attempt, id, stop)) {
          id = *other;
          continue;
        }
        return Failure{"job " + id.str() +
                       " ended without a report; its output ends with: " + output_tail(attempt)};
      case Ending::kDeadline:
        scheduler_->cancel(id, stop);
        return Failure{"no update before the round's deadline of " +
                           std::to_string(context_.experiment.policy.deadline.count()) + " s",
                       false};
    }
  }
}

job::JobSpec FacilityRound::spec(const Attempt& attempt) const {
  return plan::job_spec(context_.experiment, context_.identity, plan_, facility_, attempt.number);
}

void FacilityRound::push(const Attempt& attempt, std::stop_token stop) {
  if (attempt.pushed) return;
  const fs::path model = context_.folder.global(plan_.round - 1);
  const checkpoint::Manifest manifest = checkpoint::read_manifest(model);
  const std::string job_json = job::format_job_spec(spec(attempt));
  const transfer::Result moved = with_retries(stop, "pushing the model", [&] {
    const transfer::Result result =
        transfer::push(*session_, model, manifest, facility_.model_folder, stop);
    session_->make_dirs(folder(attempt) / "out");
    remote::write_text_atomic(*session_, folder(attempt) / "job.json", job_json);
    return result;
  });
  make_dirs(archive());
  write_file_atomic(archive() / "job.json", job_json);
  context_.ledger.record("pushed", plan_.round, facility_.facility, attempt.number,
                         {{"moved_bytes", moved.moved_bytes}});
}

// Jobs may appear under their name a while after a lost answer: look twice, a settle time apart.
std::optional<JobId> FacilityRound::find_submitted(const Attempt& attempt, std::stop_token stop) {
  const std::string name = spec(attempt).key.job_name();
  for (int look = 0; look < 2; ++look) {
    pause(context_.world.clock, scheduler_->settle_time(), stop);
    const std::vector<JobId> found = with_retries(
        stop, "looking for the job", [&] { return scheduler_->find(name, folder(attempt), stop); });
    if (found.empty()) continue;
    // The claim lets only one of several train; the rest end by themselves and are cancelled for
    // courtesy.
    for (size_t i = 1; i < found.size(); ++i) scheduler_->cancel(found[i], stop);
    return found.front();
  }
  return std::nullopt;
}

std::optional<JobId> FacilityRound::find_other(const Attempt& attempt, const JobId& id,
                                               std::stop_token stop) {
  const std::vector<JobId> found = with_retries(stop, "looking for the job", [&] {
    return scheduler_->find(spec(attempt).key.job_name(), folder(attempt), stop);
  });
  for (const JobId& other : found) {
    if (other == id || watched_.contains(other)) continue;
    watched_.insert(other);
    record_submitted(attempt, other, true);
    return other;
  }
  return std::nullopt;
}

void FacilityRound::record_submitted(const Attempt& attempt, const JobId& id, bool adopted) {
  context_.ledger.record("submitted", plan_.round, facility_.facility, attempt.number,
                         {{"job_id", id.str()}, {"adopted", adopted}});
  log::info(adopted ? "job found again" : "job submitted", {{"facility", facility_.facility.str()},
                                                            {"round", plan_.round},
                                                            {"attempt", attempt.number},
                                                            {"job", id.str()}});
}

JobId FacilityRound::submit(const Attempt& attempt, std::stop_token stop) {
  if (!attempt.job_id.empty()) return JobId(attempt.job_id);
  const auto record = [&](const JobId& id, bool adopted) {
    record_submitted(attempt, id, adopted);
    return id;
  };
  const job::JobSpec job = spec(attempt);
  const std::string script = job_script(settings_, job, folder(attempt), context_.world.programs);
  bool in_doubt = attempt.submit_intended;
  if (!in_doubt) {
    write_file_atomic(archive() / "job.sh", script);
    context_.ledger.record(
        "submit_intended", plan_.round, facility_.facility, attempt.number,
        {{"job_name", job.key.job_name()}, {"script_sha256", sha256_hex(script)}});
  }
  for (;;) {
    if (in_doubt)
      if (const auto found = find_submitted(attempt, stop)) return record(*found, true);
    try {
      return record(scheduler_->submit({job.key.job_name(), script, folder(attempt)}, stop), false);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kRemote) throw;
      log::warning("submission in doubt",
                   {{"facility", facility_.facility.str()}, {"problem", error.what()}});
      in_doubt = true;
    }
  }
}

bool FacilityRound::reported(const Attempt& attempt) {
  return session_->stat(folder(attempt) / "out/report.json").has_value();
}

// Waits are monotonic; the wall clock only says how much had passed before this coordinator began.
std::chrono::nanoseconds FacilityRound::since_first_submission() const {
  const Clock& clock = context_.world.clock;
  const auto first = parse_utc(context_.ledger.round(plan_.round).first_submission_utc);
  if (!first) return {};
  return (began_utc_ - *first) + (clock.monotonic() - began_);
}

bool FacilityRound::past_deadline() const {
  const config::RoundPolicy& policy = context_.experiment.policy;
  if (policy.deadline.count() == 0 || policy.on_missing == config::OnMissing::kWait) return false;
  return since_first_submission() > policy.deadline;
}

FacilityRound::Ending FacilityRound::wait(const Attempt& attempt, const JobId& id,
                                          std::stop_token stop) {
  for (;;) {
    const auto look = [&] {
      if (reported(attempt)) return submit::JobStatus{.state = submit::JobState::kEnded, .native = "reported"};
      const submit::SubmittedJob job{id, spec(attempt).key.job_name()};
      return scheduler_->query(std::span(&job, 1), stop).at(id);
    };
    const submit::JobStatus status = with_retries(stop, "watching the job", look);
    show_progress(attempt);
    if (status.state == submit::JobState::kEnded || status.state == submit::JobState::kCancelled) {
      // The report may have been written between the two looks, or be late on a shared file system.
      if (with_retries(stop, "looking for the report", [&] { return reported(attempt); }))
        return Ending::kReported;
      pause(context_.world.clock, scheduler_->settle_time(), stop);
      return with_retries(stop, "looking for the report", [&] { return reported(attempt); })
                 ? Ending::kReported
                 : Ending::kNoReport;
    }
    if (past_deadline()) return Ending::kDeadline;
    pause(context_.world.clock, context_.experiment.policy.poll_interval, stop);
  }
}

std::optional<FacilityRound::Failure> FacilityRound::accept(const Attempt& attempt,
                                                            std::stop_token stop) {
  try {
    const Accepted accepted =
        with_retries(stop, "fetching the update", [&] { return fetch_and_check(attempt, stop); });
    const Json report = parse_json(job::format_job_report(accepted.report), "report.json");
    context_.ledger.record("update_accepted", plan_.round, facility_.facility, attempt.number,
                           {{"update_sha256", accepted.update_sha256}, {"report", report}});
    log::info("update accepted", {{"facility", facility_.facility.str()},
                                  {"round", plan_.round},
                                  {"tokens", accepted.report.tokens},
                                  {"train_loss", accepted.report.train_loss}});
    return std::nullopt;
  } catch (const Error& error) {
    if (!is_the_facilitys_fault(error.kind())) throw;
    // The same job on the same data would most likely answer the same: it is not trained again by
    // itself.
    std::error_code none;
    const fs::path refused = archive() / ("refused-a" + std::to_string(attempt.number));
    fs::remove_all(refused, none);
    fs::rename(archive() / "update", refused, none);
    return Failure{std::string("its update was refused: ") + error.what(), false};
  }
}

uint64_t FacilityRound::max_update_bytes() const {
  constexpr uint64_t kOtherFiles = 64u << 20;  // configuration, tokenizer, headers
  uint64_t bytes = kOtherFiles;
  const checkpoint::ModelFolder base(context_.folder.global(plan_.round - 1));
  for (const checkpoint::TensorSpec& tensor : base.tensors())
    bytes += static_cast<uint64_t>(tensor.num_elements()) * sizeof(float);
  return bytes;
}

Accepted FacilityRound::fetch_and_check(const Attempt& attempt, std::stop_token stop) {
  const fs::path base = context_.folder.global(plan_.round - 1);
  const RemotePath out = folder(attempt) / "out";
  const std::string text = remote::read_text(*session_, out / "report.json", kMaxReportBytes);
  const job::JobReport report =
      job::parse_job_report(text, facility_.facility.str() + "'s report.json");
  const checkpoint::LlamaConfig config = checkpoint::read_llama_config(base);
  job::check_report_answers(report, spec(attempt), config.max_position_embeddings);
  transfer::fetch(*session_, out / "update", report.update_sha256, max_update_bytes(),
                  archive() / "update", stop);
  const bool delta = context_.experiment.aggregation.update == job::UpdateKind::kDelta;
  with_context(facility_.facility.str() + "'s update",
               [&] { aggregate::check_update(archive() / "update", base, delta, false); });
  write_file_atomic(archive() / "report.json", text);
  return {facility_.facility, attempt.number, report.update_sha256, report};
}

// An accepted update was verified when it came; after a restart its bytes are checked again before
// they are used.
void FacilityRound::fetch_again_if_damaged(const Accepted& accepted, std::stop_token stop) {
  try {
    const checkpoint::Manifest manifest = checkpoint::read_manifest(archive() / "update");
    if (manifest.root_sha256() != accepted.update_sha256)
      throw Error(ErrorKind::kRejected, "another update lies in its place");
    checkpoint::verify_folder(archive() / "update", manifest);
  } catch (const Error& error) {
    log::warning("archived update is damaged: fetching it again",
                 {{"facility", facility_.facility.str()}, {"problem", error.what()}});
    fs::remove_all(archive() / "update");
    with_retries(stop, "fetching the update",
                 [&] { return fetch_and_check(Attempt{.number = accepted.attempt}, stop); });
  }
}

// The last complete line of the job's metrics, for people; problems here are nobody's business.
void FacilityRound::show_progress(const Attempt& attempt) {
  if (!context_.observer.on_training) return;
  try {
    const RemotePath path = folder(attempt) / "out/metrics.jsonl";
    const auto info = session_->stat(path);
    if (!info) return;
    std::vector<std::byte> tail(std::min<uint64_t>(info->size_bytes, 2048));
    tail.resize(session_->read(path, info->size_bytes - tail.size(), tail));
    std::string text(reinterpret_cast<const char*>(tail.data()), tail.size());
    text.resize(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n'));
    const std::string line = text.substr(text.rfind('\n') + 1);
    if (line.empty() || line == last_metrics_line_) return;
    last_metrics_line_ = line;
    std::lock_guard lock(context_.observer_mutex);
    context_.observer.on_training(plan_.round, facility_.facility, line);
  } catch (const Error& error) {
    log::debug("no progress to show", {{"problem", error.what()}});
  }
}

std::string FacilityRound::output_tail(const Attempt& attempt) {
  constexpr uint64_t kTail = 600;
  try {
    const RemotePath path = folder(attempt) / "job.out";
    const auto info = session_->stat(path);
    if (!info || info->size_bytes == 0) return "(no output)";
    std::vector<std::byte> tail(std::min<uint64_t>(info->size_bytes, kTail));
    tail.resize(session_->read(path, info->size_bytes - tail.size(), tail));
    return log::printable({reinterpret_cast<const char*>(tail.data()), tail.size()});
  } catch (const Error& error) {
    return std::string("(not readable: ") + error.what() + ")";
  }
}

void FacilityRound::cancel(const std::string& reason) {
  const FacilityState state = context_.ledger.facility(plan_.round, facility_.facility);
  const Attempt* current = state.current();
  if (current == nullptr || current->failure || state.accepted) return;
  std::optional<JobId> id;
  if (!current->job_id.empty())
    id = JobId(current->job_id);
  else if (current->submit_intended)
    id = find_submitted(*current, {});
  if (id) scheduler_->cancel(*id, {});
  context_.ledger.record("attempt_failed", plan_.round, facility_.facility, current->number,
                         {{"reason", reason}});
}

}  // namespace xffl::round
