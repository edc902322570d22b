// How it works: everything is collected in "<to>.part", a folder whose manifest.json is the plan
// of the fetch under way. Only when all files are there and verified does it become `to`.
#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>

#include "arriving_file.h"
#include "names.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/transfer/transfer.h"

namespace xffl::transfer {
namespace {

namespace fs = std::filesystem;
using checkpoint::kManifestName;
using checkpoint::Manifest;

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

Manifest far_manifest(remote::Session& session, const RemotePath& from,
                      const std::string& root_sha256, uint64_t max_bytes) {
  const RemotePath path = from / kManifestName;
  const Manifest manifest =
      checkpoint::parse_manifest(remote::read_text(session, path, checkpoint::kMaxManifestBytes), path.str());
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
  const fs::space_info space = fs::space(work, problem);
  if (!problem && space.available < missing)
    throw Error(ErrorKind::kIo, "not enough space in " + work.string() + ": the fetch needs " +
                                    std::to_string(missing) + " bytes more, " +
                                    std::to_string(space.available) +
                                    " are free; free some and run again");
}

void publish(const fs::path& work, const fs::path& to) {
  std::error_code problem;
  fs::remove_all(to, problem);  // an earlier fetch that no longer is what its manifest says
  if (problem) throw system_error("remove " + to.string(), problem.value());
  fsync_dir(work);
  rename_durable(work, to);
}

}  // namespace

Result fetch(remote::Session& session, const RemotePath& from, const std::string& root_sha256,
             uint64_t max_bytes, const fs::path& to, std::stop_token stop,
             const OnProgress& on_progress) {
  fs::path target = fs::absolute(to).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  if (complete(target, root_sha256)) return {};
  refuse_foreign(target);
  const Manifest manifest = far_manifest(session, from, root_sha256, max_bytes);

  const fs::path work = target.string() + ".part";
  prepare(work, manifest);
  check_space(work, manifest);
  Meter meter(manifest.total_bytes(), std::move(stop), on_progress);
  for (const checkpoint::ManifestFile& file : manifest.files) {
    meter.check("fetching " + from.str());
    fetch_file(session, from, file, work, meter);
  }
  publish(work, target);
  return meter.result();
}

}  // namespace xffl::transfer
