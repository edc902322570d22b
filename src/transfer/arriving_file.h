// One file on its way from a facility: a part file that grows, and the hash of what it holds.
#pragma once

#include <cstdint>
#include <filesystem>

#include "meter.h"
#include "xffl/base/names.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/remote/session.h"

namespace xffl::transfer {

/// Brings `file` of the facility's folder `from` into the local folder `work`, where it gets its
/// name when its size and hash are right. A part file is continued. What arrives wrong is fetched
/// once more from its beginning, then refused: kRejected. Throws as fetch() does.
void fetch_file(remote::Session& session, const RemotePath& from,
                const checkpoint::ManifestFile& file, const std::filesystem::path& work,
                Meter& meter);

}  // namespace xffl::transfer
