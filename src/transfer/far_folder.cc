// What a folder at a facility has, and has room for, without sending anything.
#include <algorithm>
#include <string>
#include <vector>

#include "names.h"
#include "xffl/base/error.h"
#include "xffl/base/space.h"
#include "xffl/transfer/transfer.h"

namespace xffl::transfer {

using checkpoint::Manifest;

bool is_there(remote::Session& session, const Manifest& manifest, const RemotePath& folder) {
  std::vector<remote::FileQuery> queries{
      {std::string(checkpoint::kManifestName), checkpoint::kMaxManifestBytes}};
  for (const checkpoint::ManifestFile& file : manifest.files) queries.push_back({file.name, 0});
  std::vector<remote::FileView> views;
  constexpr size_t kQueries = 256;
  for (size_t i = 0; i < queries.size(); i += kQueries)
    for (remote::FileView& view : session.look(
             folder, std::span(queries).subspan(i, std::min(kQueries, queries.size() - i))))
      views.push_back(std::move(view));
  try {
    if (!(checkpoint::parse_manifest(views.at(0).bytes, folder.str()) == manifest)) return false;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;
    return false;
  }
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const auto& info = views.at(i + 1).info;
    if (!info || info->type != remote::FileInfo::Type::kRegular ||
        info->size_bytes != manifest.files[i].size_bytes)
      return false;
  }
  return true;
}

void require_room(remote::Session& session, const RemotePath& folder, uint64_t bytes) {
  if (bytes < kWorthAskingBytes) return;
  if (const auto free = session.free_bytes(folder))
    require_space(folder.str() + " at the facility", bytes, *free);
}

}  // namespace xffl::transfer
