#include "facility_room.h"

#include <cstdio>
#include <sstream>

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl {
namespace {

using Grade = Finding::Grade;

constexpr std::chrono::seconds kPatience{30};
constexpr uint64_t kFewFiles = 5'000, kTooFewFiles = 200;  // a round makes some dozens
constexpr int kInMemory = 95;                              // no room is taken where it is memory

// The kind of file system, its files and how many are free; then the room is reserved.
constexpr const char* kScript = R"(
LC_ALL=C; export LC_ALL
kind=$(stat -f -c %T -- "$1") && stat -f -c '%T %c %d' -- "$1" || exit 94
case $kind in tmpfs|ramfs) exit 95;; esac
fallocate -l "$2" -- "$1/.xffl-room" 2>&1
code=$?
rm -f -- "$1/.xffl-room"
exit $code
)";

Finding files(const std::string& line) {
  std::istringstream words(line);
  std::string kind;
  uint64_t all = 0, free = 0;
  if (!(words >> kind >> all >> free) || all == 0)
    return {Grade::kGood, "free files", "not looked at: the file system does not count them", ""};
  Finding finding{Grade::kGood, "free files",
                  std::to_string(free) + " in the file system; a quota of files was not looked at",
                  ""};
  if (free >= kFewFiles) return finding;
  finding.grade = free < kTooFewFiles ? Grade::kBad : Grade::kWarning;
  finding.fix = "remove files there, or choose another workdir";
  return finding;
}

Finding reserved(const remote::CommandResult& answer, const std::string& words, uint64_t needed) {
  const std::string room = gigabytes(needed);
  if (answer.exit_code == 0)
    return {Grade::kGood, "quota", room + " could be reserved, and were given back", ""};
  const bool quota = words.find("quota exceeded") != std::string::npos;
  if (quota || words.find("No space left") != std::string::npos)
    return {Grade::kBad, "quota", room + " cannot be reserved: " + log::printable(words, 300),
            std::string(quota ? "your quota" : "the file system") +
                " does not leave what a round needs: remove files, ask for more, or choose "
                "another workdir"};
  const std::string why = answer.exit_code == kInMemory ? "the file system is memory"
                          : words.empty() ? "exit code " + std::to_string(answer.exit_code)
                                          : log::printable(words, 200);
  return {answer.exit_code == kInMemory ? Grade::kGood : Grade::kWarning, "quota",
          "not looked at: no room can be reserved there to see (" + why + ")",
          answer.exit_code == kInMemory
              ? ""
              : "look yourself with `quota` or `lfs quota`: a round needs about " + room};
}

}  // namespace

std::string gigabytes(uint64_t bytes) {
  char text[40];
  const double value = static_cast<double>(bytes);
  if (bytes < 100'000'000)
    std::snprintf(text, sizeof text, "%.1f MB", value / 1e6);
  else
    std::snprintf(text, sizeof text, "%.1f GB", value / 1e9);
  return text;
}

Finding free_space(const std::string& where, uint64_t free, uint64_t needed) {
  Finding finding{Grade::kGood, "free space",
                  gigabytes(free) + " in " + where + "; a round needs about " + gigabytes(needed),
                  ""};
  if (free >= needed) return finding;
  finding.grade = Grade::kBad;
  finding.fix = "remove files, ask for more room, or choose another workdir";
  return finding;
}

std::vector<Finding> examine_room(remote::Session& session, const RemotePath& folder,
                                  uint64_t needed) {
  std::vector<Finding> findings;
  const auto free = session.free_bytes(folder);
  if (free)
    findings.push_back(free_space(folder.str(), *free, needed));
  else
    findings.push_back({Grade::kWarning, "free space", "the facility does not say",
                        "look there: a round needs about " + gigabytes(needed)});
  if (findings.back().grade == Grade::kBad) return findings;
  // At least a block: what is over its quota has no room for that either.
  const std::string bytes = std::to_string(std::max<uint64_t>(needed, 4096));
  const auto answer =
      session.run({"sh", "-c", kScript, "sh", folder.str(), bytes}, "", kPatience, {});
  const size_t end = std::min(answer.out.find('\n'), answer.out.size());
  findings.push_back(files(answer.out.substr(0, end)));
  std::string words = answer.out.substr(std::min(end + 1, answer.out.size()));
  while (!words.empty() && words.back() == '\n') words.pop_back();
  findings.push_back(reserved(answer, words, needed));
  return findings;
}

}  // namespace xffl
