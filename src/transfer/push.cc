// How it works: ".manifest.json.part" at the facility is the plan of the push. While the plan
// exists, or the manifest.json that the plan becomes, a file with its final name either matches the
// plan or is absent, also after an interruption. A file gets its final name only when complete.
// Before a plan replaces another plan, push() removes every file that differs between the two
// plans.
//
// One query of the folder returns the state of all names; small files and the plan travel in one
// message. A model of small files only needs no plan: its manifest.json is the last file of that
// message.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "local_files.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"
#include "xffl/transfer/transfer.h"

namespace xffl::transfer {
namespace {

namespace fs = std::filesystem;
using checkpoint::kManifestName;
using checkpoint::Manifest;
using checkpoint::ManifestFile;

void check_sizes(const fs::path& from, const Manifest& manifest) {
  for (const ManifestFile& file : manifest.files) {
    std::error_code problem;
    const fs::path path = from / file.name;
    const bool regular = fs::is_regular_file(path, problem);
    if (problem && problem != std::errc::no_such_file_or_directory)
      throw system_error("stat " + path.string(), problem.value());
    if (!regular) throw differs_from_manifest(path, "the file does not exist");
    const uint64_t size = fs::file_size(path, problem);
    if (problem) throw system_error("stat " + path.string(), problem.value());
    if (size != file.size_bytes)
      throw differs_from_manifest(path, "expected " + std::to_string(file.size_bytes) +
                                            " bytes, found " + std::to_string(size));
  }
}

// One answer for each query, in order, in as few messages as the session allows.
std::vector<remote::FileView> look_at(remote::Session& session, const RemotePath& folder,
                                      std::span<const remote::FileQuery> queries) {
  constexpr size_t kQueries = 256;
  std::vector<remote::FileView> views;
  for (size_t i = 0; i < queries.size(); i += kQueries)
    for (remote::FileView& view :
         session.look(folder, queries.subspan(i, std::min(kQueries, queries.size() - i))))
      views.push_back(std::move(view));
  return views;
}

bool is_regular(const std::optional<remote::FileInfo>& info, uint64_t size_bytes) {
  return info && info->type == remote::FileInfo::Type::kRegular && info->size_bytes == size_bytes;
}

struct Range {
  uint64_t begin = 0, end = 0;
};

// Uploads one file: one upload for each range of missing chunks, so that the session can keep its
// channels full. An interrupted upload may leave holes anywhere, so the size of a part file proves
// nothing. Upload compares each chunk that may be present, and each block of a chunk that differs,
// by the SHA-256 that the facility computes, or by reading the bytes back.
struct Upload {
  const Endpoint& facility;
  const LocalFile& local;
  const ManifestFile& file;
  uint64_t chunk_bytes;
  const RemotePath& part;
  Meter& meter;

  void run(uint64_t part_bytes) {
    for (const Range& range : missing(part_bytes)) {
      meter.check("pushing " + part.str());
      facility.bulk_for_change().upload(
          part, range.begin, range.end - range.begin,
          [&](uint64_t offset, std::span<std::byte> out) {
            local.read(offset, out);
            meter.moved(out.size());
          },
          meter.stop());
    }
  }

  std::vector<Range> missing(uint64_t part_bytes) {
    std::vector<Range> ranges;
    for (uint64_t begin = 0; begin < file.size_bytes; begin += chunk_bytes) {
      const uint64_t end = std::min(begin + chunk_bytes, file.size_bytes);
      if (part_bytes <= begin) {
        add(ranges, {begin, end});
      } else if (part_bytes >= end && chunk_is_present(begin, end - begin)) {
        meter.present(end - begin);
      } else {
        add_missing_blocks(ranges, {begin, end}, std::min(part_bytes, end));
      }
    }
    return ranges;
  }

  static void add(std::vector<Range>& ranges, const Range& range) {
    if (!ranges.empty() && ranges.back().end == range.begin)
      ranges.back().end = range.end;
    else
      ranges.push_back(range);
  }

  // `part_end` is the end of the part file or of the chunk.
  void add_missing_blocks(std::vector<Range>& ranges, const Range& chunk, uint64_t part_end) {
    if (part_end < chunk.end) part_end -= (part_end - chunk.begin) % kResumeBytes;
    std::vector<std::string> hashes;
    if (part_end > chunk.begin) hashes = remote_hashes(chunk.begin, part_end - chunk.begin);
    size_t i = 0;
    for (uint64_t begin = chunk.begin; begin < chunk.end; begin += kResumeBytes, ++i) {
      const uint64_t end = std::min(begin + kResumeBytes, chunk.end);
      if (end <= part_end && i < hashes.size() && hashes[i] == local.sha256(begin, end - begin))
        meter.present(end - begin);
      else
        add(ranges, {begin, end});
    }
  }

