// One facility in one round, as push, job and fetch see it: its plan, its connections, its paths.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <stop_token>
#include <string>

#include "xffl/facility/context.h"
#include "xffl/facility/machine.h"
#include "xffl/plan/facility_layout.h"
#include "xffl/transfer/transfer.h"

namespace xffl::facility {

// Used by one thread, the driver's.
class Site {
 public:
  Site(Context& context, const plan::RoundPlan& plan, const plan::FacilityPlan& facility);

  job::JobSpec spec(int attempt) const;
  RemotePath folder(int attempt) const { return plan::attempt_folder(facility, attempt); }
  RemotePath report_path(int attempt) const { return folder(attempt) / plan::kReportFile; }
  /// The facility's folder of this round in the run folder.
  std::filesystem::path archive() const {
    return context.folder.facility(plan.round, facility.facility);
  }
  history::FacilityState state(int round) const {
    return context.history.facility(round, facility.facility);
  }
  std::chrono::milliseconds settle_time() const { return scheduler->settle_time(); }
  /// Throws kCancelled on `stop`.
  void sleep(Nanoseconds duration, std::stop_token stop);
  /// Shows the transfer to or from `folder` in the status file, and counts the bytes that it gains.
  transfer::OnProgress shown(const std::string& doing, const RemotePath& folder);

  Context& context;
  const plan::RoundPlan& plan;
  const plan::FacilityPlan& facility;
  const config::Facility& settings;
  const std::shared_ptr<remote::Session> session;
  const std::shared_ptr<remote::Session> bulk;  // for models and updates
  const std::shared_ptr<submit::Scheduler> scheduler;
  uint64_t gained_bytes = 0;  // of the action under way: beyond its earlier tries

 private:
  std::map<std::string, uint64_t> in_place_;  // the most that a try found there, by its folder
};

}  // namespace xffl::facility
