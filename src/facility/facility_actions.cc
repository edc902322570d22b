#include "facility_actions.h"

#include <algorithm>
#include <utility>

#include "job_script.h"
#include "xffl/aggregate/aggregate.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/base/scrub.h"
#include "xffl/base/sha256.h"
#include "xffl/checkpoint/model_folder.h"
#include "xffl/facility/facility_errors.h"
#include "xffl/facility/kept_allocation.h"
#include "xffl/facility/model_bytes.h"

namespace xffl::facility {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMaxReportBytes = 1 << 20;
constexpr uint64_t kSmallUpdateBytes = 16u << 20;  // there is room for such
constexpr int kLooks = 3;    // at files that are not what they should be, a settle time apart
constexpr int kCancels = 5;  // of a job that goes on
constexpr std::chrono::milliseconds kCancelPause{500};  // between the first two; doubles

// What a facility itself did wrong; anything else is about this machine or the link.
bool is_the_facilitys_fault(ErrorKind kind) {
  return kind == ErrorKind::kRejected || kind == ErrorKind::kCorrupt ||
         kind == ErrorKind::kNotFound || kind == ErrorKind::kUnsupported;
}

// The event that tells the machine of an action's error; none: the error is this machine's own.
std::optional<Event> event_of(const Error& error, const Action& action) {
  const bool submits = std::holds_alternative<Submit>(action);
  switch (error.kind()) {
    case ErrorKind::kRemote:
      if (submits) return SubmitUnknown{error.what()};
      return Unreachable{error.what()};
    case ErrorKind::kAuth:
      return AuthRequired{error.what()};
    case ErrorKind::kIo:  // a full disk, there or here: it may be mended while we wait
      return Unreachable{error.what()};
    case ErrorKind::kBusy:
      if (submits) return SubmitDeferred{error.what()};
      break;
    case ErrorKind::kConfig:
    case ErrorKind::kNotFound:
      if (submits) return SubmitRejected{error.what()};
      break;
    default:
      break;
  }
  return std::nullopt;
}

}  // namespace

Tail last_bytes(remote::Session& session, const RemotePath& path, uint64_t count) {
  const auto info = session.stat(path);
  if (!info) return {};
  std::vector<std::byte> tail(std::min<uint64_t>(info->size_bytes, count));
  tail.resize(session.read(path, info->size_bytes - tail.size(), tail));
  return {{reinterpret_cast<const char*>(tail.data()), tail.size()}, info->size_bytes <= count};
}

std::string last_words(remote::Session& session, const RemotePath& path) {
  constexpr size_t kShown = 600;
  const Tail tail = last_bytes(session, path, kShown + kLongestSecret);
  return log::printable(scrubbed_end(tail.text, kShown, tail.is_whole));
}

FacilityActions::FacilityActions(Context& context, const plan::RoundPlan& plan,
                                 const plan::FacilityPlan& facility)
    : context_(context),
      plan_(plan),
      facility_(facility),
      settings_(context.experiment.facility(facility.facility)),
      session_(context.services.connect(settings_)),
      bulk_(context.services.connect_transfer(settings_)),
      scheduler_(context.services.scheduler(settings_, session_)) {}

Event FacilityActions::perform(const Action& action, std::stop_token stop) {
  gained_ = 0;
  try {
    return dispatch(action, stop);
  } catch (const Error& error) {
    auto event = event_of(error, action);
    if (!event) throw;
    if (auto* lost = std::get_if<Unreachable>(&*event)) lost->gained_bytes = gained_;
    return *std::move(event);
  }
}

Event FacilityActions::dispatch(const Action& action, std::stop_token stop) {
  if (const auto* it = std::get_if<Push>(&action)) return push(it->attempt, stop);
  if (const auto* it = std::get_if<Submit>(&action)) {
    submit::JobRequest wanted = request(it->attempt);
    wanted.script = script(it->attempt);
    return Submitted{scheduler_->submit(wanted, stop)};
  }
  if (const auto* it = std::get_if<FindJobs>(&action))
    return Found{at_the_facility([&] { return scheduler_->find(request(it->attempt), stop); })};
  if (const auto* it = std::get_if<Poll>(&action)) return poll(*it, stop);
  if (const auto* it = std::get_if<FetchUpdate>(&action)) return fetch(it->attempt, stop);
  if (const auto* it = std::get_if<CancelJob>(&action)) {
    cancel(it->attempt, it->job, stop);
    return Completed{};
  }
  if (const auto* it = std::get_if<Fence>(&action)) {
    // The mark also stops the claim's own job, should it be requeued.
    at_the_facility([&] { session_->make_dirs(folder(it->attempt) / "claim/fenced"); });
    return Completed{};
  }
  if (const auto* it = std::get_if<Sleep>(&action)) {
    if (!context_.services.clock.sleep(it->duration, stop))
      throw Error(ErrorKind::kCancelled, "stopped on request");
  }
  return TimerFired{};
}

