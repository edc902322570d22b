// One file on its way from a facility: a part file that grows, checked chunk by chunk.
#pragma once

#include <cstdint>
#include <filesystem>

#include "meter.h"
#include "xffl/base/names.h"
#include "xffl/base/spare_memory.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/remote/session.h"

namespace xffl::transfer {

/// Brings `file` of the facility's folder `from` into the local folder `work`, where it gets its
/// name when all its bytes are right. Of a part file that is there, the chunks that are right are
/// kept. A chunk that arrives wrong is fetched twice more, by itself, then refused: kCorrupt.
/// Throws as fetch() does.
void fetch_file(remote::Session& session, const RemotePath& from,
                const checkpoint::ManifestFile& file, uint64_t chunk_bytes,
                const std::filesystem::path& work, Meter& meter, SpareMemory& spare);

}  // namespace xffl::transfer
