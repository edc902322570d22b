// How it works: UpdateFetch first reads the report and compares it with the job's key, nonce and
// input model. UpdateFetch then fetches the update's files by their manifest, with sizes and
// hashes, and aggregate::check_update() compares tensors, shapes and numbers. The driver accepts
// only an update that passes all checks.
#include <algorithm>
#include <array>
#include <filesystem>
#include <span>

#include "action_limit.h"
#include "site.h"
#include "xffl/aggregate/aggregate.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/block_hashes.h"
#include "xffl/checkpoint/model_folder.h"
#include "xffl/history/work_files.h"
#include "xffl/remote/stop_scope.h"
#include "xffl/tokens/token_shard.h"

namespace xffl::facility {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMaxReportBytes = 1 << 20;
constexpr size_t kMaxShardsRead = 64;  // one round trip each
constexpr int kReads = 3;              // of absent or wrong files, a settle time apart

// The facility answered, and its files are absent or wrong. Other error kinds concern this machine
// or the link.
bool is_facility_fault(ErrorKind kind) {
  return kind == ErrorKind::kRejected || kind == ErrorKind::kCorrupt ||
         kind == ErrorKind::kNotFound || kind == ErrorKind::kUnsupported;
}

// The link is down, or a disk is full or fails for a while, there or here.
bool may_recover(ErrorKind kind) {
  return kind == ErrorKind::kRemote || kind == ErrorKind::kAuth || kind == ErrorKind::kIo;
}

}  // namespace

bool UpdateFetch::has_reported(int attempt) {
  return at_the_facility(
      [&] { return site_.session->stat(site_.report_path(attempt)).has_value(); });
}

Event UpdateFetch::fetch(int attempt, std::stop_token stop) {
  const Expected expected = expected_update();
  try {
    const Report report = bring(attempt, expected, stop);
    if (job::is_checkpointed(report.parsed, site_.pushed_spec(attempt)))
      return Checkpointed{report.parsed.steps};
    if (const auto change = check_change(report, expected)) {
      const history::Accepted accepted = keep_accepted(attempt, report);
      return Fetched{
          {.update_sha256 = accepted.update_sha256, .report = accepted.report, .change = *change}};
    }
  } catch (const Error& error) {
    if (!is_facility_fault(error.kind())) throw;
    if (const fs::path work = site_.context.history.work_name(stored()); fs::exists(work)) {
      site_.context.history.check_writer();
      history::replace_folder(work, site_.archive() / ("refused-a" + std::to_string(attempt)));
      fs::remove(checkpoint::block_hashes_path(work));
    }
    return UpdateRejected{error.what()};
  }
  fail_after_damage_here();
}

void UpdateFetch::fail_after_damage_here() {
  // Damage on this machine is no fault of the facility: the next try fetches and checks again.
  site_.context.models.restore_global(site_.plan.round - 1);
  throw Error(ErrorKind::kIo, "an update was damaged on this machine, or its input model was");
}

uint64_t max_update_bytes(const std::vector<checkpoint::TensorSpec>& tensors) {
  constexpr uint64_t kOtherFiles = 64u << 20;  // configuration, tokenizer, headers
  uint64_t bytes = kOtherFiles;
  for (const checkpoint::TensorSpec& tensor : tensors)
    bytes += static_cast<uint64_t>(tensor.num_elements()) * sizeof(float);
  return bytes;
}

UpdateFetch::Expected UpdateFetch::expected_update() const {
  Expected expected;
  expected.max_positions = site_.with_full_model([&](const checkpoint::Hashes& hashes) {
    const checkpoint::ModelFolder verified(site_.full_model(), hashes);
    return checkpoint::read_llama_config(site_.full_model()).max_position_embeddings;
  });
  site_.with_base_model([&](const checkpoint::Hashes& hashes) {
    expected.max_bytes =
        max_update_bytes(checkpoint::ModelFolder(site_.base_model(), hashes).tensors());
  });
  expected.max_change = max_change();
  if (expected.max_change > 0) expected.base_norm = base_norm();
  return expected;
}

int64_t UpdateFetch::max_sequence_length(int64_t max_positions) const {
  const config::Facility& settings = site_.settings;
  if (settings.sequence_length > 0) return std::min(settings.sequence_length, max_positions);
  if (site_.plan.evaluates || settings.train_data.size() > kMaxShardsRead) return max_positions;
  if (longest_sequence_) return std::min(*longest_sequence_, max_positions);
  uint64_t longest = 0;
  for (const std::string& shard : settings.train_data) {
    std::array<std::byte, tokens::kShardHeaderBytes> header{};
    size_t size = 0;
    try {
      size = site_.session->read(RemotePath(shard), 0, header);
    } catch (const Error& error) {  // the jobs alone may see the shards
      if (error.kind() == ErrorKind::kCancelled) throw;
      log::debug("a training shard is not readable from here",
                 {site_.name_field(), {"shard", shard}, {"problem", error.what()}});
    }
    const auto length = tokens::sequence_length_in(std::span(header).first(size));
    if (!length) return max_positions;
    longest = std::max(longest, *length);
  }
  if (longest == 0 || longest > static_cast<uint64_t>(max_positions)) return max_positions;
  longest_sequence_ = static_cast<int64_t>(longest);
  return *longest_sequence_;
}

