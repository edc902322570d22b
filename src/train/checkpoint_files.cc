#include "checkpoint_files.h"

#include <torch/types.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <span>
#include <system_error>

#include "checkpoint_json.h"
#include "rank_sync.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"
#include "xffl/base/threads.h"
#include "xffl/checkpoint/safetensors.h"

namespace xffl::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHashSuffix = ".sha256";  // beside a part until all parts are written
constexpr size_t kHashThreads = 8;
constexpr const char* kStateName = "state.json";

std::string buffer_name(size_t unit, const std::string& kind) {
  char text[32];
  std::snprintf(text, sizeof text, "unit%04zu.", unit);
  return text + kind;
}

std::span<const std::byte> bytes_of(const at::Tensor& host) {
  return {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()};
}

bool is_bf16(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16; }

// Returns a unit's elements on the host, in the stored type.
at::Tensor stored_form(const UnitBuffers& buffer, size_t unit) {
  const at::Tensor host = buffer.units.at(unit).to(at::kCPU);
  if (buffer.remainders.empty()) return host;
  return shard::join_masters(host, buffer.remainders.at(unit).to(at::kCPU));
}

checkpoint::Dtype stored_dtype(const UnitBuffers& buffer, size_t unit) {
  const bool narrow = is_bf16(buffer.units.at(unit)) && buffer.remainders.empty();
  return narrow ? checkpoint::Dtype::kBF16 : checkpoint::Dtype::kF32;
}

// A tensor in a file; its bytes may be unaligned.
struct StoredPart {
  std::span<const std::byte> bytes;
  at::ScalarType dtype = at::kFloat;

  int64_t size() const { return static_cast<int64_t>(bytes.size() / c10::elementSize(dtype)); }
  at::Tensor elements(int64_t begin, int64_t count) const {
    const at::Tensor host = at::empty({count}, dtype);
    const size_t width = c10::elementSize(dtype);
    std::memcpy(host.mutable_data_ptr(), bytes.data() + static_cast<size_t>(begin) * width,
                static_cast<size_t>(count) * width);
    return host;
  }
};

StoredPart find_part(const checkpoint::SafetensorsFile& file, const std::string& name) {
  const checkpoint::Dtype dtype = file.spec(name).dtype;
  if (dtype != checkpoint::Dtype::kF32 && dtype != checkpoint::Dtype::kBF16)
    throw Error(ErrorKind::kCorrupt, file.path().string() + ": " + name + " has the type " +
                                         std::string(checkpoint::to_string(dtype)) +
                                         ", expected F32 or BF16");
  return {file.data(name), dtype == checkpoint::Dtype::kF32 ? at::kFloat : at::kBFloat16};
}

// Copies the overlap of a stored part and the range `held`.
void copy_overlap(const StoredPart& stored, int64_t stored_begin, const shard::Range& held,
                  const UnitBuffers& out, size_t unit) {
  const int64_t begin = std::max(stored_begin, held.begin);
  const int64_t end = std::min(stored_begin + stored.size(), held.begin + held.count);
  if (begin >= end) return;
  shard::UnitState state;
  state.master_S = out.units.at(unit);
  if (!out.remainders.empty()) state.remainder_S = out.remainders.at(unit);
  shard::set_masters(state, {begin - held.begin, end - begin},
                     stored.elements(begin - stored_begin, end - begin));
}

// Any other error says nothing about the file: the file system may answer again.
bool is_absent(const std::error_code& error) {
  return error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
}

void put_in_place(const CheckpointFolder& folder, const std::function<bool()>& may_stay) {
  std::error_code none;
  if (may_stay && fs::exists(folder.target, none) && may_stay()) {
    fs::remove_all(folder.temporary, none);
    return;
  }
  fs::remove_all(folder.target, none);
  rename_durable(folder.temporary, folder.target);
}

}  // namespace

std::string CheckpointParts::name(int group, int part, int num_parts) const {
  char text[64];
  std::snprintf(text, sizeof text, "part-%04d-of-%04d.safetensors", part + 1, num_parts);
  if (groups_.count() == 1) return text;
  char prefix[32];
  std::snprintf(prefix, sizeof prefix, "group-%04d.", group + 1);
  return std::string(prefix) + text;
}

