#include <algorithm>
#include <vector>

#include "run_parts.h"
#include "xffl/aggregate/aggregate.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/base/resources.h"
#include "xffl/base/threads.h"
#include "xffl/checkpoint/block_hashes.h"
#include "xffl/checkpoint/lora.h"
#include "xffl/checkpoint/model_folder.h"

namespace xffl::run {

namespace fs = std::filesystem;

namespace {

using checkpoint::LoraConfig;

constexpr int kMaxThreads = 8;

[[noreturn]] void fail_damaged(const fs::path& path, const std::string& problem) {
  throw Error(ErrorKind::kCorrupt, path.string() + " is damaged: " + problem +
                                       "; copy the file from a backup, or remove " +
                                       (path.parent_path() / checkpoint::kManifestName).string() +
                                       " if the change of the file is yours");
}

// The hashes of a file of an input, which has to be the file of the input's manifest.
checkpoint::ManifestFile verified_file(const fs::path& path,
                                       const checkpoint::ManifestFile& expected) {
  checkpoint::ManifestFile found;
  try {
    found = checkpoint::hash_file(path);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo) throw;
    fail_damaged(path, error.what());
  }
  if (!(found == expected))
    fail_damaged(path, "its manifest.json has " + std::to_string(expected.size_bytes) +
                           " bytes with SHA-256 " + expected.sha256 + ", found " +
                           std::to_string(found.size_bytes) + " bytes with " + found.sha256);
  return found;
}

// The hashes of an input with a manifest of xffl, such as a global model of an earlier run, which
// may have lain on the disk for weeks. Includes a tokenizer that was copied into the folder later,
// as beside a model of `xffl-train init`. Null for other folders.
checkpoint::Hashes verified_hashes(const fs::path& folder) {
  checkpoint::Manifest manifest;
  try {
    if (std::error_code none; !fs::exists(folder / checkpoint::kManifestName, none)) return nullptr;
    manifest = checkpoint::read_manifest(folder);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo) throw;
    log::warning("the manifest.json of an input is not xffl's: the input's files are not verified",
                 {{"folder", folder.string()}, {"problem", error.what()}});
    return nullptr;
  }
  manifest.chunk_bytes = checkpoint::kChunkBytes;
  parallel_for(manifest.files.size(), static_cast<size_t>(std::min(kMaxThreads, available_cpus())),
               [&](size_t i) {
                 checkpoint::ManifestFile& file = manifest.files[i];
                 file = verified_file(folder / file.name, file);
               });
  for (const std::string& name : checkpoint::ModelFolder(folder).tokenizer_files())
    if (manifest.find(name) == nullptr)
      manifest.files.push_back(checkpoint::hash_file(folder / name));
  return std::make_shared<const checkpoint::Manifest>(std::move(manifest));
}

// The hashes of an adapter as prepare_adapter() has made it in `start`: a copy of the weights of
// `adapter`, and a configuration of its own.
checkpoint::Hashes copied_hashes(const checkpoint::Hashes& adapter, const fs::path& start) {
  if (!adapter) return nullptr;
  checkpoint::Manifest copied{.files = {}, .chunk_bytes = adapter->chunk_bytes};
  if (const auto* file = adapter->find(checkpoint::kAdapterName)) copied.files.push_back(*file);
  copied.files.push_back(checkpoint::hash_file(start / checkpoint::kAdapterConfigName));
  return std::make_shared<const checkpoint::Manifest>(std::move(copied));
}

// The narrowest type that represents all numbers of the model exactly.
checkpoint::Dtype own_dtype(const fs::path& model) {
  const checkpoint::ModelFolder folder(model);
  const checkpoint::Dtype first = folder.tensors().front().dtype;
  const bool all = std::all_of(folder.tensors().begin(), folder.tensors().end(),
                               [&](const auto& tensor) { return tensor.dtype == first; });
  return all ? first : checkpoint::Dtype::kF32;
}

std::string text_of(const LoraConfig& lora) {
  const auto listed = [](const std::vector<std::string>& modules) {
    std::string text;
    for (const std::string& module : modules) text += (text.empty() ? "" : ", ") + module;
    return " [" + text + "]";
  };
  return "rank " + std::to_string(lora.rank) + ", alpha " + Json(lora.alpha).dump() +
         (lora.rank_stabilized ? ", rank_stabilized" : "") +
         (lora.weight_decomposed ? ", weight_decomposed" : "") + ", target_modules" +
         listed(lora.target_modules) +
         (lora.modules_to_save.empty() ? "" : ", modules_to_save" + listed(lora.modules_to_save));
}

