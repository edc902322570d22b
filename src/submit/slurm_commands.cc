#include "slurm_commands.h"

#include <algorithm>
#include <array>
#include <span>
#include <sstream>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/base/utf8.h"

namespace xffl::submit {
namespace {

// The formats of squeue and sacct.
constexpr std::string_view kQueueFormat = "%A|%j|%T|%S|%L|%Z|%N|%r";
constexpr std::string_view kClusterHeading = "CLUSTER: ";  // squeue prints it with --clusters
constexpr std::string_view kAccountingFields = "JobIDRaw,JobName,State,NodeList,WorkDir";
constexpr std::string_view kStartFields =
    "JobIDRaw,JobName,State,Start,End,NNodes,ConsumedEnergyRaw,AllocTRES";

// Slurm commands run in the C locale and without the environment variables that change their effect
// or output. A login shell may set these variables.
constexpr auto kSubmitVariables = std::to_array<std::string_view>({
    "SBATCH_ARRAY_INX",
    "SBATCH_DEBUG",
    "SBATCH_GET_USER_ENV",
    "SBATCH_IGNORE_PBS",
    "SBATCH_TEST_ONLY",
    "SBATCH_WAIT",
    "SBATCH_WAIT_ALL_NODES",
    "SLURM_CLUSTERS",
});
constexpr auto kQueueVariables = std::to_array<std::string_view>({
    "SQUEUE_ACCOUNT",    "SQUEUE_ACCOUNTS",     "SQUEUE_ALL",       "SQUEUE_ARRAY",
    "SQUEUE_FEDERATION", "SQUEUE_FORMAT",       "SQUEUE_FORMAT2",   "SQUEUE_LICENSES",
    "SQUEUE_LOCAL",      "SQUEUE_NAMES",        "SQUEUE_PARTITION", "SQUEUE_PRIORITY",
    "SQUEUE_QOS",        "SQUEUE_SIBLING",      "SQUEUE_SORT",      "SQUEUE_STATES",
    "SQUEUE_USERS",      "SLURM_CLUSTERS",      "SACCT_FORMAT",     "SACCT_LOCAL",
    "SACCT_FEDERATION",  "SCANCEL_ACCOUNT",     "SCANCEL_BATCH",    "SCANCEL_CTLD",
    "SCANCEL_FULL",      "SCANCEL_INTERACTIVE", "SCANCEL_NAME",     "SCANCEL_PARTITION",
    "SCANCEL_QOS",       "SCANCEL_STATE",       "SCANCEL_USER",     "SCANCEL_VERBOSE",
    "SCANCEL_WCKEY",
});

std::vector<std::string> environment(std::span<const std::string_view> without,
                                     const char* times = "%s") {
  std::vector<std::string> argv = clean_environment(without);
  argv.emplace_back("SLURM_TIME_FORMAT=" + std::string(times));
  return argv;
}

void append_cluster(std::vector<std::string>& argv, const std::string& cluster) {
  if (!cluster.empty()) argv.push_back("--clusters=" + cluster);
}

std::string joined(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ",") + name;
  return list;
}

/// Splits `line` into `count` fields; the last field keeps any further bars.
std::vector<std::string_view> fields_of(std::string_view line, size_t count) {
  std::vector<std::string_view> fields;
  while (fields.size() + 1 < count) {
    const size_t bar = line.find('|');
    if (bar == std::string_view::npos) return {};
    fields.push_back(line.substr(0, bar));
    line.remove_prefix(bar + 1);
  }
  fields.push_back(line);
  return fields;
}

bool is_node_list(std::string_view text) {
  return !text.empty() && text != "(null)" && text != "None assigned";
}

Submission read_accepted(std::string_view out) {
  const std::string_view line = without_blanks(out);
  const std::string_view id = line.substr(0, line.find(';'));  // "123;cluster"
  const std::string_view cluster = line.substr(std::min(id.size(), line.size()));
  constexpr std::string_view kName =
      ";ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
  if (!is_slurm_id(id) || cluster.find_first_not_of(kName) != std::string_view::npos) return {};
  return {Submission::Kind::kAccepted, std::string(id), {}};
}

// The request may have reached the controller: a job may exist or still appear.
constexpr auto kUnknownOutcome = std::to_array<std::string_view>({
    "timed out",
    "unexpected message",
    "zero bytes were transmitted",
    "connection reset",
    "broken pipe",
    "communication connection failure",
    "unspecified error",
});

// Errors in the request itself.
constexpr auto kPermanent = std::to_array<std::string_view>({
    "invalid partition",
    "invalid account",
    "invalid qos",
    "invalid feature",
    "invalid wckey",
    "invalid generic resource",
    "invalid trackable resource",
    "invalid license",
    "invalid job array",
    "invalid user id",
    "invalid group id",
    "invalid cluster",
    "invalid --",
    "invalid reservation",
    "invalid node name",
    "invalid burst buffer",
    "invalid directive",
    "invalid numeric",
    "invalid time",
    "invalid dependency",
    "requested reservation is invalid",
    "requested time limit is invalid",
    "requested node configuration is not available",
    "node count specification invalid",
    "memory specification can not be satisfied",
    "cpu count per node can not be satisfied",
    "cpu count specification invalid",
    "more processors requested than permitted",
    "access/permission denied",
    "user's group not permitted",
    "not permitted to use this",
    "access denied to requested",
    "job violates accounting/qos policy",
    "too many tasks",
    "too many nodes",
    "too many cpus",
    "too many processors",
    "too many arguments",
    "too long",
    "unrecognized option",
    "unrecognised option",
    "unknown option",
    "requires an argument",
    "batch script contains only whitespace",
    "batch script contains dos line breaks",
    "does not look like a batch script",
    "batch script is empty",
    "script is empty",
    "specification is invalid",
    "gres option unsupported",
    "missing or invalid",
    "job size specification",
    "no account specified",
    "no partition specified",
    "is not valid",
    "unable to open file",
    "job dependency problem",
});

// The request did not reach the controller, or the controller rejected the request for a temporary
// reason.
constexpr auto kTemporary = std::to_array<std::string_view>({
    // Limits on submitted jobs, which pass without a user's action.
    "maxsubmit",
    "grpsubmit",
    "submit jobs limit",
    "submitjobslimit",
    "unable to contact slurm controller",
    "slurm controller in standby mode",
    "slurm backup controller in standby",
    "slurmctld running in standby",
    "resource temporarily unavailable",
    "temporarily unable to accept job",
    "invalid authentication credential",
    "protocol authentication error",
    "authentication failure",
    "munge encode failed",
    "munge decode failed",
    "auth_g_create",
    "connection refused",
    "configuration source",
    "required partition not available",
    "requested partition configuration not available now",
    "requested operation is presently disabled",
    "requested nodes are busy",
    "system is in maintenance",
    "cannot allocate memory",
    "fork failed",
    "no space left",
    "error writing script",
    "error creating file",
});

constexpr RejectionWords kSlurmWords{kUnknownOutcome, kTemporary, kPermanent};

struct StateName {
  std::string_view name;
  JobState state;
  EndCause cause = EndCause::kOrdinary;
};

constexpr std::array kStates = std::to_array<StateName>({
    {"PENDING", JobState::kPending},
    {"CONFIGURING", JobState::kPending},
    {"POWER_UP_NODE", JobState::kPending},
    {"REQUEUED", JobState::kPending},
    {"REQUEUE_FED", JobState::kPending},
    {"REQUEUE_HOLD", JobState::kHeld},
    {"RESV_DEL_HOLD", JobState::kHeld},
    {"SPECIAL_EXIT", JobState::kHeld},
    {"RUNNING", JobState::kRunning},
    {"COMPLETING", JobState::kRunning},
    {"RESIZING", JobState::kRunning},
    {"SIGNALING", JobState::kRunning},
    {"STAGE_OUT", JobState::kRunning},
    {"STOPPED", JobState::kRunning},
    {"SUSPENDED", JobState::kRunning},
    {"UPDATE_DB", JobState::kRunning},
    {"COMPLETED", JobState::kEnded},
    {"FAILED", JobState::kEnded},
    {"DEADLINE", JobState::kEnded},
    {"TIMEOUT", JobState::kEnded, EndCause::kWalltime},
    {"OUT_OF_MEMORY", JobState::kEnded, EndCause::kOutOfMemory},
    {"NODE_FAIL", JobState::kEnded, EndCause::kInfrastructure},
    {"BOOT_FAIL", JobState::kEnded, EndCause::kInfrastructure},
    {"LAUNCH_FAILED", JobState::kEnded, EndCause::kInfrastructure},
    {"RECONFIG_FAIL", JobState::kEnded, EndCause::kInfrastructure},
    {"PREEMPTED", JobState::kEnded, EndCause::kInfrastructure},
    {"CANCELLED", JobState::kCancelled},
});

// Pending reasons that pass only by the action of a user or operator, in lower case without
// separators.
constexpr auto kHolds = std::to_array<std::string_view>({
    "jobheld",
    "jobholdmaxrequeue",
    "requeuedheld",
    "dependencyneversatisfied",
    "badconstraints",
    "partitiontimelimit",
    "partitionnodelimit",
    "partitionconfig",
    "invalidaccount",
    "invalidqos",
    "accountnotallowed",
    "qosnotallowed",
    "reservationdeleted",
    "maxwalldurationperjob",
    "maxcpuminutesperjob",
    "maxtresminutesperjob",
    "maxnodeperjob",
    "maxcpuperjob",
    "maxgresperjob",
    "maxcpupernode",
    "mincpu",
    "mingres",
    "minmemory",
    "minnode",
    "systemfailure",
    "jobarraytasklimit",
    "burstbufferstageinfailed",
    "grpcpuminutes",
    "grpbillingminutes",
    "grpgresminutes",
});

std::string letters_of(std::string_view reason) {
  std::string letters;
  for (const char c : ascii_lower_case(reason))
    if (c >= 'a' && c <= 'z') letters += c;
  return letters;
}

bool is_held(std::string_view reason) { return contains_any(letters_of(reason), kHolds); }

// A node could not start the script: a failed prolog, a full spool folder. Slurm holds the job
// until an administrator releases it; another job may run on another node.
bool is_launch_failure(std::string_view reason) {
  return letters_of(reason) == "launchfailedrequeuedheld";
}

// $1 is the folder of the attempt that has reported. Listing the folder makes a shared file system
// ask its server for the newest names.
constexpr const char* kEnter = R"sh(cd -- "$1" 2>/dev/null || { echo none; exit 0; }
: stay.*
)sh";

