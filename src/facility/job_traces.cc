#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <vector>

#include "site.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"

namespace xffl::facility {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMaxMetricsBytes = 64u << 20;
constexpr size_t kBlockBytes = 1u << 20;
constexpr size_t kMaxBeats = 16;  // heartbeats of killed starts, newest first
constexpr uint64_t kMaxBeatBytes = 32;

std::optional<int64_t> read_time(std::string_view text) {
  int64_t time = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), time);
  const bool is_line = problem == std::errc() && end != text.data() + text.size() && *end == '\n';
  return is_line && time > 0 && time <= job::kMaxUnixTime ? std::optional(time) : std::nullopt;
}

// A facility's clock that is centuries away is not recorded.
bool is_plausible(const submit::ClockOffset& clock) {
  return std::abs(clock.offset) <= job::kMaxClockOffset && clock.error <= job::kMaxClockOffset;
}

}  // namespace

std::optional<job::JobUsage> JobTraces::usage(int attempt) {
  try {
    const RemotePath claim = site_.folder(attempt) / plan::kClaimFolder;
    const std::array times{remote::FileQuery{.name = "times", .max_bytes = job::kMaxTimesBytes}};
    job::JobUsage usage;
    const remote::FileView file = site_.session->look(claim, times).front();
    usage.starts = job::parse_job_times(file.bytes);
    if (usage.starts.empty() && (file.info || !never_started(attempt))) return std::nullopt;
    read_beats(claim, usage.starts);
    if (const auto clock = site_.scheduler->clock_offset(); clock && is_plausible(*clock)) {
      usage.clock_offset = clock->offset;
      usage.clock_error = clock->error;
    }
    // The journal reads it back: a text of the facility that it rejects would end the run.
    return job::parse_job_usage(job::format_job_usage(usage), "the job's times");
  } catch (const Error& error) {
    log::debug("the job's times are not readable",
               {site_.name_field(), {"attempt", attempt}, {"problem", error.what()}});
    return std::nullopt;
  }
}

// Without the file of the times: the shipped template writes it first, a site's own one may not.
// The site may also have removed the whole folder.
bool JobTraces::never_started(int attempt) const {
  if (!site_.settings.template_file.empty()) return false;
  const std::array job{remote::FileQuery{.name = std::string(plan::kJobFile), .max_bytes = 0}};
  return site_.session->look(site_.folder(attempt), job).front().info.has_value();
}

// The last heartbeat of a start that did not end by itself.
void JobTraces::read_beats(const RemotePath& claim, std::vector<job::JobStart>& starts) const {
  std::vector<remote::FileQuery> files;
  std::vector<job::JobStart*> killed;
  for (auto start = starts.rbegin(); start != starts.rend() && killed.size() < kMaxBeats; ++start)
    if (!start->end && !start->handed_over && !start->beat.empty()) {
      files.push_back({.name = "beat-" + start->beat, .max_bytes = kMaxBeatBytes});
      killed.push_back(&*start);
    }
  if (files.empty()) return;
  const std::vector<remote::FileView> beats = site_.session->look(claim, files);
  for (size_t i = 0; i < killed.size(); ++i) killed[i]->last_beat = read_time(beats[i].bytes);
}

void JobTraces::keep_metrics(int attempt) {
  const fs::path kept =
      site_.context.folder.metrics(site_.plan.round, site_.facility.facility, attempt);
  std::error_code none;
  if (fs::exists(kept, none)) return;
  const fs::path work = site_.context.history.work_name(kept);
  try {
    if (!copy_metrics(site_.folder(attempt) / plan::kMetricsFile, work)) return;
    site_.context.history.check_writer();
    rename_durable(work, kept);
  } catch (const Error& error) {
    fs::remove(work, none);
    if (error.kind() == ErrorKind::kBusy && !site_.context.history.is_writer()) throw;
    log::info("the job's metrics were not fetched: its curves are missing",
              {site_.name_field(),
               {"round", site_.plan.round},
               {"attempt", attempt},
               {"problem", error.what()}});
  }
}

// False when there is nothing to keep. The disk gets each block as it comes: many facilities fetch
// at the same time.
bool JobTraces::copy_metrics(const RemotePath& from, const fs::path& work) const {
  const auto info = site_.session->stat(from);
  if (!info || info->type != remote::FileInfo::Type::kRegular || info->size_bytes == 0)
    return false;
  const UniqueFd file = open_file(work, O_WRONLY | O_CREAT | O_TRUNC);
  std::vector<std::byte> block(kBlockBytes);
  uint64_t size = 0, whole_lines = 0;
  while (size < kMaxMetricsBytes) {
    const size_t read = site_.session->read(from, size, block);
    const auto bytes = std::span(block).first(read);
    write_all(file.get(), bytes, work);
    const auto newline = std::find(bytes.rbegin(), bytes.rend(), std::byte('\n'));
    if (newline != bytes.rend())
      whole_lines = size + static_cast<uint64_t>(newline.base() - bytes.begin());
    size += read;
    if (read < block.size()) break;
  }
  if (size >= kMaxMetricsBytes)
    log::info("a job's metrics are cut at their largest size",
              {site_.name_field(), {"bytes", whole_lines}});
  if (::ftruncate(file.get(), static_cast<off_t>(whole_lines)) != 0 || ::fsync(file.get()) != 0)
    throw system_error("write " + work.string(), errno);
  return true;
}

}  // namespace xffl::facility