// Throws kConfig unless the adapter of xffl.yaml matches training.lora.
void check_input_adapter(const config::Experiment& experiment, const LoraConfig& wanted) {
  const fs::path& adapter = experiment.adapter;
  const LoraConfig found = checkpoint::read_lora_config(adapter);
  if (!found.applies_as(wanted))
    throw Error(ErrorKind::kConfig,
                "xffl.yaml's 'adapter' and 'training.lora' differ: " + adapter.string() + " has " +
                    text_of(found) + "; training.lora has " + text_of(wanted) +
                    ": write the adapter's figures into training.lora, or name another adapter");
  const checkpoint::ModelFolder folder(adapter);
  if (!folder.is_adapter())
    throw Error(ErrorKind::kConfig, "xffl.yaml's 'adapter' is " + adapter.string() +
                                        ", which holds a model beside the adapter");
  checkpoint::check_lora_tensors(folder, checkpoint::read_llama_config(experiment.model), wanted);
}

// With LoRA the input model stays unchanged, and training starts from the experiment's adapter or
// from a new one.
fs::path prepare_adapter(const config::Experiment& experiment, const fs::path& round) {
  const fs::path start = round / "start";
  const job::TrainingSpec& training = experiment.facilities.front().training;
  const job::Lora& wanted = training.lora;
  const LoraConfig lora = checkpoint::checked_lora_config(
      {wanted.rank, wanted.alpha, wanted.dropout, wanted.target_modules, wanted.rank_stabilized,
       wanted.weight_decomposed, wanted.modules_to_save},
      "training.lora");
  const fs::path& model = experiment.model;
  if (experiment.adapter.empty()) {
    const checkpoint::ModelFolder base(model);
    checkpoint::write_initial_lora(start, checkpoint::read_llama_config(model), lora, training.seed,
                                   &base);
  } else {
    check_input_adapter(experiment, lora);
    make_dirs(start);
    fs::copy_file(experiment.adapter / checkpoint::kAdapterName, start / checkpoint::kAdapterName);
    write_file_atomic(start / checkpoint::kAdapterConfigName, checkpoint::format_lora_config(lora));
  }
  return start;
}

}  // namespace

FirstModels make_first_models(const config::Experiment& experiment, const fs::path& round) {
  FirstModels made;
  const fs::path& model = experiment.model;
  const bool adapts = experiment.facilities.front().training.lora.rank > 0;
  const checkpoint::Hashes model_hashes = verified_hashes(model);
  const checkpoint::Hashes adapter_hashes =
      adapts && !experiment.adapter.empty() ? verified_hashes(experiment.adapter) : nullptr;
  const fs::path trained = adapts ? prepare_adapter(experiment, round) : model;
  const checkpoint::Hashes trained_hashes =
      adapts ? copied_hashes(adapter_hashes, trained) : model_hashes;
  if (adapts)
    made.adapted =
        aggregate::convert(model, own_dtype(model), round / "adapted", {.hashes = model_hashes});
  made.master = aggregate::convert(trained, checkpoint::Dtype::kF32, round / "master",
                                   {.hashes = trained_hashes});
  made.global = aggregate::convert(
      round / "master", facility::dtype_of(experiment.aggregation.publish_dtype), round / "global",
      {.hashes = std::make_shared<const checkpoint::Manifest>(made.master)});
  if (adapts) fs::remove_all(trained);
  return made;
}

void import_model(facility::Context& context) {
  if (!context.history.state().initial_sha256.empty()) return;
  const bool adapts = context.experiment.facilities.front().training.lora.rank > 0;
  make_dirs(context.folder.round(0));
  fsync_dir(context.folder.path());
  const fs::path work = context.history.work_name(context.folder.round(0) / "first");
  fs::remove_all(work);
  make_dirs(work);
  const FirstModels made =
      with_context("while importing the model " + context.experiment.model.string(),
                   [&] { return make_first_models(context.experiment, work); });
  const auto publish = [&](const fs::path& folder, const checkpoint::Manifest& manifest) {
    fs::remove_all(context.history.work_name(folder));
    fs::rename(work / folder.filename(), context.history.work_name(folder));
    facility::publish_with_hashes(context.history, folder, manifest);
  };
  publish(context.folder.master(0), made.master);
  publish(context.folder.global(0), made.global);
  if (adapts) publish(context.folder.adapted(), made.adapted);
  fs::remove_all(work);
  const std::string model = made.global.root_sha256();
  context.history.record(
      {}, history::ModelImported{.model_sha256 = model,
                                 .master_sha256 = made.master.root_sha256(),
                                 .adapted_sha256 = adapts ? made.adapted.root_sha256() : ""});
  log::info("model imported", {{"model", context.experiment.model.string()}, {"sha256", model}});
}

}  // namespace xffl::run
