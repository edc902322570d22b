// How it works: ".manifest.json.part" at the facility is the plan of the push under way. As long as
// a plan (or the manifest.json that it becomes) is there, a file with its final name is what the
// plan says or absent, whenever a push was interrupted: files get their names only when complete,
// and before one plan takes the place of another, whatever is not the same in both is removed.
//
// One look at the folder tells all that is known beforehand; small files and the plan go in one
// message. A model of small files only needs no plan: its manifest.json is that message's last
// file.
#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "departing_file.h"
#include "far_copies.h"
#include "local_file.h"
#include "meter.h"
#include "names.h"
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

void check_sizes(const fs::path& from, const Manifest& manifest) {
  for (const ManifestFile& file : manifest.files) {
    std::error_code problem;
    const fs::path path = from / file.name;
    const bool regular = fs::is_regular_file(path, problem);
    if (problem && problem != std::errc::no_such_file_or_directory)
      throw system_error("stat " + path.string(), problem.value());
    if (!regular) throw not_as_manifest(path, "there is no such file");
    const uint64_t size = fs::file_size(path, problem);
    if (problem) throw system_error("stat " + path.string(), problem.value());
    if (size != file.size_bytes)
      throw not_as_manifest(path, "expected " + std::to_string(file.size_bytes) + " bytes, found " +
                                      std::to_string(size));
  }
}

class Push {
 public:
  Push(const Endpoint& facility, const fs::path& from, const Manifest& manifest,
       const RemotePath& to, Meter& meter, CheckedFiles& checked, bool doubts)
      : facility_(facility),
        from_(from),
        manifest_(manifest),
        to_(to),
        complete_(to / kManifestName),
        plan_name_(part_name(std::string(kManifestName))),
        plan_(to / plan_name_),
        meter_(meter),
        checked_(checked),
        doubts_(doubts) {}

  void run() {
    meter_.check("pushing to " + to_.str());
    look();
    if (!doubts_ && manifest_at(std::string(kManifestName)) == manifest_ && missing().empty())
      return meter_.present(manifest_.total_bytes());
    const bool planned = keep_what_is_ours();
    if (doubts_) take_names_back();
    std::vector<const ManifestFile*> files = missing();
    uint64_t bytes = 0;
    for (const ManifestFile* file : files) bytes += file->size_bytes;
    meter_.present(manifest_.total_bytes() - bytes);
    if (bytes >= kWorthAskingBytes) files = prepare(files);
    send(files, planned);
  }

 private:
  using Files = std::vector<const ManifestFile*>;

  // One answer about every name that matters.
  void look() {
    std::vector<remote::FileQuery> queries;
    for (const std::string& name : {std::string(kManifestName), plan_name_})
      queries.push_back({name, checkpoint::kMaxManifestBytes});
    for (const ManifestFile& file : manifest_.files)
      for (const std::string& name : {file.name, part_name(file.name)})
        queries.push_back({name, 0});
    constexpr size_t kQueries = 256;
    for (size_t i = 0; i < queries.size(); i += kQueries) {
      const auto some = std::span(queries).subspan(i, std::min(kQueries, queries.size() - i));
      std::vector<remote::FileView> views = facility_.control.look(to_, some);
      for (size_t j = 0; j < some.size(); ++j) there_[some[j].name] = std::move(views.at(j));
    }
  }

