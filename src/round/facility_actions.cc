#include "facility_actions.h"

#include <algorithm>

#include "job_script.h"
#include "stay.h"
#include "xffl/aggregate/aggregate.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/checkpoint/model_folder.h"
#include "xffl/transfer/rate_meter.h"

namespace xffl::round {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMaxReportBytes = 1 << 20;
constexpr std::string_view kPackedFailure = "out/packed.failure";
constexpr int kLooks = 3;  // at files that are not what they should be, a settle time apart

// What a facility itself did wrong; anything else is about this machine or the link.
bool is_the_facilitys_fault(ErrorKind kind) {
  return kind == ErrorKind::kRejected || kind == ErrorKind::kCorrupt ||
         kind == ErrorKind::kNotFound || kind == ErrorKind::kUnsupported;
}

// An error of an action as what the course has to know; none: it is not the course's affair.
std::optional<Event> event_of(const Error& error, const Action& action) {
  const bool submits = std::holds_alternative<Submit>(action);
  switch (error.kind()) {
    case ErrorKind::kRemote:
      if (submits) return InDoubt{error.what()};
      return Unreachable{error.what()};
    case ErrorKind::kAuth:
      return NeedsPerson{error.what()};
    case ErrorKind::kIo:  // a full disk, there or here: it may be mended while we wait
      return Unreachable{error.what()};
    case ErrorKind::kBusy:
      if (submits) return Postponed{error.what()};
      break;
    case ErrorKind::kConfig:
    case ErrorKind::kNotFound:
      if (submits) return Refused{error.what()};
      break;
    default:
      break;
  }
  return std::nullopt;
}

// What a facility answers wrongly (files that vanish, nonsense instead of SFTP, a missing command)
// is its own affair, as a lost link is: asked again it may be mended, and the others go on
// meanwhile.
template <class Body>
auto at_the_facility(Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt && error.kind() != ErrorKind::kNotFound &&
        error.kind() != ErrorKind::kUnsupported)
      throw;
    throw Error(ErrorKind::kRemote, error.what());
  }
}

std::string last_bytes(remote::Session& session, const RemotePath& path, uint64_t count) {
  const auto info = session.stat(path);
  if (!info) return "";
  std::vector<std::byte> tail(std::min<uint64_t>(info->size_bytes, count));
  tail.resize(session.read(path, info->size_bytes - tail.size(), tail));
  return {reinterpret_cast<const char*>(tail.data()), tail.size()};
}

}  // namespace

FacilityActions::FacilityActions(Context& context, const plan::RoundPlan& plan,
                                 const plan::FacilityPlan& facility)
    : context_(context),
      plan_(plan),
      facility_(facility),
      settings_(context.experiment.facility(facility.facility)),
      session_(context.world.connect(settings_)),
      bulk_(context.world.connect_transfer(settings_)),
      scheduler_(context.world.scheduler(settings_, session_)) {}

