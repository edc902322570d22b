#include "xffl/checkpoint/model_folder.h"

#include <algorithm>
#include <set>

#include "list_folder.h"
#include "plain_name.h"
#include "safetensors_header.h"
#include "sorted_json.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr uint64_t kMaxIndexBytes = 8u << 20;
constexpr size_t kMaxShards = 4096;
constexpr size_t kMaxNames = 100'000;  // of files in a folder
constexpr uint64_t kMaxTokenizerFileBytes = 256u << 20;

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
                        {.max_bytes = kMaxIndexBytes, .max_depth = 8}, kMaxTensors);
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

}  // namespace

ModelFolder::ModelFolder(const fs::path& folder) : folder_(folder) {
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

void ModelFolder::add_file(const std::string& name) {
  files_.push_back(std::make_unique<SafetensorsFile>(folder_ / name));
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

void copy_tokenizer_files(const fs::path& from, const fs::path& to) {
  make_dirs(to);
  for (const std::string& name : list_folder(from, kMaxNames)) {
    std::error_code ignored;
    if (!is_tokenizer_file(name) || !fs::is_regular_file(from / name, ignored)) continue;
    write_file_atomic(to / name, read_file(from / name, kMaxTokenizerFileBytes));
  }
}

}  // namespace xffl::checkpoint
