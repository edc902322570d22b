#include "grid_engine_commands.h"

#include <algorithm>
#include <array>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/base/utf8.h"

namespace xffl::submit {
namespace {

// A job has about 20 lines in the XML of qstat, and a user may have thousands of other jobs.
constexpr size_t kMaxXmlLines = 400'000;

constexpr auto kVariables = std::to_array<std::string_view>({"SGE_DEBUG_LEVEL", "SGE_JSV_TIMEOUT"});

std::vector<std::string> grid_engine_environment() {
  std::vector<std::string> argv = clean_environment(kVariables);
  argv.emplace_back("TZ=UTC0");  // the answers show times without a zone
  return argv;
}

// qacct fails for a name that it does not know, and without a record of any job. Its messages go to
// stderr.
constexpr const char* kAccounting = R"sh(for name; do
  out=$(qacct -j "$name" 2>&1) || case $out in
    *"not found"* | *"no jobs running since startup"*) continue ;;
    *) printf '%s\n' "$out" >&2; exit 1 ;;
  esac
  printf '%s\n' "$out"
done
echo xffl-end
)sh";

constexpr auto kUnknownOutcomes = std::to_array<std::string_view>({
    "timeout",
    "timed out",
    "got read error",
    "connection reset",
    "broken pipe",
    "can't receive",
    "failed receiving",
});
constexpr auto kTemporaryReasons = std::to_array<std::string_view>({
    "connection refused",
    "unable to contact qmaster",
    "can't resolve host",
    "jobs are allowed per",
    "no space left",
    "cannot allocate memory",
    "script did not arrive whole",
});
constexpr auto kPermanentReasons = std::to_array<std::string_view>({
    "unknown queue",
    "unknown resource",
    "does not exist",
    "is not a valid object name",
    "invalid option",
    "invalid argument",
    "no suitable queues",
    "only offers",
    "has no permission",
    "no access to",
    "job rejected",
    "job was rejected",
    "denied:",
    "unable to read script file",
});
constexpr RejectionWords kWords{kUnknownOutcomes, kTemporaryReasons, kPermanentReasons};

/// The text between `<tag>` and `</tag>`; names of jobs of xffl need no unescaping.
std::optional<std::string_view> element(std::string_view xml, const std::string& tag) {
  const std::string open = "<" + tag + ">", close = "</" + tag + ">";
  const size_t begin = xml.find(open);
  if (begin == std::string_view::npos) return std::nullopt;
  const size_t end = xml.find(close, begin);
  if (end == std::string_view::npos) return std::nullopt;
  return xml.substr(begin + open.size(), end - begin - open.size());
}

/// The digits that `text` begins with, as of "61s" and "37  : qmaster enforced ...".
std::optional<int64_t> leading_number(std::string_view text) {
  return read_integer(text.substr(0, text.find_first_not_of("0123456789")));
}

// A record of qacct.
struct Record {
  std::string_view id, name, failed, exit_status, start, end, slots, wallclock, category,
      deleted_by;
};

std::vector<Record> records_of(const std::vector<std::string_view>& lines) {
  const std::pair<std::string_view, std::string_view Record::*> fields[] = {
      {"jobnumber", &Record::id},      {"jobname", &Record::name},
      {"failed", &Record::failed},     {"exit_status", &Record::exit_status},
      {"start_time", &Record::start},  {"end_time", &Record::end},
      {"slots", &Record::slots},       {"ru_wallclock", &Record::wallclock},
      {"category", &Record::category}, {"deleted_by", &Record::deleted_by}};
  std::vector<Record> records;
  for (const std::string_view line : lines) {
    if (line.starts_with("====")) {
      records.emplace_back();
    } else if (!records.empty()) {
      const size_t blank = std::min(line.find(' '), line.size());
      for (const auto& [key, member] : fields)
        if (line.substr(0, blank) == key)
          records.back().*member = without_blanks(line.substr(blank));
    }
  }
  std::erase_if(records, [](const Record& record) {
    return !is_decimal_id(record.id) || record.name.empty() || !leading_number(record.failed);
  });
  return records;
}

// The codes of `failed` (accounting(5)).
constexpr int64_t kMigrating = 24, kRescheduling = 25, kLimitEnforced = 37, kLastBeforeJob = 36,
                  kAfterJob = 100;

bool is_over_walltime(const Record& record) {
  const size_t limit = record.category.find("h_rt=");
  if (limit == std::string_view::npos) return false;
  const auto allowed = leading_number(record.category.substr(limit + 5));
  const auto took = leading_number(record.wallclock);
  return allowed && took && *took >= *allowed;
}

JobStatus status_of(const Record& record) {
  JobStatus status;
  const int64_t failed = *leading_number(record.failed);
  const std::string code(record.exit_status.substr(0, record.exit_status.find(' ')));
  status.state = JobState::kEnded;
  status.native =
      log::printable(failed == 0 ? "exit status " + code : std::string(record.failed), 64);
  if (!record.deleted_by.empty() && record.deleted_by != "NONE" && record.deleted_by != "none")
    status.state = JobState::kCancelled;
  else if (failed == kLimitEnforced || (failed == kAfterJob && is_over_walltime(record)))
    status.cause = EndCause::kWalltime;
  else if (failed > 0 && failed <= kLastBeforeJob)
    status.cause = EndCause::kInfrastructure;
  return status;
}

}  // namespace

