// Global models on their way to the facilities while they are being made, beside the averaging.
//
// Nothing is promised by it: what has arrived when a facility's push begins need not be sent then,
// and whatever goes wrong is the push's to meet again and to tell. No journal knows of it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>

#include "xffl/base/growing_files.h"
#include "xffl/base/names.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/plan/round_plan.h"
#include "xffl/transfer/transfer.h"

namespace xffl::round {

struct Context;

/// Thread-safe.
class AheadPushes {
 public:
  AheadPushes();
  ~AheadPushes();  // stops and waits for the threads
  AheadPushes(AheadPushes&&) = delete;

  /// Begins to send the model that the round after `plan`, whatever it begins with, will need, as
  /// it appears in what is returned, to the facilities that would get it whole and at once. Empty
  /// when none would.
  std::shared_ptr<GrowingFiles> begin(Context& context, const plan::RoundPlan& plan);

  /// From the thread that is about to push `model` to the facility's model folder: waits until
  /// nobody sends any more, and lets the push begin with what has arrived. Says what that is; only
  /// the first push of a model is told. Throws as transfer::take_ahead(), and kCancelled.
  transfer::Sent take_over(Context& context, const plan::FacilityPlan& facility,
                           const checkpoint::Manifest& model, const transfer::Endpoint& endpoint,
                           std::stop_token stop);

 private:
  class Lane;
  std::mutex mutex_;
  std::map<FacilityName, std::unique_ptr<Lane>> lanes_;
  std::set<FacilityName> tidy_;  // nothing of an earlier coordinator's lies there
};

}  // namespace xffl::round