  // False also where the facility computes no hashes; the hashes of its blocks then decide.
  bool chunk_is_present(uint64_t offset, uint64_t length) {
    meter.check("checking the sent part of " + part.str());
    if (!facility.may_hash) return false;
    const auto hash = facility.control.sha256(part, offset, length);
    return hash && *hash == local.sha256(offset, length);
  }

  // The hashes of the range's blocks at the facility.
  std::vector<std::string> remote_hashes(uint64_t offset, uint64_t length) {
    meter.check("checking the sent part of " + part.str());
    if (facility.may_hash)
      if (const auto hashes = facility.control.block_hashes(part, offset, length, kResumeBytes))
        return *hashes;
    return read_back(offset, length);
  }

  std::vector<std::string> read_back(uint64_t offset, uint64_t length) {
    std::vector<std::string> hashes;
    Sha256 hash;
    uint64_t in_block = 0;
    const auto finish_block = [&] {
      if (std::exchange(in_block, 0) > 0) hashes.push_back(std::exchange(hash, Sha256()).hex());
    };
    const auto add_bytes = [&](std::span<const std::byte> bytes) {
      while (!bytes.empty()) {
        const auto piece = bytes.first(std::min<uint64_t>(kResumeBytes - in_block, bytes.size()));
        hash.update(piece);
        in_block += piece.size();
        bytes = bytes.subspan(piece.size());
        if (in_block == kResumeBytes) finish_block();
      }
    };
    try {
      facility.bulk.download(part, offset, length, add_bytes, meter.stop());
      finish_block();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCorrupt) throw;  // kCorrupt: the part file ends early
    }
    return hashes;
  }
};

// Uploads `file` of the local folder `from` into the facility's folder `to`. The file gets its
// final name when it is complete and the local content matches the manifest. `part_info` is the
// part file at the facility; send_file() does not send its verified chunks again.
void send_file(const Endpoint& facility, const std::filesystem::path& from,
               const ManifestFile& file, uint64_t chunk_bytes, const RemotePath& to,
               const std::optional<remote::FileInfo>& part_info, Meter& meter) {
  const RemotePath part = to / part_name(file.name);
  const LocalFile local(from / file.name, file);
  const bool usable = part_info && part_info->type == remote::FileInfo::Type::kRegular &&
                      part_info->size_bytes <= file.size_bytes;
  if (part_info && !usable) facility.bulk_for_change().remove_tree(part);
  try {
    Upload{facility, local, file, chunk_bytes, part, meter}.run(usable ? part_info->size_bytes : 0);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kRejected) facility.bulk_for_change().remove_tree(part);
    throw;
  }
  facility.bulk.sync(part);
  facility.bulk_for_change().rename(part, to / file.name);
}

constexpr size_t kMaxSiblingFolders = 8;
constexpr uint64_t kMaxSiblingManifestBytes = 1u << 20;
constexpr std::chrono::seconds kLinkTimeout{60};

struct Copy {
  const ManifestFile* wanted;
  std::string name;  // "<folder>/<file>"
};

// A listing is untrusted; the digits of a hash name a model folder.
bool is_plain(const std::string& name) {
  return name.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz") == std::string::npos;
}

std::vector<std::string> sibling_folders(remote::Session& session, const RemotePath& to) {
  std::vector<std::string> names;
  for (const std::string& name : session.list(to.parent()))
    if (name != to.filename() && is_plain(name) && names.size() < kMaxSiblingFolders)
      names.push_back(name);
  return names;
}

// Adds the files of `wanted` that the folder's manifest.json lists; ignores a damaged manifest.
void add_copies(const std::string& folder, const std::string& manifest_json,
                const std::vector<const ManifestFile*>& wanted, std::vector<Copy>& copies) {
  const auto manifest = parse_if_intact(manifest_json, folder);
  if (!manifest) return;
  for (const ManifestFile* file : wanted) {
    const auto is_copy = [&](const ManifestFile& other) {
      return other.sha256 == file->sha256 && other.size_bytes == file->size_bytes;
    };
    const auto known = [&](const Copy& copy) { return copy.wanted == file; };
    const auto found = std::find_if(manifest->files.begin(), manifest->files.end(), is_copy);
    if (found != manifest->files.end() && std::none_of(copies.begin(), copies.end(), known))
      copies.push_back({file, folder + "/" + found->name});
  }
}

