// Files that the facility holds in another folder need not be sent.
#pragma once

#include <vector>

#include "xffl/base/names.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/remote/session.h"

namespace xffl::transfer {

/// Links into `to` those of `wanted` that a folder beside it holds: its manifest.json (which only a
/// complete folder has) names the same size and hash, and the file has that size. Returns the files
/// that are now there. A facility that cannot link has none. Throws kRemote.
std::vector<const checkpoint::ManifestFile*> link_copies(
    remote::Session& session, const RemotePath& to,
    const std::vector<const checkpoint::ManifestFile*>& wanted);

}  // namespace xffl::transfer
