#include "xffl/facility/prepared_text.h"

namespace xffl::facility {

std::optional<tokens::Prepared> find_prepared(remote::Session& session,
                                              const config::Facility& facility) {
  const RemotePath file = facility.prepared / tokens::kPreparedFile;
  if (!session.stat(file)) return std::nullopt;
  return tokens::parse_prepared(read_text(session, file, tokens::kMaxPreparedBytes), file.str());
}

std::string prepared_text_problem(remote::Session& session, const config::Facility& facility,
                                  const std::filesystem::path& model) {
  if (facility.prepared.empty()) return "";
  const std::string command = ": xffl prepare " + facility.name.str();
  const auto prepared = find_prepared(session, facility);
  if (!prepared || !session.stat(facility.prepared / tokens::kPreparedTraining))
    return "the text of data.text is not tokenized yet" + command;
  // A change of `model` in xffl.yaml leaves the shards of the model before.
  if (tokens::has_tokenizer(model) && prepared->tokenizer_sha256 != tokens::tokenizer_hash(model))
    return "the text of data.text is tokenized with another tokenizer than the model's" + command;
  return "";
}

}  // namespace xffl::facility