// $2 is the job id in the journal, $3 the next attempt's folder, $4 "wait" or "", $5 the size of
// the script.
constexpr const char* kTake = R"sh(if [ ! -e stay.taken ]; then
  [ -e stay.planned ] || [ -e stay.offered ] || { echo none; exit 0; }
  read -r owner _ 2>/dev/null <claim/owner
  if [ "$owner" = "$2" ]; then
    cat >"$3/job.sh.part" && [ "$(wc -c <"$3/job.sh.part")" -eq "$5" ] || exit 1
    mv -f -- "$3/job.sh.part" "$3/job.sh" || exit 1
    [ "$4" = wait ] || mv stay.planned stay.closed 2>/dev/null
    mv stay.offered stay.taken 2>/dev/null
  else
    mv stay.planned stay.closed 2>/dev/null || mv stay.offered stay.closed 2>/dev/null
  fi
fi
if [ -e stay.taken ]; then echo taken
elif [ -e stay.planned ] || [ -e stay.offered ]; then echo planned
else echo none; fi
)sh";

constexpr const char* kRelease =
    "mv stay.planned stay.closed 2>/dev/null || mv stay.offered stay.closed 2>/dev/null\n"
    "exit 0\n";

}  // namespace

std::vector<std::string> submit_command(const std::vector<std::string>& options,
                                        std::string_view script, bool test_only) {
  // The user reads the answer of --test-only, so the predicted start is in the site's local time.
  std::vector<std::string> argv = environment(kSubmitVariables, test_only ? "standard" : "%s");
  std::vector<std::string> submit{"sbatch", "--parsable"};
  if (test_only) submit.emplace_back("--test-only");
  append(submit, options);
  append_submission(argv, script, std::move(submit));
  return argv;
}

