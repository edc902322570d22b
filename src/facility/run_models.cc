#include "xffl/facility/run_models.h"

#include "xffl/aggregate/aggregate.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/facility/weights.h"

namespace xffl::facility {

namespace fs = std::filesystem;
using checkpoint::Hashes;

namespace {

constexpr size_t kKnown = 8;  // folders whose hashes stay in memory

// Removes a folder of this process's work, now and at the end.
class WorkFolder {
 public:
  explicit WorkFolder(fs::path path) : path_(std::move(path)) { fs::remove_all(path_); }
  ~WorkFolder() {
    std::error_code none;
    fs::remove_all(path_, none);
  }
  const fs::path& path() const { return path_; }

 private:
  const fs::path path_;
};

}  // namespace

void publish_with_hashes(history::RunHistory& history, const fs::path& folder,
                         const checkpoint::Manifest& manifest) {
  // A coordinator that another one has replaced writes neither of them.
  checkpoint::write_block_hashes(folder, manifest, history.file_writer());
  history.publish_folder(folder);
  fs::remove(checkpoint::block_hashes_path(history.work_name(folder)));
}

checkpoint::Dtype dtype_of(job::FloatType type) {
  switch (type) {
    case job::FloatType::kFloat32:
      return checkpoint::Dtype::kF32;
    case job::FloatType::kBfloat16:
      return checkpoint::Dtype::kBF16;
    case job::FloatType::kFloat16:
      return checkpoint::Dtype::kF16;
  }
  return checkpoint::Dtype::kF32;
}

Hashes RunModels::global(int round) {
  const std::lock_guard lock(mutex_);
  return hashes_of(global_model(round));
}

Hashes RunModels::master(int round) {
  const std::lock_guard lock(mutex_);
  return hashes_of(master_model(round));
}

Hashes RunModels::adapted() {
  const std::lock_guard lock(mutex_);
  return hashes_of(adapted_model());
}

void RunModels::restore_global(int round) {
  const std::lock_guard lock(mutex_);
  restored(global_model(round));
}

void RunModels::restore_master(int round) {
  const std::lock_guard lock(mutex_);
  restored(master_model(round));
}

void RunModels::restore_adapted() {
  const std::lock_guard lock(mutex_);
  restored(adapted_model());
}

int RunModels::times_rebuilt(const fs::path& folder) {
  const std::lock_guard lock(mutex_);
  return times_rebuilt_[folder];
}

void RunModels::restore_since(int before, const std::function<Model()>& model) {
  const std::lock_guard lock(mutex_);
  const Model damaged = model();
  if (times_rebuilt_[damaged.folder] == before) restored(damaged);
}

void RunModels::check_global(int round) {
  const std::lock_guard lock(mutex_);
  const Model model = global_model(round);
  try {
    for (const checkpoint::ManifestFile& file : hashes_of(model)->files)
      checkpoint::check_blocks(model.folder / file.name, file);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;
    restored(model);
  }
}

RunModels::Model RunModels::global_model(int round) {
  if (round == 0) return first_global();
  return {folder_.global(round), history_.round(round).model_sha256,
          [this, round](const Model& model) { make_global(round, model); }};
}

// The import rounds the global model from the master: the model of xffl.yaml, which may have been
// moved since, is the second choice.
RunModels::Model RunModels::first_global() {
  Model first = first_model(folder_.global(0), history_.state().initial_sha256);
  const auto import_again = first.make;
  first.make = [this, import_again](const Model& model) {
    try {
      make_global(0, model);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCorrupt) throw;
      import_again(model);
    }
  };
  return first;
}

RunModels::Model RunModels::master_model(int round) {
  if (round == 0) return first_model(folder_.master(0), history_.state().initial_master_sha256);
  return {folder_.master(round), history_.round(round).master_sha256,
          [this, round](const Model& model) { make_master(round, model); }};
}

RunModels::Model RunModels::adapted_model() {
  return first_model(folder_.adapted(), history_.state().adapted_sha256);
}

RunModels::Model RunModels::first_model(const fs::path& folder, const std::string& root_sha256) {
  return {folder, root_sha256, [this](const Model& model) {
            if (!make_first) throw Error(ErrorKind::kCorrupt, "it is the first model");
            const WorkFolder work(work_name(folder_.round(0) / "first"));
            make_dirs(work.path());
            make_first(work.path());
            replace(model, work.path() / model.folder.filename());
          }};
}

