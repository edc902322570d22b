#include <algorithm>

#include "packed_names.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/space.h"
#include "xffl/pack/pack.h"
#include "xffl/pack/packed_model.h"

namespace xffl::pack {

namespace fs = std::filesystem;
using checkpoint::Manifest;
using checkpoint::ManifestFile;

namespace {

// True when no file name collides with a name of the packed folder or gets too long for one.
bool names_can_be_packed(const Manifest& manifest) {
  return std::all_of(manifest.files.begin(), manifest.files.end(), [](const ManifestFile& file) {
    return file.name != kModelManifestName && !file.name.ends_with(kPackedEnding) &&
           packed_name(file.name).size() <= kMaxNameBytes;
  });
}

// A new folder; the destructor removes it unless it was renamed.
class TempFolder {
 public:
  explicit TempFolder(fs::path path) : path_(std::move(path)) {
    fs::remove_all(path_);
    make_dirs(path_);
  }
  ~TempFolder() {
    std::error_code none;
    fs::remove_all(path_, none);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  const fs::path path_;
};

}  // namespace

std::optional<Manifest> pack_model(const fs::path& model, const fs::path& reference,
                                   const fs::path& out, double max_ratio, int threads,
                                   std::stop_token stop) {
  const Manifest wanted = checkpoint::read_manifest(model);
  const Manifest held = checkpoint::read_manifest(reference);
  if (!names_can_be_packed(wanted)) return std::nullopt;
  fs::remove_all(out);
  const TempFolder temporary(out.string() + ".tmp");
  auto left = static_cast<uint64_t>(static_cast<double>(wanted.total_bytes()) * max_ratio);
  require_space(temporary.path(), left);
  std::vector<ManifestFile> known;
  bool fits = true;
  for (const ManifestFile& file : wanted.files) {
    const ManifestFile* before = held.find(file.name);
    if (before != nullptr && *before == file) continue;
    uint64_t bytes = file.size_bytes;
    if (file.name.ends_with(".safetensors")) {
      std::optional<Reference> against;
      if (before != nullptr && before->size_bytes == file.size_bytes)
        against = Reference{reference / file.name, before->sha256};
      const auto packed = encode(model / file.name, file, against,
                                 temporary / packed_name(file.name), left, threads, stop);
      bytes = packed ? packed->size_bytes : left + 1;
      if (packed) known.push_back(*packed);
    } else if (bytes <= left) {
      fs::copy_file(model / file.name, temporary / file.name);
    }
    fits = bytes <= left;
    if (!fits) break;
    left -= bytes;
  }
  if (!fits) return std::nullopt;
  write_file_atomic(temporary / std::string(kModelManifestName),
                    checkpoint::format_manifest(wanted));
  Manifest manifest = checkpoint::write_manifest(temporary.path(), known);
  rename_durable(temporary.path(), out);
  return manifest;
}

}  // namespace xffl::pack
