#include "xffl/checkpoint/model_folder.h"

#include <algorithm>
#include <future>
#include <map>
#include <optional>
#include <set>

#include "file_names.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"

namespace xffl::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr uint64_t kMaxIndexBytes = 8u << 20;
constexpr size_t kMaxShards = 4096;
constexpr size_t kMaxNames = 100'000;  // of files in a folder

[[noreturn]] void fail(const fs::path& path, const std::string& problem) {
  throw Error(ErrorKind::kCorrupt, path.string() + ": " + problem);
}

[[noreturn]] void fail_without_weights(const fs::path& folder) {
  std::string message = folder.string() + ": neither " + kSingleName + " nor " + kIndexName;
  for (const std::string& name : list_folder(folder, kMaxNames)) {
    if (name.ends_with(".bin") || name.ends_with(".pth") || name.ends_with(".pt")) {
      message +=
          "; pickled weights (" + log::printable(name, 100) +
          ") are never read: convert them with save_pretrained(..., safe_serialization=True)";
      break;
    }
  }
  throw Error(ErrorKind::kNotFound, message);
}

/// The index's map from tensor to file name. Checks the file names without opening the files.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const SortedJson json =
      parse_sorted_json(read_file(path, kMaxIndexBytes), path.string(),
                        {.max_bytes = kMaxIndexBytes, .max_depth = 8, .max_keys = kMaxTensors});
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    fail(path, "expected an object with the object 'weight_map'");
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    const std::string where = "weight_map: '" + log::printable(tensor, 200) + "': ";
    if (!file.is_string()) fail(path, where + "expected a file name, found " + file.type_name());
    const auto name = file.get<std::string>();
    if (!is_plain_file_name(name) || !name.ends_with(".safetensors")) {
      fail(path, where + "expected the plain name of a .safetensors file in this folder, found '" +
                     log::printable(name, 200) + "'");
    }
    files.emplace(tensor, name);
  }
  return files;
}

bool is_tokenizer_file(const std::string& name) {
  static const std::set<std::string> kNames{"special_tokens_map.json", "added_tokens.json",
                                            "vocab.json", "merges.txt", "generation_config.json"};
  return is_plain_file_name(name) && !name.ends_with(".tmp") &&
         (name.starts_with("tokenizer") || name.starts_with("chat_template") ||
          name.ends_with(".model") || kNames.contains(name));
}

std::vector<std::string> tokenizer_files_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const std::string& name : list_folder(folder, kMaxNames)) {
    if (!is_tokenizer_file(name)) continue;
    std::error_code problem;
    const fs::file_status status = fs::status(folder / name, problem);
    if (!fs::status_known(status))
      throw system_error("stat " + (folder / name).string(), problem.value());
    if (fs::is_regular_file(status)) names.push_back(name);
  }
  return names;
}

bool is_exchangeable(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16;
}

std::string shard_filename(size_t index, size_t count) {
  const auto five_digits = [](size_t number) {
    std::string digits = std::to_string(number);
    digits.insert(0, digits.size() < 5 ? 5 - digits.size() : 0, '0');
    return digits;
  };
  return "model-" + five_digits(index + 1) + "-of-" + five_digits(count) + ".safetensors";
}

std::string format_index(const std::vector<ShardPlan::Shard>& shards) {
  uint64_t total_size = 0;
  SortedJson weight_map = SortedJson::object();
  for (const ShardPlan::Shard& shard : shards) {
    for (const TensorSpec& spec : shard.tensors) {
      total_size += spec.num_bytes();
      weight_map[spec.name] = shard.filename;
    }
  }
  const SortedJson index{{"metadata", {{"total_size", total_size}}}, {"weight_map", weight_map}};
  return index.dump(2) + "\n";
}

}  // namespace

