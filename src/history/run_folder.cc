#include "xffl/history/run_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <system_error>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"
#include "xffl/history/run_history.h"

namespace xffl::history {

namespace fs = std::filesystem;

namespace {

std::string format_number(const char* format, int number) {
  char text[32];
  std::snprintf(text, sizeof text, format, number);
  return text;
}

constexpr std::string_view kNames[] = {"cancel", "pause", "resume", "leave", "join"};

Request parse(const std::string& text, const std::string& origin) {
  const Json json = parse_json(text, origin);
  JsonObject object(json, origin);
  const std::string name = object.string("request");
  const auto found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) object.fail("request", "is not a request");
  Request request;
  request.kind = static_cast<Request::Kind>(found - std::begin(kNames));
  for (const std::string& facility : object.strings("facilities"))
    request.facilities.emplace_back(facility);
  request.reason = object.string("reason");
  if (json.contains("now")) request.now = object.boolean("now");
  return request;
}

std::vector<std::string> request_names(const RunFolder& folder) {
  std::vector<std::string> names;
  std::error_code problem;
  for (fs::directory_iterator entry(folder.requests(), problem), end; !problem && entry != end;
       entry.increment(problem))
    if (entry->path().extension() == ".json") names.push_back(entry->path().filename().string());
  if (problem && problem != std::errc::no_such_file_or_directory)
    throw system_error("list " + folder.requests().string(), problem.value());
  std::sort(names.begin(), names.end());
  return names;
}

// "<time>-n<number>-<random>.json". The name sorts after all pending requests, also when they are
// of the same millisecond or when the clock was set back.
std::string next_request_name(const std::vector<std::string>& pending) {
  std::string time = format_utc(SystemClock().utc());
  int number = 0;
  if (!pending.empty() && pending.back().compare(0, time.size(), time) >= 0) {
    const std::string& last = pending.back();
    time = last.substr(0, time.size());
    if (std::sscanf(last.c_str() + time.size(), "-n%8d-", &number) == 1) ++number;
  }
  return time + format_number("-n%08d-", number) + random_hex(4) + ".json";
}

TrainingProgress parse_progress(JsonObject json) {
  return {static_cast<int>(json.integer("attempt", 0, 1 << 30)), json.integer("step", 0),
          json.integer("steps", 0), json.number("loss"), json.number("tokens_per_second")};
}

}  // namespace

Json training_json(const TrainingProgress& training) {
  return {{"attempt", training.attempt},
          {"step", training.step},
          {"steps", training.steps},
          {"loss", training.loss},
          {"tokens_per_second", training.tokens_per_second}};
}

fs::path RunFolder::round(int round) const { return path_ / format_number("r%04d", round); }

std::optional<RunName> latest_run(const fs::path& runs) {
  int newest = 0;
  std::error_code problem;
  for (fs::directory_iterator entry(runs, problem), end; !problem && entry != end;
       entry.increment(problem)) {
    const std::string name = entry->path().filename().string();
    if (name.size() < 4 || name.size() > 9 ||
        name.find_first_not_of("0123456789") != std::string::npos)
      continue;
    newest = std::max(newest, std::stoi(name));
  }
  // A folder that cannot be listed may hold the run to continue.
  if (problem && problem != std::errc::no_such_file_or_directory)
    throw system_error("list " + runs.string(), problem.value());
  if (newest == 0) return std::nullopt;
  return RunName(format_number("%04d", newest));
}

RunName next_run(const fs::path& runs) {
  const auto latest = latest_run(runs);
  return RunName(format_number("%04d", latest ? std::stoi(latest->str()) + 1 : 1));
}

std::string leave_request(const RunFolder& folder, const Request& request) {
  Json names = Json::array();
  for (const FacilityName& name : request.facilities) names.push_back(name.str());
  Json json = {{"request", kNames[static_cast<size_t>(request.kind)]},
               {"facilities", names},
               {"reason", request.reason}};
  if (request.now) json["now"] = true;
  make_dirs(folder.requests());
  const std::string name = next_request_name(request_names(folder));
  write_file_atomic(folder.requests() / name, json.dump() + "\n");
  return name;
}

