#include "xffl/history/status_file.h"

#include <system_error>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"

namespace xffl::history {

StatusFile::~StatusFile() {
  std::error_code none;
  std::filesystem::remove(path_, none);
}

void StatusFile::show(int round, const FacilityName& facility, const std::string& doing) {
  const std::lock_guard lock(mutex_);
  FacilityActivity& entry = facilities_[facility];
  if (entry.round == round && entry.doing == doing) return;
  entry = {round, doing, format_utc(clock_.utc())};
  Json json;
  for (const auto& [name, live] : facilities_)
    json[name.str()] = {{"round", live.round}, {"doing", live.doing}, {"since", live.since_utc}};
  try {
    write_file_atomic(path_, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  } catch (const Error& error) {
    log::debug("live.json was not written", {{"problem", error.what()}});
  }
}

Activities read_activities(const std::filesystem::path& path) {
  Activities live;
  try {
    const Json json = parse_json(read_file(path, 1 << 20), path.string());
    for (const auto& [name, entry] : json.items()) {
      JsonObject object(entry, name);
      live[FacilityName(name)] = {static_cast<int>(object.integer("round")), object.string("doing"),
                                  object.string("since")};
    }
  } catch (const Error&) {
    return {};
  }
  return live;
}

}  // namespace xffl::history
