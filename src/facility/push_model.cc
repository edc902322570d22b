// How it works: manifests and sizes show which files are in place. The push hashes no file at the
// facility, because hashing would load a login node. The job checks the hashes and reports a
// damaged file, and the next attempt's push compares every chunk.
#include <algorithm>

#include "site.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/facility/job_script.h"
#include "xffl/facility/model_bytes.h"
#include "xffl/facility/packed_models.h"
#include "xffl/facility/prepared_text.h"

namespace xffl::facility {

namespace fs = std::filesystem;
using checkpoint::Manifest;

namespace {

using plan::kModelFailure;
constexpr int kMaxComplaints = 64;           // earlier attempts whose reports of damage count
constexpr uint64_t kSmallBytes = 16u << 20;  // smaller updates and models skip the space check

std::string hash_lines(const Manifest& model, const std::string& at) {
  std::string lines;
  for (const checkpoint::ManifestFile& file : model.files)
    lines += file.sha256 + "  " + at + "/" + file.name + "\n";
  return lines;
}

}  // namespace

// A job may wait in a queue for longer than the site keeps unused files.
void ModelPush::restore_purged_model(int attempt, std::stop_token stop) {
  if (site_.settings.purge_after.count() == 0) return;
  const auto now = site_.context.services.clock.monotonic();
  if (model_seen_ && now - *model_seen_ < site_.settings.purge_after / 8) return;
  job::JobSpec spec = site_.spec(attempt);
  const history::Pushed pushed = push_base(attempt, spec, site_.was_packed(), false, stop);
  model_seen_ = now;
  if (pushed.moved_bytes > 0)
    log::warning("the model had lost files at the facility and was sent again",
                 {site_.name_field(), {"bytes", pushed.moved_bytes}});
}

// Compares with the run's own model: the folder in xffl.yaml may have changed since the import.
void ModelPush::require_prepared_text() {
  const std::filesystem::path own = site_.full_model(), given = site_.context.experiment.model;
  const std::string problem = at_the_facility([&] {
    std::string text = prepared_text_problem(*site_.session, site_.settings, own);
    // `xffl prepare` takes the tokenizer of the folder in xffl.yaml.
    if (!text.empty() && tokens::has_tokenizer(own) && tokens::has_tokenizer(given) &&
        tokens::tokenizer_hash(own) != tokens::tokenizer_hash(given))
      text += ", after the tokenizer files in " + given.string() + " are the run's again, as in " +
              own.string();
    return text;
  });
  if (!problem.empty()) throw Error(ErrorKind::kRemote, problem);
}

Event ModelPush::push(int attempt, std::stop_token stop) {
  require_prepared_text();
  job::JobSpec spec = site_.spec(attempt);
  const auto complaints =
      at_the_facility([&] { return earlier_attempts_with(attempt, kModelFailure); });
  const bool packs = takes_packed(site_.settings, site_.plan, attempt, site_.states());
  const history::Pushed pushed = push_base(attempt, spec, packs, !complaints.empty(), stop);
  model_seen_ = site_.context.services.clock.monotonic();
  for (const int earlier : complaints)
    at_the_facility([&] {
      site_.context.history.check_writer();
      site_.session->rename(site_.folder(earlier) / kModelFailure,
                            site_.folder(earlier) / plan::kModelRepaired);
    });
  spec = for_compute_nodes(site_.settings, std::move(spec));
  const std::string job_json = job::format_job_spec(spec);
  make_dirs(site_.archive());
  for (const auto& parent : {site_.archive().parent_path(), site_.context.folder.path()})
    fsync_dir(parent);
  site_.context.history.write_file(site_.archive() / "job.json", job_json);
  const std::vector<remote::NewFile> beside = {
      {std::string(plan::kOutFolder) + "/", ""},
      {std::string(plan::kModelHashes), model_hashes(spec)},
      {std::string(plan::kJobFile), job_json}};
  site_.context.history.check_writer();
  at_the_facility([&] { site_.session->put_files(site_.folder(attempt), beside); });
  return Pushed{pushed};
}

std::vector<int> ModelPush::earlier_attempts_with(int attempt, std::string_view file) {
  std::vector<int> numbers;
  std::vector<remote::FileQuery> queries;
  for (int number = std::max(1, attempt - kMaxComplaints); number < attempt; ++number) {
    numbers.push_back(number);
    queries.push_back({site_.folder(number).filename() + "/" + std::string(file), 0});
  }
  if (queries.empty()) return {};
  const std::vector<remote::FileView> views =
      site_.session->look(site_.facility.round_folder, queries);
  std::vector<int> found;
  for (size_t i = 0; i < numbers.size(); ++i)
    if (views.at(i).info) found.push_back(numbers[i]);
  return found;
}

// One report of damage counts in a round: after a push has compared the files, a further report has
// another cause.
std::string ModelPush::input_model_problem(int attempt) {
  const std::string problem = printable_tail(*site_.session, site_.folder(attempt) / kModelFailure);
  if (problem.empty() || !earlier_attempts_with(attempt, plan::kModelRepaired).empty()) return "";
  return problem;
}

// xffl-train checks the hashes itself; for another trainer the job's script checks the hashes.
std::string ModelPush::model_hashes(const job::JobSpec& spec) const {
  if (site_.settings.trainer_command.empty() || spec.base_model_packed) return "";
  const checkpoint::Hashes base = site_.context.models.global(site_.plan.round - 1);
  if (spec.adapter_path.empty()) return hash_lines(*base, spec.base_model_path);
  return hash_lines(*site_.context.models.adapted(), spec.base_model_path) +
         hash_lines(*base, spec.adapter_path);
}

history::Pushed ModelPush::push_base(int attempt, job::JobSpec& spec, bool packs, bool compares,
                                     std::stop_token stop) {
  if (packs)
    if (const auto pushed = push_packed(attempt, spec, stop)) return *pushed;
  Moved moved = site_.with_base_model([&](const checkpoint::Hashes& hashes) {
    return push_model(site_.base_model(), *hashes, site_.facility.model_folder, compares, stop);
  });
  if (!site_.plan.adapted_sha256.empty()) {
    const Moved more = site_.with_full_model([&](const checkpoint::Hashes& hashes) {
      return push_model(site_.full_model(), *hashes, site_.facility.adapted_folder, compares, stop);
    });
    moved = {moved.bytes + more.bytes, moved.seconds + more.seconds};
  }
  return {.moved_bytes = static_cast<int64_t>(moved.bytes), .seconds = moved.seconds};
}

// Returns none when the push has to send the whole model: packing failed or saved too little, or
// the site has purged the previous round's model.
std::optional<history::Pushed> ModelPush::push_packed(int attempt, job::JobSpec& spec,
                                                      std::stop_token stop) {
  RunModels& models = site_.context.models;
  const auto packed = site_.context.packed.of(site_.context.folder, site_.plan.round, stop, [&] {
    models.check_global(site_.plan.round - 2);
    return PackingManifests{*models.global(site_.plan.round - 1),
                            *models.global(site_.plan.round - 2)};
  });
  if (!packed) return std::nullopt;
  const Manifest whole = *models.global(site_.plan.round - 1);
  const Manifest before = *models.global(site_.plan.round - 2);
  const RemotePath reference =
      plan::models_folder(site_.facility.folder) / before.root_sha256().substr(0, 16);
  if (!at_the_facility([&] { return transfer::is_pushed(*site_.session, before, reference); })) {
    log::warning(
        "the previous round's model has lost files at the facility: sending the whole model",
        {site_.name_field(), {"folder", reference.str()}});
    return std::nullopt;
  }
  const std::string sha256 = packed->root_sha256();
  const RemotePath to = site_.facility.round_folder / ("packed-" + sha256.substr(0, 16));
  const std::optional<Moved> moved = push_differences(
      site_.context.packed.path(site_.context.folder, site_.plan.round), *packed, to, stop);
  if (!moved) return std::nullopt;
  // The job unpacks the model beside the packed model and the previous model.
  if (whole.total_bytes() >= kSmallBytes)
    at_the_facility([&] {
      if (!transfer::is_pushed(*site_.session, whole, site_.facility.model_folder))
        transfer::require_space(*site_.bulk, plan::models_folder(site_.facility.folder),
                                whole.total_bytes());
    });
  spec.base_model_packed = {to.str(), sha256, reference.str(), before.root_sha256(),
                            (site_.folder(attempt) / kModelFailure).str()};
  return history::Pushed{.moved_bytes = static_cast<int64_t>(moved->bytes),
                         .seconds = moved->seconds,
                         .whole_bytes = static_cast<int64_t>(whole.total_bytes())};
}

// Returns none when the packed model is damaged on this machine: the push then sends the whole
// model.
std::optional<ModelPush::Moved> ModelPush::push_differences(const fs::path& packed,
                                                            const Manifest& manifest,
                                                            const RemotePath& to,
                                                            std::stop_token stop) {
  try {
    return push_model(packed, manifest, to, false, stop);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kRejected) throw;
    log::warning("the packed model is damaged on this machine: sending the whole model",
                 {site_.name_field(), {"problem", error.what()}});
    return std::nullopt;
  }
}

