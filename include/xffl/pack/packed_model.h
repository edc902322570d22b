// Packs a published model as a folder of differences from the previous model, and unpacks it.
//
// xffl transfers a packed folder like any other folder. A packed folder holds its own
// manifest.json; packed.json, the manifest.json of the model; NAME.xpk for each packed file NAME
// (pack.h); and NAME for each unpacked file. A packed folder omits files that the reference holds
// unchanged.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>

#include "xffl/checkpoint/manifest.h"
#include "xffl/job/job_spec.h"

namespace xffl::pack {

struct Source {
  std::filesystem::path folder;
  checkpoint::Manifest manifest;  // the folder's own manifest.json is not read
};

/// Packs the folder `model` against the folder `reference` into `out`; a rename replaces an older
/// `out`. When `out` would exceed `max_ratio` of the model's bytes,
/// returns nothing and leaves no folder; otherwise returns the manifest of `out`. Requires disk
/// space for `max_ratio` of the model's bytes. Throws kRejected when the model does not match its
/// manifest, kIo, kCancelled; an error leaves no files.
std::optional<checkpoint::Manifest> pack_model(const Source& model, const Source& reference,
                                               const std::filesystem::path& out, double max_ratio,
                                               int threads, std::stop_token stop = {});
/// The same for folders with the right manifest.json.
std::optional<checkpoint::Manifest> pack_model(const std::filesystem::path& model,
                                               const std::filesystem::path& reference,
                                               const std::filesystem::path& out, double max_ratio,
                                               int threads, std::stop_token stop = {});

struct Unpacked {
  uint64_t packed_bytes = 0;
  uint64_t model_bytes = 0;
};

/// Unpacks the folder `model` with root hash `model_sha256`. Removes an old `temporary`, a path in
/// the same file system, builds the model there and renames the folder. Hashes every file during
/// unpacking. Replaces an incomplete `model`. Throws kCorrupt or kRejected for a damaged or wrong
/// packed folder or reference, kNotFound, kIo.
Unpacked unpack_model(const job::PackedModel& packed, const std::filesystem::path& model,
                      const std::string& model_sha256, const std::filesystem::path& temporary,
                      int threads);

/// Makes `spec.base_model_path` available to a job: calls unpack_model() unless the coordinator
/// sent the whole model or the model is already complete. Writes the reason for an error of
/// unpack_model() to the job's `failure_path` and rethrows the error; the coordinator then sends
/// the whole model. Throws kIo, and writes no reason, when the file system does not show
/// whether the folder that is there is complete.
std::optional<Unpacked> provide_base_model(const job::JobSpec& spec);

}  // namespace xffl::pack
