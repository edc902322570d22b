#include "flux_commands.h"

#include <algorithm>
#include <array>

#include "xffl/base/log.h"
#include "xffl/base/utf8.h"

namespace xffl::submit {
namespace {

constexpr auto kFluxVariables = std::to_array<std::string_view>({"FLUX_JOBS_FORMAT_DEFAULT"});

// flux batch prints the id in base 58, whose form depends on the locale. A wrapper of the site may
// fail after the submission, and the conversion may fail: the answer shows the id nevertheless,
// with the exit status of the submission.
constexpr const char* kFluxSubmit = R"sh(id=$(flux batch "$@")
code=$?
[ -z "$id" ] || flux job id --to=dec "$id" 2>/dev/null || printf '%s\n' "$id"
exit $code
)sh";

// `h` makes an empty field "-". The name comes last: the other fields have no '|'.
constexpr const char* kFluxQueue = R"sh(date +%s
for name; do
  flux jobs -a -n --name="$name" --format="{id.dec}|{state}|{result:h}|{returncode:h}|{urgency}|{t_remaining:h}|{exception.type:h}|{name}" || exit 1
done
echo xffl-end
)sh";

constexpr auto kFluxUnknownOutcomes = std::to_array<std::string_view>({
    "timeout",
    "timed out",
    "connection reset",
    "broken pipe",
    "lost connection",
});
constexpr auto kFluxTemporaryReasons = std::to_array<std::string_view>({
    "unable to connect to flux",
    "connection refused",
    "submission is disabled",
    "submission disabled",
    "no space left",
    "cannot allocate memory",
    "script did not arrive whole",
});
constexpr auto kFluxPermanentReasons = std::to_array<std::string_view>({
    "invalid queue",
    "unsatisfiable",
    "exceeds policy limit",
    "exceeds limit",
    "invalid argument",
    "unrecognized arguments",
    "argument parsing failed",
    "no default bank",
    "invalid bank",
    "user/bank",
    "usage: flux",
    "invalid jobspec",
    "permission denied",
});
constexpr RejectionWords kFluxWords{kFluxUnknownOutcomes, kFluxTemporaryReasons,
                                    kFluxPermanentReasons};

struct FluxJob {
  std::string_view id, state, result, returncode, urgency, remaining, exception, name;
};

std::optional<FluxJob> read_flux_line(std::string_view line) {
  FluxJob job;
  for (std::string_view* field : {&job.id, &job.state, &job.result, &job.returncode, &job.urgency,
                                  &job.remaining, &job.exception}) {
    const size_t end = line.find('|');
    if (end == std::string_view::npos) return std::nullopt;
    *field = without_blanks(line.substr(0, end));
    line.remove_prefix(end + 1);
  }
  job.name = without_blanks(line);
  return job;
}

JobStatus ended_flux_job(const FluxJob& job) {
  JobStatus status;
  status.native = log::printable(std::string(job.result) + " " + std::string(job.returncode), 64);
  if (job.result == "COMPLETED" || job.result == "FAILED" || job.result == "TIMEOUT")
    status.state = JobState::kEnded;
  if (job.result == "CANCELED") status.state = JobState::kCancelled;
  if (job.result == "TIMEOUT") status.cause = EndCause::kWalltime;
  // The job's processes could not start, or a node was lost. A script's exit code raises none.
  constexpr auto kNodes = std::to_array<std::string_view>({"exec", "node-failure", "prolog"});
  if (job.result == "FAILED" && std::ranges::find(kNodes, job.exception) != kNodes.end())
    status.cause = EndCause::kInfrastructure;
  return status;
}

JobStatus status_of_flux_job(const FluxJob& job) {
  if (job.state == "INACTIVE") return ended_flux_job(job);
  JobStatus status;
  status.native = log::printable(job.state, 64);
  if (job.state == "RUN" || job.state == "CLEANUP") {
    status.state = JobState::kRunning;
    status.is_ending = job.state == "CLEANUP";
    if (const auto seconds = read_integer(job.remaining.substr(0, job.remaining.find('.'))))
      status.ends_in = std::chrono::seconds(*seconds);
  } else if (job.urgency == "0") {
    status.state = JobState::kHeld;
    status.reason = "its urgency is 0";
  } else if (job.state == "NEW" || job.state == "DEPEND" || job.state == "PRIORITY" ||
             job.state == "SCHED") {
    status.state = JobState::kPending;
  }
  return status;
}

}  // namespace

bool FluxCommands::is_id(std::string_view text) const {
  return !text.empty() && text.size() <= 20 && text.front() != '0' &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::vector<std::string> FluxCommands::submit(const JobRequest& request) const {
  std::vector<std::string> batch{"sh", "-c", kFluxSubmit, "sh"};
  append(batch, flux_options(settings_, request.name, request.directory()));
  std::vector<std::string> argv = clean_environment(kFluxVariables);
  append_submission(argv, request.script, std::move(batch));
  return argv;
}

Submission FluxCommands::read_submission(const remote::CommandResult& answer) const {
  const std::string_view id = without_blanks(answer.out);
  if (answer.exit_code == 0 && is_id(id)) return {Submission::Kind::kAccepted, std::string(id), {}};
  return rejected_submission(answer, kFluxWords,
                             [this](std::string_view line) { return is_id(line); });
}

std::vector<std::string> FluxCommands::queue(const std::vector<std::string>& names) const {
  std::vector<std::string> argv = clean_environment(kFluxVariables);
  append(argv, {"sh", "-c", kFluxQueue, "sh"});
  append(argv, names);
  return argv;
}

std::optional<std::vector<QueueRow>> FluxCommands::read_queue(std::string_view text) const {
  const auto lines = lines_of(text);
  if (!lines || !read_queue_clock(text)) return std::nullopt;
  std::vector<QueueRow> rows;
  for (const std::string_view line : *lines) {
    const auto job = read_flux_line(line);
    if (!job || !is_id(job->id) || !is_plain_name(job->name)) continue;
    rows.push_back(
        {std::string(job->id), std::string(job->name), {}, status_of_flux_job(*job), false});
  }
  return rows;
}

std::vector<std::string> FluxCommands::cancel(std::string_view id) const {
  std::vector<std::string> argv = clean_environment(kFluxVariables);
  append(argv, {"flux", "cancel", std::string(id)});
  return argv;
}

bool FluxCommands::is_cancelled(const remote::CommandResult& answer) const {
  constexpr auto kGone = std::to_array<std::string_view>({"inactive", "unknown job"});
  return answer.exit_code == 0 || contains_any(ascii_lower_case(answer.err + answer.out), kGone);
}

}  // namespace xffl::submit
