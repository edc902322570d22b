#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "xffl/config/experiment.h"
#include "xffl/remote/session.h"
#include "xffl/tokens/prepared.h"

namespace xffl::facility {

/// The prepared.json of the facility's shards; empty when there is none. Throws kCorrupt, kRemote.
std::optional<tokens::Prepared> find_prepared(remote::Session& session,
                                              const config::Facility& facility);

/// Why a job cannot train on the shards that `xffl prepare` makes of the facility's data.text: they
/// are absent, or of another tokenizer than the one in the folder `model`. Empty: nothing is in the
/// way, or the facility has no data.text. A folder that is gone or holds no tokenizer has nothing
/// to compare with. Throws kCorrupt, kIo, kRemote.
std::string prepared_text_problem(remote::Session& session, const config::Facility& facility,
                                  const std::filesystem::path& model);

}  // namespace xffl::facility
