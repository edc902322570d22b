#include "folders.h"

#include <algorithm>
#include <memory>
#include <set>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/base/resources.h"
#include "xffl/base/threads.h"
#include "xffl/checkpoint/manifest.h"

namespace xffl::verify {

namespace fs = std::filesystem;
using checkpoint::Manifest;
using checkpoint::ManifestFile;

namespace {

struct Folder {
  fs::path path;
  std::string root_sha256;    // by the journal
  std::string may_be_absent;  // the reason; empty: the folder must exist
};

[[noreturn]] void fail(const fs::path& path, const std::string& problem) {
  throw Error(ErrorKind::kCorrupt, path.string() + ": " + problem);
}

// The folder's manifest. Throws unless its root hash is `root_sha256` and the folder has exactly
// its files, with their sizes.
Manifest recorded_manifest(const fs::path& folder, const std::string& root_sha256) {
  Manifest manifest = checkpoint::read_manifest(folder);
  if (manifest.root_sha256() != root_sha256)
    fail(folder / checkpoint::kManifestName,
         "its root SHA-256 is " + manifest.root_sha256() + "; the journal has " + root_sha256);
  std::set<std::string> others;
  for (const auto& entry : fs::directory_iterator(folder))
    others.insert(entry.path().filename().string());
  others.erase(std::string(checkpoint::kManifestName));
  for (const ManifestFile& file : manifest.files) {
    const uint64_t size = open_regular(folder / file.name).size_bytes;
    if (size != file.size_bytes)
      fail(folder / file.name,
           "expected " + std::to_string(file.size_bytes) + " bytes, found " + std::to_string(size));
    others.erase(file.name);
  }
  if (!others.empty())
    fail(folder, "'" + log::printable(*others.begin(), 300) + "' is not in the manifest");
  return manifest;
}

// Throws unless `found`, from the file's bytes, is what `expected`, from the manifest, says.
void require_same(const fs::path& path, const ManifestFile& expected, const ManifestFile& found) {
  if (!(expected == found))
    fail(path, "expected SHA-256 " + expected.sha256 + ", found " + found.sha256);
  if (!expected.prefix_sha256.empty() && expected.prefix_sha256 != found.prefix_sha256)
    fail(path.parent_path() / checkpoint::kManifestName,
         "the prefix_sha256 of " + expected.name + " are not those of the file's chunks");
}

// The cached hashes of blocks are not evidence. A wrong one makes a reader report damage.
void check_block_hashes(const RecordedRun& run, const fs::path& folder, const Manifest& found,
                        Findings& findings) {
  const fs::path path = checkpoint::block_hashes_path(folder);
  std::error_code none;
  if (!fs::exists(path, none))
    return findings.skip("absent; xffl makes it again", run.name_of(path));
  const auto stored = checkpoint::read_block_hashes(folder);
  bool same = stored && *stored == found;
  for (size_t i = 0; same && i < found.files.size(); ++i)
    same = stored->files[i].block_xxh3 == found.files[i].block_xxh3;
  if (same) return findings.pass();
  findings.fail(run.name_of(path),
                "it is damaged, or not of this folder: remove it, and xffl makes "
                "it again");
}

std::vector<Folder> updates_of(const RecordedRun& run) {
  std::vector<Folder> folders;
  const int kept = run.experiment ? run.experiment->policy.keep_updates : 1;
  for (const auto& [number, round] : run.state.rounds)
    for (const auto& [name, facility] : round.facilities)
      if (facility.accepted && !facility.accepted->update_sha256.empty())
        folders.push_back({run.folder.facility(number, name) / "update",
                           facility.accepted->update_sha256,
                           run.reason_of_absence(number, kept, "keep_updates")});
  return folders;
}

std::vector<Folder> globals_of(const RecordedRun& run) {
  std::vector<Folder> folders;
  if (!run.state.initial_sha256.empty())
    folders.push_back({run.folder.global(0), run.state.initial_sha256, ""});
  if (!run.state.adapted_sha256.empty())
    folders.push_back({run.folder.adapted(), run.state.adapted_sha256, ""});
  for (const auto& [number, round] : run.state.rounds)
    if (!round.model_sha256.empty())
      folders.push_back(
          {run.folder.global(number), round.model_sha256, reason_of_absent_model(run, number)});
  return folders;
}

std::vector<Folder> masters_of(const RecordedRun& run) {
  std::vector<Folder> folders;
  const int kept = (run.experiment ? run.experiment->policy.keep_rounds : 0) + 1;
  for (int round = 0; round <= run.published() + 1; ++round)
    if (const std::string root = run.master_sha256(round); !root.empty())
      folders.push_back(
          {run.folder.master(round), root, run.reason_of_absence(round, kept, "keep_rounds")});
  return folders;
}

void check_manifests(const RecordedRun& run, const std::vector<Folder>& folders,
                     Findings& findings) {
  for (const Folder& folder : folders) {
    std::error_code none;
    const std::string name = run.name_of(folder.path);
    if (!fs::exists(folder.path, none) && !folder.may_be_absent.empty())
      findings.skip(folder.may_be_absent, name);
    else
      findings.guard(name, [&] {
        recorded_manifest(folder.path, folder.root_sha256);
        findings.pass();
      });
  }
}

void read_data(const RecordedRun& run, const std::vector<Folder>& folders, const Options& options,
               Findings& files, Findings& blocks) {
  for (const Folder& folder : folders) {
    std::error_code none;
    const std::string name = run.name_of(folder.path);
    if (!fs::exists(folder.path, none)) {
      files.skip(folder.may_be_absent.empty() ? "absent" : folder.may_be_absent, name);
      continue;
    }
    options.on_progress("reading " + name);
    files.guard(name, [&] {
      const checkpoint::Hashes hashes = hash_folder(folder.path, folder.root_sha256, options.stop);
      files.pass(static_cast<int64_t>(hashes->files.size()));
      check_block_hashes(run, folder.path, *hashes, blocks);
    });
  }
}

}  // namespace

std::string reason_of_absent_model(const RecordedRun& run, int round) {
  const int keep = run.experiment ? run.experiment->policy.keep_models : 1;
  // The newest two models always stay.
  const int kept = keep == 0 ? 0 : std::max(keep, 2);
  return run.reason_of_absence(round, kept, "keep_models");
}

void throw_if_stopped(const std::stop_token& stop) {
  if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped on request");
}

checkpoint::Hashes hash_folder(const fs::path& folder, const std::string& root_sha256,
                               const std::stop_token& stop) {
  const Manifest expected = recorded_manifest(folder, root_sha256);
  Manifest found = expected;
  parallel_for(expected.files.size(), static_cast<size_t>(available_cpus()), [&](size_t i) {
    throw_if_stopped(stop);
    const fs::path path = folder / expected.files[i].name;
    found.files[i] = checkpoint::hash_file(path, expected.chunk_bytes);
    require_same(path, expected.files[i], found.files[i]);
  });
  return std::make_shared<const Manifest>(std::move(found));
}

void check_folders(const RecordedRun& run, const Options& options, std::vector<Check>& checks) {
  const std::vector<Folder> updates = updates_of(run), globals = globals_of(run),
                            masters = masters_of(run);
  Findings update_findings(checks, "updates",
                           "each update's manifest has the root hash of the journal");
  check_manifests(run, updates, update_findings);
  Findings model_findings(checks, "models",
                          "each model's manifest has the root hash of the journal");
  check_manifests(run, globals, model_findings);
  Findings master_findings(checks, "masters",
                           "each float32 master's manifest has the root hash of the journal");
  check_manifests(run, masters, master_findings);
  Findings files(checks, "files", "each file has the SHA-256 of its manifest");
  if (!options.read_data) return files.skip("--read-data reads them");
  Findings blocks(checks, "block hashes", "each .blocks file has the hashes of the files");
  for (const auto& folders : {updates, globals, masters})
    read_data(run, folders, options, files, blocks);
}

}  // namespace xffl::verify