job::JobSpec FacilityActions::spec(int attempt) const {
  return plan::job_spec(context_.experiment, context_.identity, plan_, facility_, attempt);
}

std::string FacilityActions::script(int attempt) const {
  return job_script(settings_, spec(attempt), folder(attempt), context_.services.programs,
                    stays_for(context_.experiment, facility_, plan_.round));
}

void FacilityActions::look_at_room(int attempt) {
  if (plan_.evaluates || std::exchange(room_looked_at_, attempt) == attempt) return;
  try {
    const ModelBytes bytes = model_bytes(
        context_.experiment, plan_.adapted_sha256.empty() ? context_.folder.global(plan_.round - 1)
                                                          : context_.folder.adapted());
    if (bytes.update < kSmallUpdateBytes) return;
    const history::FacilityState known = state(plan_.round);
    const uint64_t needed = bytes.for_job(known.current() != nullptr && known.current()->packed);
    const auto free = bulk_->free_bytes(facility_.folder);
    if (!free || *free >= needed) return;
    log::warning("a facility has less room than its job will need: the job may fail",
                 {{"facility", facility_.facility.str()},
                  {"round", plan_.round},
                  {"folder", facility_.folder.str()},
                  {"free_megabytes", static_cast<double>(*free) * 1e-6},
                  {"needed_megabytes", static_cast<double>(needed) * 1e-6},
                  {"what to do", "remove files there, or ask for more room"}});
  } catch (const Error& error) {  // the submission will meet it, too
    log::debug("it was not seen whether a facility has room for its job",
               {{"facility", facility_.facility.str()}, {"problem", error.what()}});
  }
}

submit::JobRequest FacilityActions::request(int attempt) const {
  return {.name = spec(attempt).key.job_name(),
          .script = {},
          .folder = folder(attempt),
          .offer = offer(attempt)};
}

std::optional<submit::Offer> FacilityActions::offer(int attempt) const {
  return offer_to(context_.experiment, facility_, plan_.round, attempt,
                  [this](int round) { return state(round); });
}

submit::SubmittedJob FacilityActions::submitted(int attempt, const JobId& job) const {
  const auto name_of = [&](AttemptNumber number) {
    job::JobKey key = spec(number.attempt).key;
    key.round = number.round;
    return key.job_name();
  };
  const AttemptNumber now{plan_.round, attempt};
  const AttemptNumber first =
      first_attempt(now, job, [this](int earlier) { return state(earlier); });
  return {job, name_of(now), first == now ? "" : name_of(first)};
}

// That a command was taken does not end a job: a controller may die with what it was told.
void FacilityActions::cancel(int attempt, const JobId& job, std::stop_token stop) {
  const submit::SubmittedJob told = submitted(attempt, job);
  Nanoseconds pause = kCancelPause;
  for (int times = 1;; ++times, pause *= 2) {
    const submit::JobStatus status = at_the_facility([&] {
      scheduler_->cancel(told, stop);
      return scheduler_->query(std::span(&told, 1), stop).at(job);
    });
    const bool goes_on = status.state == submit::JobState::kPending ||
                         status.state == submit::JobState::kHeld ||
                         status.state == submit::JobState::kRunning;
    if (!goes_on || status.is_ending) return;
    if (times == kCancels)
      throw Error(ErrorKind::kRemote, "job " + job.str() + " is " + status.native + " after " +
                                          std::to_string(times) + " cancellations");
    dispatch(Sleep{pause}, stop);
  }
}

void FacilityActions::let_go() {
  for (const int round : {plan_.round, plan_.round - 1}) try {
      if (!stays_for(context_.experiment, facility_, round)) continue;
      const auto offer = offer_of(facility_, round, [this](int each) { return state(each); });
      if (offer) scheduler_->decline(*offer, {});
    } catch (const Error& error) {
      log::warning("a job that stays was not told to go: it does when its time is over",
                   {{"facility", facility_.facility.str()}, {"problem", error.what()}});
    }
}

history::SubmitIntended FacilityActions::prepare_submission(int attempt) {
  const std::string text = script(attempt);
  write_file_atomic(archive() / "job.sh", text);
  return {.job_name = spec(attempt).key.job_name(), .script_sha256 = sha256_hex(text)};
}

Event FacilityActions::poll(const Poll& poll, std::stop_token stop) {
  Polled polled;
  const auto has_reported = [&] {
    return at_the_facility([&] { return session_->stat(report_path(poll.attempt)).has_value(); });
  };
  polled.reported = has_reported();
  if (!polled.reported) max_change();  // needed later: there is time now
  if (!polled.reported && poll.ask_scheduler) {
    const submit::SubmittedJob job = submitted(poll.attempt, poll.job);
    polled.status =
        at_the_facility([&] { return scheduler_->query(std::span(&job, 1), stop).at(poll.job); });
    if (polled.status->state == submit::JobState::kPending ||
        polled.status->state == submit::JobState::kHeld)
      look_after_model(poll.attempt, stop);
    // The job may have reported and ended since: no need to give its files the settle time then.
    if (polled.status->state == submit::JobState::kEnded ||
        polled.status->state == submit::JobState::kUnknown)
      polled.reported = has_reported();
    if (polled.status->state == submit::JobState::kEnded && !polled.reported)
      polled.model_error = at_the_facility([&] { return given_model_problem(poll.attempt); });
  }
  return polled;
}

