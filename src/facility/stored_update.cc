// The updates that have come, on this machine's disk.
#include <filesystem>

#include "facility_actions.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/checkpoint/model_folder.h"

namespace xffl::facility {

namespace fs = std::filesystem;

namespace {

// The facility answers, and does not have it.
bool gone_for_good(ErrorKind kind) {
  return kind == ErrorKind::kRejected || kind == ErrorKind::kCorrupt ||
         kind == ErrorKind::kNotFound || kind == ErrorKind::kUnsupported;
}

// A link that is down; a full disk, or one that fails for a while, there or here.
bool may_be_mended(ErrorKind kind) {
  return kind == ErrorKind::kRemote || kind == ErrorKind::kAuth || kind == ErrorKind::kIo;
}

void set_aside(const fs::path& from, const fs::path& to) {
  std::error_code none;
  fs::remove_all(to, none);
  fs::rename(from, to, none);
}

}  // namespace

void FacilityActions::set_refused_aside(int attempt) {
  set_aside(archive() / "update", archive() / ("refused-a" + std::to_string(attempt)));
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
// they are used. Returns what is wrong with them. That they cannot be read now says nothing: that
// is thrown.
std::optional<std::string> FacilityActions::archive_problem(
    const history::Accepted& accepted) const {
  try {
    const checkpoint::Manifest manifest = checkpoint::read_manifest(archive() / "update");
    if (manifest.root_sha256() != accepted.update_sha256) return "another update lies in its place";
    checkpoint::verify_folder(archive() / "update", manifest);
    return std::nullopt;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kRejected && error.kind() != ErrorKind::kCorrupt &&
        error.kind() != ErrorKind::kNotFound)
      throw;
    return error.what();
  }
}

bool FacilityActions::has_lost(int attempt) const {
  try {
    return session_->stat(facility_.folder) && !session_->stat(report_path(attempt));
  } catch (const Error&) {  // nobody knows
    return false;
  }
}

template <class Body>
auto FacilityActions::patiently(const Patience& patience, const std::string& doing, Body&& body) {
  const auto began = context_.services.clock.monotonic();
  for (int retry = 1;; ++retry) try {
      return body();
    } catch (const Error& error) {
      if (!may_be_mended(error.kind()) || patience.gives_up() ||
          context_.services.clock.monotonic() - began > patience.max_outage)
        throw;
      context_.live.show(plan_.round, facility_.facility,
                         doing + ", tried again: " + log::printable(error.what(), 300));
      dispatch(Sleep{backoff(facility_.facility.str(), retry)}, patience.stop);
    }
}

std::optional<std::string> FacilityActions::mend_archive(const history::Accepted& accepted,
                                                         std::chrono::seconds max_outage,
                                                         const std::function<bool()>& gives_up,
                                                         std::stop_token stop) {
  if (plan_.evaluates || !context_.history.round(plan_.round).model_sha256.empty())
    return std::nullopt;  // no mean is to be made of it
  const Patience patience{max_outage, gives_up, stop};
  const auto problem =
      patiently(patience, "checking an accepted update", [&] { return archive_problem(accepted); });
  if (!problem) return std::nullopt;
  log::warning("archived update is damaged: fetching it again",
               {{"facility", facility_.facility.str()}, {"problem", *problem}});
  Expected expected = expected_update();
  expected.update_sha256 = accepted.update_sha256;
  const fs::path damaged = archive() / "update.damaged";
  set_aside(archive() / "update", damaged);
  try {
    patiently(patience, "fetching an accepted update again", [&] {
      try {
        const Report report = bring(accepted.attempt, expected, stop);
        check_change(expected);
        keep_accepted(accepted.attempt, report);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kRemote || !has_lost(accepted.attempt)) throw;
        throw Error(ErrorKind::kNotFound, error.what());
      }
    });
  } catch (const Error& error) {
    if (gone_for_good(error.kind()) || may_be_mended(error.kind())) return error.what();
    throw;
  }
  std::error_code none;
  fs::remove_all(damaged, none);
  return std::nullopt;
}

}  // namespace xffl::facility
