#include "xffl/pack/packed_model.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "xffl/base/copy_file.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/resources.h"
#include "xffl/base/sha256.h"
#include "xffl/job/job_spec.h"
#include "xffl/pack/pack.h"

namespace xffl::pack {

namespace fs = std::filesystem;
using checkpoint::Manifest;
using checkpoint::ManifestFile;

namespace {

constexpr std::string_view kModelManifestName = "packed.json";
constexpr std::string_view kPackedEnding = ".xpk";
constexpr size_t kMaxNameBytes = 200;  // the limit of a manifest

std::string packed_name(const std::string& name) { return name + std::string(kPackedEnding); }

// True when no file name collides with a name of the packed folder or becomes too long.
bool names_can_be_packed(const Manifest& manifest) {
  return std::all_of(manifest.files.begin(), manifest.files.end(), [](const ManifestFile& file) {
    return file.name != kModelManifestName && !file.name.ends_with(kPackedEnding) &&
           packed_name(file.name).size() <= kMaxNameBytes;
  });
}

// A new folder; the destructor removes a folder that was not renamed.
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

constexpr int kMaxThreads = 16;

[[noreturn]] void reject(const fs::path& path, const std::string& problem) {
  throw Error(ErrorKind::kRejected, path.string() + ": " + problem);
}

Manifest read_manifest_with(const fs::path& folder, const std::string& sha256) {
  Manifest manifest = checkpoint::read_manifest(folder);
  if (const std::string root = manifest.root_sha256(); root != sha256)
    reject(folder, "its manifest.json has the root hash " + root + ", expected " + sha256);
  return manifest;
}

// A folder with the expected manifest.json and file sizes is complete: unpack_model() renames only
// complete folders, and a push writes manifest.json last. Throws kIo when the folder cannot be read
// now: the caller would replace a model that another start of the job uses.
bool is_complete(const fs::path& folder, const std::string& sha256) {
  try {
    const Manifest manifest = read_manifest_with(folder, sha256);
    return std::all_of(manifest.files.begin(), manifest.files.end(), [&](const ManifestFile& file) {
      const fs::path path = folder / file.name;
      std::error_code problem;
      const fs::file_status status = fs::status(path, problem);
      if (!fs::status_known(status)) throw system_error("stat " + path.string(), problem.value());
      return fs::is_regular_file(status) && fs::file_size(path, problem) == file.size_bytes;
    });
  } catch (const UnreadableFile&) {
    return false;
  } catch (const Error& error) {
    // Such as EMFILE and ESTALE, which say nothing about the folder. ENOTDIR: it is a file.
    if (error.kind() == ErrorKind::kIo && error.error_number() != ENOTDIR) throw;
    return false;
  }
}

void check_hash(const fs::path& path, const ManifestFile& file) {
  if (const std::string found = sha256_file(path); found != file.sha256)
    throw Error(ErrorKind::kCorrupt,
                path.string() + ": expected SHA-256 " + file.sha256 + ", found " + found);
}

// Restores the files of a model in `temporary`.
class Unpacker {
 public:
  Unpacker(const job::PackedModel& packed, const fs::path& temporary, int threads)
      : packed_(packed.path),
        reference_(packed.reference_path),
        manifest_(read_manifest_with(packed.path, packed.sha256)),
        held_(read_manifest_with(packed.reference_path, packed.reference_sha256)),
        temporary_(temporary),
        threads_(threads) {}

  const Manifest& manifest() const { return manifest_; }

  void restore(const ManifestFile& file) {
    const ManifestFile* before = held_.find(file.name);
    if (manifest_.find(packed_name(file.name)) != nullptr) {
      std::optional<Reference> against;
      if (before != nullptr && before->size_bytes == file.size_bytes)
        against = Reference{reference_ / file.name, before->sha256};
      decode(packed_ / packed_name(file.name), file, against, temporary_ / file.name, threads_);
    } else if (manifest_.find(file.name) != nullptr) {
      link_or_copy(packed_ / file.name, file);
    } else if (before != nullptr && *before == file) {
      link_or_copy(reference_ / file.name, file);
    } else {
      reject(packed_, "neither the packed folder nor the reference holds '" + file.name + "'");
    }
  }

