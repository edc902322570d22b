#include "slurm_checks.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <string_view>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/facility/render.h"

namespace xffl {
namespace {

using Severity = CheckResult::Severity;
using std::chrono::seconds;

constexpr seconds kPatience{30};
constexpr const char* kControllerFix =
    "Slurm does not take requests now: try again later, or ask the site; the requested allocation "
    "was not checked";

std::optional<long> number(std::string_view digits) {
  long value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 0 || value > 1000000)
    return std::nullopt;
  return value;
}

bool is_among(std::string_view name, std::string_view partitions) {
  return ("," + std::string(partitions) + ",").find("," + std::string(name) + ",") !=
         std::string::npos;
}

// "2-00:00:00", "12:00:00", "30:00", "30" (minutes); nothing for "infinite" and for other text.
std::optional<seconds> slurm_time(std::string_view text) {
  long days = 0;
  if (const size_t dash = text.find('-'); dash != std::string_view::npos) {
    const auto parsed = number(text.substr(0, dash));
    if (!parsed) return std::nullopt;
    days = *parsed;
    text.remove_prefix(dash + 1);
  }
  std::vector<long> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    const auto parsed = number(text.substr(begin, end - begin));
    if (!parsed) return std::nullopt;
    parts.push_back(*parsed);
    begin = end + 1;
  }
  if (parts.size() > 3) return std::nullopt;
  if (parts.size() == 1) return std::chrono::minutes(days * 1440 + parts[0]);
  const long hours = parts.size() == 3 ? parts[0] : 0;
  return std::chrono::hours(days * 24 + hours) + std::chrono::minutes(parts[parts.size() - 2]) +
         seconds(parts.back());
}

// The longest walltime in `sinfo -h -o '%P %l'` of `partitions` (separated by commas; empty: the
// default partition, marked '*'). Nothing when one of them is unlimited or unknown.
std::optional<seconds> longest_walltime(std::string_view sinfo, std::string_view partitions) {
  std::optional<seconds> longest;
  std::istringstream lines{std::string(sinfo)};
  for (std::string name, limit; lines >> name >> limit;) {
    const bool is_default = name.ends_with('*');
    if (is_default) name.pop_back();
    if (partitions.empty() ? !is_default : !is_among(name, partitions)) continue;
    const auto time = slurm_time(limit);
    if (!time) return std::nullopt;
    longest = std::max(longest.value_or(seconds(0)), *time);
  }
  return longest;
}

// A warning, not an error: some QOS lift the partition's limit.
std::optional<CheckResult> check_walltime(const config::Facility& facility,
                                          remote::Session& session) {
  std::vector<std::string> argv = {"sinfo", "-h", "-o", "%P %l"};
  if (!facility.slurm.cluster.empty()) argv.push_back("--clusters=" + facility.slurm.cluster);
  const auto answer = session.run(argv, "", kPatience, {});
  const auto limit =
      answer.exit_code == 0 ? longest_walltime(answer.out, facility.slurm.partition) : std::nullopt;
  if (!limit || facility.slurm.time <= *limit) return std::nullopt;
  return CheckResult{Severity::kWarning, "walltime",
                     "slurm.time is " + std::to_string(facility.slurm.time.count() / 60) +
                         " min, the partition allows " + std::to_string(limit->count() / 60) +
                         " min: the job may stay pending",
                     "shorten slurm.time, or choose another partition"};
}

CheckResult check_allocation(const config::Experiment& experiment, const config::Facility& facility,
                             remote::Session& session, const facility::Services& services) {
  const auto script = facility::render_script(experiment, facility::preview_state(), facility.name,
                                              std::nullopt, services.programs);
  // The attempt's folder does not exist yet; --test-only needs any existing folder.
  const submit::TestOnly answer = submit::test_only(
      session, facility.slurm, {script.job_name, script.script, facility.workdir}, {});
  const std::string message = log::printable(answer.answer, 300);
  if (answer.accepted) return {Severity::kOk, "allocation", message, ""};
  return {Severity::kError, "allocation", message,
          answer.permanent ? "correct account, partition, qos, nodes or time in xffl.yaml"
                           : kControllerFix};
}

}  // namespace

std::vector<CheckResult> check_slurm(const config::Experiment& experiment,
                                     const config::Facility& facility, remote::Session& session,
                                     const facility::Services& services) {
  std::vector<CheckResult> results;
  const auto fail = [&](const char* check, const Error& error, const char* fix) {
    results.push_back({Severity::kError, check, error.what(), fix});
    return results;
  };
  try {
    const auto version = session.run({"sbatch", "--version"}, "", kPatience, {});
    if (version.exit_code != 0) throw Error(ErrorKind::kRemote, log::printable(version.err, 300));
    const std::string line = version.out.substr(0, version.out.find('\n'));
    results.push_back({Severity::kOk, "Slurm", log::printable(line, 100), ""});
  } catch (const Error& error) {
    return fail("Slurm", error, "is Slurm in the PATH of a log-in without a terminal?");
  }
  try {
    results.push_back(check_allocation(experiment, facility, session, services));
    if (results.back().severity != Severity::kOk) return results;
    if (auto walltime = check_walltime(facility, session)) results.push_back(*std::move(walltime));
  } catch (const Error& error) {
    return fail("allocation", error, kControllerFix);
  }
  return results;
}

}  // namespace xffl
