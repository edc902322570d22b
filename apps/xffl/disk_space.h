// Whether a folder has space for a round: blocks, files, and the rest of a quota.
//
// Each file system has its own quota tool, whose output is not meant for programs. The check
// reserves the bytes in a file instead (fallocate), which fails as writing them would, and removes
// the file at once.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "check_result.h"
#include "xffl/config/experiment.h"
#include "xffl/facility/model_bytes.h"
#include "xffl/remote/session.h"

namespace xffl {

/// The sizes of the model; nothing when the model cannot be read, which is a result of its own.
std::optional<facility::ModelBytes> bytes_of_model(const config::Experiment& experiment);

/// Compares the free bytes of `folder` with the bytes that a round needs.
CheckResult check_free_space(const std::string& folder, uint64_t free, uint64_t needed);

/// Checks free space and free files of a session's folder, and whether `needed` bytes can be
/// reserved; each result names the part that could not be checked. Throws kRemote, kIo.
std::vector<CheckResult> check_disk_space(remote::Session& session, const RemotePath& folder,
                                          uint64_t needed);

}  // namespace xffl
