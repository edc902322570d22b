// What goes to a facility ahead of its job: the model to start from, and job.json.
//
// How it works: manifests and sizes say what is there, and nothing is hashed at the facility, where
// that would be a log-in node's work. The job looks at the hashes; what it finds damaged it says in
// a file, and the next attempt's push compares every chunk.
#include "push.h"

#include <algorithm>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/facility/facility_errors.h"
#include "xffl/facility/model_bytes.h"
#include "xffl/facility/packed_models.h"

namespace xffl::facility {

namespace fs = std::filesystem;
using checkpoint::Manifest;

namespace {

using plan::kModelFailure;
constexpr int kLookBack = 64;                      // attempts, whose complaints are read
constexpr uint64_t kSmallUpdateBytes = 16u << 20;  // there is room for such
constexpr uint64_t kSmallModelBytes = 16u << 20;   // there is room for such

std::string hash_lines(const fs::path& model, const std::string& at) {
  std::string lines;
  for (const checkpoint::ManifestFile& file : checkpoint::read_manifest(model).files)
    lines += file.sha256 + "  " + at + "/" + file.name + "\n";
  return lines;
}

}  // namespace

// A job may wait in a queue for longer than a site leaves its model alone.
void ModelPush::look_after_model(int attempt, std::stop_token stop) {
  if (site_.settings.purge_after.count() == 0) return;
  const auto now = site_.context.services.clock.monotonic();
  if (model_seen_ && now - *model_seen_ < site_.settings.purge_after / 8) return;
  job::JobSpec told = site_.spec(attempt);
  const history::FacilityState known = site_.state(site_.plan.round);
  const bool packed = known.current() != nullptr && known.current()->packed;
  const history::Pushed pushed = push_base(attempt, told, packed, false, stop);
  model_seen_ = now;
  if (pushed.moved_bytes > 0)
    log::warning("the model was no longer whole at the facility and was sent again",
                 {{"facility", site_.facility.facility.str()}, {"bytes", pushed.moved_bytes}});
}

Event ModelPush::push(int attempt, std::stop_token stop) {
  job::JobSpec told = site_.spec(attempt);
  const auto complaints =
      at_the_facility([&] { return complaints_before(attempt, kModelFailure); });
  const auto known = [this](int round) { return site_.state(round); };
  const bool packs = takes_packed(site_.settings, site_.plan, attempt, known);
  const history::Pushed pushed = push_base(attempt, told, packs, !complaints.empty(), stop);
  model_seen_ = site_.context.services.clock.monotonic();
  for (const int earlier : complaints)
    at_the_facility([&] {
      site_.session->rename(site_.folder(earlier) / kModelFailure,
                            site_.folder(earlier) / plan::kModelRepaired);
    });
  const std::string job_json = job::format_job_spec(told);
  make_dirs(site_.archive());
  for (const auto& parent : {site_.archive().parent_path(), site_.context.folder.path()})
    fsync_dir(parent);
  write_file_atomic(site_.archive() / "job.json", job_json);
  const std::vector<remote::NewFile> beside = {
      {std::string(plan::kOutFolder) + "/", ""},
      {std::string(plan::kModelHashes), model_hashes(told)},
      {std::string(plan::kJobFile), job_json}};
  at_the_facility([&] { site_.session->put_files(site_.folder(attempt), beside); });
  return Pushed{pushed};
}

// The earlier attempts that have left such a file.
std::vector<int> ModelPush::complaints_before(int attempt, std::string_view name) {
  std::vector<int> numbers;
  std::vector<remote::FileQuery> queries;
  for (int number = std::max(1, attempt - kLookBack); number < attempt; ++number) {
    numbers.push_back(number);
    queries.push_back({site_.folder(number).filename() + "/" + std::string(name), 0});
  }
  if (queries.empty()) return {};
  const std::vector<remote::FileView> views =
      site_.session->look(site_.facility.round_folder, queries);
  std::vector<int> found;
  for (size_t i = 0; i < numbers.size(); ++i)
    if (views.at(i).info) found.push_back(numbers[i]);
  return found;
}

// Once in a round: a job that complains of what has just been compared is wrong in another way.
std::string ModelPush::given_model_problem(int attempt) {
  const std::string said = last_words(*site_.session, site_.folder(attempt) / kModelFailure);
  return said.empty() || !complaints_before(attempt, plan::kModelRepaired).empty() ? "" : said;
}

// xffl-train looks at the hashes itself; ahead of a trainer of one's own the job's script does.
std::string ModelPush::model_hashes(const job::JobSpec& told) const {
  if (site_.settings.trainer_command.empty() || told.base_model_packed) return "";
  const fs::path given = site_.context.folder.global(site_.plan.round - 1);
  if (told.adapter_path.empty()) return hash_lines(given, told.base_model_path);
  return hash_lines(site_.context.folder.adapted(), told.base_model_path) +
         hash_lines(given, told.adapter_path);
}

history::Pushed ModelPush::push_base(int attempt, job::JobSpec& spec, bool packs, bool doubts,
                                     std::stop_token stop) {
  if (packs)
    if (const auto pushed = push_packed(attempt, spec, stop)) return *pushed;
  Moved moved = push_model(site_.context.folder.global(site_.plan.round - 1),
                           site_.facility.model_folder, doubts, stop);
  if (!site_.plan.adapted_sha256.empty()) {
    const Moved more =
        push_model(site_.context.folder.adapted(), site_.facility.adapted_folder, doubts, stop);
    moved = {moved.bytes + more.bytes, moved.seconds + more.seconds};
  }
  return {.moved_bytes = static_cast<int64_t>(moved.bytes), .seconds = moved.seconds};
}

// Nothing where it has to come whole: it cannot be packed, or a site has purged what it would be
// made of.
std::optional<history::Pushed> ModelPush::push_packed(int attempt, job::JobSpec& spec,
                                                      std::stop_token stop) {
  const auto packed = site_.context.packed.of(site_.context.folder, site_.plan.round, stop);
  if (!packed) return std::nullopt;
  const Manifest whole =
      checkpoint::read_manifest(site_.context.folder.global(site_.plan.round - 1));
  const Manifest before =
      checkpoint::read_manifest(site_.context.folder.global(site_.plan.round - 2));
  const RemotePath reference =
      plan::models_folder(site_.facility.folder) / before.root_sha256().substr(0, 16);
  if (!at_the_facility([&] { return transfer::is_pushed(*site_.session, before, reference); })) {
    log::warning(
        "the model of the round before is no longer whole at the facility: this one is "
        "sent whole",
        {{"facility", site_.facility.facility.str()}, {"folder", reference.str()}});
    return std::nullopt;
  }
  const std::string sha256 = packed->root_sha256();
  const RemotePath to = site_.facility.round_folder / ("packed-" + sha256.substr(0, 16));
  const Moved moved =
      push_model(site_.context.folder.packed(site_.plan.round - 1), to, false, stop);
  // The job makes the model beside both.
  if (whole.total_bytes() >= kSmallModelBytes)
    at_the_facility([&] {
      if (!transfer::is_pushed(*site_.session, whole, site_.facility.model_folder))
        transfer::require_space(*site_.bulk, plan::models_folder(site_.facility.folder),
                                whole.total_bytes());
    });
  spec.base_model_packed = {to.str(), sha256, reference.str(), before.root_sha256(),
                            (site_.folder(attempt) / kModelFailure).str()};
  return history::Pushed{.moved_bytes = static_cast<int64_t>(moved.bytes),
                         .seconds = moved.seconds,
                         .whole_bytes = static_cast<int64_t>(whole.total_bytes())};
}

ModelPush::Moved ModelPush::push_model(const fs::path& model, const RemotePath& to, bool doubts,
                                       std::stop_token stop) {
  const Manifest manifest = checkpoint::read_manifest(model);
  const Clock& clock = site_.context.services.clock;
  return at_the_facility([&] {
    const auto send = doubts ? transfer::repair : transfer::push;
    const auto began = clock.monotonic();
    const uint64_t bytes =
        send({*site_.session, *site_.bulk}, model, manifest, to, stop,
             site_.shown(doubts ? "checking what is there, pushing" : "pushing", to),
             &site_.context.checked)
            .moved_bytes;
    return Moved{bytes, std::chrono::duration<double>(clock.monotonic() - began).count()};
  });
}

void ModelPush::check_space(int attempt) {
  if (site_.plan.evaluates || std::exchange(space_checked_for_, attempt) == attempt) return;
  try {
    const ModelBytes bytes = model_bytes(site_.context.experiment,
                                         site_.plan.adapted_sha256.empty()
                                             ? site_.context.folder.global(site_.plan.round - 1)
                                             : site_.context.folder.adapted());
    if (bytes.update < kSmallUpdateBytes) return;
    const history::FacilityState known = site_.state(site_.plan.round);
    const uint64_t needed = bytes.for_job(known.current() != nullptr && known.current()->packed);
    const auto free = site_.bulk->free_bytes(site_.facility.folder);
    if (!free || *free >= needed) return;
    log::warning("a facility has less room than its job will need: the job may fail",
                 {{"facility", site_.facility.facility.str()},
                  {"round", site_.plan.round},
                  {"folder", site_.facility.folder.str()},
                  {"free_megabytes", static_cast<double>(*free) * 1e-6},
                  {"needed_megabytes", static_cast<double>(needed) * 1e-6},
                  {"what to do", "remove files there, or ask for more room"}});
  } catch (const Error& error) {  // the submission will meet it, too
    log::debug("it was not seen whether a facility has room for its job",
               {{"facility", site_.facility.facility.str()}, {"problem", error.what()}});
  }
}

}  // namespace xffl::facility
