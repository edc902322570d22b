// claim/times: the times that a job's script writes at the facility, by the facility's clock. They
// tell the parts of a job apart (start-up, training, kept allocation), also where the site has no
// accounting, and of jobs without a report.
//
// The script appends one line per moment: a word, the seconds since 1970, and further values
// (docs/reference/job_json.md). A requeued job appends to the lines of its earlier start. The file
// comes from the facility and is hostile until checked: parse_job_times() bounds everything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace xffl::job {

inline constexpr uint64_t kMaxTimesBytes = 64u << 10;
// The largest values that parse_job_usage() accepts, in seconds.
inline constexpr int64_t kMaxUnixTime = 100'000'000'000;  // the year 5138
inline constexpr double kMaxClockOffset = 1e11;

/// One start of an attempt's job. Times are in seconds since 1970; absent: not written, because the
/// moment has not come or the job was killed.
struct JobStart {
  std::string job;    // the scheduler's id
  int restart = 0;    // SLURM_RESTART_COUNT
  int handover = 0;   // attempts that the allocation ran before this one
  int nodes = 1;      // of the allocation
  std::string beat;   // the script touches claim/beat-<beat> every 15 s; empty: no heartbeat
  int64_t start = 0;  // the script began
  std::optional<int64_t> train;        // the ranks were launched
  std::optional<int64_t> trained;      // the last rank ended
  std::optional<int64_t> offered;      // the job offered its allocation to the next attempt
  std::optional<int64_t> handed_over;  // the next attempt took the allocation
  std::optional<int64_t> end;          // the script ended
  std::optional<int64_t> last_beat;    // the last heartbeat: a killed job ended soon after
  std::optional<int> status;           // the exit status of the launch
  bool operator==(const JobStart&) const = default;
};

/// An attempt's use of the facility, as far as the coordinator knows it when the attempt ends.
struct JobUsage {
  /// The facility's clock minus this machine's in seconds, and the error of this difference;
  /// absent: not measured.
  std::optional<double> clock_offset, clock_error;
  std::vector<JobStart> starts;  // in the order of the file; empty: the job did not start
  bool operator==(const JobUsage&) const = default;
};

// The end of an attempt's work in one start of its job.
struct WorkEnd {
  double seconds = 0;       // since 1970, by the facility's clock
  bool is_bounded = false;  // a killed job's last heartbeat: the true end is at most 15 s later
};
/// The offer of the allocation, the script's end, or the end of the last rank. Without these times:
/// the launch and `report_seconds`, which the coordinator may see before the script's next line, or
/// the last heartbeat. None: not known.
std::optional<WorkEnd> end_of_work(const JobStart& start, std::optional<double> report_seconds);

/// The starts of `text`. Skips lines that it does not understand: a later script may write more,
/// and a killed one may leave half a line. At most 1,000 starts.
std::vector<JobStart> parse_job_times(std::string_view text);

/// One JSON object, for the journal. Absent times are absent keys.
std::string format_job_usage(const JobUsage& usage);
/// Throws kCorrupt, naming `origin`.
JobUsage parse_job_usage(std::string_view json, std::string_view origin);

}  // namespace xffl::job
