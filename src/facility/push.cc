// What goes to a facility ahead of its job: the model to start from, and job.json.
//
// How it works: manifests and sizes say what is there, and nothing is hashed at the facility, where
// that would be a log-in node's work. The job looks at the hashes; what it finds damaged it says in
// a file, and the next attempt's push compares every chunk.
#include <algorithm>
#include <cstdio>

#include "facility_actions.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/facility/facility_errors.h"
#include "xffl/facility/packed_models.h"
#include "xffl/transfer/rate_meter.h"

namespace xffl::facility {

namespace fs = std::filesystem;
using checkpoint::Manifest;

namespace {

constexpr std::string_view kModelFailure = "out/model.failure";  // job::model_failure_path()
constexpr std::string_view kMended = "out/model.failure.mended";
constexpr std::string_view kModelHashes = "model.sha256";  // for `sha256sum --check`
constexpr int kLookBack = 64;                              // attempts, whose complaints are read
constexpr uint64_t kSmallModelBytes = 16u << 20;           // there is room for such

RemotePath models(const plan::FacilityPlan& facility) { return facility.folder / "models"; }

std::string hash_lines(const fs::path& model, const std::string& at) {
  std::string lines;
  for (const checkpoint::ManifestFile& file : checkpoint::read_manifest(model).files)
    lines += file.sha256 + "  " + at + "/" + file.name + "\n";
  return lines;
}

}  // namespace

transfer::OnProgress FacilityActions::shown(const std::string& doing, const RemotePath& folder) {
  static constexpr Nanoseconds kInterval = std::chrono::seconds(2);
  auto meter = std::make_shared<transfer::RateMeter>();
  auto last = std::make_shared<Nanoseconds>(context_.services.clock.monotonic().time_since_epoch());
  uint64_t* in_place = &in_place_[folder.str()];
  return [this, doing, meter, last, in_place](const transfer::Progress& progress) {
    // What was there and did not have to be moved is what earlier tries have left.
    const uint64_t there =
        progress.done_bytes - std::min(progress.done_bytes, progress.moved_bytes);
    gained_ += there - std::min(there, *in_place);
    *in_place = std::max(*in_place, there);
    const Nanoseconds now = context_.services.clock.monotonic().time_since_epoch();
    meter->add(now, progress);
    if (now - *last < kInterval) return;
    *last = now;
    char text[120];
    std::snprintf(text, sizeof text, "%s %.1f of %.1f MB, %.1f MB/s", doing.c_str(),
                  static_cast<double>(progress.done_bytes) / 1e6,
                  static_cast<double>(progress.total_bytes) / 1e6, meter->bytes_per_second() / 1e6);
    std::string words = text;
    if (const auto left = meter->time_left())
      words += ", " + std::to_string(left->count()) + " s left";
    context_.live.show(plan_.round, facility_.facility, words);
  };
}

// A job may wait in a queue for longer than a site leaves its model alone.
void FacilityActions::look_after_model(int attempt, std::stop_token stop) {
  if (settings_.purge_after.count() == 0) return;
  const auto now = context_.services.clock.monotonic();
  if (model_seen_ && now - *model_seen_ < settings_.purge_after / 8) return;
  job::JobSpec told = spec(attempt);
  const history::FacilityState known = state(plan_.round);
  const bool packed = known.current() != nullptr && known.current()->packed;
  const history::Pushed pushed = push_base(attempt, told, packed, false, stop);
  model_seen_ = now;
  if (pushed.moved_bytes > 0)
    log::warning("the model was no longer whole at the facility and was sent again",
                 {{"facility", facility_.facility.str()}, {"bytes", pushed.moved_bytes}});
}

Event FacilityActions::push(int attempt, std::stop_token stop) {
  job::JobSpec told = spec(attempt);
  const auto complaints =
      at_the_facility([&] { return complaints_before(attempt, kModelFailure); });
  const auto known = [this](int round) { return state(round); };
  const bool packs = takes_packed(settings_, plan_, attempt, known);
  const history::Pushed pushed = push_base(attempt, told, packs, !complaints.empty(), stop);
  model_seen_ = context_.services.clock.monotonic();
  for (const int earlier : complaints)
    at_the_facility(
        [&] { session_->rename(folder(earlier) / kModelFailure, folder(earlier) / kMended); });
  const std::string job_json = job::format_job_spec(told);
  make_dirs(archive());
  for (const auto& parent : {archive().parent_path(), context_.folder.path()}) fsync_dir(parent);
  write_file_atomic(archive() / "job.json", job_json);
  const std::vector<remote::NewFile> beside = {
      {"out/", ""}, {std::string(kModelHashes), model_hashes(told)}, {"job.json", job_json}};
  at_the_facility([&] { session_->put_files(folder(attempt), beside); });
  return Pushed{pushed};
}

// The earlier attempts that have left such a file.
std::vector<int> FacilityActions::complaints_before(int attempt, std::string_view name) {
  std::vector<int> numbers;
  std::vector<remote::FileQuery> queries;
  for (int number = std::max(1, attempt - kLookBack); number < attempt; ++number) {
    numbers.push_back(number);
    queries.push_back({folder(number).filename() + "/" + std::string(name), 0});
  }
  if (queries.empty()) return {};
  const std::vector<remote::FileView> views = session_->look(facility_.round_folder, queries);
  std::vector<int> found;
  for (size_t i = 0; i < numbers.size(); ++i)
    if (views.at(i).info) found.push_back(numbers[i]);
  return found;
}

// Once in a round: a job that complains of what has just been compared is wrong in another way.
std::string FacilityActions::given_model_problem(int attempt) {
  const std::string said = last_words(*session_, folder(attempt) / kModelFailure);
  return said.empty() || !complaints_before(attempt, kMended).empty() ? "" : said;
}

// xffl-train looks at the hashes itself; ahead of a trainer of one's own the job's script does.
std::string FacilityActions::model_hashes(const job::JobSpec& told) const {
  if (settings_.trainer_command.empty() || told.base_model_packed) return "";
  const fs::path given = context_.folder.global(plan_.round - 1);
  if (told.adapter_path.empty()) return hash_lines(given, told.base_model_path);
  return hash_lines(context_.folder.adapted(), told.base_model_path) +
         hash_lines(given, told.adapter_path);
}

history::Pushed FacilityActions::push_base(int attempt, job::JobSpec& spec, bool packs, bool doubts,
                                           std::stop_token stop) {
  if (packs)
    if (const auto pushed = push_packed(attempt, spec, stop)) return *pushed;
  Moved moved =
      push_model(context_.folder.global(plan_.round - 1), facility_.model_folder, doubts, stop);
  if (!plan_.adapted_sha256.empty()) {
    const Moved more =
        push_model(context_.folder.adapted(), facility_.adapted_folder, doubts, stop);
    moved = {moved.bytes + more.bytes, moved.seconds + more.seconds};
  }
  return {.moved_bytes = static_cast<int64_t>(moved.bytes), .seconds = moved.seconds};
}

// Nothing where it has to come whole: it cannot be packed, or a site has purged what it would be
// made of.
std::optional<history::Pushed> FacilityActions::push_packed(int attempt, job::JobSpec& spec,
                                                            std::stop_token stop) {
  const auto packed = context_.packed.of(context_.folder, plan_.round, stop);
  if (!packed) return std::nullopt;
  const Manifest whole = checkpoint::read_manifest(context_.folder.global(plan_.round - 1));
  const Manifest before = checkpoint::read_manifest(context_.folder.global(plan_.round - 2));
  const RemotePath reference = models(facility_) / before.root_sha256().substr(0, 16);
  if (!at_the_facility([&] { return transfer::is_there(*session_, before, reference); })) {
    log::warning(
        "the model of the round before is no longer whole at the facility: this one is "
        "sent whole",
        {{"facility", facility_.facility.str()}, {"folder", reference.str()}});
    return std::nullopt;
  }
  const std::string sha256 = packed->root_sha256();
  const RemotePath to = facility_.round_folder / ("packed-" + sha256.substr(0, 16));
  const Moved moved = push_model(context_.folder.packed(plan_.round - 1), to, false, stop);
  // The job makes the model beside both.
  if (whole.total_bytes() >= kSmallModelBytes)
    at_the_facility([&] {
      if (!transfer::is_there(*session_, whole, facility_.model_folder))
        transfer::require_room(*bulk_, models(facility_), whole.total_bytes());
    });
  spec.base_model_packed = {to.str(), sha256, reference.str(), before.root_sha256(),
                            (folder(attempt) / kModelFailure).str()};
  return history::Pushed{.moved_bytes = static_cast<int64_t>(moved.bytes),
                         .seconds = moved.seconds,
                         .whole_bytes = static_cast<int64_t>(whole.total_bytes())};
}

FacilityActions::Moved FacilityActions::push_model(const fs::path& model, const RemotePath& to,
                                                   bool doubts, std::stop_token stop) {
  const Manifest manifest = checkpoint::read_manifest(model);
  const Clock& clock = context_.services.clock;
  return at_the_facility([&] {
    const auto send = doubts ? transfer::repair : transfer::push;
    const auto began = clock.monotonic();
    const uint64_t bytes =
        send({*session_, *bulk_}, model, manifest, to, stop,
             shown(doubts ? "checking what is there, pushing" : "pushing", to), &context_.checked)
            .moved_bytes;
    return Moved{bytes, std::chrono::duration<double>(clock.monotonic() - began).count()};
  });
}

}  // namespace xffl::facility