Event FacilityActions::fetch(int attempt, std::stop_token stop) {
  const Expected expected = expected_update();
  try {
    const Report report = bring(attempt, expected, stop);
    if (job::is_to_be_continued(report.parsed, spec(attempt)))
      return Checkpointed{report.parsed.steps};
    const double change = check_change(expected);
    const history::Accepted accepted = keep_accepted(attempt, report);
    return Fetched{
        {.update_sha256 = accepted.update_sha256, .report = accepted.report, .change = change}};
  } catch (const Error& error) {
    if (!is_the_facilitys_fault(error.kind())) throw;
    set_refused_aside(attempt);
    return UpdateRejected{error.what()};
  }
}

FacilityActions::Expected FacilityActions::expected_update() const {
  const fs::path base = context_.folder.global(plan_.round - 1);
  const fs::path model = plan_.adapted_sha256.empty() ? base : context_.folder.adapted();
  Expected expected;
  expected.max_positions = checkpoint::read_llama_config(model).max_position_embeddings;
  expected.max_bytes = max_update_bytes();
  expected.max_change = max_change();
  if (expected.max_change > 0) expected.base_norm = context_.norms.of(base);
  return expected;
}

FacilityActions::Report FacilityActions::read_report(int attempt, const Expected& expected) {
  const std::string text = remote::read_text(*session_, report_path(attempt), kMaxReportBytes);
  const job::JobReport report =
      job::parse_job_report(text, facility_.facility.str() + "'s report.json");
  job::check_report_answers(report, spec(attempt), expected.max_positions);
  if (!expected.update_sha256.empty() && report.update_sha256 != expected.update_sha256)
    throw Error(ErrorKind::kRejected, "the facility has another update by now");
  return {text, report};
}

double FacilityActions::max_change() const {
  const double ratio = context_.experiment.policy.max_change;
  if (ratio == 0 || plan_.evaluates) return 0;
  // A model of zeros says nothing of what is large.
  return ratio * context_.norms.of(context_.folder.global(plan_.round - 1));
}

// The report may be seen before the files that it names, or either through another host's old view;
// and a file system may be gone for a while.
FacilityActions::Report FacilityActions::bring(int attempt, const Expected& expected,
                                               std::stop_token stop) {
  const RemotePath out = folder(attempt) / "out";
  bool has_read = false;
  for (int look = 1;; ++look) try {
      has_read = false;
      Report report = read_report(attempt, expected);
      has_read = true;
      if (!plan_.evaluates && !job::is_to_be_continued(report.parsed, spec(attempt)))
        transfer::fetch({*session_, *bulk_}, out / "update", report.parsed.update_sha256,
                        expected.max_bytes, archive() / "update", stop, shown("fetching", out),
                        &context_.spare);
      return report;
    } catch (const Error& error) {
      if (!is_the_facilitys_fault(error.kind())) throw;
      if (look == kLooks && error.kind() == ErrorKind::kNotFound &&
          (!has_read || !session_->stat(report_path(attempt))))
        throw Error(ErrorKind::kRemote,
                    std::string("what was reported is not to be seen now: ") + error.what());
      if (look == kLooks) throw;
      log::warning("an update is not what its report says: looking again",
                   {{"facility", facility_.facility.str()}, {"problem", error.what()}});
      dispatch(Sleep{settle_time()}, stop);
    }
}

double FacilityActions::check_change(const Expected& expected) const {
  if (plan_.evaluates) return 0;
  const bool delta = context_.experiment.aggregation.update == job::UpdateKind::kDelta;
  const double norm = with_context(facility_.facility.str() + "'s update", [&] {
    return aggregate::check_update(archive() / "update", context_.folder.global(plan_.round - 1),
                                   delta, false, expected.max_change);
  });
  return expected.max_change > 0 ? norm / expected.base_norm : 0;
}

history::Accepted FacilityActions::keep_accepted(int attempt, const Report& report) const {
  write_file_atomic(archive() / "report.json", report.text);
  return {facility_.facility, attempt, report.parsed.update_sha256, report.parsed};
}

// The last complete line of the job's metrics, for people; problems here are nobody's business.
void FacilityActions::show_progress(int attempt) {
  if (!context_.observer.on_training) return;
  try {
    std::string text = last_bytes(*session_, folder(attempt) / "out/metrics.jsonl", 2048).text;
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

std::string FacilityActions::output_tail(int attempt) {
  try {
    const std::string text = last_words(*session_, folder(attempt) / submit::kJobOutput);
    return text.empty() ? "(no output)" : text;
  } catch (const Error& error) {
    return std::string("(not readable: ") + error.what() + ")";
  }
}

}  // namespace xffl::facility
