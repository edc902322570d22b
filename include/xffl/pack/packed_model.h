// A published model as a folder of differences from the model before, and the model again from it.
//
// A packed folder has a manifest.json of its own, so that it travels like any other, and in it:
// packed.json, the manifest.json of the model; NAME.xpk for each file NAME that is packed (pack.h);
// NAME for each that is carried as it is. Files that the reference holds unchanged are left out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>

#include "xffl/checkpoint/manifest.h"
#include "xffl/job/job_spec.h"

namespace xffl::pack {

/// Writes what makes `model` out of `reference`, both folders with a manifest.json, to `out`, which
/// appears by rename and takes the place of what was there. Returns its manifest; nothing, and no
/// folder, when it would have more than `max_ratio` of the model's bytes; for that many there has
/// to be room. Throws kRejected when the model is not as its manifest says, kIo, kCancelled; then
/// nothing is left of it.
std::optional<checkpoint::Manifest> pack_model(const std::filesystem::path& model,
                                               const std::filesystem::path& reference,
                                               const std::filesystem::path& out, double max_ratio,
                                               int threads, std::stop_token stop = {});

struct Unpacked {
  uint64_t packed_bytes = 0;
  uint64_t model_bytes = 0;
};

/// Makes the folder `model`, whose root hash is then `model_sha256`, by one rename of `temporary`,
/// which lies in the same file system and is removed first. Every file of it was hashed as it was
/// made. What lies at `model` and is not complete goes away. Throws kCorrupt or kRejected when the
/// packed folder or the reference is not what it should be, kNotFound, kIo.
Unpacked unpack_model(const job::PackedModel& packed, const std::filesystem::path& model,
                      const std::string& model_sha256, const std::filesystem::path& temporary,
                      int threads);

/// What a job does before it reads `spec.base_model_path`: nothing when the model comes whole or is
/// complete there, else unpack_model. Throws what that throws, with the reason in the file
/// `failure_path` of the job, by which the coordinator knows that the model has to come whole.
std::optional<Unpacked> provide_base_model(const job::JobSpec& spec);

}  // namespace xffl::pack
