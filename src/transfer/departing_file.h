// One file on its way to a facility.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "meter.h"
#include "xffl/base/names.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/remote/session.h"
#include "xffl/transfer/transfer.h"

namespace xffl::transfer {

/// Sends `file` of the local folder `from` into the facility's folder `to`, where it gets its name
/// when all of it is there and the local content was right. `part` is what its part file was seen
/// to be: the chunks of it that are right are not sent again. What `checked` knows is
/// not hashed. Throws as push() does.
void send_file(const Endpoint& facility, const std::filesystem::path& from,
               const checkpoint::ManifestFile& file, uint64_t chunk_bytes, const RemotePath& to,
               const std::optional<remote::FileInfo>& part, Meter& meter, CheckedFiles& checked);

}  // namespace xffl::transfer
