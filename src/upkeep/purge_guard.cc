#include "xffl/upkeep/purge_guard.h"

#include <algorithm>
#include <sstream>
#include <string_view>
#include <utility>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/facility/context.h"
#include "xffl/plan/facility_layout.h"
#include "xffl/remote/stop_scope.h"

namespace xffl::upkeep {
namespace {

using std::chrono::days;
using std::chrono::minutes;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr seconds kPatience{60};
constexpr std::string_view kEnd = "xffl-end";

std::string format_time(seconds time) {
  const auto hours = std::chrono::duration_cast<std::chrono::hours>(time);
  if (hours < std::chrono::hours(48)) return std::to_string(hours.count()) + " h";
  return std::to_string(std::chrono::duration_cast<days>(time).count()) + " days";
}

void touch_old_files(remote::Session& session, const RemotePath& folder, seconds purge_after,
                     const std::stop_token& stop) {
  if (!session.stat(folder)) return;  // before the first push
  const auto half = std::chrono::duration_cast<minutes>(purge_after / 2);
  const auto result =
      session.run({"find", "-H", folder.str(), "-type", "f", "-mmin",
                   "+" + std::to_string(half.count()), "-exec", "touch", "-c", "{}", "+"},
                  "", kPatience, stop);
  if (result.exit_code != 0)
    throw Error(ErrorKind::kIo, "cannot touch the files in " + folder.str() + ": " +
                                    log::printable(result.err, 300));
}

}  // namespace

std::vector<std::string> user_files(const config::Facility& facility) {
  std::vector<std::string> files = facility.train_data;
  for (const job::ValidationSet& set : facility.validation) files.push_back(set.path);
  for (const std::string& program : {facility.image.file, facility.trainer_program})
    if (program.starts_with('/')) files.push_back(program);
  return files;
}

std::vector<FileAge> file_ages(remote::Session& session, const RemotePath& workdir,
                               const std::vector<std::string>& files, std::stop_token stop) {
  std::string names;
  for (const std::string& file : files) names += file + "\n";
  const std::string script =
      "date +%s && stat -L -c %d -- \"$1\" || exit 1; "
      "while IFS= read -r file; do stat -L -c '%d %X %Y %n' -- \"$file\" 2>/dev/null; done; echo " +
      std::string(kEnd);
  const auto answer =
      session.run({"sh", "-c", script, "sh", workdir.str()}, names, kPatience, stop);
  std::istringstream lines(answer.out);
  int64_t now = 0, scratch = 0;
  lines >> now >> scratch;
  std::map<std::string, std::optional<seconds>> known;  // empty: on another file system
  std::string line;
  while (std::getline(lines, line) && line != kEnd) {
    std::istringstream fields(line);
    int64_t device = 0, read = 0, written = 0;
    std::string name;
    if (fields >> device >> read >> written && fields.get() == ' ' && std::getline(fields, name))
      known[name] =
          device == scratch
              ? std::optional(seconds(std::max<int64_t>(0, now - std::max(read, written))))
              : std::nullopt;
  }
  if (line != kEnd)
    throw Error(ErrorKind::kIo,
                "cannot read the ages of files at the facility: " +
                    log::printable(answer.err.empty() ? answer.out : answer.err, 300));
  std::vector<FileAge> found;
  for (const std::string& file : files) {
    const auto it = known.find(file);
    if (it == known.end())
      found.push_back({file, std::nullopt});
    else if (it->second)
      found.push_back({file, it->second});
  }
  return found;
}

std::string purge_warning(const FileAge& file, seconds purge_after) {
  if (!file.unused_for) return "does not exist (any more)";
  if (*file.unused_for < purge_after * 3 / 4) return "";
  return "was not used for " + format_time(*file.unused_for) + ": the site removes it after " +
         format_time(purge_after);
}

bool PurgeWatch::is_due(const config::Facility& facility, Clock::MonotonicTime now) {
  if (facility.purge_after.count() == 0) return false;
  const auto last = last_.find(facility.name);
  if (last != last_.end() && now - last->second < facility.purge_after / 8) return false;
  last_[facility.name] = now;
  return true;
}

bool PurgeWatch::is_news(const std::string& key, const FileAge& file, const std::string& warning) {
  if (warning.empty()) {
    reported_.erase(key);
    return false;
  }
  const bool is_gone = !file.unused_for;
  const auto [reported, is_new] = reported_.try_emplace(key, is_gone);
  return is_new || std::exchange(reported->second, is_gone) != is_gone;
}

void PurgeWatch::check(remote::Session& session, const config::Facility& facility,
                       const RemotePath& folder, std::stop_token stop) {
  // A folder that find cannot read, or a file of another user, does not hide the user's old files.
  if (!attempt(facility, "touch",
               [&] { touch_old_files(session, folder, facility.purge_after, stop); }))
    return;
  attempt(facility, "ages", [&] {
    for (const FileAge& file : file_ages(session, facility.workdir, user_files(facility), stop))
      warn_of(facility, file);
  });
}

void PurgeWatch::warn_of(const config::Facility& facility, const FileAge& file) {
  const std::string warning = purge_warning(file, facility.purge_after);
  if (!is_news(facility.name.str() + " " + file.path, file, warning)) return;
  log::warning("a file of the facility's jobs may be purged",
               {{"facility", facility.name.str()},
                {"file", file.path},
                {"problem", warning},
                {"fix",
                 "read or `touch` it there, or move it to a file system without a purge "
                 "policy"}});
}

bool PurgeWatch::attempt(const config::Facility& facility, const std::string& part,
                         const std::function<void()>& body) {
  const std::string key = facility.name.str() + " " + part;
  try {
    body();
    failed_.erase(key);
    return true;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCancelled) throw;
    last_.erase(facility.name);
    const bool answers = error.kind() == ErrorKind::kIo;
    const auto write = answers && failed_.insert(key).second ? log::warning : log::debug;
    write("the check for purged files failed: will retry",
          {{"facility", facility.name.str()}, {"problem", error.what()}});
    return answers;
  }
}

namespace {

// The time between two calls of is_due().
nanoseconds poll_interval(const config::Experiment& experiment) {
  nanoseconds interval = std::chrono::hours(1);
  for (const config::Facility& facility : experiment.facilities)
    if (facility.purge_after.count() > 0)
      interval = std::min(interval, nanoseconds(facility.purge_after) / 64);
  return std::max<nanoseconds>(interval, std::chrono::milliseconds(10));
}

void check_all(facility::Context& context, const std::stop_token& stop) {
  const remote::StopScope scope(stop);
  const nanoseconds interval = poll_interval(context.experiment);
  PurgeWatch watch;
  do
    for (const config::Facility& facility : context.experiment.facilities)
      if (watch.is_due(facility, context.services.clock.monotonic()))
        watch.check(*context.guarded.of(context.services.connect(facility)), facility,
                    plan::facility_folder(context.experiment, context.identity, facility), stop);
  while (context.services.clock.sleep(interval, stop));
}

}  // namespace

std::jthread start_purge_guard(facility::Context& context) {
  const auto& facilities = context.experiment.facilities;
  const auto purges = [](const config::Facility& each) { return each.purge_after.count() > 0; };
  if (std::none_of(facilities.begin(), facilities.end(), purges)) return {};
  return std::jthread([&context](std::stop_token stop) {
    try {
      check_all(context, stop);
    } catch (const std::exception& error) {  // a thread's top
      if (!stop.stop_requested())
        log::warning("the purge guard has ended: files at the sites are no longer checked",
                     {{"problem", error.what()}});
    }
  });
}

}  // namespace xffl::upkeep