std::vector<Copy> find_copies(remote::Session& session, const RemotePath& to,
                              const std::vector<const ManifestFile*>& wanted) {
  const std::vector<std::string> folders = sibling_folders(session, to);
  std::vector<remote::FileQuery> queries;
  for (const std::string& folder : folders)
    queries.push_back({folder + "/" + std::string(kManifestName), kMaxSiblingManifestBytes});
  if (queries.empty()) return {};
  const std::vector<remote::FileView> views = session.look(to.parent(), queries);
  std::vector<Copy> copies;
  for (size_t i = 0; i < folders.size(); ++i)
    if (!views.at(i).bytes.empty()) add_copies(folders[i], views[i].bytes, wanted, copies);
  return copies;
}

// Hard-links into `to` the files of `wanted` that a sibling folder holds. The sibling's
// manifest.json, which only a complete folder has, must list the same size and hash, and the file
// must have that size. Returns the linked files; none where the facility cannot link. Throws
// kRemote.
std::vector<const ManifestFile*> link_copies(remote::Session& session, const RemotePath& to,
                                             const std::vector<const ManifestFile*>& wanted) {
  std::vector<const ManifestFile*> linked;
  try {
    const std::vector<Copy> copies = find_copies(session, to, wanted);
    std::vector<remote::FileQuery> queries;
    for (const Copy& copy : copies) queries.push_back({copy.name, 0});
    if (queries.empty()) return {};
    const std::vector<remote::FileView> views = session.look(to.parent(), queries);
    for (size_t i = 0; i < copies.size(); ++i) {
      if (!is_regular(views.at(i).info, copies[i].wanted->size_bytes)) continue;
      const RemotePath source = to.parent() / copies[i].name;
      const RemotePath target = to / copies[i].wanted->name;
      if (session.run({"ln", "-f", "--", source.str(), target.str()}, "", kLinkTimeout, {})
              .exit_code == 0)
        linked.push_back(copies[i].wanted);
    }
  } catch (const Error& error) {
    // Without a shell, or without permission for the parent folder, push() sends all files.
    if (error.kind() == ErrorKind::kRemote || error.kind() == ErrorKind::kCancelled ||
        error.kind() == ErrorKind::kAuth)
      throw;
  }
  return linked;
}

class Push {
 public:
  Push(const Endpoint& facility, const fs::path& from, const Manifest& manifest,
       const RemotePath& to, Meter& meter, bool verify)
      : facility_(facility),
        from_(from),
        manifest_(manifest),
        to_(to),
        complete_(to / kManifestName),
        plan_name_(part_name(std::string(kManifestName))),
        plan_(to / plan_name_),
        meter_(meter),
        verify_(verify) {}

  void run() {
    meter_.check("pushing to " + to_.str());
    look();
    if (!verify_ && manifest_at(std::string(kManifestName)) == manifest_ && missing().empty())
      return meter_.present(manifest_.total_bytes());
    const bool planned = adopt_folder();
    if (verify_) unname_files();
    std::vector<const ManifestFile*> files = missing();
    const uint64_t bytes = bytes_of(files);
    meter_.present(manifest_.total_bytes() - bytes);
    if (bytes >= kMinQueryBytes) files = prepare(files);
    send(files, planned);
  }

 private:
  using Files = std::vector<const ManifestFile*>;

  // Queries all files, part files, the manifest and the plan.
  void look() {
    std::vector<remote::FileQuery> queries;
    for (const std::string& name : {std::string(kManifestName), plan_name_})
      queries.push_back({name, checkpoint::kMaxManifestBytes});
    for (const ManifestFile& file : manifest_.files)
      for (const std::string& name : {file.name, part_name(file.name)})
        queries.push_back({name, 0});
    std::vector<remote::FileView> views = look_at(facility_.control, to_, queries);
    for (size_t i = 0; i < queries.size(); ++i) remote_[queries[i].name] = std::move(views.at(i));
  }

  std::optional<Manifest> manifest_at(const std::string& name) {
    const remote::FileView& view = remote_[name];
    return view.info ? parse_if_intact(view.bytes, (to_ / name).str()) : std::nullopt;
  }

  static uint64_t bytes_of(const Files& files) {
    uint64_t bytes = 0;
    for (const ManifestFile* file : files) bytes += file->size_bytes;
    return bytes;
  }

