#include "pbs_commands.h"

#include <algorithm>
#include <array>

#include "xffl/base/error.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/utf8.h"

namespace xffl::submit {
namespace {

constexpr size_t kMaxPbsIdBytes = 100;

// PBS_DPREFIX would change the mark of directives in the script.
constexpr auto kPbsVariables = std::to_array<std::string_view>({"PBS_DPREFIX"});

std::vector<std::string> pbs_environment() {
  std::vector<std::string> argv = clean_environment(kPbsVariables);
  argv.emplace_back("TZ=UTC0");  // qstat prints times of its own zone without naming the zone
  return argv;
}

// qstat cannot select by name, and its answer has all users' jobs. On a server that keeps no
// history, -x gives a message on stderr instead of the jobs, and the exit status 0. Each id has a
// line of its own; other lines are warnings.
constexpr const char* kPbsQueue = R"sh(date +%s
history=-x
ids=
set -f
for name; do
  found=$(qselect $history -u "$(id -un)" -N "$name" 2>&1)
  code=$?
  case $found in
    *"job history"*)
      history=
      found=$(qselect -u "$(id -un)" -N "$name" 2>&1)
      code=$?
      ;;
  esac
  if [ $code -ne 0 ]; then
    printf '%s\n' "$found" >&2
    exit 1
  fi
  while read -r word more; do
    case $word${more:+ more} in *' '*) ;; [0-9]*) ids="$ids $word" ;; esac
  done <<EOF
$found
EOF
done
set -- $ids
[ $# -eq 0 ] || qstat $history -f -F json "$@" || exit 1
echo xffl-end
)sh";

constexpr auto kPbsUnknownOutcomes = std::to_array<std::string_view>({
    "timeout",
    "timed out",
    "end of file",
    "connection reset",
    "broken pipe",
    "protocol error",
});
constexpr auto kPbsTemporaryReasons = std::to_array<std::string_view>({
    "cannot connect to server",
    "connection refused",
    "no default server",
    "would exceed",
    "maximum number of jobs",
    "queue is not enabled",
    "server shutting down",
    "no free connections",
    "connection table full",
    "resource temporarily unavailable",
    "no space left",
    "cannot allocate memory",
    "script did not arrive whole",
});
constexpr auto kPbsPermanentReasons = std::to_array<std::string_view>({
    "unknown queue",
    "unknown resource",
    "violates queue and/or server resource limits",
    "illegal attribute or resource value",
    "illegal -",
    "invalid option",
    "usage: qsub",
    "invalid in \"select\" specification",
    "cannot be used with \"select\"",
    "cannot be used with select",
    "rejected by all possible destinations",
    "no default queue specified",
    "resource limit exceeds allowable",
    "name is too long",
    "bad uid for job execution",
    "bad gid for job execution",
    "unauthorized request",
    "access to queue is denied",
    "invalid account",
    "request invalid",
});
constexpr RejectionWords kPbsWords{kPbsUnknownOutcomes, kPbsTemporaryReasons, kPbsPermanentReasons};

// Exit_status of a job that PBS ended (JOB_EXEC_ in PBS's job.h); a positive one is the script's
// own, or 256 and a signal. From -24 to -29 the job exceeded a resource.
constexpr int64_t kPbsFirstResourceKill = -24, kPbsOverVirtualMemory = -26, kPbsOverMemory = -27,
                  kPbsOverWalltime = -29, kPbsNodesDidNotJoin = -30;
// The substate of a job that was deleted.
constexpr int64_t kPbsDeleted = 91;

