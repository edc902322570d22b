#include "simulated_facility.h"

#include <algorithm>

namespace xffl::test {

using namespace facility;
using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;
using submit::EndCause;
using submit::JobState;
using submit::JobStatus;

SimulatedFacility::SimulatedFacility(Random& random, Faults faults, Nanoseconds settle_time)
    : random_(random),
      faults_(faults),
      settle_time_(settle_time),
      forgets_fast_(happens(faults.forgets_fast)),
      stays_(happens(faults.stays)) {}

bool SimulatedFacility::happens(double probability) {
  return static_cast<double>(random_() % 1'000'000) < probability * 1e6;
}

Nanoseconds SimulatedFacility::between(seconds least, seconds most) {
  const auto span = static_cast<uint64_t>(Nanoseconds(most - least).count());
  return Nanoseconds(least) + Nanoseconds(static_cast<int64_t>(random_() % (span + 1)));
}

int SimulatedFacility::trainings(int round) const {
  const auto found = trainings_.find(round);
  return found == trainings_.end() ? 0 : found->second;
}

int SimulatedFacility::running() const {
  return static_cast<int>(std::count_if(jobs_.begin(), jobs_.end(), [](const Job& job) {
    return job.phase == Job::Phase::kRunning && job.claims && !job.stays && !job.forgotten;
  }));
}

SimulatedFacility::Job* SimulatedFacility::job(const JobId& id) {
  for (Job& job : jobs_)
    if (job.id() == id) return &job;
  return nullptr;
}

// --- Jobs ---

void SimulatedFacility::enqueue(int round, int attempt, Nanoseconds now,
                                Nanoseconds visible_after) {
  Job job;
  job.number = static_cast<int>(jobs_.size()) + 1;
  job.round = job.named_round = round;
  job.attempt = job.named_attempt = attempt;
  job.visible_at = now + visible_after;
  job.starts_at = job.visible_at + (happens(0.2) ? between(minutes(1), hours(30))
                                                 : between(seconds(0), seconds(60)));
  jobs_.push_back(job);
}

// --dependency=singleton
bool SimulatedFacility::has_earlier_twin(const Job& job) const {
  return std::any_of(jobs_.begin(), jobs_.end(), [&](const Job& other) {
    return other.number < job.number && other.named_round == job.named_round &&
           other.named_attempt == job.named_attempt && other.phase != Job::Phase::kOver;
  });
}

void SimulatedFacility::leave_node(const Job& job, Nanoseconds when) {
  held_ += when - job.began_at;
}

double SimulatedFacility::node_seconds() const {
  Nanoseconds sum = held_;
  for (const Job& job : jobs_)
    if (job.phase == Job::Phase::kRunning) sum += std::max(now_, job.began_at) - job.began_at;
  return std::chrono::duration<double>(sum).count();
}

job::JobUsage SimulatedFacility::usage(int round, int attempt) const {
  const auto found = starts_.find({round, attempt});
  job::JobUsage usage;
  if (found != starts_.end()) usage.starts = found->second;
  return usage;
}

void SimulatedFacility::begin(Job& job) {
  if (job.phase != Job::Phase::kRunning) job.began_at = job.starts_at;
  job.phase = Job::Phase::kRunning;
  const Key key{job.round, job.attempt};
  if (job.stays) {  // requeued, and its allocation was not taken
    offers_[key] = OfferState::kClosed;
    job.stays = job.requeues = false;
    job.ends_at = job.starts_at + seconds(1);
    return;
  }
  const auto [claim, first] = claims_.try_emplace(key, job.number);
  if (claim->second != job.number) {  // taken: it leaves at once
    job.end = {.state = JobState::kEnded, .native = "COMPLETED"};
    job.ends_at = job.starts_at + seconds(1);
    return;
  }
  job.claims = true;
  job::JobStart start;
  start.job = job.id().str();
  start.start = std::chrono::floor<seconds>(job.starts_at).count();
  start.handover = job.handovers;
  starts_[key].push_back(start);
  // Once in a round: the next attempt's model was compared.
  if (job.attempt == 1 && happens(faults_.not_unpacked)) {
    not_unpacked_.insert(key);
    job.end = {.state = JobState::kEnded, .native = "FAILED"};
    job.reports = job.requeues = false;
    job.ends_at = job.starts_at + between(seconds(1), seconds(60));
    return;
  }
  if (first) {
    ++trainings_[job.round];
    for (const Job& other : jobs_)
      if (other.round == job.round && other.attempt != job.attempt && other.claims &&
          !other.stays && other.phase == Job::Phase::kRunning && !other.forgotten)
        violations_.push_back("two trainings of round " + std::to_string(job.round) +
                              " at a time: jobs " + other.id().str() + " and " + job.id().str());
  }
  choose_fate(job);
}

void SimulatedFacility::choose_fate(Job& job) {
  job.ends_at = job.starts_at + between(seconds(5), hours(3));
  job.requeues = false;
  job.reports = false;
  const auto ends = [&](JobState state, EndCause cause, const char* word) {
    job.end = {.state = state, .cause = cause, .native = word};
  };
  if (happens(faults_.job_fails)) return ends(JobState::kEnded, EndCause::kOrdinary, "FAILED");
  if (happens(faults_.out_of_memory))
    return ends(JobState::kEnded, EndCause::kOutOfMemory, "OUT_OF_MEMORY");
  if (happens(faults_.node_fails)) {
    job.requeues = happens(faults_.requeued);
    return ends(JobState::kEnded, EndCause::kInfrastructure, "NODE_FAIL");
  }
  if (happens(faults_.walltime)) return ends(JobState::kEnded, EndCause::kWalltime, "TIMEOUT");
  if (happens(faults_.scancelled))
    return ends(JobState::kCancelled, EndCause::kOrdinary, "CANCELLED by 1000");
  job.reports = true;
  job.continues = happens(faults_.checkpoints);  // warned ahead of the time limit
  // The exit code is sometimes wrong; no code reads it.
  ends(JobState::kEnded, EndCause::kOrdinary, happens(0.1) ? "FAILED" : "COMPLETED");
}

void SimulatedFacility::finish(Job& job) {
  if (job.stays) {
    OfferState& offer = offers_.at({job.round, job.attempt});
    if (job.requeues && faults_.requeued > 0)
      ;  // the offer waits with it in the queue
    else if (happens(faults_.stay_dies))
      job.end = {
          .state = JobState::kEnded, .cause = EndCause::kInfrastructure, .native = "NODE_FAIL"};
    else
      offer = OfferState::kClosed;
  }
  const int64_t ended = std::chrono::ceil<seconds>(job.ends_at).count();
  leave_node(job, job.ends_at);
  job::JobStart* start = nullptr;
  if (job.claims && !job.stays) start = &starts_.at({job.round, job.attempt}).back();
  if (start && !job.reports && job.end.cause == EndCause::kInfrastructure)
    start->last_beat = ended - static_cast<int64_t>(job.number % 15);
  else if (start)
    start->trained = start->end = ended;
  if (job.claims && job.requeues && faults_.requeued > 0) {
    job.phase = Job::Phase::kQueued;
    job.starts_at = job.ends_at + between(seconds(1), hours(2));
    return;
  }
  job.phase = Job::Phase::kOver;
  job.purged_at = job.ends_at + (forgets_fast_ ? between(seconds(0), seconds(5)) : hours(24 * 30));
  if (!job.claims || !job.reports) return;
  Answer& answer = reports_[{job.round, job.attempt}];
  answer = happens(faults_.bad_update) ? Answer::kBad : Answer::kGood;
  if (job.continues) answer = Answer::kToBeContinued;
  if (!job.continues && stays_ && happens(0.8)) stay(job);
}

void SimulatedFacility::stay(Job& job) {
  held_ -= job.ends_at - job.began_at;  // it holds its node on
  job::JobStart& start = starts_.at({job.round, job.attempt}).back();
  start.offered = start.end;
  start.end.reset();
  job.phase = Job::Phase::kRunning;
  job.stays = true;
  job.reports = false;
  job.requeues = happens(faults_.node_fails);
  job.ends_at += between(seconds(30), hours(6));
  offers_[{job.round, job.attempt}] = OfferState::kOffered;
}

SimulatedFacility::OfferState* SimulatedFacility::offer_state() {
  if (!offer_) return nullptr;
  // The folder says which attempt.
  const Key key{std::stoi(offer_->folder.parent().filename().substr(1)),
                std::stoi(offer_->folder.filename().substr(1))};
  const auto found = offers_.find(key);
  if (found == offers_.end()) return nullptr;
  const bool is_its_own = claims_.at(key) == std::stoi(offer_->job.str());
  if (!is_its_own) found->second = OfferState::kClosed;
  return &found->second;
}

std::optional<JobId> SimulatedFacility::take_offer(int round, Nanoseconds now) {
  OfferState* state = offer_state();
  if (!state || *state == OfferState::kClosed) return std::nullopt;
  if (*state == OfferState::kTaken) return offer_->job;
  *state = OfferState::kTaken;
  Job& taken = *job(offer_->job);
  taken.stays = taken.claims = false;
  taken.round = round;
  taken.attempt = 1;
  ++taken.handovers;
  ++taken_;
  if (taken.phase == Job::Phase::kRunning) {
    taken.starts_at = now;
    begin(taken);
  }
  return offer_->job;
}

// The next attempt has a job of its own, or is given up; or the report was refused.
void SimulatedFacility::close_unwanted_offers() {
  for (Job& job : jobs_) {
    const Key key{job.round, job.attempt};
    if (!job.stays || job.phase != Job::Phase::kRunning) continue;
    if (!claims_.contains({job.round + 1, 1}) && !fenced_.contains(key)) continue;
    offers_[key] = OfferState::kClosed;
    job.requeues = false;
    job.ends_at = std::min(job.ends_at, now_ + seconds(2));
  }
}

void SimulatedFacility::advance(Nanoseconds now) {
  now_ = std::max(now_, now);
  close_unwanted_offers();
  for (bool changed = true; changed;) {
    changed = false;
    for (Job& job : jobs_) {
      if (job.phase == Job::Phase::kQueued && job.starts_at <= now_ && !has_earlier_twin(job)) {
        begin(job);
        changed = true;
      }
      if (job.phase == Job::Phase::kRunning && job.ends_at <= now_) {
        finish(job);
        changed = true;
      }
    }
  }
}

// --- The coordinator's view ---

facility::Event SimulatedFacility::perform(const Action& action, int round, Nanoseconds now,
                                           std::optional<submit::KeptAllocation> offer) {
  offer_ = std::move(offer);
  advance(now);
  if (std::holds_alternative<Sleep>(action)) return TimerFired{};
  const bool submits = std::holds_alternative<Submit>(action);
  if (now < credential_renewed_at_) return AuthRequired{"certificate expired"};
  if (now < link_back_at_)
    return submits ? facility::Event(SubmitUnknown{"down"}) : Unreachable{"down"};
  if (happens(faults_.credential_expires)) {
    credential_renewed_at_ = now + between(minutes(5), hours(12));
    return AuthRequired{"certificate expired"};
  }
  if (happens(faults_.outage)) link_back_at_ = now + between(seconds(20), hours(40));
  if (happens(faults_.link_lost) || now < link_back_at_) {
    if (happens(0.5)) do_it(action, round, now);
    return submits ? facility::Event(SubmitUnknown{"link lost"}) : Unreachable{"link lost"};
  }
  return do_it(action, round, now);
}

// Not for operations that need no file system.
std::optional<facility::Event> SimulatedFacility::do_it_unmounted(const Action& action,
                                                                  Nanoseconds now) {
  if (std::holds_alternative<Push>(action) || std::holds_alternative<Fence>(action) ||
      std::holds_alternative<FetchUpdate>(action))
    return Unreachable{"read-only file system"};
  if (std::holds_alternative<Submit>(action)) return SubmitUnknown{"read-only file system"};
  if (const auto* it = std::get_if<Poll>(&action))
    return Polled{
        .reported = false,
        .status = it->ask_scheduler ? std::optional(status_of(it->job, now)) : std::nullopt};
  return std::nullopt;
}

facility::Event SimulatedFacility::do_it(const Action& action, int round, Nanoseconds now) {
  if (happens(faults_.unmounted)) mounted_at_ = now + between(minutes(1), hours(6));
  if (now < mounted_at_)
    if (const auto event = do_it_unmounted(action, now)) return *event;
  if (std::holds_alternative<Push>(action))
    return Pushed{{.moved_bytes = 1, .seconds = {}, .whole_bytes = 0}};
  if (const auto* it = std::get_if<Submit>(&action)) return submit(round, it->attempt, now);
  if (const auto* it = std::get_if<FindJobs>(&action)) {
    Found found;
    if (const OfferState* state = it->attempt == 1 ? offer_state() : nullptr)
      if (*state == OfferState::kTaken) found.jobs.push_back(offer_->job);
    for (const Job& job : jobs_)
      if (job.named_round == round && job.named_attempt == it->attempt && job.visible_at <= now &&
          !job.forgotten && (job.phase != Job::Phase::kOver || now < job.purged_at))
        found.jobs.push_back(job.id());
    return found;
  }
  if (const auto* it = std::get_if<Poll>(&action)) {
    Polled looked{.reported = reports_.contains({round, it->attempt})};
    if (!looked.reported && it->ask_scheduler) looked.status = status_of(it->job, now);
    if (looked.status && looked.status->state == JobState::kEnded &&
        not_unpacked_.contains({round, it->attempt}))
      looked.model_error = "the reference is damaged";
    return looked;
  }
  if (const auto* it = std::get_if<FetchUpdate>(&action)) {
    const Answer answer = reports_.at({round, it->attempt});
    if (answer == Answer::kBad) return UpdateRejected{"NaN"};
    if (answer == Answer::kToBeContinued) return Checkpointed{1};
    return Fetched{};
  }
  if (const auto* it = std::get_if<CancelJob>(&action)) {
    if (Job* cancelled = job(it->job); cancelled && cancelled->phase != Job::Phase::kOver) {
      told_to_end_.insert(it->job);
      if (cancelled->phase == Job::Phase::kRunning) leave_node(*cancelled, now);
      if (cancelled->phase == Job::Phase::kRunning && cancelled->claims && !cancelled->stays)
        starts_.at({cancelled->round, cancelled->attempt}).back().end =
            std::chrono::ceil<seconds>(now).count();
      cancelled->phase = Job::Phase::kOver;
      cancelled->purged_at = now + seconds(300);
      cancelled->end = {.state = JobState::kCancelled, .native = "CANCELLED"};
    }
    return Completed{};
  }
  if (const auto* it = std::get_if<Fence>(&action)) {
    if (fences_work) claims_.try_emplace({round, it->attempt}, 0);
    fenced_.insert({round, it->attempt});
    close_unwanted_offers();
    return Completed{};
  }
  return TimerFired{};
}

facility::Event SimulatedFacility::submit(int round, int attempt, Nanoseconds now) {
  if (attempt == 1)
    if (const auto stayed = take_offer(round, now)) return Submitted{*stayed};
  if (happens(faults_.submit_refused)) return SubmitRejected{"Invalid account"};
  if (happens(faults_.submit_postponed)) return SubmitDeferred{"QOSMaxSubmitJobPerUserLimit"};
  if (happens(faults_.submit_stalls)) {
    // Mostly within the settle time; beyond two of them only the claim helps.
    if (happens(0.7))
      enqueue(round, attempt, now, settle_time_ * static_cast<int>(random_() % 400) / 100);
    return SubmitUnknown{"Socket timed out on send/recv operation"};
  }
  enqueue(round, attempt, now, Nanoseconds(0));
  const JobId id = jobs_.back().id();
  if (happens(faults_.twin_by_hand)) enqueue(round, attempt, now, Nanoseconds(0));
  return Submitted{id};
}

JobStatus SimulatedFacility::status_of(const JobId& id, Nanoseconds now) {
  if (happens(faults_.amnesia))
    for (Job& job : jobs_) {
      if (job.phase == Job::Phase::kOver) continue;
      job.forgotten = true;  // queued jobs are lost, running jobs continue unseen
      if (job.phase == Job::Phase::kQueued) job.phase = Job::Phase::kOver;
    }
  const Job* asked = job(id);
  if (!asked || asked->forgotten || asked->visible_at > now) return {};
  if (asked->phase == Job::Phase::kQueued)
    return {.state = JobState::kPending, .native = "PENDING"};
  if (asked->phase == Job::Phase::kRunning)
    return {.state = JobState::kRunning, .native = "RUNNING"};
  return now < asked->purged_at ? asked->end : JobStatus{};
}

}  // namespace xffl::test