 private:
  void link_or_copy(const fs::path& from, const ManifestFile& file) {
    const fs::path to = temporary_ / file.name;
    std::error_code problem;
    if (!fs::is_regular_file(fs::symlink_status(from, problem)))
      reject(from, "expected a regular file");
    fs::create_hard_link(from, to, problem);
    if (problem) copy_synced(from, to);
    check_hash(to, file);
  }

  const fs::path packed_, reference_;
  const Manifest manifest_, held_;
  const fs::path temporary_;
  const int threads_;
};

// Renames `temporary` to `model`, unless another start of the job has already done so.
void rename_into_place(const fs::path& temporary, const fs::path& model,
                       const std::string& sha256) {
  for (int tries = 0; tries < 2; ++tries) {
    std::error_code problem;
    fs::rename(temporary, model, problem);
    if (!problem) {
      fsync_dir(model.parent_path());
      return;
    }
    const bool taken = problem == std::errc::directory_not_empty ||
                       problem == std::errc::file_exists || problem == std::errc::not_a_directory;
    if (!taken) throw system_error("rename " + temporary.string(), problem.value());
    if (is_complete(model, sha256)) {
      fs::remove_all(temporary, problem);
      return;
    }
    fs::remove_all(model, problem);  // left by an interrupted push
    if (problem) throw system_error("remove " + model.string(), problem.value());
  }
  throw Error(ErrorKind::kIo, model.string() + ": another program creates this folder repeatedly");
}

}  // namespace

std::optional<Manifest> pack_model(const fs::path& model, const fs::path& reference,
                                   const fs::path& out, double max_ratio, int threads,
                                   std::stop_token stop) {
  return pack_model(Source{model, checkpoint::read_manifest(model)},
                    Source{reference, checkpoint::read_manifest(reference)}, out, max_ratio,
                    threads, std::move(stop));
}

std::optional<Manifest> pack_model(const Source& model, const Source& reference,
                                   const fs::path& out, double max_ratio, int threads,
                                   std::stop_token stop) {
  const Manifest& wanted = model.manifest;
  const Manifest& held = reference.manifest;
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
        against = Reference{reference.folder / file.name, before->sha256};
      const auto packed = encode(model.folder / file.name, file, against,
                                 temporary / packed_name(file.name), left, threads, stop);
      bytes = packed ? packed->size_bytes : left + 1;
      if (packed) known.push_back(*packed);
    } else if (bytes <= left) {
      copy_synced(model.folder / file.name, temporary / file.name);
      if (const std::string found = sha256_file(temporary / file.name); found != file.sha256)
        reject(model.folder / file.name, "expected SHA-256 " + file.sha256 + ", found " + found);
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

Unpacked unpack_model(const job::PackedModel& packed, const fs::path& model,
                      const std::string& model_sha256, const fs::path& temporary, int threads) {
  Unpacker unpacker(packed, temporary, threads);
  const Manifest wanted = checkpoint::parse_manifest(
      read_file(fs::path(packed.path) / kModelManifestName, checkpoint::kMaxManifestBytes),
      packed.path + "/" + std::string(kModelManifestName));
  if (wanted.root_sha256() != model_sha256)
    reject(packed.path, "holds the model " + wanted.root_sha256() + ", expected " + model_sha256);
  std::error_code none;
  fs::remove_all(temporary, none);
  make_dirs(temporary);
  for (const ManifestFile& file : wanted.files) unpacker.restore(file);
  write_file_atomic(temporary / checkpoint::kManifestName, checkpoint::format_manifest(wanted));
  make_dirs(model.parent_path());
  rename_into_place(temporary, model, model_sha256);
  return {unpacker.manifest().total_bytes(), wanted.total_bytes()};
}

std::optional<Unpacked> provide_base_model(const job::JobSpec& spec) {
  if (!spec.base_model_packed || is_complete(spec.base_model_path, spec.base_model_sha256))
    return std::nullopt;
  const fs::path out = fs::path(spec.report_path).parent_path();
  const fs::path temporary = out / ("model.tmp-a" + std::to_string(spec.key.attempt));
  std::error_code none;
  fs::remove(spec.base_model_packed->failure_path, none);
  try {
    return unpack_model(*spec.base_model_packed, spec.base_model_path, spec.base_model_sha256,
                        temporary, std::min(kMaxThreads, available_cpus()));
  } catch (Error& error) {
    error.add_context("unpacking the base model");
    fs::remove_all(temporary, none);
    job::report_model_failure(spec.base_model_packed->failure_path, error.what());
    throw;
  }
}

}  // namespace xffl::pack
