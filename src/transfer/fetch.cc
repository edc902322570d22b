// How it works: everything is collected in "<to>.part", a folder whose manifest.json is the plan
// of the fetch under way. Only when all files are there and verified does it become `to`.
#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "arriving_file.h"
#include "meter.h"
#include "names.h"
#include "part_file.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"
#include "xffl/base/space.h"
#include "xffl/transfer/transfer.h"

namespace xffl::transfer {
namespace {

namespace fs = std::filesystem;
using checkpoint::kManifestName;
using checkpoint::Manifest;
using checkpoint::ManifestFile;

// The root hash that a local folder's manifest.json has; empty when there is none, or a damaged
// one.
std::string local_root(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder / kManifestName, ignored)) return {};
  try {
    return checkpoint::read_manifest(folder).root_sha256();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt && error.kind() != ErrorKind::kNotFound) throw;
    return {};
  }
}

bool complete(const fs::path& to, const std::string& root_sha256) {
  if (local_root(to) != root_sha256) return false;
  try {
    checkpoint::verify_folder(to, checkpoint::read_manifest(to));
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kRejected) throw;
    return false;
  }
}

// Nothing that a fetch did not make is ever replaced by one.
void refuse_foreign(const fs::path& to) {
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(to, ignored)) || fs::exists(to / kManifestName, ignored))
    return;
  if (fs::is_directory(to, ignored) && fs::is_empty(to, ignored)) return;
  throw Error(ErrorKind::kIo, to.string() +
                                  " is in the way: it exists and is not a fetched folder;"
                                  " move it elsewhere");
}

const remote::FileInfo& require_regular(const remote::FileView& view, const RemotePath& path,
                                        const std::string& named_by) {
  if (!view.info)
    throw Error(ErrorKind::kNotFound, path.str() + named_by + " does not exist at the facility");
  if (view.info->type != remote::FileInfo::Type::kRegular)
    throw Error(ErrorKind::kRejected, path.str() +
                                          " at the facility is refused: expected a "
                                          "regular file, found a folder, link or device");
  return *view.info;
}

Manifest far_manifest(remote::Session& session, const RemotePath& from,
                      const std::string& root_sha256, uint64_t max_bytes) {
  const RemotePath path = from / kManifestName;
  const remote::FileQuery query{std::string(kManifestName), checkpoint::kMaxManifestBytes};
  const remote::FileView view = session.look(from, {&query, 1}).at(0);
  if (require_regular(view, path, "").size_bytes > checkpoint::kMaxManifestBytes)
    throw Error(ErrorKind::kCorrupt, path.str() + " at the facility is larger than the " +
                                         std::to_string(checkpoint::kMaxManifestBytes) +
                                         " bytes allowed for it");
  const Manifest manifest = checkpoint::parse_manifest(view.bytes, path.str());
  if (manifest.root_sha256() != root_sha256)
    throw Error(ErrorKind::kRejected, path.str() + " is not the one that the report promised: " +
                                          "expected root SHA-256 " + root_sha256 + ", found " +
                                          manifest.root_sha256());
  if (manifest.total_bytes() > max_bytes)
    throw Error(ErrorKind::kRejected, path.str() + " names " +
                                          std::to_string(manifest.total_bytes()) +
                                          " bytes of files, more than the " +
                                          std::to_string(max_bytes) + " expected at most");
  return manifest;
}

// An empty work folder with the plan, or the one that an earlier call of the same plan left.
void prepare(const fs::path& work, const Manifest& manifest) {
  std::error_code problem;
  const bool continues = fs::is_directory(fs::symlink_status(work, problem)) &&
                         local_root(work) == manifest.root_sha256();
  if (continues) return;
  fs::remove_all(work, problem);
  if (problem) throw system_error("remove " + work.string(), problem.value());
  make_dirs(work);
  write_file_atomic(work / kManifestName, checkpoint::format_manifest(manifest));
}

void check_space(const fs::path& work, const Manifest& manifest) {
  uint64_t missing = 0;
  std::error_code problem;
  for (const checkpoint::ManifestFile& file : manifest.files) {
    uint64_t there = 0;
    for (const std::string& name : {file.name, part_name(file.name)}) {
      const uint64_t size = fs::file_size(work / name, problem);
      if (!problem) there = std::max(there, size);
    }
    if (there < file.size_bytes) missing += file.size_bytes - there;
  }
  require_space(work, missing);
}

// True when an earlier call has finished the file; what has the name but not the content goes.
bool present(const fs::path& path, const ManifestFile& file) {
  std::error_code problem;
  if (!fs::is_regular_file(fs::symlink_status(path, problem))) return false;
  if (fs::file_size(path, problem) == file.size_bytes && sha256_file(path) == file.sha256)
    return true;
  fs::remove(path, problem);
  return false;
}