  bool is_present(const ManifestFile& file) {
    return is_regular(remote_[file.name].info, file.size_bytes);
  }

  Files missing() {
    Files files;
    for (const ManifestFile& file : manifest_.files)
      if (!is_present(file)) files.push_back(&file);
    return files;
  }

  // Makes the folder incomplete and removes every file of the manifest that may have other content.
  // Returns true when the facility already holds this push's plan.
  bool adopt_folder() {
    std::optional<Manifest> earlier = manifest_at(std::string(kManifestName));
    bool has_plan = remote_[plan_name_].info.has_value();
    if (earlier) {
      // The folder is incomplete while its files may change.
      facility_.control_for_change().rename(complete_, plan_);
      has_plan = true;
    } else {
      if (remote_[std::string(kManifestName)].info)
        facility_.control_for_change().remove_tree(complete_);
      earlier = manifest_at(plan_name_);
    }
    const bool same_plan = earlier && *earlier == manifest_;
    if (!same_plan) remove_different(earlier.value_or(Manifest{}));
    if (!same_plan && has_plan) facility_.control_for_change().remove_tree(plan_);
    for (const ManifestFile& file : manifest_.files) {
      if (!remote_[file.name].info || is_present(file)) continue;
      facility_.control_for_change().remove_tree(to_ / file.name);
      remote_[file.name] = {};
    }
    return same_plan;
  }

  void remove_different(const Manifest& earlier) {
    std::set<std::string> different;
    for (const Manifest* manifest : {&earlier, &manifest_})
      for (const ManifestFile& file : manifest->files) different.insert(file.name);
    for (const ManifestFile& file : manifest_.files)
      if (std::find(earlier.files.begin(), earlier.files.end(), file) != earlier.files.end())
        different.erase(file.name);
    for (const std::string& file : different)
      for (const std::string& name : {file, part_name(file)}) {
        const auto seen = remote_.find(name);
        if (seen != remote_.end() && !seen->second.info) continue;
        // The file is present, or unknown because only the earlier manifest lists the file.
        facility_.control_for_change().remove_tree(to_ / name);
        remote_[name] = {};
      }
  }

  // Renames large files to part files, whose chunks Upload then compares, and marks small files as
  // missing.
  void unname_files() {
    remove_unlisted();
    for (const ManifestFile& file : manifest_.files) {
      remote::FileView& named = remote_[file.name];
      if (!named.info) continue;
      const std::string part = part_name(file.name);
      if (file.size_bytes > kSmallFileBytes) {
        facility_.control_for_change().rename(to_ / file.name, to_ / part);
        remote_[part] = named;
      }
      named = {};
    }
  }

  // Removes files that the manifest does not list: a verification of the folder would reject an
  // unlisted file.
  void remove_unlisted() {
    facility_.control_for_change().make_dirs(to_);
    std::set<std::string> listed{plan_name_};
    for (const ManifestFile& file : manifest_.files)
      listed.insert({file.name, part_name(file.name)});
    for (const std::string& name : facility_.control.list(to_)) {
      if (listed.contains(name) || name.find('/') != std::string::npos || name.empty() ||
          name == "." || name == "..")
        continue;
      if (!can_be_named(name)) return remove_folder();
      facility_.control_for_change().remove_tree(to_ / name);
    }
  }

  bool can_be_named(const std::string& name) const {
    try {
      return !(to_ / name).str().empty();
    } catch (const Error&) {
      return false;
    }
  }

  // Only the removal of the whole folder removes a file whose name, with a control character, is no
  // path for xffl. All files are sent again.
  void remove_folder() {
    facility_.control_for_change().remove_tree(to_);
    facility_.control_for_change().make_dirs(to_);
    remote_.clear();
  }

  // Links files that the facility already holds and checks its free space. Returns the files to
  // send.
  Files prepare(const Files& files) {
    facility_.control_for_change().make_dirs(to_);
    // A repair links nothing: a copy may be a hard link to the same damaged file.
    const Files linked =
        verify_ ? Files() : link_copies(facility_.control_for_change(), to_, files);
    Files rest;
    uint64_t needed = 0;
    for (const ManifestFile* file : files) {
      if (std::find(linked.begin(), linked.end(), file) != linked.end()) {
        meter_.present(file->size_bytes);
        continue;
      }
      rest.push_back(file);
      const auto& part = remote_[part_name(file->name)].info;
      needed += file->size_bytes - std::min(file->size_bytes, part ? part->size_bytes : 0);
    }
    if (const auto free = facility_.bulk.free_bytes(to_))
      xffl::require_space(to_.str() + " at the facility", needed, *free);
    return rest;
  }