  std::optional<Manifest> manifest_at(const std::string& name) {
    const remote::FileView& view = there_[name];
    if (!view.info) return std::nullopt;
    try {
      return checkpoint::parse_manifest(view.bytes, (to_ / name).str());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCorrupt) throw;
      return std::nullopt;
    }
  }

  bool is_there(const ManifestFile& file) {
    const auto& info = there_[file.name].info;
    return info && info->type == remote::FileInfo::Type::kRegular &&
           info->size_bytes == file.size_bytes;
  }

  Files missing() {
    Files files;
    for (const ManifestFile& file : manifest_.files)
      if (!is_there(file)) files.push_back(&file);
    return files;
  }

  // Afterwards the folder is not complete, and a file with a name of ours is ours. Returns whether
  // the plan that lies there is ours.
  bool keep_what_is_ours() {
    std::optional<Manifest> earlier = manifest_at(std::string(kManifestName));
    bool has_plan = there_[plan_name_].info.has_value();
    if (earlier) {
      facility_.control.rename(complete_, plan_);  // not complete while anything in it may change
      has_plan = true;
    } else {
      if (there_[std::string(kManifestName)].info) facility_.control.remove_tree(complete_);
      earlier = manifest_at(plan_name_);
    }
    const bool ours = earlier && *earlier == manifest_;
    if (!ours) remove_what_differs(earlier.value_or(Manifest{}));
    if (!ours && has_plan) facility_.control.remove_tree(plan_);
    for (const ManifestFile& file : manifest_.files)
      if (there_[file.name].info && !is_there(file)) facility_.control.remove_tree(to_ / file.name);
    return ours;
  }

  void remove_what_differs(const Manifest& earlier) {
    std::set<std::string> doubtful;
    for (const Manifest* manifest : {&earlier, &manifest_})
      for (const ManifestFile& file : manifest->files) doubtful.insert(file.name);
    for (const ManifestFile& file : manifest_.files)
      if (std::find(earlier.files.begin(), earlier.files.end(), file) != earlier.files.end())
        doubtful.erase(file.name);
    for (const std::string& doubted : doubtful)
      for (const std::string& name : {doubted, part_name(doubted)}) {
        const auto seen = there_.find(name);
        if (seen != there_.end() && !seen->second.info) continue;
        facility_.control.remove_tree(to_ / name);  // seen, or only the earlier manifest's
        there_[name] = {};
      }
  }

  // Of large files the chunks are looked at then; small ones are sent again.
  void take_names_back() {
    remove_strangers();
    for (const ManifestFile& file : manifest_.files) {
      remote::FileView& named = there_[file.name];
      if (!named.info) continue;
      const std::string part = part_name(file.name);
      if (file.size_bytes > kSmallFileBytes) {
        facility_.control.rename(to_ / file.name, to_ / part);
        there_[part] = named;
      }
      named = {};
    }
  }

  // What the manifest does not name makes the folder another one to who verifies it.
  void remove_strangers() {
    facility_.control.make_dirs(to_);
    std::set<std::string> ours{plan_name_};
    for (const ManifestFile& file : manifest_.files) ours.insert({file.name, part_name(file.name)});
    for (const std::string& name : facility_.control.list(to_))
      if (!ours.contains(name) && name.find('/') == std::string::npos && !name.empty() &&
          name != "." && name != "..")
        facility_.control.remove_tree(to_ / name);
  }

  // For much to send: is there room, and what need not be sent? Returns the rest.
  Files prepare(const Files& files) {
    facility_.control.make_dirs(to_);
    // A copy may be the same damaged file under another name.
    const Files linked = doubts_ ? Files() : link_copies(facility_.control, to_, files);
    Files rest;
    uint64_t needed = 0;
    for (const ManifestFile* file : files) {
      if (std::find(linked.begin(), linked.end(), file) != linked.end()) {
        meter_.present(file->size_bytes);
        continue;
      }
      rest.push_back(file);
      const auto& part = there_[part_name(file->name)].info;
      needed += file->size_bytes - std::min(file->size_bytes, part ? part->size_bytes : 0);
    }
    if (const auto free = facility_.bulk.free_bytes(to_))
      require_space(to_.str() + " at the facility", needed, *free);
    return rest;
  }

  remote::NewFile content(const ManifestFile& file) {
    remote::NewFile content{file.name, std::string(file.size_bytes, '\0')};
    const LocalFile local(from_ / file.name, file);
    local.read(0, std::as_writable_bytes(std::span(content.bytes)));
    if (const std::string found = sha256_hex(content.bytes); found != file.sha256)
      throw not_as_manifest(from_ / file.name,
                            "expected SHA-256 " + file.sha256 + ", found " + found);
    return content;
  }

  void put(const std::vector<remote::NewFile>& files) {
    meter_.check("pushing to " + to_.str());
    facility_.control.put_files(to_, files);
    for (const remote::NewFile& file : files)
      if (file.name != kManifestName && file.name != plan_name_) meter_.moved(file.bytes.size());
  }

  void send(const Files& files, bool planned) {
    const std::string text = checkpoint::format_manifest(manifest_);
    const auto is_small = [](const ManifestFile* f) { return f->size_bytes <= kSmallFileBytes; };
    uint64_t bytes = 0;
    for (const ManifestFile* file : files) bytes += file->size_bytes;
    const bool one_message = !planned && bytes <= kBatchBytes && files.size() <= kBatchFiles &&
                             std::all_of(files.begin(), files.end(), is_small);
    std::vector<remote::NewFile> batch;
    if (!planned && !one_message) batch.push_back({plan_name_, text});
    bytes = 0;
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
                  there_[part_name(file->name)].info, meter_, checked_);
    facility_.control.rename(plan_, complete_);
  }

  const Endpoint& facility_;
  const fs::path& from_;
  const Manifest& manifest_;
  const RemotePath to_, complete_;
  const std::string plan_name_;
  const RemotePath plan_;
  Meter& meter_;
  CheckedFiles& checked_;
  const bool doubts_;  // whether what the facility's names vouch for has to be checked
  std::map<std::string, remote::FileView> there_;  // by name, as far as it was looked at
};

Result put(const Endpoint& facility, const fs::path& from, const Manifest& manifest,
           const RemotePath& to, std::stop_token stop, const OnProgress& on_progress,
           CheckedFiles* checked, bool doubts) {
  check_sizes(from, manifest);
  Meter meter(manifest.total_bytes(), std::move(stop), on_progress);
  CheckedFiles none;
  Push(facility, from, manifest, to, meter, checked != nullptr ? *checked : none, doubts).run();
  return meter.result();
}

}  // namespace

Result push(const Endpoint& facility, const fs::path& from, const Manifest& manifest,
            const RemotePath& to, std::stop_token stop, const OnProgress& on_progress,
            CheckedFiles* checked) {
  return put(facility, from, manifest, to, std::move(stop), on_progress, checked, false);
}

Result repair(const Endpoint& facility, const fs::path& from, const Manifest& manifest,
              const RemotePath& to, std::stop_token stop, const OnProgress& on_progress,
              CheckedFiles* checked) {
  return put(facility, from, manifest, to, std::move(stop), on_progress, checked, true);
}

}  // namespace xffl::transfer
