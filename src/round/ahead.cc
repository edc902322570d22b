#include "ahead.h"

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "clean_up.h"
#include "context.h"
#include "packed_models.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/transfer/ahead.h"

namespace xffl::round {
namespace {

RemotePath ahead_folder(const plan::FacilityPlan& facility) { return facility.folder / "ahead"; }

// The round after this one; what it begins with is not known yet.
std::optional<plan::RoundPlan> next_plan(const Context& context, const plan::RoundPlan& plan) {
  return plan::next_round(context.experiment, context.identity,
                          {.rounds_published = plan.round,
                           .model_sha256 = std::string(64, '0'),
                           .accepted = {},
                           .adapted_sha256 = plan.adapted_sha256});
}

}  // namespace

// A facility's thread.
class AheadPushes::Lane {
 public:
  /// `outdated`, if any, makes room first.
  Lane(Context& context, int round, const plan::FacilityPlan& facility, const std::string& outdated,
       std::shared_ptr<GrowingFiles> files, uint64_t total_bytes)
      : context_(context),
        round_(round),
        name_(facility.facility),
        folder_(ahead_folder(facility)),
        outdated_(outdated.empty() ? std::nullopt
                                   : std::optional(facility.folder / "models" / outdated)),
        files_(std::move(files)),
        total_bytes_(total_bytes),
        thread_([this](std::stop_token stop) { work(std::move(stop)); }) {}

  ~Lane() { enough_.request_stop(); }

  /// What has arrived, once nobody sends any more.
  transfer::Sent finish(const std::stop_token& stop) {
    enough_.request_stop();
    {
      const std::stop_callback forward(stop, [this] { thread_.request_stop(); });
      thread_.join();
    }
    return std::move(sent_);
  }

 private:
  void work(std::stop_token stop) {
    try {
      const config::Facility& settings = context_.experiment.facility(name_);
      const auto control = context_.world.connect(settings);
      const auto bulk = context_.world.connect_transfer(settings);
      if (outdated_) control->remove_tree(*outdated_, stop);
      transfer::send_ahead({*control, *bulk}, *files_, total_bytes_, folder_, sent_,
                           enough_.get_token(), stop,
                           [this](const transfer::Progress& progress) { show(progress); });
    } catch (const std::exception& error) {  // a thread's top; the push goes without
      if (!stop.stop_requested())
        log::info("the model did not go ahead to a facility while it was made",
                  {{"facility", name_.str()}, {"problem", error.what()}});
    }
  }

  void show(const transfer::Progress& progress) {
    static constexpr std::chrono::nanoseconds kInterval = std::chrono::seconds(2);
    const std::chrono::nanoseconds now = context_.world.clock.monotonic().time_since_epoch();
    if (now - shown_ < kInterval) return;
    shown_ = now;
    char text[80];
    std::snprintf(text, sizeof text, "pushing ahead %.1f of %.1f MB",
                  static_cast<double>(progress.done_bytes) / 1e6,
                  static_cast<double>(progress.total_bytes) / 1e6);
    context_.live.show(round_, name_, text);
  }

  Context& context_;
  const int round_;
  const FacilityName name_;
  const RemotePath folder_;
  const std::optional<RemotePath> outdated_;
  const std::shared_ptr<GrowingFiles> files_;
  const uint64_t total_bytes_;
  std::chrono::nanoseconds shown_{};
  transfer::Sent sent_;
  std::stop_source enough_;
  std::jthread thread_;  // last: it uses what is above
};

AheadPushes::AheadPushes() = default;
AheadPushes::~AheadPushes() = default;

std::shared_ptr<GrowingFiles> AheadPushes::begin(Context& context, const plan::RoundPlan& plan) {
  const auto next = next_plan(context, plan);
  if (!next) return nullptr;
  const uint64_t bytes =
      checkpoint::read_manifest(context.folder.global(plan.round - 1)).total_bytes();
  if (bytes < context.world.ahead_bytes) return nullptr;
  const std::string outdated =
      outdated_model(context.ledger.history(), plan.round, context.experiment.policy.keep_rounds);
  const auto files = std::make_shared<GrowingFiles>();
  const std::lock_guard lock(mutex_);
  lanes_.clear();
  for (const plan::FacilityPlan& facility : next->facilities) {
    const config::Facility& settings = context.experiment.facility(facility.facility);
    const auto known = [&](int round) { return context.ledger.facility(round, settings.name); };
    if (context.ledger.paused(settings.name) || takes_packed(settings, *next, 1, known)) continue;
    lanes_[settings.name] =
        std::make_unique<Lane>(context, next->round, facility, outdated, files, bytes);
    tidy_.insert(settings.name);
  }
  return lanes_.empty() ? nullptr : files;
}

transfer::Sent AheadPushes::take_over(Context& context, const plan::FacilityPlan& facility,
                                      const checkpoint::Manifest& model,
                                      const transfer::Endpoint& endpoint, std::stop_token stop) {
  std::unique_ptr<Lane> lane;
  bool tidy = false;
  {
    const std::lock_guard lock(mutex_);
    lane = std::exchange(lanes_[facility.facility], nullptr);
    tidy = !tidy_.insert(facility.facility).second;
  }
  if (!lane && (tidy || model.total_bytes() < context.world.ahead_bytes)) return {};
  transfer::Sent sent = lane ? lane->finish(stop) : transfer::Sent();
  if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped on request");
  const bool taken =
      transfer::take_ahead(endpoint, ahead_folder(facility), model, facility.model_folder);
  return taken ? sent : transfer::Sent();
}

}  // namespace xffl::round