UpdateFetch::Report UpdateFetch::read_report(int attempt, const Expected& expected) {
  const std::string text =
      remote::read_text(*site_.session, site_.report_path(attempt), kMaxReportBytes);
  const job::JobReport report =
      job::parse_job_report(text, site_.facility.facility.str() + "'s report.json");
  // The journal's text of the report may be longer than the facility's, and has the same limit. A
  // report that the journal rejects would end the run.
  job::format_job_report(report);
  // The limits of an accepted report were those of its acceptance.
  const bool is_accepted = !expected.update_sha256.empty();
  job::check_report_answers(
      report, site_.pushed_spec(attempt),
      is_accepted ? expected.max_positions : max_sequence_length(expected.max_positions));
  if (is_accepted && report.update_sha256 != expected.update_sha256)
    throw Error(ErrorKind::kRejected, "the facility has replaced the update");
  return {text, report};
}

double UpdateFetch::max_change() const {
  const double ratio = site_.context.experiment.policy.max_change;
  if (ratio == 0 || site_.plan.evaluates) return 0;
  // A model of zeros has no scale: its limit is 0, which accepts any change.
  return ratio * base_norm();
}

double UpdateFetch::base_norm() const {
  return site_.with_base_model([&](const checkpoint::Hashes& hashes) {
    return site_.context.norms.of(site_.base_model(), hashes);
  });
}

// A shared file system may show the report before the files that it names, show an old version of
// the report or the files, or fail for a while.
UpdateFetch::Report UpdateFetch::bring(int attempt, const Expected& expected,
                                       std::stop_token stop) {
  const RemotePath out = site_.folder(attempt) / plan::kOutFolder;
  bool has_read = false;
  for (int read = 1;; ++read) try {
      has_read = false;
      Report report = read_report(attempt, expected);
      has_read = true;
      if (!site_.plan.evaluates &&
          !job::is_checkpointed(report.parsed, site_.pushed_spec(attempt))) {
        const fs::path work = site_.context.history.work_name(stored());
        if (is_stored(report.parsed.update_sha256)) {
          // A coordinator that was killed in publish_with_hashes() has left the update of an
          // earlier attempt under the work name.
          fs::remove_all(work);
          return report;
        }
        checkpoint::write_block_hashes(
            work,
            transfer::fetch({*site_.session, *site_.bulk},
                            site_.folder(attempt) / plan::kUpdateFolder,
                            report.parsed.update_sha256, expected.max_bytes, work, stop,
                            site_.progress("fetching", out), &site_.context.spare)
                .manifest,
            site_.context.history.file_writer());
      }
      return report;
    } catch (const Error& error) {
      if (!is_facility_fault(error.kind())) throw;
      if (read == kReads && error.kind() == ErrorKind::kNotFound &&
          (!has_read || !site_.session->stat(site_.report_path(attempt))))
        throw Error(ErrorKind::kRemote,
                    std::string("the reported files have vanished: ") + error.what());
      if (read == kReads) throw;
      log::warning("an update does not match its report: reading it again",
                   {site_.name_field(), {"problem", error.what()}});
      site_.sleep(site_.settle_time(), stop);
    }
}

std::optional<double> UpdateFetch::check_change(const Report& report,
                                                const Expected& expected) const {
  if (site_.plan.evaluates) return 0;
  const bool delta = site_.context.experiment.aggregation.update == job::UpdateKind::kDelta;
  const auto check = [&] {
    return aggregate::check_update(fetched(), site_.base_model(), delta,
                                   {.norm = expected.max_change, .base_norm = expected.base_norm},
                                   checkpoint::load_hashes(fetched(), report.parsed.update_sha256,
                                                           site_.context.history.file_writer()),
                                   site_.context.models.global(site_.plan.round - 1));
  };
  double norm = 0;
  try {
    norm = with_context(site_.facility.facility.str() + "'s update", check);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;
    if (is_malformed(report.parsed.update_sha256)) throw Error(ErrorKind::kRejected, error.what());
    log::warning("damage on this machine: an update or its input model is not as it was written",
                 {site_.name_field(), {"problem", error.what()}});
    return std::nullopt;
  }
  return expected.max_change > 0 ? norm / expected.base_norm : 0;
}