std::vector<std::pair<std::string, Request>> pending_requests(const RunFolder& folder,
                                                              std::string* problem) {
  std::vector<std::pair<std::string, Request>> requests;
  for (const std::string& name : request_names(folder)) try {
      requests.emplace_back(name, parse(read_file(folder.requests() / name, 1 << 16), name));
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kNotFound) continue;  // removed meanwhile
      if (error.kind() == ErrorKind::kIo) {                // it may be valid: retry
        if (problem != nullptr) *problem = error.what();
        continue;
      }
      log::warning("an invalid request is removed", {{"file", name}, {"problem", error.what()}});
      remove_request(folder, name);
    }
  return requests;
}

void remove_request(const RunFolder& folder, const std::string& name) {
  std::error_code none;
  fs::remove(folder.requests() / name, none);
}

StatusFile::StatusFile(std::filesystem::path path, const Clock& clock, RunHistory* history,
                       std::chrono::milliseconds interval)
    : path_(std::move(path)),
      clock_(clock),
      history_(history),
      interval_(interval),
      thread_([this](const std::stop_token& stop) { write_changes(stop); }) {}

StatusFile::~StatusFile() {
  thread_.request_stop();
  thread_.join();
  try {
    if (history_ != nullptr && !history_->is_writer()) return;
  } catch (const Error&) {
    return;
  }
  std::error_code none;
  std::filesystem::remove(path_, none);
}

void StatusFile::show(int round, const FacilityName& facility, const std::string& activity) {
  {
    const std::lock_guard lock(mutex_);
    FacilityActivity& entry = facilities_[facility];
    if (entry.round == round && entry.activity == activity) return;
    if (entry.round != round) entry.training.reset();
    entry = {round, activity, format_utc(clock_.utc()), entry.training};
    is_written_ = false;
  }
  changed_.notify_one();
}

void StatusFile::show_training(int round, const FacilityName& facility,
                               const TrainingProgress& training) {
  {
    const std::lock_guard lock(mutex_);
    const auto entry = facilities_.find(facility);
    if (entry == facilities_.end() || entry->second.round != round ||
        entry->second.training == training)
      return;
    entry->second.training = training;
    is_written_ = false;
  }
  changed_.notify_one();
}

void StatusFile::write_changes(const std::stop_token& stop) {
  SystemClock clock;
  do {
    Activities facilities;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, stop, interval_, [&] { return !is_written_; });
      if (stop.stop_requested()) return;
      facilities = facilities_;
      is_written_ = true;
    }
    Json json = Json::object();
    for (const auto& [name, live] : facilities) {
      Json& entry = json[name.str()];
      entry = {{"round", live.round}, {"doing", live.activity}, {"since", live.since_utc}};
      if (live.training) entry["training"] = training_json(*live.training);
    }
    const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    try {
      history_ != nullptr ? history_->write_file(path_, text) : write_file_atomic(path_, text);
    } catch (const std::exception& error) {  // a thread's top
      log::debug("live.json was not written", {{"problem", error.what()}});
    }
  } while (clock.sleep(std::chrono::milliseconds(200), stop));
}

Activities read_activities(const std::filesystem::path& path) {
  Activities live;
  try {
    const Json json = parse_json(read_file(path, 1 << 20), path.string());
    for (const auto& [name, entry] : json.items()) {
      JsonObject object(entry, name);
      FacilityActivity& activity = live[FacilityName(name)];
      activity = {static_cast<int>(object.integer("round")), object.string("doing"),
                  object.string("since")};
      if (object.has("training")) activity.training = parse_progress(object.object("training"));
    }
  } catch (const Error&) {
    return {};
  }
  return live;
}

std::optional<Clock::UtcTime> last_sign_of_life(const std::filesystem::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  return Clock::UtcTime(std::chrono::duration_cast<Clock::UtcTime::duration>(
      std::chrono::seconds(info.st_mtim.tv_sec) + std::chrono::nanoseconds(info.st_mtim.tv_nsec)));
}

}  // namespace xffl::history