std::string text_of(const Json& job, const char* key) {
  const auto found = job.find(key);
  return found != job.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// PBS prints a number, and some releases print it as a string.
std::optional<int64_t> integer_of(const Json& job, const char* key) {
  const auto found = job.find(key);
  if (found == job.end()) return std::nullopt;
  if (found->is_number_integer()) return found->get<int64_t>();
  const std::string text = text_of(job, key);
  const bool negative = text.starts_with('-');
  const auto value = read_integer(std::string_view(text).substr(negative ? 1 : 0));
  if (!value) return std::nullopt;
  return negative ? -*value : *value;
}

JobStatus ended_pbs_job(const Json& job) {
  JobStatus status;
  const auto exit = integer_of(job, "Exit_status"), substate = integer_of(job, "substate");
  status.state = JobState::kEnded;
  status.native = exit ? "exit status " + std::to_string(*exit) : "ended before its start";
  if (exit == kPbsOverWalltime)
    status.cause = EndCause::kWalltime;
  else if (exit == kPbsOverMemory || exit == kPbsOverVirtualMemory)
    status.cause = EndCause::kOutOfMemory;
  else if (exit && ((*exit < 0 && *exit > kPbsFirstResourceKill) || *exit == kPbsNodesDidNotJoin))
    status.cause = EndCause::kInfrastructure;  // it did not start, or its node failed
  else if (!exit || substate == kPbsDeleted)
    status.state = JobState::kCancelled;
  return status;
}

JobStatus status_of_pbs_job(const Json& job) {
  const std::string state = text_of(job, "job_state");
  const std::string comment = log::printable(text_of(job, "comment"), 200);
  if (state == "F" || state == "X") return ended_pbs_job(job);
  JobStatus status;
  status.native = log::printable(state, 64);
  if (state == "Q" || state == "W" || state == "T") {
    status.state = JobState::kPending;
    status.reason = comment;
  } else if (state == "H") {
    status.state = JobState::kHeld;
    status.reason = comment;
    // PBS holds a job that it could not start 20 times; only an operator releases it.
    if (comment.find("too many failed attempts") != std::string::npos) {
      status.state = JobState::kEnded;
      status.cause = EndCause::kInfrastructure;
      status.stays_queued = true;
    }
  } else if (state == "R" || state == "S" || state == "U" || state == "E") {
    status.state = JobState::kRunning;
    status.is_ending = state == "E";
  }
  return status;
}

}  // namespace

bool PbsCommands::is_id(std::string_view text) const {
  constexpr std::string_view kServer =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_";
  const size_t dot = std::min(text.find('.'), text.size());
  const std::string_view server = text.substr(dot);
  return text.size() <= kMaxPbsIdBytes && is_decimal_id(text.substr(0, dot)) && server != "." &&
         server.find_first_not_of(kServer) == std::string_view::npos;
}

std::vector<std::string> PbsCommands::submit(const JobRequest& request) const {
  // Without -f, qsub leaves a process behind that may keep the connection of this session open.
  std::vector<std::string> qsub{"qsub", "-f"};
  append(qsub,
         words_of(pbs_options(settings_, request.name, request.directory(), request.may_requeue)));
  std::vector<std::string> argv = pbs_environment();
  append_submission(argv, request.script, std::move(qsub));
  return argv;
}

Submission PbsCommands::read_submission(const remote::CommandResult& answer) const {
  const std::string_view id = without_blanks(answer.out);
  if (answer.exit_code == 0 && is_id(id)) return {Submission::Kind::kAccepted, std::string(id), {}};
  return rejected_submission(answer, kPbsWords,
                             [this](std::string_view line) { return is_id(line); });
}

std::vector<std::string> PbsCommands::queue(const std::vector<std::string>& names) const {
  std::vector<std::string> argv = pbs_environment();
  append(argv, {"sh", "-c", kPbsQueue, "sh"});
  append(argv, names);
  return argv;
}

std::optional<std::vector<QueueRow>> PbsCommands::read_queue(std::string_view text) const {
  const auto now = read_queue_clock(text);
  const std::string mark = std::string(kEndMark) + "\n";
  if (!now || !text.ends_with(mark)) return std::nullopt;
  text.remove_suffix(mark.size());
  text = without_blanks(text.substr(text.find('\n')));
  std::vector<QueueRow> rows;
  if (text.empty()) return rows;  // no job has these names
  Json answer;
  try {
    answer = parse_json(text, "qstat", {.max_bytes = 8u << 20, .max_depth = 8});
  } catch (const Error&) {
    return std::nullopt;
  }
  const auto jobs = answer.find("Jobs");
  if (!answer.is_object() || jobs == answer.end() || !jobs->is_object()) return std::nullopt;
  for (const auto& [id, job] : jobs->items()) {
    if (!is_id(id) || !job.is_object()) continue;
    const std::string name = text_of(job, "Job_Name");
    if (!is_plain_name(name)) continue;
    QueueRow row{id, name, {}, status_of_pbs_job(job), false};
    const auto start = read_ctime(text_of(job, "stime"));
    if (row.status.state == JobState::kRunning && start)
      row.status.ends_in =
          std::chrono::seconds(std::max<int64_t>(0, *start + settings_.time.count() - *now));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<std::string> PbsCommands::cancel(std::string_view id) const {
  std::vector<std::string> argv = pbs_environment();
  append(argv, {"qdel", std::string(id)});
  return argv;
}

bool PbsCommands::is_cancelled(const remote::CommandResult& answer) const {
  constexpr auto kGone = std::to_array<std::string_view>({"has finished", "unknown job id"});
  return answer.exit_code == 0 || contains_any(ascii_lower_case(answer.err + answer.out), kGone);
}

}  // namespace xffl::submit