ModelFolder::ModelFolder(const fs::path& folder, Hashes hashes)
    : folder_(folder), hashes_(std::move(hashes)) {
  check_other_files();
  const std::set<std::string> names = list_folder(folder, kMaxNames);
  const bool has_single = names.contains(kSingleName);
  const bool has_index = names.contains(kIndexName);
  if (has_single && has_index) {
    fail(folder, std::string("holds both ") + kSingleName + " and " + kIndexName +
                     ", two models in one folder: remove the stale model");
  }
  is_adapter_ = !has_single && !has_index && names.contains(std::string(kAdapterName));
  if (!has_single && !has_index && !is_adapter_) fail_without_weights(folder);
  if (has_single || is_adapter_) {
    add_file(is_adapter_ ? std::string(kAdapterName) : kSingleName);
  } else {
    add_indexed_files();
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
}

void ModelFolder::check_other_files() const {
  if (!hashes_) return;
  for (const ManifestFile& file : hashes_->files) {
    if (!file.name.ends_with(".safetensors")) check_blocks(folder_ / file.name, file);
    if (std::error_code ignored; !fs::exists(folder_ / file.name, ignored))
      throw Error(ErrorKind::kCorrupt, (folder_ / file.name).string() +
                                           " is damaged on this machine: the file is missing");
  }
}

void ModelFolder::verify(std::span<const std::byte> part) const {
  if (!hashes_ || part.empty()) return;
  for (const auto& file : files_)
    if (file->verify(part)) return;
}

void ModelFolder::verify_all() const {
  if (!hashes_) return;
  check_other_files();
  for (const auto& file : files_) file->verify_all();
}

void ModelFolder::add_file(const std::string& name) {
  const ManifestFile* file = hashes_ ? hashes_->find(name) : nullptr;
  if (hashes_ && file == nullptr) fail(folder_ / name, "was not written with this folder");
  files_.push_back(file == nullptr ? std::make_unique<SafetensorsFile>(folder_ / name)
                                   : std::make_unique<SafetensorsFile>(folder_ / name, *file));
  for (const TensorSpec& spec : files_.back()->tensors()) {
    const auto [it, added] = file_of_.emplace(spec.name, files_.size() - 1);
    if (!added) {
      fail(folder_, "tensor '" + spec.name + "' is in two files, " +
                        files_[it->second]->path().filename().string() + " and " + name);
    }
    tensors_.push_back(spec);
  }
}

void ModelFolder::add_indexed_files() {
  const fs::path path = folder_ / kIndexName;
  const std::map<std::string, std::string> index = read_index(path);
  std::set<std::string> names;
  for (const auto& [tensor, file] : index) names.insert(file);
  if (names.empty()) fail(path, "weight_map: names no tensor");
  if (names.size() > kMaxShards) {
    fail(path, "expected at most " + std::to_string(kMaxShards) + " files, found " +
                   std::to_string(names.size()));
  }
  for (const std::string& name : names) {
    if (std::error_code ignored; !fs::exists(folder_ / name, ignored)) {
      fail(path, "names " + name + ", which is not in the folder");
    }
    add_file(name);
  }
  for (const auto& [tensor, file] : index) {
    const auto it = file_of_.find(tensor);
    if (it == file_of_.end() || files_[it->second]->path().filename() != file) {
      fail(path, "tensor '" + log::printable(tensor, 200) + "' is not in " + file);
    }
  }
  for (const TensorSpec& spec : tensors_) {
    if (!index.contains(spec.name)) {
      fail(path, "does not name tensor '" + spec.name + "' of " +
                     files_[file_of_.at(spec.name)]->path().filename().string());
    }
  }
}

const SafetensorsFile& ModelFolder::file_of(std::string_view name) const {
  const auto it = file_of_.find(name);
  if (it == file_of_.end()) {
    throw Error(ErrorKind::kNotFound,
                folder_.string() + ": no tensor '" + log::printable(name, 200) + "'");
  }
  return *files_[it->second];
}

bool ModelFolder::contains(std::string_view name) const { return file_of_.contains(name); }

const TensorSpec& ModelFolder::spec(std::string_view name) const {
  return file_of(name).spec(name);
}

std::span<const std::byte> ModelFolder::data(std::string_view name) const {
  return file_of(name).data(name);
}

std::vector<std::string> ModelFolder::tokenizer_files() const {
  if (!hashes_) return tokenizer_files_in(folder_);
  std::vector<std::string> names;
  for (const ManifestFile& file : hashes_->files)
    if (is_tokenizer_file(file.name)) names.push_back(file.name);
  return names;
}

std::string ModelFolder::read_text(const std::string& name, uint64_t max_bytes) const {
  const fs::path path = folder_ / name;
  if (!hashes_) return read_file(path, max_bytes);
  const ManifestFile* written = hashes_->find(name);
  if (written == nullptr) fail(path, "was not written with this folder");
  return read_verified(path, *written, max_bytes);
}

void copy_tokenizer_files(const fs::path& from, const fs::path& to) {
  make_dirs(to);
  for (const std::string& name : tokenizer_files_in(from))
    write_file_atomic(to / name, read_file(from / name, kMaxTokenizerFileBytes));
}

void check_same_schema(const std::vector<TensorSpec>& found,
                       const std::vector<TensorSpec>& expected, bool any_float,
                       std::string_view origin) {
  const auto fail = [&](const std::string& name, const std::string& problem) {
    throw Error(ErrorKind::kRejected,
                std::string(origin) + ": tensor '" + log::printable(name, 200) + "' " + problem);
  };
  std::map<std::string_view, const TensorSpec*> found_by_name;
  for (const TensorSpec& spec : found) {
    if (!found_by_name.emplace(spec.name, &spec).second) fail(spec.name, "appears twice");
  }
  for (const TensorSpec& want : expected) {
    const auto it = found_by_name.find(want.name);
    if (it == found_by_name.end()) fail(want.name, "is missing");
    const TensorSpec& have = *it->second;
    if (have.shape != want.shape) {
      fail(want.name,
           "has the shape " + format_shape(have.shape) + ", expected " + format_shape(want.shape));
    }
    const bool same_dtype = have.dtype == want.dtype || (any_float && is_exchangeable(have.dtype) &&
                                                         is_exchangeable(want.dtype));
    if (!same_dtype) {
      fail(want.name,
           "has the type " + std::string(to_string(have.dtype)) + ", expected " +
               std::string(to_string(want.dtype)) +
               (any_float && is_exchangeable(want.dtype) ? " (or another of F32, F16, BF16)" : ""));
    }
    found_by_name.erase(it);
  }
  if (!found_by_name.empty()) {
    fail(found_by_name.begin()->second->name, "is not a tensor of the expected model");
  }
}

ShardPlan plan_shards(const std::vector<TensorSpec>& tensors, uint64_t max_shard_bytes) {
  ShardPlan plan;
  uint64_t shard_bytes = 0;
  for (const TensorSpec& spec : tensors) {
    const uint64_t size = spec.num_bytes();
    const bool full = !plan.shards.empty() && !plan.shards.back().tensors.empty() &&
                      (shard_bytes > max_shard_bytes || size > max_shard_bytes - shard_bytes);
    if (plan.shards.empty() || full) {
      plan.shards.emplace_back();
      shard_bytes = 0;
    }
    plan.shards.back().tensors.push_back(spec);
    shard_bytes += size;
  }
  if (plan.shards.empty()) plan.shards.emplace_back();
  if (plan.shards.size() == 1) {
    plan.shards.front().filename = kSingleName;
    return plan;
  }
  for (size_t i = 0; i < plan.shards.size(); ++i) {
    plan.shards[i].filename = shard_filename(i, plan.shards.size());
  }
  plan.index_json = format_index(plan.shards);
  return plan;
}

// How it works: while the caller writes the next file, a thread completes the hash of the previous
// file, then syncs and renames this file. SHA-256 is sequential: on one core, hashing is slower
// than writing.
struct ModelWriter::State {
  std::filesystem::path folder;
  ShardPlan plan;
  size_t shard_index = 0;       // the shard of `writer`
  size_t tensor_index = 0;      // the next byte's tensor in this shard
  uint64_t tensor_written = 0;  // the bytes written of this tensor
  std::optional<SafetensorsWriter> writer;
  std::vector<std::future<ManifestFile>> finishing;  // the destructor waits for the threads

  void open_shard() {
    const ShardPlan::Shard& shard = plan.shards[shard_index];
    writer.emplace(folder / shard.filename, shard.tensors);
    tensor_index = 0;
    skip_complete_tensors();
  }

  // Steps over complete tensors, also over tensors without bytes.
  void skip_complete_tensors() {
    const auto& tensors = plan.shards[shard_index].tensors;
    while (tensor_index < tensors.size() && tensor_written == tensors[tensor_index].num_bytes()) {
      ++tensor_index;
      tensor_written = 0;
    }
  }

  bool shard_complete() const { return tensor_index == plan.shards[shard_index].tensors.size(); }

  void finish_file() {
    const auto complete = std::make_shared<SafetensorsWriter>(std::move(*writer));
    writer.reset();
    const auto finish = [complete] { return complete->finish(); };
    try {
      finishing.push_back(std::async(std::launch::async, finish));
    } catch (const std::system_error&) {  // a limit of the system on threads
      finishing.push_back(std::async(std::launch::deferred, finish));
      finishing.back().wait();
    }
  }

  // Opens the file of the next `size` bytes; throws unless one tensor has space for all of the
  // bytes.
  void check_fits(uint64_t size) {
    if (!open_next_shard()) {
      throw Error(ErrorKind::kInternal, "writing " + folder.string() + ": " + std::to_string(size) +
                                            " bytes more than the tensors have");
    }
    const TensorSpec& spec = plan.shards[shard_index].tensors[tensor_index];
    if (size > spec.num_bytes() - tensor_written) {
      throw Error(ErrorKind::kInternal, "writing " + folder.string() +
                                            ": a piece crosses the end of tensor '" + spec.name +
                                            "' of " + std::to_string(spec.num_bytes()) + " bytes");
    }
  }

  void add_written(uint64_t size) {
    tensor_written += size;
    skip_complete_tensors();
  }

  // Finishes complete files and opens the first incomplete file; false after the last file.
  bool open_next_shard() {
    while (shard_complete()) {
      if (shard_index + 1 == plan.shards.size()) return false;
      finish_file();
      ++shard_index;
      open_shard();
    }
    return true;
  }
};

ModelWriter::ModelWriter(std::filesystem::path folder, const std::vector<TensorSpec>& tensors,
                         uint64_t max_shard_bytes)
    : state_(std::make_unique<State>()) {
  state_->folder = std::move(folder);
  state_->plan = plan_shards(tensors, max_shard_bytes);
  make_dirs(state_->folder);
  state_->open_shard();
}

ModelWriter::~ModelWriter() = default;
ModelWriter::ModelWriter(ModelWriter&&) noexcept = default;

void ModelWriter::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  state_->check_fits(bytes.size());
  state_->writer->write(bytes);
  state_->add_written(bytes.size());
}

void ModelWriter::write(uint64_t size, size_t width, const MakeBytes& make) {
  if (size == 0) return;
  state_->check_fits(size);
  state_->writer->write(size, width, make);
  state_->add_written(size);
}

std::vector<ManifestFile> ModelWriter::finish() {
  State& state = *state_;
  if (state.open_next_shard()) {
    const TensorSpec& spec = state.plan.shards[state.shard_index].tensors[state.tensor_index];
    throw Error(ErrorKind::kInternal, "writing " + state.folder.string() + ": tensor '" +
                                          spec.name + "' has only " +
                                          std::to_string(state.tensor_written) + " of its " +
                                          std::to_string(spec.num_bytes()) + " bytes");
  }
  state.finish_file();
  std::vector<ManifestFile> files;
  for (std::future<ManifestFile>& file : state.finishing) files.push_back(file.get());
  if (!state.plan.index_json.empty()) {
    write_file_atomic(state.folder / kIndexName, state.plan.index_json);
  }
  return files;
}

}  // namespace xffl::checkpoint