Event FacilityActions::perform(const Action& action, std::stop_token stop) {
  try {
    return dispatch(action, stop);
  } catch (const Error& error) {
    const auto event = event_of(error, action);
    if (!event) throw;
    return *event;
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
  if (const auto* it = std::get_if<Look>(&action)) return look(*it, stop);
  if (const auto* it = std::get_if<FetchUpdate>(&action)) return fetch(it->attempt, stop);
  if (const auto* it = std::get_if<CancelJob>(&action)) {
    at_the_facility([&] { scheduler_->cancel(submitted(it->attempt, it->job), stop); });
    return Completed{};
  }
  if (const auto* it = std::get_if<Fence>(&action)) {
    // The mark also stops the claim's own job, should it be requeued.
    at_the_facility([&] { session_->make_dirs(folder(it->attempt) / "claim/fenced"); });
    return Completed{};
  }
  if (const auto* it = std::get_if<Sleep>(&action)) {
    if (!context_.world.clock.sleep(it->duration, stop))
      throw Error(ErrorKind::kCancelled, "stopped on request");
  }
  return Woke{};
}

job::JobSpec FacilityActions::spec(int attempt) const {
  return plan::job_spec(context_.experiment, context_.identity, plan_, facility_, attempt);
}

std::string FacilityActions::script(int attempt) const {
  return job_script(settings_, spec(attempt), folder(attempt), context_.world.programs,
                    stays_for(context_.experiment, facility_, plan_.round));
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

transfer::OnProgress FacilityActions::shown(const std::string& doing) {
  static constexpr Nanoseconds kInterval = std::chrono::seconds(2);
  auto meter = std::make_shared<transfer::RateMeter>();
  auto last = std::make_shared<Nanoseconds>(context_.world.clock.monotonic().time_since_epoch());
  return [this, doing, meter, last](const transfer::Progress& progress) {
    const Nanoseconds now = context_.world.clock.monotonic().time_since_epoch();
    meter->add(now, progress);
    if (now - *last < kInterval) return;
    *last = now;
    char text[120];
    std::snprintf(text, sizeof text, "%s %.1f of %.1f MB, %.1f MB/s", doing.c_str(),
                  static_cast<double>(progress.done_bytes) / 1e6,
                  static_cast<double>(progress.total_bytes) / 1e6, meter->bytes_per_second() / 1e6);
    std::string words = text;
    if (const auto left = meter->time_left())
      words += ", " + std::to_string(left->count()) + " s left";
    context_.live.show(plan_.round, facility_.facility, words);
  };
}

// A job may wait in a queue for longer than a site leaves files alone.
void FacilityActions::look_after_files(int attempt, std::stop_token stop) {
  if (!context_.purges.is_due(settings_, context_.world.clock.monotonic())) return;
  context_.purges.look_after(*session_, settings_, facility_.folder);
  job::JobSpec told = spec(attempt);
  const Json pushed = push_base(attempt, told, stop);
  if (pushed["moved_bytes"] > 0)
    log::warning(
        "the model was no longer whole at the facility and was sent again",
        {{"facility", facility_.facility.str()}, {"bytes", pushed["moved_bytes"].get<uint64_t>()}});
}

Event FacilityActions::push(int attempt, std::stop_token stop) {
  job::JobSpec told = spec(attempt);
  Json details = push_base(attempt, told, stop);
  const std::string job_json = job::format_job_spec(told);
  make_dirs(archive());
  for (const auto& parent : {archive().parent_path(), context_.folder.path()}) fsync_dir(parent);
  write_file_atomic(archive() / "job.json", job_json);
  const std::vector<remote::NewFile> beside = {{"out/", ""}, {"job.json", job_json}};
  at_the_facility([&] { session_->put_files(folder(attempt), beside); });
  if (context_.purges.is_due(settings_, context_.world.clock.monotonic()))
    context_.purges.look_after(*session_, settings_, facility_.folder);
  return Completed{std::move(details)};
}

Json FacilityActions::push_base(int attempt, job::JobSpec& spec, std::stop_token stop) {
  const fs::path model = context_.folder.global(plan_.round - 1);
  if (takes_packed(settings_, plan_, attempt, state(plan_.round - 1)))
    if (const auto packed = context_.packed.of(context_.folder, plan_.round, stop)) {
      const std::string sha256 = packed->root_sha256();
      const RemotePath to = facility_.round_folder / ("packed-" + sha256.substr(0, 16));
      const std::string before =
          checkpoint::read_manifest(context_.folder.global(plan_.round - 2)).root_sha256();
      spec.base_model_packed = {to.str(), sha256,
                                (facility_.folder / "models" / before.substr(0, 16)).str(), before,
                                (folder(attempt) / kPackedFailure).str()};
      const uint64_t moved = push_model(context_.folder.packed(plan_.round - 1), to, stop);
      return {{"moved_bytes", moved},
              {"whole_bytes", checkpoint::read_manifest(model).total_bytes()}};
    }
  uint64_t moved = push_model(model, facility_.model_folder, stop);
  if (!plan_.adapted_sha256.empty())
    moved += push_model(context_.folder.adapted(), facility_.adapted_folder, stop);
  return {{"moved_bytes", moved}};
}

uint64_t FacilityActions::push_model(const fs::path& model, const RemotePath& to,
                                     std::stop_token stop) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(model);
  return at_the_facility([&] {
    return transfer::push({*session_, *bulk_}, model, manifest, to, stop, shown("pushing"),
                          &context_.checked)
        .moved_bytes;
  });
}

Json FacilityActions::prepare_submission(int attempt) {
  const std::string text = script(attempt);
  write_file_atomic(archive() / "job.sh", text);
  return {{"job_name", spec(attempt).key.job_name()}, {"script_sha256", sha256_hex(text)}};
}

Event FacilityActions::look(const Look& look, std::stop_token stop) {
  Looked looked;
  const auto has_reported = [&] {
    return at_the_facility(
        [&] { return session_->stat(folder(look.attempt) / "out/report.json").has_value(); });
  };
  looked.reported = has_reported();
  if (!looked.reported) max_change();  // needed later: there is time now
  if (!looked.reported && look.ask_scheduler) {
    const submit::SubmittedJob job = submitted(look.attempt, look.job);
    looked.status =
        at_the_facility([&] { return scheduler_->query(std::span(&job, 1), stop).at(look.job); });
    if (looked.status->state == submit::JobState::kPending) look_after_files(look.attempt, stop);
    // The job may have reported and ended since: no need to give its files the settle time then.
    if (looked.status->state == submit::JobState::kEnded ||
        looked.status->state == submit::JobState::kUnknown)
      looked.reported = has_reported();
    if (looked.status->state == submit::JobState::kEnded && !looked.reported)
      looked.not_unpacked = at_the_facility([&] { return unpacking_problem(look.attempt); });
  }
  return looked;
}

std::string FacilityActions::unpacking_problem(int attempt) {
  if (!takes_packed(settings_, plan_, attempt, state(plan_.round - 1))) return "";
  return log::printable(last_bytes(*session_, folder(attempt) / kPackedFailure, 600));
}

Event FacilityActions::fetch(int attempt, std::stop_token stop) {
  try {
    const Report report = read_report(attempt);
    if (job::is_to_be_continued(report.parsed, spec(attempt)))
      return ToBeContinued{report.parsed.steps};
    double change = 0;
    Accepted accepted = fetch_and_check(attempt, report, stop, change);
    Json details = {{"update_sha256", accepted.update_sha256},
                    {"report", parse_json(job::format_job_report(accepted.report), "report.json")}};
    if (change > 0) details["change"] = change;
    return Fetched{std::move(accepted), std::move(details)};
  } catch (const Error& error) {
    if (!is_the_facilitys_fault(error.kind())) throw;
    set_refused_aside(attempt);
    return UpdateRefused{error.what()};
  }
}

void FacilityActions::set_refused_aside(int attempt) {
  std::error_code none;
  const fs::path refused = archive() / ("refused-a" + std::to_string(attempt));
  fs::remove_all(refused, none);
  fs::rename(archive() / "update", refused, none);
}

uint64_t FacilityActions::max_update_bytes() const {
  constexpr uint64_t kOtherFiles = 64u << 20;  // configuration, tokenizer, headers
  uint64_t bytes = kOtherFiles;
  const checkpoint::ModelFolder base(context_.folder.global(plan_.round - 1));
  for (const checkpoint::TensorSpec& tensor : base.tensors())
    bytes += static_cast<uint64_t>(tensor.num_elements()) * sizeof(float);
  return bytes;
}

FacilityActions::Report FacilityActions::read_report(int attempt) {
  const std::string text =
      remote::read_text(*session_, folder(attempt) / "out/report.json", kMaxReportBytes);
  const job::JobReport report =
      job::parse_job_report(text, facility_.facility.str() + "'s report.json");
  const checkpoint::LlamaConfig config = checkpoint::read_llama_config(
      plan_.adapted_sha256.empty() ? context_.folder.global(plan_.round - 1)
                                   : context_.folder.adapted());
  job::check_report_answers(report, spec(attempt), config.max_position_embeddings);
  return {text, report};
}

double FacilityActions::max_change() const {
  const double ratio = context_.experiment.policy.max_change;
  if (ratio == 0 || plan_.evaluates) return 0;
  // A model of zeros says nothing of what is large.
  return ratio * context_.norms.of(context_.folder.global(plan_.round - 1));
}

double FacilityActions::fetch_update(int attempt, const job::JobReport& report,
                                     std::stop_token stop) {
  const fs::path base = context_.folder.global(plan_.round - 1);
  const RemotePath out = folder(attempt) / "out";
  // The report may be seen before the files that it names, or through another host's old view.
  for (int look = 1;; ++look) try {
      transfer::fetch({*session_, *bulk_}, out / "update", report.update_sha256, max_update_bytes(),
                      archive() / "update", stop, shown("fetching"), &context_.spare);
      break;
    } catch (const Error& error) {
      if (!is_the_facilitys_fault(error.kind()) || look == kLooks) throw;
      log::warning("an update is not what its report says: looking again",
                   {{"facility", facility_.facility.str()}, {"problem", error.what()}});
      dispatch(Sleep{settle_time()}, stop);
    }
  const bool delta = context_.experiment.aggregation.update == job::UpdateKind::kDelta;
  const double largest = max_change();
  double norm = 0;
  with_context(facility_.facility.str() + "'s update", [&] {
    norm = aggregate::check_update(archive() / "update", base, delta, false, largest);
  });
  return largest > 0 ? norm / context_.norms.of(base) : 0;
}

Accepted FacilityActions::fetch_and_check(int attempt, const Report& read, std::stop_token stop,
                                          double& change) {
  if (!plan_.evaluates) change = fetch_update(attempt, read.parsed, stop);
  write_file_atomic(archive() / "report.json", read.text);
  return {facility_.facility, attempt, read.parsed.update_sha256, read.parsed};
}

// The last complete line of the job's metrics, for people; problems here are nobody's business.
void FacilityActions::show_progress(int attempt) {
  if (!context_.observer.on_training) return;
  try {
    std::string text = last_bytes(*session_, folder(attempt) / "out/metrics.jsonl", 2048);
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
    const std::string text = last_bytes(*session_, folder(attempt) / submit::kJobOutput, 600);
    return text.empty() ? "(no output)" : log::printable(text);
  } catch (const Error& error) {
    return std::string("(not readable: ") + error.what() + ")";
  }
}

}  // namespace xffl::round