// Brings the files into the work folder: what is small in few messages, the rest by streams.
class Fetch {
 public:
  Fetch(const Endpoint& facility, const RemotePath& from, const Manifest& manifest,
        const fs::path& work, Meter& meter, SpareMemory& spare)
      : facility_(facility),
        from_(from),
        manifest_(manifest),
        work_(work),
        meter_(meter),
        spare_(spare) {}

  void run() {
    std::vector<const ManifestFile*> batch;
    uint64_t bytes = 0;
    for (const ManifestFile& file : manifest_.files) {
      if (present(work_ / file.name, file)) {
        meter_.present(file.size_bytes);
        continue;
      }
      const uint64_t size = wanted_bytes(file);
      if (batch.size() == kBatchFiles || bytes + size > kBatchBytes) {
        take(std::exchange(batch, {}));
        bytes = 0;
      }
      batch.push_back(&file);
      bytes += size;
    }
    if (!batch.empty()) take(batch);
    for (const ManifestFile* file : by_stream_)
      fetch_file(facility_.bulk, from_, *file, manifest_.chunk_bytes, work_, meter_, spare_);
  }

 private:
  uint64_t wanted_bytes(const ManifestFile& file) const {
    const bool begun = fs::exists(fs::symlink_status(work_ / part_name(file.name)));
    return file.size_bytes <= kSmallFileBytes && !begun ? file.size_bytes : 0;
  }

  void take(const std::vector<const ManifestFile*>& batch) {
    meter_.check("fetching " + from_.str());
    std::vector<remote::FileQuery> queries;
    for (const ManifestFile* file : batch) queries.push_back({file->name, wanted_bytes(*file)});
    const std::vector<remote::FileView> views = facility_.control.look(from_, queries);
    for (size_t i = 0; i < batch.size(); ++i) take(*batch[i], views.at(i), queries[i].max_bytes);
  }

  void take(const ManifestFile& file, const remote::FileView& view, uint64_t wanted) {
    const RemotePath path = from_ / file.name;
    const auto& info = require_regular(view, path, ", which the facility's manifest.json names,");
    if (info.size_bytes != file.size_bytes)
      throw Error(ErrorKind::kRejected,
                  path.str() + " at the facility is not what its manifest says: expected " +
                      std::to_string(file.size_bytes) + " bytes, found " +
                      std::to_string(info.size_bytes) + " bytes");
    if (view.bytes.size() != file.size_bytes || (wanted == 0 && file.size_bytes > 0)) {
      by_stream_.push_back(&file);
      return;
    }
    if (const std::string found = sha256_hex(view.bytes); found != file.sha256) {
      if (file.size_bytes == 0)
        throw Error(ErrorKind::kCorrupt, path.str() + " is empty: expected SHA-256 " + file.sha256);
      by_stream_.push_back(&file);  // which looks again
      return;
    }
    PartFile part(work_ / part_name(file.name), file.size_bytes);
    spare_.release(file.size_bytes);
    part.write(0, std::as_bytes(std::span(view.bytes)));
    part.finish(work_ / file.name);
    meter_.moved(file.size_bytes);
  }

  const Endpoint& facility_;
  const RemotePath& from_;
  const Manifest& manifest_;
  const fs::path& work_;
  Meter& meter_;
  SpareMemory& spare_;
  std::vector<const ManifestFile*> by_stream_;
};

void publish(const fs::path& work, const fs::path& to) {
  std::error_code problem;
  fs::remove_all(to, problem);  // an earlier fetch that no longer is what its manifest says
  if (problem) throw system_error("remove " + to.string(), problem.value());
  fsync_dir(work);
  rename_durable(work, to);
}

}  // namespace

Result fetch(const Endpoint& facility, const RemotePath& from, const std::string& root_sha256,
             uint64_t max_bytes, const fs::path& to, std::stop_token stop,
             const OnProgress& on_progress, SpareMemory* spare) {
  fs::path target = fs::absolute(to).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  if (complete(target, root_sha256)) return {};
  refuse_foreign(target);
  const Manifest manifest = far_manifest(facility.control, from, root_sha256, max_bytes);

  const fs::path work = target.string() + ".part";
  prepare(work, manifest);
  check_space(work, manifest);
  Meter meter(manifest.total_bytes(), std::move(stop), on_progress);
  SpareMemory none;
  Fetch(facility, from, manifest, work, meter, spare != nullptr ? *spare : none).run();
  publish(work, target);
  return meter.result();
}

}  // namespace xffl::transfer
