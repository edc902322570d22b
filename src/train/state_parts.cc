#include "state_parts.h"

#include <torch/types.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <span>
#include <system_error>

#include "xffl/base/error.h"
#include "xffl/checkpoint/safetensors.h"

namespace xffl::train {
namespace {

namespace fs = std::filesystem;

std::string buffer_name(size_t unit, const std::string& what) {
  char text[32];
  std::snprintf(text, sizeof text, "unit%04zu.", unit);
  return text + what;
}

std::span<const std::byte> bytes_of(const at::Tensor& host) {
  return {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()};
}

// Copies the elements that a stored part and `held` have in common.
void copy_overlap(std::span<const std::byte> stored, int64_t stored_begin, const shard::Range& held,
                  at::Tensor out_S) {
  const int64_t stored_end = stored_begin + static_cast<int64_t>(stored.size() / sizeof(float));
  const int64_t begin = std::max(stored_begin, held.begin);
  const int64_t end = std::min(stored_end, held.begin + held.count);
  if (begin >= end) return;
  const at::Tensor host = at::empty({end - begin}, at::kFloat);
  std::memcpy(host.mutable_data_ptr(),
              stored.data() + static_cast<size_t>(begin - stored_begin) * sizeof(float),
              static_cast<size_t>(end - begin) * sizeof(float));
  out_S.narrow(0, begin - held.begin, end - begin).copy_(host);
}

}  // namespace

std::string StateParts::name(int group, int part, int num_parts) const {
  char text[64];
  std::snprintf(text, sizeof text, "part-%04d-of-%04d.safetensors", part + 1, num_parts);
  if (groups_.count() == 1) return text;
  char prefix[32];
  std::snprintf(prefix, sizeof prefix, "group-%04d.", group + 1);
  return std::string(prefix) + text;
}

void StateParts::write(const fs::path& folder, const std::vector<UnitBuffers>& buffers) const {
  if (parameters_.is_copy()) return;
  std::vector<checkpoint::TensorSpec> specs;
  std::vector<at::Tensor> tensors;
  for (size_t unit = 0; unit < parameters_.states().size(); ++unit) {
    if (parameters_.state_range(static_cast<int>(unit)).count == 0) continue;  // another stage's
    for (const UnitBuffers& buffer : buffers) {
      const at::Tensor& held_S = buffer.units.at(unit);
      specs.push_back({buffer_name(unit, buffer.name), checkpoint::Dtype::kF32, {held_S.numel()}});
      tensors.push_back(held_S);
    }
  }
  const int part = model_.stage * parameters_.num_state_parts() + parameters_.state_part();
  checkpoint::SafetensorsWriter writer(folder / name(groups_.index(), part, num_parts()), specs);
  for (const at::Tensor& tensor : tensors) writer.write(bytes_of(tensor.to(at::kCPU)));
  writer.finish();
}

void StateParts::read(const fs::path& folder, int num_parts,
                      const std::vector<UnitBuffers>& buffers) const {
  std::vector<int64_t> begins(parameters_.states().size(), 0);  // of a unit's next part
  for (int part = 0; part < num_parts; ++part) {
    const checkpoint::SafetensorsFile file(folder / name(groups_.index(), part, num_parts));
    for (size_t unit = 0; unit < begins.size(); ++unit) {
      const shard::Range held = parameters_.state_range(static_cast<int>(unit));
      if (held.count == 0 || !file.contains(buffer_name(unit, buffers.at(0).name))) continue;
      int64_t count = 0;
      for (const UnitBuffers& buffer : buffers) {
        const std::span<const std::byte> stored = file.data(buffer_name(unit, buffer.name));
        count = static_cast<int64_t>(stored.size() / sizeof(float));
        copy_overlap(stored, begins[unit], held, buffer.units.at(unit));
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

Json StateParts::files(const fs::path& folder) const {
  Json files = Json::object();
  for (int group = 0; group < groups_.count(); ++group) {
    for (int part = 0; part < num_parts(); ++part) {
      const std::string file = name(group, part, num_parts());
      files[file] = fs::file_size(folder / file);
    }
  }
  return files;
}

std::string damaged_file(const fs::path& folder, const Json& files) {
  for (const auto& [name, size] : files.items()) {
    std::error_code error;
    if (fs::file_size(folder / name, error) != size.get<uint64_t>() || error) return name;
    try {
      checkpoint::SafetensorsFile(folder / name);  // after a crash a file may hold zeros
    } catch (const Error&) {
      return name;
    }
  }
  return "";
}

}  // namespace xffl::train
