// A safetensors file: tensors lie inside the file, one after the other, and the writer's copy of an
// accepted file has the same tensors.
#include <algorithm>
#include <cstring>

#include "fuzz.h"
#include "xffl/base/sha256.h"
#include "xffl/checkpoint/safetensors.h"

using namespace xffl;
using checkpoint::SafetensorsFile;
using checkpoint::TensorSpec;

namespace {

void check_places(const SafetensorsFile& file, size_t file_bytes) {
  uint64_t total = 0;
  const std::byte* end = nullptr;
  for (const TensorSpec& spec : file.tensors()) {
    const auto bytes = file.data(spec.name);
    fuzz::expect(bytes.size() == spec.num_bytes(), "a tensor has the bytes of its shape");
    fuzz::expect(file.contains(spec.name) && file.spec(spec.name) == spec, "a tensor is found");
    fuzz::expect(end == nullptr || bytes.data() == end, "a tensor begins where the last one ends");
    fuzz::expect(total <= file_bytes && bytes.size() <= file_bytes - total, "data fits the file");
    total += bytes.size();
    end = bytes.data() + bytes.size();
  }
  // The file's last byte is the last tensor's, so no tensor crosses the file's end.
  const MappedFile whole(file.path());
  uint64_t header = 0;
  std::memcpy(&header, whole.bytes().data(), sizeof header);
  fuzz::expect(8 + header + total == file_bytes, "header and tensors cover the file");
}

void check_copy(const SafetensorsFile& file, const std::filesystem::path& path) {
  checkpoint::SafetensorsWriter writer(path, file.tensors(), file.metadata());
  for (const TensorSpec& spec : file.tensors()) writer.write(file.data(spec.name));
  const checkpoint::ManifestFile entry = writer.finish();
  fuzz::expect(entry.size_bytes == std::filesystem::file_size(path), "the entry has the size");
  fuzz::expect(entry.sha256 == sha256_file(path), "the entry has the hash");
  const SafetensorsFile copy(path);
  fuzz::expect(copy.tensors() == file.tensors(), "a copy has the same tensors");
  fuzz::expect(copy.metadata() == file.metadata(), "a copy has the same metadata");
  for (const TensorSpec& spec : file.tensors()) {
    const auto a = file.data(spec.name), b = copy.data(spec.name);
    fuzz::expect(std::equal(a.begin(), a.end(), b.begin(), b.end()), "a copy has the same data");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder;
  static const auto path = folder / "model.safetensors", copy = folder / "copy.safetensors";
  fuzz::write_bytes(path, fuzz::text_of(data, size));
  const auto file = fuzz::accepted([] { return SafetensorsFile(path); });
  if (!file) return 0;
  check_places(*file, size);
  check_copy(*file, copy);
  return 0;
}