std::vector<std::string> queue_command(const std::vector<std::string>& names,
                                       const std::string& cluster) {
  // The shell runs three commands in order; its arguments are the argv of squeue.
  std::vector<std::string> argv = environment(kQueueVariables);
  append(argv, {"sh", "-c", "date +%s && \"$@\" && echo " + std::string(kEndMark), "sh", "squeue",
                "--noheader", "--me", "--states=all", "--name=" + joined(names),
                "--format=" + std::string(kQueueFormat)});
  append_cluster(argv, cluster);
  return argv;
}

std::vector<std::string> accounting_command(const std::vector<std::string>& names,
                                            const std::string& cluster) {
  std::vector<std::string> argv = environment(kQueueVariables);
  append(argv, {"sh", "-c", "\"$@\" && echo " + std::string(kEndMark), "sh", "sacct", "--noheader",
                "--parsable2", "--allocations", "--starttime=now-30days", "--name=" + joined(names),
                "--format=" + std::string(kAccountingFields)});
  append_cluster(argv, cluster);
  return argv;
}

// With --jobs and without --starttime sacct looks at all times.
std::vector<std::string> starts_command(const std::vector<std::string>& ids,
                                        const std::string& cluster) {
  std::vector<std::string> argv = environment(kQueueVariables);
  append(argv, {"sh", "-c", "\"$@\" && echo " + std::string(kEndMark), "sh", "sacct", "--noheader",
                "--parsable2", "--allocations", "--duplicates", "--jobs=" + joined(ids),
                "--format=" + std::string(kStartFields)});
  append_cluster(argv, cluster);
  return argv;
}

