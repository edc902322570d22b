#include "far_copies.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>

#include "xffl/base/error.h"

namespace xffl::transfer {
namespace {

using checkpoint::kManifestName;
using checkpoint::Manifest;
using checkpoint::ManifestFile;

constexpr size_t kMaxFolders = 8;
constexpr uint64_t kMaxManifestBytes = 1u << 20;
constexpr std::chrono::seconds kDeadline{60};

struct Copy {
  const ManifestFile* wanted;
  std::string name;  // "<folder>/<file>"
};

// A listing of the far side is hostile; ours are digits of a hash.
bool is_plain(const std::string& name) {
  return name.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz") == std::string::npos;
}

std::vector<std::string> folders_beside(remote::Session& session, const RemotePath& to) {
  std::vector<std::string> names;
  for (const std::string& name : session.list(to.parent()))
    if (name != to.filename() && is_plain(name) && names.size() < kMaxFolders)
      names.push_back(name);
  return names;
}

// What the folder's manifest.json names of `wanted`; a damaged one names nothing.
void add_copies(const std::string& folder, const std::string& manifest_json,
                const std::vector<const ManifestFile*>& wanted, std::vector<Copy>& copies) {
  Manifest manifest;
  try {
    manifest = checkpoint::parse_manifest(manifest_json, folder);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;
    return;
  }
  for (const ManifestFile* file : wanted) {
    const auto is_copy = [&](const ManifestFile& other) {
      return other.sha256 == file->sha256 && other.size_bytes == file->size_bytes;
    };
    const auto known = [&](const Copy& copy) { return copy.wanted == file; };
    const auto found = std::find_if(manifest.files.begin(), manifest.files.end(), is_copy);
    if (found != manifest.files.end() && std::none_of(copies.begin(), copies.end(), known))
      copies.push_back({file, folder + "/" + found->name});
  }
}

std::vector<Copy> find_copies(remote::Session& session, const RemotePath& to,
                              const std::vector<const ManifestFile*>& wanted) {
  const std::vector<std::string> folders = folders_beside(session, to);
  std::vector<remote::FileQuery> queries;
  for (const std::string& folder : folders)
    queries.push_back({folder + "/" + std::string(kManifestName), kMaxManifestBytes});
  if (queries.empty()) return {};
  const std::vector<remote::FileView> views = session.look(to.parent(), queries);
  std::vector<Copy> copies;
  for (size_t i = 0; i < folders.size(); ++i)
    if (!views.at(i).bytes.empty()) add_copies(folders[i], views[i].bytes, wanted, copies);
  return copies;
}

}  // namespace

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
      const auto& info = views.at(i).info;
      if (!info || info->type != remote::FileInfo::Type::kRegular ||
          info->size_bytes != copies[i].wanted->size_bytes)
        continue;
      const RemotePath source = to.parent() / copies[i].name;
      const RemotePath target = to / copies[i].wanted->name;
      if (session.run({"ln", "-f", "--", source.str(), target.str()}, "", kDeadline, {})
              .exit_code == 0)
        linked.push_back(copies[i].wanted);
    }
  } catch (const Error& error) {
    // A session without a shell, or a folder that is closed to us: everything is sent.
    if (error.kind() == ErrorKind::kRemote || error.kind() == ErrorKind::kCancelled ||
        error.kind() == ErrorKind::kAuth)
      throw;
  }
  return linked;
}

}  // namespace xffl::transfer