Hashes RunModels::hashes_of(const Model& model) {
  if (known_.size() > kKnown && !known_.contains(model.folder)) known_.clear();
  Hashes& known = known_[model.folder];
  if (known && known->root_sha256() == model.root_sha256) return known;
  try {
    return known = checkpoint::load_hashes(model.folder, model.root_sha256, history_.file_writer());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;
    return restored(model);
  }
}

Hashes RunModels::restored(const Model& model) {
  known_.erase(model.folder);
  std::string damage;
  try {
    return known_[model.folder] =
               checkpoint::rehash(model.folder, model.root_sha256, history_.file_writer());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;
    damage = error.what();
  }
  log::warning("a model on this machine is damaged: rebuilding it", {{"problem", damage}});
  try {
    model.make(model);
    const Hashes made = checkpoint::rehash(model.folder, model.root_sha256, history_.file_writer());
    ++times_rebuilt_[model.folder];
    log::info("damaged model rebuilt", {{"folder", model.folder.string()}});
    return known_[model.folder] = made;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo || error.kind() == ErrorKind::kCancelled ||
        error.kind() == ErrorKind::kBusy)  // another coordinator has the run
      throw;
    throw Error(ErrorKind::kCorrupt,
                damage + "\nxffl cannot rebuild it: " + error.what() +
                    "\nCopy the file from a backup of the run folder, then `xffl run`; or start "
                    "another run with `xffl run --new`");
  }
}

void RunModels::make_global(int round, const Model& model) {
  const WorkFolder work(work_name(folder_.global(round)));
  const Model master = master_model(round);
  const auto round_again = [&] {
    aggregate::convert(master.folder, dtype_of(experiment_.aggregation.publish_dtype), work.path(),
                       {.hashes = hashes_of(master)});
  };
  try {
    round_again();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;
    restored(master);
    round_again();
  }
  replace(model, work.path());
}

std::vector<aggregate::Input> RunModels::inputs(int round) const {
  const history::RoundState state = history_.round(round);
  std::vector<history::Accepted> updates;
  for (const history::Participant& participant : state.participants) {
    const auto facility = state.facilities.find(participant.facility);
    if (facility == state.facilities.end() || !facility->second.accepted)
      throw Error(ErrorKind::kCorrupt, "the journal lacks an update of the round");
    updates.push_back(*facility->second.accepted);
  }
  const std::vector<double> computed = weights_of(updates, experiment_.aggregation);
  std::vector<aggregate::Input> inputs;
  for (size_t i = 0; i < updates.size(); ++i) {
    const FacilityName& name = updates[i].facility;
    const fs::path folder = folder_.facility(round, name) / "update";
    inputs.push_back(
        {folder, state.participants[i].weight.value_or(computed[i]), name.str(), name.str(),
         checkpoint::load_hashes(folder, updates[i].update_sha256, history_.file_writer())});
  }
  return inputs;
}

void RunModels::make_master(int round, const Model& model) {
  const std::vector<aggregate::Input> inputs = this->inputs(round);
  const Model before = master_model(round - 1);
  const WorkFolder work(work_name(folder_.master(round)));
  const auto step_again = [&] {
    fs::remove_all(work.path());
    make_dirs(work.path());
    aggregate::server_step(
        before.folder, inputs, experiment_.aggregation.update == job::UpdateKind::kDelta,
        dtype_of(experiment_.aggregation.publish_dtype), work.path() / "master",
        work.path() / "global", {.hashes = hashes_of(before)}, experiment_.aggregation.rule());
  };
  try {
    step_again();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;
    restored(before);
    step_again();
  }
  replace(model, work.path() / "master");
}

fs::path RunModels::work_name(const fs::path& folder) const {
  return history_.work_name(folder.string() + ".again");
}

// Readers of the damaged files keep them open and notice the damage.
void RunModels::replace(const Model& model, const fs::path& made) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(made);
  if (manifest.root_sha256() != model.root_sha256)
    throw Error(ErrorKind::kCorrupt, "the result has root SHA-256 " + manifest.root_sha256() +
                                         ", expected " + model.root_sha256);
  const fs::path work = history_.work_name(model.folder);
  fs::remove_all(work);
  fs::rename(made, work);
  history_.publish_folder(model.folder);
}

}  // namespace xffl::facility