std::vector<std::string> cancel_command(const std::string& id, const std::string& name,
                                        const std::string& cluster) {
  std::vector<std::string> argv = environment(kQueueVariables);
  append(argv, {"scancel", "--me", "--name=" + name});
  append_cluster(argv, cluster);
  argv.push_back(id);
  return argv;
}

bool is_slurm_id(std::string_view text) { return is_decimal_id(text); }

Submission read_submission(const remote::CommandResult& answer) {
  if (answer.exit_code == 0) {
    Submission submission = read_accepted(answer.out);
    if (submission.kind == Submission::Kind::kAccepted) return submission;
  }
  return rejected_submission(answer, kSlurmWords, [](std::string_view line) {
    return read_accepted(line).kind == Submission::Kind::kAccepted;
  });
}

std::optional<std::chrono::seconds> read_time_left(std::string_view text) {
  int64_t seconds = 0;
  if (const size_t dash = text.find('-'); dash != std::string_view::npos) {
    const auto days = read_integer(text.substr(0, dash));
    if (!days || *days > 36500) return std::nullopt;
    seconds = *days * 24;
    text.remove_prefix(dash + 1);
  }
  int parts = 0;
  for (size_t begin = 0; begin <= text.size(); ++parts) {
    const size_t end = std::min(text.find(':', begin), text.size());
    const auto part = read_integer(text.substr(begin, end - begin));
    if (!part || *part > 1'000'000 || parts > 2) return std::nullopt;
    seconds = parts == 0 && seconds > 0 ? seconds + *part : seconds * 60 + *part;
    begin = end + 1;
  }
  return parts >= 2 ? std::optional(std::chrono::seconds(seconds)) : std::nullopt;
}

std::optional<std::chrono::seconds> read_longest_walltime(std::string_view text,
                                                          std::string_view partitions) {
  const std::string wanted = "," + std::string(partitions) + ",";
  std::optional<std::chrono::seconds> longest;
  std::istringstream lines{std::string(text)};
  for (std::string name, limit; lines >> name >> limit;) {
    const bool is_default = name.ends_with('*');
    if (is_default) name.pop_back();
    if (partitions.empty() ? !is_default : wanted.find("," + name + ",") == std::string::npos)
      continue;
    const auto time = read_time_left(limit);
    if (!time) return std::nullopt;
    longest = std::max(longest.value_or(std::chrono::seconds(0)), *time);
  }
  return longest;
}

