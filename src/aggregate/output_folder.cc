#include "output_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/process.h"
#include "xffl/base/sha256.h"
#include "xffl/checkpoint/lora.h"

namespace xffl::aggregate {

namespace fs = std::filesystem;
using checkpoint::Dtype;

namespace {

constexpr uint64_t kMaxConfigBytes = 1u << 20;

fs::path without_trailing_slash(fs::path path) {
  return path.has_filename() ? path : path.parent_path();
}

std::string temp_prefix(const fs::path& out) { return out.filename().string() + ".tmp-"; }

// True when `maker`, "<pid>-<start ticks>", names a dead process.
bool is_abandoned(const std::string& maker) {
  int pid = 0, end = 0;
  unsigned long ticks = 0;
  return std::sscanf(maker.c_str(), "%d-%lu%n", &pid, &ticks, &end) == 2 &&
         static_cast<size_t>(end) == maker.size() && process_start_ticks(pid) != ticks;
}

void remove_abandoned(const fs::path& out) {
  const std::string prefix = temp_prefix(out);
  const fs::path folder = out.parent_path().empty() ? "." : out.parent_path();
  std::error_code error;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && is_abandoned(name.substr(prefix.size())))
      found.push_back(entry.path());
  }
  for (const fs::path& path : found) fs::remove_all(path, error);
}

const char* torch_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBF16:
      return "bfloat16";
    case Dtype::kF16:
      return "float16";
    default:
      return "float32";
  }
}

checkpoint::ShardPlan plan_files(const std::vector<checkpoint::TensorSpec>& tensors,
                                 uint64_t max_shard_bytes, bool is_adapter) {
  if (!is_adapter) return checkpoint::plan_shards(tensors, max_shard_bytes);
  return {{{std::string(checkpoint::kAdapterName), tensors}}, ""};
}

}  // namespace

OutputFolder::OutputFolder(fs::path out, std::vector<checkpoint::TensorSpec> tensors,
                           const checkpoint::ModelFolder& source, uint64_t max_shard_bytes)
    : out_(without_trailing_slash(std::move(out))),
      dtype_(tensors.empty() ? Dtype::kF32 : tensors.front().dtype),
      source_(source),
      plan_(plan_files(tensors, max_shard_bytes, source.is_adapter())) {
  if (fs::exists(fs::symlink_status(out_)))
    throw Error(ErrorKind::kRejected,
                out_.string() + " already exists: name another folder, or remove it");
  remove_abandoned(out_);
  const auto ticks = process_start_ticks(::getpid()).value_or(0);
  temp_ = out_.parent_path() /
          (temp_prefix(out_) + std::to_string(::getpid()) + "-" + std::to_string(ticks));
  for (const checkpoint::TensorSpec& spec : tensors) total_bytes_ += spec.num_bytes();
  fs::remove_all(temp_);  // of a failed attempt, which had no file descriptor for its removal
  make_dirs(temp_);
  try {
    open_shard();
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temp_, ignored);
    throw;
  }
}

OutputFolder::~OutputFolder() {
  if (published_) return;
  writer_.reset();
  std::error_code ignored;
  fs::remove_all(temp_, ignored);
}

void OutputFolder::open_shard() {
  const checkpoint::ShardPlan::Shard& shard = plan_.shards.at(shard_index_);
  shard_left_ = 0;
  for (const checkpoint::TensorSpec& spec : shard.tensors) shard_left_ += spec.num_bytes();
  writer_.emplace(temp_ / shard.filename, shard.tensors);
}

void OutputFolder::close_complete_shards() {
  while (writer_ && shard_left_ == 0) {
    manifest_.files.push_back(writer_->finish());
    writer_.reset();
    if (++shard_index_ < plan_.shards.size()) open_shard();
  }
}

void OutputFolder::write(std::span<const std::byte> bytes) {
  close_complete_shards();
  if (!writer_ || bytes.size() > shard_left_)
    throw Error(ErrorKind::kInternal, "more bytes than tensors for " + out_.string());
  writer_->write(bytes);
  shard_left_ -= bytes.size();
}

void OutputFolder::finish() {
  close_complete_shards();
  if (writer_) throw Error(ErrorKind::kInternal, "fewer bytes than tensors for " + out_.string());
  if (!plan_.index_json.empty()) write_text("model.safetensors.index.json", plan_.index_json);
  if (source_.is_adapter()) {
    const std::string name(checkpoint::kAdapterConfigName);
    write_text(name,
               checkpoint::format_lora_config(checkpoint::parse_lora_config(
                   source_.read_text(name, kMaxConfigBytes), (source_.path() / name).string())));
  } else {
    write_config();
    for (const std::string& name : source_.tokenizer_files())
      write_text(name, source_.read_text(name, checkpoint::kMaxTokenizerFileBytes));
  }
  manifest_ = checkpoint::write_manifest(temp_, manifest_.files);
}

void OutputFolder::write_text(const std::string& name, const std::string& text) {
  write_file_atomic(temp_ / name, text);
  checkpoint::FileHash hash;
  hash.update(std::as_bytes(std::span(text)));
  manifest_.files.push_back(hash.finish(name));
}

// Edits config.json as JSON, not as a LlamaConfig, to keep the keys that xffl does not know.
void OutputFolder::write_config() {
  const fs::path path = source_.path() / "config.json";
  Json config = parse_json(source_.read_text("config.json", kMaxConfigBytes), path.string());
  if (!config.is_object())
    throw Error(ErrorKind::kCorrupt, path.string() + ": expected a JSON object");
  config["torch_dtype"] = torch_dtype(dtype_);
  if (config.contains("dtype")) config["dtype"] = torch_dtype(dtype_);
  write_text("config.json", config.dump(2) + "\n");
}

void OutputFolder::publish() {
  rename_durable(temp_, out_);
  published_ = true;
}

}  // namespace xffl::aggregate