  remote::NewFile content(const ManifestFile& file) {
    remote::NewFile content{file.name, std::string(file.size_bytes, '\0')};
    const LocalFile local(from_ / file.name, file);
    local.read(0, std::as_writable_bytes(std::span(content.bytes)));
    if (const std::string found = sha256_hex(content.bytes); found != file.sha256)
      throw differs_from_manifest(from_ / file.name,
                                  "expected SHA-256 " + file.sha256 + ", found " + found);
    return content;
  }

  void put(const std::vector<remote::NewFile>& files) {
    meter_.check("pushing to " + to_.str());
    facility_.control_for_change().put_files(to_, files);
    for (const remote::NewFile& file : files)
      if (file.name != kManifestName && file.name != plan_name_) meter_.moved(file.bytes.size());
  }

  void send(const Files& files, bool planned) {
    const std::string text = checkpoint::format_manifest(manifest_);
    const auto is_small = [](const ManifestFile* f) { return f->size_bytes <= kSmallFileBytes; };
    const bool one_message = !planned && bytes_of(files) <= kBatchBytes &&
                             files.size() <= kBatchFiles &&
                             std::all_of(files.begin(), files.end(), is_small);
    std::vector<remote::NewFile> batch;
    if (!planned && !one_message) batch.push_back({plan_name_, text});
    uint64_t bytes = 0;
    for (const ManifestFile* file : files) {
      if (!is_small(file)) continue;
      if (batch.size() > kBatchFiles || bytes + file->size_bytes > kBatchBytes) {
        put(std::exchange(batch, {}));
        bytes = 0;
      }
      batch.push_back(content(*file));
      bytes += file->size_bytes;
    }
    if (one_message) batch.push_back({std::string(kManifestName), text});
    if (!batch.empty()) put(batch);
    if (one_message) return;
    for (const ManifestFile* file : files)
      if (!is_small(file))
        send_file(facility_, from_, *file, manifest_.chunk_bytes, to_,
                  remote_[part_name(file->name)].info, meter_);
    facility_.control_for_change().rename(plan_, complete_);
  }

  const Endpoint& facility_;
  const fs::path& from_;
  const Manifest& manifest_;
  const RemotePath to_, complete_;
  const std::string plan_name_;
  const RemotePath plan_;
  Meter& meter_;
  const bool verify_;  // compare file contents instead of trusting names and sizes
  std::map<std::string, remote::FileView> remote_;  // by name; only queried names
};

Result put(const Endpoint& facility, const fs::path& from, const Manifest& manifest,
           const RemotePath& to, std::stop_token stop, const OnProgress& on_progress, bool verify) {
  check_sizes(from, manifest);
  Meter meter(manifest.total_bytes(), std::move(stop), on_progress);
  Push(facility, from, manifest, to, meter, verify).run();
  return meter.result();
}

}  // namespace

bool is_pushed(remote::Session& session, const Manifest& manifest, const RemotePath& folder) {
  std::vector<remote::FileQuery> queries{
      {std::string(kManifestName), checkpoint::kMaxManifestBytes}};
  for (const ManifestFile& file : manifest.files) queries.push_back({file.name, 0});
  const std::vector<remote::FileView> views = look_at(session, folder, queries);
  if (parse_if_intact(views.at(0).bytes, folder.str()) != manifest) return false;
  for (size_t i = 0; i < manifest.files.size(); ++i)
    if (!is_regular(views.at(i + 1).info, manifest.files[i].size_bytes)) return false;
  return true;
}

void require_space(remote::Session& session, const RemotePath& folder, uint64_t bytes) {
  if (bytes < kMinQueryBytes) return;
  if (const auto free = session.free_bytes(folder))
    xffl::require_space(folder.str() + " at the facility", bytes, *free);
}

Result push(const Endpoint& facility, const fs::path& from, const Manifest& manifest,
            const RemotePath& to, std::stop_token stop, const OnProgress& on_progress) {
  return put(facility, from, manifest, to, std::move(stop), on_progress, false);
}

Result repair(const Endpoint& facility, const fs::path& from, const Manifest& manifest,
              const RemotePath& to, std::stop_token stop, const OnProgress& on_progress) {
  return put(facility, from, manifest, to, std::move(stop), on_progress, true);
}

}  // namespace xffl::transfer
