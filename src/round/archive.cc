// The updates that have come, on this machine's disk.
#include <filesystem>

#include "facility_actions.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/checkpoint/model_folder.h"

namespace xffl::round {

namespace fs = std::filesystem;

namespace {

// The facility answers, and does not have it.
bool gone_for_good(ErrorKind kind) {
  return kind == ErrorKind::kRejected || kind == ErrorKind::kCorrupt ||
         kind == ErrorKind::kNotFound || kind == ErrorKind::kUnsupported;
}

}  // namespace

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

// An accepted update was verified when it came; after a restart its bytes are checked again before
// they are used. Returns what is wrong with them.
std::optional<std::string> FacilityActions::archive_problem(const Accepted& accepted) const {
  try {
    const checkpoint::Manifest manifest = checkpoint::read_manifest(archive() / "update");
    if (manifest.root_sha256() != accepted.update_sha256) return "another update lies in its place";
    checkpoint::verify_folder(archive() / "update", manifest);
    return std::nullopt;
  } catch (const Error& error) {
    return error.what();
  }
}

std::optional<std::string> FacilityActions::mend_archive(const Accepted& accepted,
                                                         std::chrono::seconds max_outage,
                                                         const std::function<bool()>& gives_up,
                                                         std::stop_token stop) {
  if (plan_.evaluates || !context_.ledger.round(plan_.round).model_sha256.empty())
    return std::nullopt;  // no mean is to be made of it
  std::optional<std::string> problem = archive_problem(accepted);
  if (!problem) return std::nullopt;
  log::warning("archived update is damaged: fetching it again",
               {{"facility", facility_.facility.str()}, {"problem", *problem}});
  fs::remove_all(archive() / "update");
  const auto began = context_.world.clock.monotonic();
  for (int retry = 1;; ++retry) try {
      const Report report = read_report(accepted.attempt);
      if (report.parsed.update_sha256 != accepted.update_sha256)
        return "the facility has another update by now";
      double change = 0;
      fetch_and_check(accepted.attempt, report, stop, change);
      return std::nullopt;
    } catch (const Error& error) {
      if (gone_for_good(error.kind())) return error.what();
      // A full disk, or one that fails for a while, there or here: it may be mended while we wait.
      if (error.kind() != ErrorKind::kRemote && error.kind() != ErrorKind::kAuth &&
          error.kind() != ErrorKind::kIo)
        throw;
      if (gives_up() || context_.world.clock.monotonic() - began > max_outage) return error.what();
      const std::string words = "fetching an accepted update again, tried again: ";
      context_.live.show(plan_.round, facility_.facility,
                         words + log::printable(error.what(), 300));
      dispatch(Sleep{backoff(facility_.facility.str(), retry)}, stop);
    }
}

}  // namespace xffl::round
