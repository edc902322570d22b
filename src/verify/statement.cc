#include "statement.h"

#include "xffl/base/error.h"
#include "xffl/base/json.h"
#include "xffl/checkpoint/manifest.h"

namespace xffl::verify {
namespace {

// A format of its own: a URN needs no owner of a domain.
constexpr const char* kPredicateType = "urn:xffl:published-model:1";

Json subject(const std::string& name, const std::string& sha256) {
  return {{"name", name}, {"digest", {{"sha256", sha256}}}};
}

Json participants_of(const history::RoundState& round) {
  Json all = Json::array();
  for (const history::Participant& participant : round.participants) {
    Json one = {{"facility", participant.facility.str()},
                {"update_sha256", participant.update_sha256}};
    if (participant.weight) one["weight"] = *participant.weight;
    const auto facility = round.facilities.find(participant.facility);
    if (facility != round.facilities.end() && facility->second.accepted)
      one["trainer"] = facility->second.accepted->report.trainer;
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace

std::string format_statement(const RecordedRun& run, int round) {
  const auto order = run.rounds.find(round);
  if (order == run.rounds.end() || order->second.published == 0)
    throw Error(ErrorKind::kNotFound, "round " + std::to_string(round) +
                                          " is not published; the newest published round is " +
                                          std::to_string(run.published()));
  const std::string root = run.global_sha256(round);
  const checkpoint::Manifest manifest = checkpoint::read_manifest(run.folder.global(round));
  if (manifest.root_sha256() != root)
    throw Error(ErrorKind::kCorrupt, run.folder.global(round).string() + " has the root SHA-256 " +
                                         manifest.root_sha256() + "; the journal has " + root);
  const auto published = static_cast<size_t>(order->second.published);
  Json statement;
  statement["_type"] = "https://in-toto.io/Statement/v1";
  statement["subject"] = Json::array({subject("global", root)});
  for (const checkpoint::ManifestFile& file : manifest.files)
    statement["subject"].push_back(subject("global/" + file.name, file.sha256));
  statement["predicateType"] = kPredicateType;
  statement["predicate"] = {
      {"project", run.state.project},
      {"run", run.state.identity->run.str()},
      {"round", round},
      {"base_sha256", run.global_sha256(round - 1)},
      {"master_sha256", run.master_sha256(round)},
      {"initial_sha256", run.state.initial_sha256},
      {"participants", participants_of(run.state.rounds.at(round))},
      {"config_sha256", order->second.config_sha256},
      {"journal", {{"seq", published}, {"chain", run.journal.chains.at(published - 1)}}}};
  return statement.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace xffl::verify
