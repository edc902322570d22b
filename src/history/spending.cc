#include "xffl/history/spending.h"

#include <algorithm>
#include <limits>
#include <variant>

#include "xffl/job/job_times.h"

namespace xffl::history {
namespace {

constexpr double kHeartbeatSeconds = 15;  // claim/beat-* of the job's script

double no_less_than_zero(double seconds) { return std::max(0.0, seconds); }

}  // namespace

double Spending::Job::bound() const {
  if (!used || is_cancelling) return std::max(reserved, used.value_or(0));
  const double left = no_less_than_zero(reserved - *used);
  return *used + (is_offered ? std::min(nodes * keep_seconds, left) : 0);
}

void Spending::add(const RecordedEvent& recorded) {
  if (!recorded.scope.facility) return;
  now_ = parse_utc(recorded.time_utc);
  std::visit([&](const auto& event) { on(recorded.scope, event); }, recorded.event);
}

double Spending::node_seconds(const FacilityName& facility) const {
  const auto found = facilities_.find(facility);
  if (found == facilities_.end()) return 0;
  double sum = found->second.closed;
  for (const auto& [attempt, job] : found->second.jobs) sum += job.bound();
  return sum;
}

double Spending::node_seconds() const {
  double sum = 0;
  for (const auto& [name, facility] : facilities_) sum += node_seconds(name);
  return sum;
}

void Spending::on(const EventScope& scope, const SubmitIntended& intended) {
  granted_.erase(*scope.facility);
  Job job;
  job.nodes = static_cast<double>(intended.nodes.value_or(0));
  job.reserved = job.nodes * static_cast<double>(intended.walltime_s.value_or(0));
  job.keep_seconds = static_cast<double>(intended.keep_s.value_or(0));
  job.since = now_;
  facilities_[*scope.facility].jobs[{scope.round, scope.attempt}] = job;
}

// The jobs of earlier attempts with a known end use nothing more. A kept allocation is the same job
// as before, with one walltime.
void Spending::on(const EventScope& scope, const Submitted& submitted) {
  Job* job = find(scope);
  if (job == nullptr) return;
  job->id = submitted.job_id;
  Facility& facility = facilities_[*scope.facility];
  for (auto it = facility.jobs.begin(); it != facility.jobs.end();) {
    const Job& earlier = it->second;
    if (&earlier == job || !earlier.used || earlier.is_cancelling) {
      ++it;
      continue;
    }
    if (earlier.id == job->id) {
      job->used_before = *earlier.used;
      job->last_end = earlier.last_end;
      job->reserved = earlier.reserved;
      job->since = earlier.since;
    } else {
      facility.closed += earlier.bound();
    }
    it = facility.jobs.erase(it);
  }
}

void Spending::on(const EventScope& scope, const CancelIntended&) {
  if (Job* job = find(scope)) job->is_cancelling = true;
}

void Spending::on(const EventScope& scope, const CancelConfirmed&) {
  Job* job = find(scope);
  if (job == nullptr) return;
  job->is_cancelling = false;
  if (job->used) close(scope);
}

void Spending::on(const EventScope& scope, const AttemptFailed& failed) {
  end(scope, failed.usage, std::nullopt, failed.job_may_run);
}

void Spending::on(const EventScope& scope, const UpdateAccepted& update) {
  end(scope, update.usage, update.report.total_seconds, false);
}

void Spending::on(const EventScope& scope, const FacilityPaused& paused) {
  if (paused.by_budget)
    paused_.insert(*scope.facility);
  else
    paused_.erase(*scope.facility);
}

void Spending::on(const EventScope& scope, const FacilityResumed& resumed) {
  if (paused_.erase(*scope.facility) > 0 && resumed.new_budget.value_or(false))
    granted_.insert(*scope.facility);
}

Spending::Job* Spending::find(const EventScope& scope) {
  auto& jobs = facilities_[*scope.facility].jobs;
  const auto found = jobs.find({scope.round, scope.attempt});
  return found == jobs.end() ? nullptr : &found->second;
}

double Spending::reserved(const FacilityName& facility, int round, int attempt) const {
  const auto found = facilities_.find(facility);
  if (found == facilities_.end()) return 0;
  const auto job = found->second.jobs.find({round, attempt});
  return job == found->second.jobs.end() ? 0 : job->second.reserved;
}

double Spending::most_used(const Job& job) const {
  if (!now_ || !job.since || job.nodes == 0) return std::numeric_limits<double>::infinity();
  const std::chrono::duration<double> elapsed = *now_ - *job.since;
  // The slack is more than the rounding of the facility's times to whole seconds.
  return std::max(job.reserved, job.nodes * (elapsed.count() + kHeartbeatSeconds));
}

void Spending::end(const EventScope& scope, const std::optional<job::JobUsage>& usage,
                   std::optional<double> report_seconds, bool may_run) {
  Job* job = find(scope);
  if (job == nullptr) return;
  // A heartbeat is the last one only of a job that is known to have ended.
  const bool is_over = !may_run && !job->is_cancelling;
  // The times are a facility's text. No start lasts longer than its reservation, no sum of starts
  // longer than the job, and wrong times of one facility must not use up the budget of all.
  const auto within_reservation = [&](double node_seconds) {
    return job->reserved > 0 ? std::min(node_seconds, job->reserved) : node_seconds;
  };
  double used = job->used_before;
  double open = 0;  // of a last start that may go on
  if (usage && !usage->starts.empty()) {
    for (size_t i = 0; i < usage->starts.size(); ++i) {
      const job::JobStart& start = usage->starts[i];
      const bool is_last = i + 1 == usage->starts.size();
      const auto began = static_cast<double>(start.start);
      if (start.handover > 0 && job->last_end > 0)
        used += within_reservation(start.nodes * no_less_than_zero(began - job->last_end));
      // The job occupies its nodes until its end, also after an offer that no attempt has taken.
      const auto end = start.end ? job::WorkEnd{static_cast<double>(*start.end)}
                                 : job::end_of_work(start, is_last ? report_seconds : std::nullopt);
      if (!end || (end->is_bounded && is_last && !is_over)) {
        (is_last ? open : used) += job->reserved;
        continue;
      }
      const double slack = end->is_bounded ? kHeartbeatSeconds : 0;
      used += within_reservation(start.nodes * no_less_than_zero(end->seconds + slack - began));
      job->last_end = end->seconds;
      job->is_offered = is_last && start.offered && !start.end;
    }
    used = std::min(used, most_used(*job)) + open;
  } else if (!is_over || report_seconds || (!usage && !job->id.empty())) {
    used += job->reserved;  // the report's own figure lacks the start and the end of the job
  }
  job->used = used;
  if (!job->is_offered && !job->is_cancelling) close(scope);
}

// Adds the job to the closed ones.
void Spending::close(const EventScope& scope) {
  Facility& facility = facilities_[*scope.facility];
  const auto job = facility.jobs.find({scope.round, scope.attempt});
  facility.closed += job->second.bound();
  facility.jobs.erase(job);
}

}  // namespace xffl::history