std::optional<std::vector<QueueRow>> read_queue(std::string_view text) {
  const auto lines = lines_of(text);
  if (!lines) return std::nullopt;
  const auto now = read_queue_clock(text);
  if (!now) return std::nullopt;
  std::vector<QueueRow> rows;
  for (size_t i = 1; i < lines->size(); ++i) {
    const std::string_view line = (*lines)[i];
    if (without_blanks(line).empty() || line.starts_with(kClusterHeading)) continue;
    const auto fields = fields_of(line, 8);
    // A note in place of the rows, such as a site's maintenance text, does not mean "no jobs".
    if (fields.empty() || !is_slurm_id(fields[0])) return std::nullopt;
    QueueRow row{std::string(fields[0]), std::string(fields[1]), std::string(fields[5]),
                 read_state(fields[2], fields[7]), is_node_list(fields[6])};
    if (row.status.state == JobState::kRunning) row.status.ends_in = read_time_left(fields[4]);
    const auto start = read_integer(fields[3]);
    if (row.status.state == JobState::kPending && start && *start > 0)
      row.status.starts_in = std::chrono::seconds(std::max<int64_t>(0, *start - *now));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::optional<std::vector<QueueRow>> read_accounting(std::string_view text) {
  const auto lines = lines_of(text);
  if (!lines) return std::nullopt;
  std::vector<QueueRow> rows;
  for (const std::string_view line : *lines) {
    const auto fields = fields_of(line, 5);
    if (fields.empty() || !is_slurm_id(fields[0])) continue;
    QueueRow row{std::string(fields[0]), std::string(fields[1]), std::string(fields[4]),
                 read_state(fields[2], {}), is_node_list(fields[3])};
    if (row.status.state != JobState::kEnded && row.status.state != JobState::kCancelled)
      row.status.state = JobState::kUnknown;
    rows.push_back(std::move(row));
  }
  return rows;
}

namespace {

// "billing=12,cpu=4,node=2" -> 12.
std::optional<double> billing_of(std::string_view resources) {
  constexpr std::string_view kKey = "billing=";
  const size_t begin = resources.starts_with(kKey) ? 0 : resources.find("," + std::string(kKey));
  if (begin == std::string_view::npos) return std::nullopt;
  std::string_view value = resources.substr(begin + kKey.size() + (begin > 0 ? 1 : 0));
  value = value.substr(0, value.find(','));
  const auto number = read_integer(value);
  return number && *number >= 0 ? std::optional(static_cast<double>(*number)) : std::nullopt;
}

// A counter that no sensor feeds is 0, or a number that no node can have used.
std::optional<int64_t> energy_of(std::string_view text, int64_t seconds, int64_t nodes) {
  constexpr double kMaxWatts = 100'000;  // of a node
  const auto joules = read_integer(text);
  if (!joules || *joules <= 0 || seconds <= 0) return std::nullopt;
  const double watts = static_cast<double>(*joules) / static_cast<double>(seconds * nodes);
  return watts <= kMaxWatts ? joules : std::nullopt;
}

}  // namespace

std::optional<std::vector<NamedStart>> read_starts(std::string_view text) {
  constexpr int64_t kMaxNodes = 1'000'000;
  const auto lines = lines_of(text);
  if (!lines) return std::nullopt;
  std::vector<NamedStart> starts;
  for (const std::string_view line : *lines) {
    const auto fields = fields_of(line, 8);
    if (fields.empty() || !is_slurm_id(fields[0])) continue;
    const auto start = read_integer(fields[3]);
    const auto nodes = read_integer(fields[5]);
    // A job that never started has the start "None" or "Unknown".
    if (!start || *start <= 0 || !nodes || *nodes < 1 || *nodes > kMaxNodes) continue;
    NamedStart named{std::string(fields[1]),
                     {.job = JobId(std::string(fields[0])),
                      .state = log::printable(fields[2], 40),
                      .start = *start,
                      .end = {},
                      .nodes = static_cast<int>(*nodes),
                      .energy_joules = {},
                      .billing = billing_of(fields[7])}};
    if (const auto end = read_integer(fields[4]); end && *end >= *start) {
      named.start.end = *end;
      named.start.energy_joules = energy_of(fields[6], *end - *start, *nodes);
    }
    starts.push_back(std::move(named));
  }
  return starts;
}

Submission::Kind classify_rejection(std::string_view text, int exit_code) {
  return classify_rejection(text, exit_code, kSlurmWords);
}

JobStatus read_state(std::string_view text, std::string_view reason) {
  JobStatus status;
  status.native = log::printable(text, 64);
  if (reason != "None") status.reason = log::printable(reason, 200);
  const std::string_view name = text.substr(0, text.find_first_of(" +"));  // "CANCELLED by 1000"
  const auto known = std::find_if(kStates.begin(), kStates.end(),
                                  [&](const StateName& each) { return each.name == name; });
  if (known == kStates.end()) return status;
  status.state = known->state;
  status.cause = known->cause;
  status.is_ending = name == "COMPLETING";
  if (status.state == JobState::kPending && is_launch_failure(reason)) {
    status.state = JobState::kEnded;
    status.cause = EndCause::kInfrastructure;
    status.stays_queued = true;
  }
  if (status.state == JobState::kPending && is_held(reason)) status.state = JobState::kHeld;
  return status;
}

std::vector<std::string> take_command(const KeptAllocation& kept, const RemotePath& next,
                                      std::string_view script, bool wait) {
  return {"sh",
          "-c",
          std::string(kEnter) + kTake,
          "sh",
          kept.folder.str(),
          kept.job.str(),
          next.str(),
          wait ? "wait" : "",
          std::to_string(script.size())};
}

TakeResult read_take_result(const remote::CommandResult& result) {
  if (result.exit_code == 0) {
    if (result.out == "taken\n") return TakeResult::kTaken;
    if (result.out == "planned\n") return TakeResult::kPlanned;
    if (result.out == "none\n") return TakeResult::kNone;
  }
  throw Error(ErrorKind::kRemote,
              "it is unknown whether the kept allocation was taken: exit status " +
                  std::to_string(result.exit_code) + ": " +
                  log::printable(result.err.empty() ? result.out : result.err, 300));
}

std::vector<std::string> release_command(const KeptAllocation& kept) {
  return {"sh", "-c", std::string(kEnter) + kRelease, "sh", kept.folder.str()};
}

RemotePath taken_file(const KeptAllocation& kept) { return kept.folder / "stay.taken"; }

}  // namespace xffl::submit
