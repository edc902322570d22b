// Packs a published model as a folder of differences from the previous model, and unpacks it.
//
// A packed folder is transferred like any other folder. It holds its own manifest.json;
// packed.json, the manifest.json of the model; NAME.xpk for each packed file NAME (pack.h); and
// NAME for each file that is stored unpacked. It omits files that the reference holds unchanged.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>

#include "xffl/checkpoint/manifest.h"
#include "xffl/job/job_spec.h"

namespace xffl::pack {

/// Packs the folder `model` against the folder `reference`, both with a manifest.json, into `out`,
/// which replaces an older `out` by rename. Returns the manifest of `out`; or nothing, without a
/// folder, when `out` would exceed `max_ratio` of the model's bytes. Requires disk space for that
/// many bytes. Throws kRejected when the model does not match its manifest, kIo, kCancelled; an
/// error leaves no files.
std::optional<checkpoint::Manifest> pack_model(const std::filesystem::path& model,
                                               const std::filesystem::path& reference,
                                               const std::filesystem::path& out, double max_ratio,
                                               int threads, std::stop_token stop = {});

struct Unpacked {
  uint64_t packed_bytes = 0;
  uint64_t model_bytes = 0;
};

/// Unpacks the folder `model` with root hash `model_sha256`: builds it as `temporary`, a path in
/// the same file system that is removed first, and renames it. Hashes every file during unpacking.
/// Replaces an incomplete `model`. Throws kCorrupt or kRejected for a damaged or wrong packed
/// folder or reference, kNotFound, kIo.
Unpacked unpack_model(const job::PackedModel& packed, const std::filesystem::path& model,
                      const std::string& model_sha256, const std::filesystem::path& temporary,
                      int threads);

/// Makes `spec.base_model_path` available to a job: calls unpack_model() unless the model was sent
/// whole or is already complete. Rethrows its errors after writing the reason to the job's
/// `failure_path`, upon which the coordinator sends the whole model.
std::optional<Unpacked> provide_base_model(const job::JobSpec& spec);

}  // namespace xffl::pack
