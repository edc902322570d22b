#include "disk_space.h"

#include <cstdio>
#include <sstream>

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl {
namespace {

using Severity = CheckResult::Severity;

constexpr std::chrono::seconds kPatience{30};
constexpr uint64_t kFewFiles = 5'000, kTooFewFiles = 200;  // a round makes some dozens
constexpr int kInMemory = 95;  // exit code of kScript: tmpfs, where a reservation takes memory

// Prints the kind of file system with its total and free files, then reserves the bytes.
constexpr const char* kScript = R"(
LC_ALL=C; export LC_ALL
kind=$(stat -f -c %T -- "$1") && stat -f -c '%T %c %d' -- "$1" || exit 94
case $kind in tmpfs|ramfs) exit 95;; esac
fallocate -l "$2" -- "$1/.xffl-space" 2>&1
code=$?
rm -f -- "$1/.xffl-space"
exit $code
)";

std::string gigabytes(uint64_t bytes) {
  char text[40];
  const double value = static_cast<double>(bytes);
  if (bytes < 100'000'000)
    std::snprintf(text, sizeof text, "%.1f MB", value / 1e6);
  else
    std::snprintf(text, sizeof text, "%.1f GB", value / 1e9);
  return text;
}

CheckResult check_free_files(const std::string& line) {
  std::istringstream fields(line);
  std::string kind;
  uint64_t all = 0, free = 0;
  if (!(fields >> kind >> all >> free) || all == 0)
    return {Severity::kOk, "free files", "not checked: the file system does not count them", ""};
  CheckResult result{Severity::kOk, "free files",
                     std::to_string(free) + " in the file system; a quota of files was not checked",
                     ""};
  if (free >= kFewFiles) return result;
  result.severity = free < kTooFewFiles ? Severity::kError : Severity::kWarning;
  result.fix = "remove files there, or choose another workdir";
  return result;
}

CheckResult check_quota(const remote::CommandResult& answer, const std::string& message,
                        uint64_t needed) {
  const std::string space = gigabytes(needed);
  if (answer.exit_code == 0)
    return {Severity::kOk, "quota", space + " could be reserved, and were released", ""};
  const bool quota = message.find("quota exceeded") != std::string::npos;
  if (quota || message.find("No space left") != std::string::npos)
    return {Severity::kError, "quota",
            space + " cannot be reserved: " + log::printable(message, 300),
            std::string(quota ? "your quota" : "the file system") +
                " does not leave the space of a round: remove files, ask for more, or choose "
                "another workdir"};
  const std::string why = answer.exit_code == kInMemory ? "the file system is memory"
                          : message.empty() ? "exit code " + std::to_string(answer.exit_code)
                                            : log::printable(message, 200);
  return {answer.exit_code == kInMemory ? Severity::kOk : Severity::kWarning, "quota",
          "not checked: space cannot be reserved there (" + why + ")",
          answer.exit_code == kInMemory
              ? ""
              : "check with `quota` or `lfs quota`: a round needs about " + space};
}

}  // namespace

std::optional<facility::ModelBytes> bytes_of_model(const config::Experiment& experiment) try {
  return facility::model_bytes(experiment, experiment.model);
} catch (const Error&) {
  return std::nullopt;
}

CheckResult check_free_space(const std::string& folder, uint64_t free, uint64_t needed) {
  CheckResult result{
      Severity::kOk, "free space",
      gigabytes(free) + " in " + folder + "; a round needs about " + gigabytes(needed), ""};
  if (free >= needed) return result;
  result.severity = Severity::kError;
  result.fix = "remove files, ask for more space, or choose another workdir";
  return result;
}

std::vector<CheckResult> check_disk_space(remote::Session& session, const RemotePath& folder,
                                          uint64_t needed) {
  std::vector<CheckResult> results;
  const auto free = session.free_bytes(folder);
  if (free)
    results.push_back(check_free_space(folder.str(), *free, needed));
  else
    results.push_back({Severity::kWarning, "free space", "the facility does not report it",
                       "check it there: a round needs about " + gigabytes(needed)});
  if (results.back().severity == Severity::kError) return results;
  // At least one block, so that a user over quota is noticed with a small model, too.
  const std::string bytes = std::to_string(std::max<uint64_t>(needed, 4096));
  const auto answer =
      session.run({"sh", "-c", kScript, "sh", folder.str(), bytes}, "", kPatience, {});
  const size_t end = std::min(answer.out.find('\n'), answer.out.size());
  results.push_back(check_free_files(answer.out.substr(0, end)));
  std::string message = answer.out.substr(std::min(end + 1, answer.out.size()));
  while (!message.empty() && message.back() == '\n') message.pop_back();
  results.push_back(check_quota(answer, message, needed));
  return results;
}

}  // namespace xffl