ModelPush::Moved ModelPush::push_model(const fs::path& model, const Manifest& manifest,
                                       const RemotePath& to, bool compares, std::stop_token stop) {
  const Clock& clock = site_.context.services.clock;
  return at_the_facility([&] {
    const auto send = compares ? transfer::repair : transfer::push;
    const auto began = clock.monotonic();
    transfer::Endpoint facility(*site_.session, *site_.bulk);
    facility.before_change = [this] { site_.context.history.check_writer(); };
    const uint64_t bytes = send(facility, model, manifest, to, stop,
                                site_.progress(compares ? "comparing and pushing" : "pushing", to))
                               .moved_bytes;
    return Moved{bytes, std::chrono::duration<double>(clock.monotonic() - began).count()};
  });
}

void ModelPush::check_space(int attempt) {
  if (site_.plan.evaluates || std::exchange(space_checked_for_, attempt) == attempt) return;
  try {
    const ModelBytes bytes = model_bytes(site_.context.experiment, site_.full_model());
    if (bytes.update < kSmallBytes) return;
    const uint64_t needed = bytes.for_job(site_.was_packed());
    const auto free = site_.bulk->free_bytes(site_.facility.folder);
    if (!free || *free >= needed) return;
    log::warning("a facility has less space than its job will need: the job may fail",
                 {site_.name_field(),
                  {"round", site_.plan.round},
                  {"folder", site_.facility.folder.str()},
                  {"free_megabytes", static_cast<double>(*free) * 1e-6},
                  {"needed_megabytes", static_cast<double>(needed) * 1e-6},
                  {"remedy", "remove files there, or ask the site for a larger quota"}});
  } catch (const Error& error) {  // the submission reports the error, too
    log::debug("the space at a facility could not be checked",
               {site_.name_field(), {"problem", error.what()}});
  }
}

}  // namespace xffl::facility
