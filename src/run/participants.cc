#include "participants.h"

#include <algorithm>
#include <string>

#include "xffl/base/error.h"
#include "xffl/base/json.h"

namespace xffl::run {
namespace {

// Shortest text that reads back as the same number.
std::string text_of(double number) { return Json(number).dump(); }

}  // namespace

double weight_of(const history::Accepted& accepted, config::WeightKind kind) {
  switch (kind) {
    case config::WeightKind::kTokens:
      return static_cast<double>(accepted.report.tokens);
    case config::WeightKind::kSamples:
      return static_cast<double>(accepted.report.samples);
    case config::WeightKind::kEqual:
      return 1.0;
  }
  return 1.0;
}

history::ParticipantsFrozen participants_of(const std::vector<history::Accepted>& accepted,
                                            config::WeightKind weights) {
  history::ParticipantsFrozen participants;
  for (const history::Accepted& update : accepted) {
    participants.facilities.push_back(update.facility);
    participants.updates.push_back(update.update_sha256);
    participants.weights.push_back(weight_of(update, weights));
  }
  return participants;
}

std::vector<history::Accepted> frozen_participants(int round,
                                                   const std::vector<history::Participant>& frozen,
                                                   const std::vector<history::Accepted>& accepted,
                                                   config::WeightKind weights) {
  std::vector<history::Accepted> participants;
  for (const history::Participant& participant : frozen) {
    const auto refusal = [&](const std::string& why) {
      return Error(ErrorKind::kCorrupt, "round " + std::to_string(round) +
                                            " cannot be averaged: " + participant.facility.str() +
                                            "'s update was frozen in the journal, and " + why);
    };
    const auto update = std::find_if(accepted.begin(), accepted.end(), [&](const auto& each) {
      return each.facility == participant.facility;
    });
    if (update == accepted.end()) throw refusal("no update of it is accepted");
    if (!participant.update_sha256.empty() && participant.update_sha256 != update->update_sha256)
      throw refusal("the accepted one is " + update->update_sha256 + ", expected " +
                    participant.update_sha256);
    const double weight = weight_of(*update, weights);
    if (participant.weight && *participant.weight != weight)
      throw refusal("its weight is " + text_of(weight) + ", expected " +
                    text_of(*participant.weight));
    participants.push_back(*update);
  }
  return participants;
}

}  // namespace xffl::run
