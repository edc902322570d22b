#include "xffl/facility/packed_models.h"

#include <algorithm>
#include <chrono>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/base/resources.h"
#include "xffl/pack/packed_model.h"

namespace xffl::facility {

namespace fs = std::filesystem;

namespace {

constexpr double kMaxRatio = 0.8;  // of the whole model's bytes: above it, packing saves too little
constexpr int kMaxThreads = 16;
// Above this rate per packing core, sending the whole model is faster than packing, sending and
// unpacking differences (docs/benchmarks.md: the times were equal at 70 MB/s with two cores at both
// ends).
constexpr double kFastBytesPerSecond = 50e6;
constexpr int64_t kTellingBytes = 32 << 20;  // fewer bytes measure round trips, not the link
constexpr int kRoundsBack = 32;
constexpr std::chrono::milliseconds kLockPause{200};  // between looks at the stop

std::optional<checkpoint::Manifest> make(const history::RunFolder& folder, int round,
                                         const PackingManifests& manifests, const fs::path& out,
                                         std::stop_token stop) {
  const auto began = std::chrono::steady_clock::now();
  const auto packed =
      pack::pack_model(pack::Source{folder.global(round - 1), manifests.model},
                       pack::Source{folder.global(round - 2), manifests.reference}, out, kMaxRatio,
                       std::min(kMaxThreads, available_cpus()), stop);
  const double megabytes = static_cast<double>(manifests.model.total_bytes()) * 1e-6;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  const log::Field number{"round", round}, duration{"seconds", took.count()};
  if (!packed) {
    log::info("global model is sent whole: packing would save too little",
              {number, {"megabytes", megabytes}, duration});
    return packed;
  }
  const double packed_megabytes = static_cast<double>(packed->total_bytes()) * 1e-6;
  log::info("global model packed as differences", {number,
                                                   {"megabytes", megabytes},
                                                   {"packed_megabytes", packed_megabytes},
                                                   {"ratio", megabytes / packed_megabytes},
                                                   duration});
  return packed;
}

}  // namespace

bool unpacks(const config::Facility& facility) {
  if (facility.access != config::AccessKind::kSsh) return false;  // the model stays on this machine
  const config::PackModels pack = facility.transfer.pack;
  return pack == config::PackModels::kAlways ||
         (pack == config::PackModels::kAuto && facility.trainer_command.empty());
}

bool takes_packed(const config::Facility& facility, const plan::RoundPlan& plan, int attempt,
                  const StateOf& state) {
  if (!unpacks(facility) || attempt != 1 || plan.round == 1 || !plan.adapted_sha256.empty() ||
      !state(plan.round - 1).accepted)
    return false;
  if (facility.transfer.pack == config::PackModels::kAlways) return true;
  const auto rate = push_rate(plan.round, state);
  return !rate || *rate < kFastBytesPerSecond * std::min(kMaxThreads, available_cpus());
}

std::optional<double> push_rate(int round, const StateOf& state) {
  for (int earlier = round - 1; earlier > std::max(0, round - 1 - kRoundsBack); --earlier) {
    const history::FacilityState known = state(earlier);
    for (auto attempt = known.attempts.rbegin(); attempt != known.attempts.rend(); ++attempt)
      if (attempt->moved_bytes >= kTellingBytes && attempt->push_seconds > 0)
        return static_cast<double>(attempt->moved_bytes) / attempt->push_seconds;
  }
  return std::nullopt;
}

std::optional<checkpoint::Manifest> PackedModels::of(
    const history::RunFolder& folder, int round, std::stop_token stop,
    const std::function<PackingManifests()>& manifests) {
  const auto check = [&] {
    if (stop.stop_requested())
      throw Error(ErrorKind::kCancelled, "stopped ahead of the packing of a model");
  };
  std::unique_lock lock(mutex_, std::defer_lock);
  while (!lock.try_lock_for(kLockPause)) check();
  if (round_ == round) return made_;
  made_.reset();
  check();  // `manifests` may read a whole model
  const auto send_whole = [&](const std::exception& error) {
    std::error_code none;
    fs::remove_all(path(folder, round), none);
    log::warning("global model could not be packed: it is sent whole",
                 {{"round", round}, {"problem", error.what()}});
  };
  try {
    const PackingManifests used =
        manifests ? manifests()
                  : PackingManifests{checkpoint::read_manifest(folder.global(round - 1)),
                                     checkpoint::read_manifest(folder.global(round - 2))};
    made_ = make(folder, round, used, path(folder, round), stop);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCancelled || error.kind() == ErrorKind::kBusy) throw;
    send_whole(error);
  } catch (const std::exception& error) {  // no memory, no thread
    send_whole(error);
  }
  round_ = round;
  return made_;
}

void PackedModels::drop(const history::RunFolder& folder, int round) {
  const std::lock_guard lock(mutex_);
  std::error_code none;
  for (int old = std::max(1, round - 3); old < round; ++old) {
    fs::remove_all(path(folder, old + 1), none);
    fs::remove_all(path(folder, old + 1).string() + ".tmp", none);
  }
}

}  // namespace xffl::facility