JobStatus read_grid_engine_state(std::string_view letters, bool waits_for_job) {
  JobStatus status;
  status.native = log::printable(letters, 64);
  if (letters.empty() || letters.find_first_not_of("qwhrtRsSTdEN") != std::string_view::npos)
    return status;
  const auto has = [&](std::string_view any) {
    return letters.find_first_of(any) != std::string_view::npos;
  };
  if (has("d")) {
    status.state = JobState::kRunning;
    status.is_ending = true;
  } else if (has("E")) {  // it could not start; only an operator or its owner clears the error
    status.state = JobState::kEnded;
    status.cause = EndCause::kInfrastructure;
    status.stays_queued = true;
    status.reason = "Grid Engine could not start it; state " + status.native;
  } else if (has("rtsST")) {
    status.state = JobState::kRunning;
  } else if (has("h") && !waits_for_job) {
    status.state = JobState::kHeld;
  } else if (has("qw")) {
    status.state = JobState::kPending;
  }
  return status;
}

std::vector<std::string> GridEngineCommands::submission(const JobRequest& request,
                                                        bool only_verify) const {
  std::vector<std::string> submit{"qsub"};
  append(submit,
         only_verify ? std::vector<std::string>{"-w", "v"} : std::vector<std::string>{"-terse"});
  append(submit, words_of(grid_engine_options(settings_, request.name, request.directory(),
                                              request.may_requeue)));
  std::vector<std::string> argv = grid_engine_environment();
  append_submission(argv, request.script, std::move(submit));
  return argv;
}

std::vector<std::string> GridEngineCommands::submit(const JobRequest& request) const {
  return submission(request, false);
}

std::vector<std::string> GridEngineCommands::verify(const JobRequest& request) const {
  return submission(request, true);
}

Submission GridEngineCommands::read_submission(const remote::CommandResult& answer) const {
  const std::string_view id = without_blanks(answer.out);
  if (answer.exit_code == 0 && is_decimal_id(id))
    return {Submission::Kind::kAccepted, std::string(id), {}};
  return rejected_submission(answer, kWords, is_decimal_id);
}

// qstat has no option that selects jobs by name and shows their states.
std::vector<std::string> GridEngineCommands::queue(
    const std::vector<std::string>& /*names*/) const {
  std::vector<std::string> argv = grid_engine_environment();
  append(argv, {"sh", "-c",
                "date +%s && qstat -xml -r -u \"$(id -un)\" && echo " + std::string(kEndMark)});
  return argv;
}

std::optional<std::vector<QueueRow>> GridEngineCommands::read_queue(std::string_view text) const {
  constexpr std::string_view kOpen = "<job_list", kClose = "</job_list>";
  const auto now = read_queue_clock(text);
  if (!now || !lines_of(text, kMaxXmlLines) || text.rfind("</job_info>") == std::string_view::npos)
    return std::nullopt;
  std::vector<QueueRow> rows;
  for (size_t begin = text.find(kOpen); begin != std::string_view::npos;) {
    const size_t end = text.find(kClose, begin);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view job = text.substr(begin, end - begin);
    begin = text.find(kOpen, end);
    const auto id = element(job, "JB_job_number"), state = element(job, "state");
    auto name = element(job, "full_job_name");
    if (!name) name = element(job, "JB_name");
    if (!id || !is_decimal_id(*id) || !state || !name || !is_plain_name(*name)) continue;
    QueueRow row{std::string(*id),
                 std::string(*name),
                 {},
                 read_grid_engine_state(*state, element(job, "predecessor_jobs").has_value()),
                 false};
    const auto start = read_iso_time(element(job, "JAT_start_time").value_or(""));
    if (row.status.state == JobState::kRunning && start)
      row.status.ends_in =
          std::chrono::seconds(std::max<int64_t>(0, *start + settings_.time.count() - *now));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<std::string> GridEngineCommands::accounting(
    const std::vector<std::string>& names) const {
  std::vector<std::string> argv = grid_engine_environment();
  append(argv, {"sh", "-c", kAccounting, "sh"});
  append(argv, names);
  return argv;
}

std::optional<std::vector<QueueRow>> GridEngineCommands::read_accounting(
    std::string_view text) const {
  const auto lines = lines_of(text);
  if (!lines) return std::nullopt;
  std::vector<QueueRow> rows;
  for (const Record& record : records_of(*lines)) {
    const int64_t failed = *leading_number(record.failed);
    if (failed == kRescheduling || failed == kMigrating) continue;  // a start of a job that goes on
    rows.push_back(
        {std::string(record.id), std::string(record.name), {}, status_of(record), false});
  }
  return rows;
}

std::optional<std::vector<NamedStart>> GridEngineCommands::read_starts(
    std::string_view text) const {
  const auto lines = lines_of(text);
  if (!lines) return std::nullopt;
  const int64_t per_node = settings_.slots() / settings_.nodes;
  std::vector<NamedStart> starts;
  for (const Record& record : records_of(*lines)) {
    const auto start = read_ctime(record.start), end = read_ctime(record.end);
    const auto slots = read_integer(record.slots);
    if (!start || *start == 0 || !slots || *slots < 1 || *slots > 1'000'000) continue;
    NamedStart named{std::string(record.name),
                     {.job = JobId(std::string(record.id)),
                      .state = status_of(record).native,
                      .start = *start,
                      .end = {},
                      .nodes = static_cast<int>((*slots + per_node - 1) / per_node),
                      .energy_joules = {},
                      .billing = {}}};
    if (end && *end >= *start) named.start.end = *end;
    starts.push_back(std::move(named));
  }
  return starts;
}

std::vector<std::string> GridEngineCommands::cancel(std::string_view id) const {
  std::vector<std::string> argv = grid_engine_environment();
  append(argv, {"qdel", std::string(id)});
  return argv;
}

bool GridEngineCommands::is_cancelled(const remote::CommandResult& answer) const {
  const std::string text = ascii_lower_case(answer.err + answer.out);
  constexpr auto kDone = std::to_array<std::string_view>(
      {"for deletion", "has deleted job", "already in deletion", "does not exist"});
  return contains_any(text, kDone);
}

}  // namespace xffl::submit