void CheckpointParts::write(const fs::path& folder, const std::vector<UnitBuffers>& buffers) const {
  if (parameters_.is_copy()) return;
  std::vector<checkpoint::TensorSpec> specs;
  std::vector<std::pair<const UnitBuffers*, size_t>> tensors;
  for (size_t unit = 0; unit < parameters_.states().size(); ++unit) {
    if (parameters_.state_range(static_cast<int>(unit)).count == 0) continue;  // of another stage
    for (const UnitBuffers& buffer : buffers) {
      specs.push_back({buffer_name(unit, buffer.name),
                       stored_dtype(buffer, unit),
                       {buffer.units.at(unit).numel()}});
      tensors.emplace_back(&buffer, unit);
    }
  }
  const int part = model_.stage * parameters_.num_state_parts() + parameters_.state_part();
  checkpoint::SafetensorsWriter writer(folder / name(groups_.index(), part, num_parts()), specs);
  for (const auto& [buffer, unit] : tensors) writer.write(bytes_of(stored_form(*buffer, unit)));
  const checkpoint::ManifestFile file = writer.finish();
  write_file_atomic(folder / (file.name + kHashSuffix), file.sha256);  // for files()
}

void CheckpointParts::read(const fs::path& folder, int num_parts,
                           const std::vector<UnitBuffers>& buffers) const {
  if (buffers.empty()) return;  // the state of an optimizer without moments
  std::vector<int64_t> begins(parameters_.states().size(), 0);  // of the unit's next part
  for (int part = 0; part < num_parts; ++part) {
    const checkpoint::SafetensorsFile file(folder / name(groups_.index(), part, num_parts));
    for (size_t unit = 0; unit < begins.size(); ++unit) {
      const shard::Range held = parameters_.state_range(static_cast<int>(unit));
      if (held.count == 0 || !file.contains(buffer_name(unit, buffers.at(0).name))) continue;
      int64_t count = 0;
      for (const UnitBuffers& buffer : buffers) {
        const StoredPart stored = find_part(file, buffer_name(unit, buffer.name));
        count = stored.size();
        copy_overlap(stored, begins[unit], held, buffer, unit);
      }
      begins[unit] += count;
    }
  }
  for (size_t unit = 0; unit < begins.size(); ++unit) {
    if (begins[unit] > 0 || parameters_.state_range(static_cast<int>(unit)).count == 0) continue;
    throw Error(ErrorKind::kCorrupt,
                folder.string() + ": no part holds " + buffer_name(unit, buffers.at(0).name));
  }
}

Json CheckpointParts::files(const fs::path& folder) const {
  Json files = Json::object();
  for (int group = 0; group < groups_.count(); ++group) {
    for (int part = 0; part < num_parts(); ++part) {
      const std::string file = name(group, part, num_parts());
      const fs::path hash = folder / (file + kHashSuffix);
      files[file] = Json{{"size", fs::file_size(folder / file)}, {"sha256", read_file(hash, 64)}};
      fs::remove(hash);
    }
  }
  return files;
}

std::string damaged_file(const fs::path& folder, const Json& files) {
  // Checks sizes first, because size checks are cheap.
  std::vector<std::pair<std::string, std::string>> hashes;
  for (const auto& [name, file] : files.items()) {
    std::error_code error;
    const uint64_t size = fs::file_size(folder / name, error);
    if (error && !is_absent(error))
      throw Error(ErrorKind::kIo,
                  "cannot examine " + (folder / name).string() + ": " + error.message());
    if (error || size != file.at("size").get<uint64_t>()) return name;
    hashes.emplace_back(name, file.at("sha256").get<std::string>());
  }
  std::mutex mutex;
  std::string damaged;
  parallel_for(hashes.size(), kHashThreads, [&](size_t i) {
    const auto& [name, hash] = hashes[i];
    if (sha256_file(folder / name) == hash) return;
    const std::lock_guard lock(mutex);
    if (damaged.empty()) damaged = name;
  });
  return damaged;
}

void write_checkpoint(comm::Group& group, at::Device device, const CheckpointFolder& folder,
                      const CheckpointParts& parts, const std::vector<UnitBuffers>& buffers,
                      const std::function<Json()>& document,
                      const std::function<bool()>& may_stay) {
  std::error_code none;
  try {
    on_first_rank(group, device, [&] {
      fs::remove_all(folder.temporary, none);
      make_dirs(folder.temporary);
    });
    on_all_ranks_without_timeout(group, device, [&] { parts.write(folder.temporary, buffers); });
    on_first_rank(group, device, [&] {
      write_file_atomic(folder.temporary / kStateName, document().dump(1) + "\n");
      fsync_dir(folder.temporary);
      put_in_place(folder, may_stay);
    });
  } catch (const std::exception&) {
    if (group.rank() == 0) fs::remove_all(folder.temporary, none);
    throw;
  }
}

std::vector<fs::path> entries_in(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error))
    entries.push_back(entry->path());
  if (!error || is_absent(error)) return entries;
  throw Error(ErrorKind::kIo, "cannot list " + folder.string() + ": " + error.message());
}

Json read_checkpoint_json(const fs::path& folder) {
  const fs::path path = folder / kStateName;
  return parse_checkpoint_json(read_file(path, kMaxStateBytes), path.string());
}

}  // namespace xffl::train
