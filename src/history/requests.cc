#include "xffl/history/requests.h"

#include <algorithm>
#include <filesystem>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"

namespace xffl::history {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kWords[] = {"cancel", "pause", "resume"};

Request parse(const std::string& text, const std::string& origin) {
  const Json json = parse_json(text, origin);
  JsonObject object(json, origin);
  const std::string word = object.string("request");
  const auto found = std::find(std::begin(kWords), std::end(kWords), word);
  if (found == std::end(kWords)) object.fail("request", "is not a request");
  Request request;
  request.kind = static_cast<Request::Kind>(found - std::begin(kWords));
  for (const std::string& name : object.strings("facilities"))
    request.facilities.emplace_back(name);
  request.reason = object.string("reason");
  return request;
}

}  // namespace

std::string leave_request(const RunFolder& folder, const Request& request) {
  Json names = Json::array();
  for (const FacilityName& name : request.facilities) names.push_back(name.str());
  const Json json = {{"request", kWords[static_cast<size_t>(request.kind)]},
                     {"facilities", names},
                     {"reason", request.reason}};
  make_dirs(folder.requests());
  const std::string name = format_utc(SystemClock().utc()) + "-" + random_hex(4) + ".json";
  write_file_atomic(folder.requests() / name, json.dump() + "\n");
  return name;
}

std::vector<std::pair<std::string, Request>> pending_requests(const RunFolder& folder) {
  std::vector<std::string> names;
  std::error_code problem;
  for (fs::directory_iterator entry(folder.requests(), problem), end; !problem && entry != end;
       entry.increment(problem))
    if (entry->path().extension() == ".json") names.push_back(entry->path().filename().string());
  if (problem && problem != std::errc::no_such_file_or_directory)
    throw system_error("list " + folder.requests().string(), problem.value());
  std::sort(names.begin(), names.end());
  std::vector<std::pair<std::string, Request>> requests;
  for (const std::string& name : names) try {
      requests.emplace_back(name, parse(read_file(folder.requests() / name, 1 << 16), name));
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kNotFound) continue;  // withdrawn meanwhile
      if (error.kind() == ErrorKind::kIo) throw;           // it may well make sense: look again
      log::warning("a request makes no sense and is removed",
                   {{"file", name}, {"problem", error.what()}});
      remove_request(folder, name);
    }
  return requests;
}

void remove_request(const RunFolder& folder, const std::string& name) {
  std::error_code none;
  fs::remove(folder.requests() / name, none);
}

}  // namespace xffl::history