// The bytes are those of the report, and they are no model.
bool UpdateFetch::is_malformed(const std::string& update_sha256) const {
  try {
    checkpoint::rehash(fetched(), update_sha256, site_.context.history.file_writer());
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kBusy) throw;  // another coordinator has the run
    return false;
  }
  try {
    const checkpoint::ModelFolder update(fetched());
    return false;
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kCorrupt;
  }
}

history::Accepted UpdateFetch::keep_accepted(int attempt, const Report& report) const {
  history::RunHistory& history = site_.context.history;
  const fs::path work = history.work_name(stored());
  if (fs::exists(work)) {
    const checkpoint::Hashes hashes =
        checkpoint::load_hashes(work, report.parsed.update_sha256, history.file_writer());
    publish_with_hashes(history, stored(), *hashes);
  }
  fs::remove(checkpoint::block_hashes_path(work));  // of a publication that failed half-way
  history.write_file(site_.archive() / "report.json", report.text);
  return {site_.facility.facility, attempt, report.parsed.update_sha256, report.parsed};
}

// fetch() has verified an accepted update; after a restart archive_problem() checks the bytes again
// before their use. Returns the damage. Throws when the files cannot be opened, or for another
// error of this machine that may pass: no evidence of damage.
std::optional<std::string> UpdateFetch::archive_problem(const std::string& update_sha256) const {
  try {
    checkpoint::rehash(stored(), update_sha256, site_.context.history.file_writer());
    return std::nullopt;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kRejected && error.kind() != ErrorKind::kCorrupt &&
        error.kind() != ErrorKind::kNotFound)
      throw;
    return error.what();
  }
}

fs::path UpdateFetch::fetched() const {
  const fs::path work = site_.context.history.work_name(stored());
  return fs::exists(work) ? work : stored();
}

bool UpdateFetch::is_stored(const std::string& update_sha256) const {
  return fs::exists(stored()) && !archive_problem(update_sha256);
}

bool UpdateFetch::has_lost(int attempt) const {
  try {
    return site_.session->stat(site_.facility.folder) &&
           !site_.session->stat(site_.report_path(attempt));
  } catch (const Error&) {  // unknown
    return false;
  }
}

std::optional<std::string> UpdateFetch::restore(const history::Accepted& accepted,
                                                std::chrono::seconds max_outage,
                                                const IsOver& is_over, std::stop_token stop) {
  if (site_.plan.evaluates || !site_.context.history.round(site_.plan.round).model_sha256.empty())
    return std::nullopt;  // the mean exists, or needs no update
  Clock& clock = site_.context.services.clock;
  std::optional<ActionLimit> limit;  // of the check, then of the fetch
  const auto begin_limit = [&] {
    limit.emplace(stop,
                  [&is_over, began = std::chrono::steady_clock::now()] { return is_over(began); });
  };
  // Retries within the limits.
  const auto patiently = [&](const std::string& activity, const auto& body) {
    const auto began = clock.monotonic();
    for (int retry = 1;; ++retry) try {
        return body();
      } catch (const Error& error) {
        if (!may_recover(error.kind()) || clock.monotonic() - began > max_outage) throw;
        site_.show(activity + ", retrying: " + log::printable(error.what(), 300));
        clock.sleep(backoff(site_.facility.facility.str(), retry), limit->token());
        if (limit->is_reached()) throw;
        if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped on request");
      }
  };
  begin_limit();
  const auto problem = patiently("checking an accepted update",
                                 [&] { return archive_problem(accepted.update_sha256); });
  if (!problem) return std::nullopt;
  log::warning("stored update is damaged: fetching it again",
               {site_.name_field(), {"problem", *problem}});
  Expected expected = expected_update();
  expected.update_sha256 = accepted.update_sha256;
  expected.max_change = 0;  // a release or an edit may have lowered policy.max_change since
  bool is_damaged_here = false;
  begin_limit();
  try {
    patiently("fetching an accepted update again", [&] {
      const remote::StopScope stop_scope(limit->token());
      try {
        const Report report = bring(accepted.attempt, expected, limit->token());
        is_damaged_here = !check_change(report, expected);
        if (!is_damaged_here) keep_accepted(accepted.attempt, report);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kRemote || !has_lost(accepted.attempt)) throw;
        throw Error(ErrorKind::kNotFound, error.what());
      }
    });
  } catch (const Error& error) {
    if (is_facility_fault(error.kind()) || may_recover(error.kind())) return error.what();
    if (error.kind() == ErrorKind::kCancelled && limit->is_reached())
      return "not fetched again before the round's deadline";
    throw;
  }
  if (is_damaged_here) fail_after_damage_here();
  return std::nullopt;
}

}  // namespace xffl::facility
