// How it works: publish_round() freezes the participants in the journal before the mean, so that a
// restart averages the same updates with the same weights to the same bytes.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "run_parts.h"
#include "xffl/aggregate/aggregate.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/facility/weights.h"

namespace xffl::run {

namespace fs = std::filesystem;

namespace {

// The shortest text that reads back as the same number.
std::string text_of(double number) { return Json(number).dump(); }

// Updates that arrive later stay out of the mean.
std::vector<history::Accepted> freeze_participants(facility::Context& context,
                                                   const plan::RoundPlan& plan,
                                                   const std::vector<history::Accepted>& accepted) {
  const config::Aggregation& settings = context.experiment.aggregation;
  const history::RoundState round = context.history.round(plan.round);
  if (!round.participants.empty())
    return frozen_participants(plan.round, round.participants, accepted, settings);
  context.history.record({.round = plan.round}, participants_of(accepted, settings));
  return accepted;
}

// Frozen updates without a mean stop each later `xffl run` at the same place.
template <class Body>
aggregate::Stepped with_advice(const facility::Context& context, const plan::RoundPlan& plan,
                               const std::vector<aggregate::Input>& inputs, const Body& body) try {
  return body();
} catch (const Error& error) {
  if (error.kind() != ErrorKind::kRejected) throw;
  std::string names;
  for (const aggregate::Input& input : inputs) names += (names.empty() ? "" : ", ") + input.label;
  throw Error(ErrorKind::kRejected,
              "round " + std::to_string(plan.round) + ": the updates of " + names +
                  " have no mean: " + error.what() +
                  "\nThe updates are frozen in the journal, and this run cannot continue: " +
                  advice_of_new_run(context.experiment, context.folder, context.history.state()));
}

void aggregate_updates(facility::Context& context, const plan::RoundPlan& plan) {
  if (!context.history.round(plan.round).model_sha256.empty()) return;
  const config::Aggregation& settings = context.experiment.aggregation;
  const std::vector<aggregate::Input> inputs = context.models.inputs(plan.round);
  const checkpoint::Hashes master = context.models.master(plan.round - 1);
  // The journal does not know the files of a killed coordinator: this process makes them again.
  const fs::path new_master = context.folder.master(plan.round);
  const fs::path new_model = context.folder.global(plan.round);
  for (const fs::path& path : {new_master, new_model})
    fs::remove_all(context.history.work_name(path));  // of an attempt of this process
  const aggregate::Stepped stepped = with_advice(context, plan, inputs, [&] {
    return aggregate::server_step(
        context.folder.master(plan.round - 1), inputs, settings.update == job::UpdateKind::kDelta,
        facility::dtype_of(settings.publish_dtype), context.history.work_name(new_master),
        context.history.work_name(new_model), {.spare = &context.spare, .hashes = master},
        settings.rule());
  });
  facility::publish_with_hashes(context.history, new_master, stepped.master);
  facility::publish_with_hashes(context.history, new_model, stepped.model);
  context.history.record({.round = plan.round},
                         history::Aggregated{.model_sha256 = stepped.model.root_sha256(),
                                             .master_sha256 = stepped.master.root_sha256(),
                                             .cosines = stepped.cosines});
}

// CURRENT names the newest published model; it changes in one rename.
void publish(facility::Context& context, const plan::RoundPlan& plan) {
  const fs::path target = fs::path(context.folder.round(plan.round).filename()) / "global";
  const fs::path temp = context.history.work_name(context.folder.current());
  fs::remove(temp);
  fs::create_directory_symlink(target, temp);
  context.history.check_writer();
  rename_durable(temp, context.folder.current());
  const std::string model = context.history.round(plan.round).model_sha256;
  context.history.record({.round = plan.round}, history::Published{.model_sha256 = model});
  log::info("global model published", {{"round", plan.round}, {"sha256", model}});
}

}  // namespace

history::ParticipantsFrozen participants_of(const std::vector<history::Accepted>& accepted,
                                            const config::Aggregation& settings) {
  history::ParticipantsFrozen participants;
  participants.weights = facility::weights_of(accepted, settings);
  for (const history::Accepted& update : accepted) {
    participants.facilities.push_back(update.facility);
    participants.updates.push_back(update.update_sha256);
  }
  return participants;
}

std::vector<history::Accepted> frozen_participants(int round,
                                                   const std::vector<history::Participant>& frozen,
                                                   const std::vector<history::Accepted>& accepted,
                                                   const config::Aggregation& settings) {
  std::vector<history::Accepted> participants;
  const auto refusal_of = [&](const history::Participant& participant) {
    return [&](const std::string& why) {
      return Error(ErrorKind::kCorrupt, "round " + std::to_string(round) +
                                            " cannot be averaged: " + participant.facility.str() +
                                            "'s update was frozen in the journal, and " + why);
    };
  };
  for (const history::Participant& participant : frozen) {
    const auto refusal = refusal_of(participant);
    const auto update = std::find_if(accepted.begin(), accepted.end(), [&](const auto& each) {
      return each.facility == participant.facility;
    });
    if (update == accepted.end()) throw refusal("it has no accepted update");
    if (!participant.update_sha256.empty() && participant.update_sha256 != update->update_sha256)
      throw refusal("the accepted one is " + update->update_sha256 + ", expected " +
                    participant.update_sha256);
    participants.push_back(*update);
  }
  // A weight depends on the other participants when max_share caps it. The mean takes the frozen
  // one: the last bits of a capped weight depend on the compiler.
  const std::vector<double> weights = facility::weights_of(participants, settings);
  for (size_t i = 0; i < frozen.size(); ++i)
    if (frozen[i].weight && std::abs(*frozen[i].weight - weights[i]) > 1e-9 * weights[i])
      throw refusal_of(frozen[i])("its weight is " + text_of(weights[i]) + ", expected " +
                                  text_of(*frozen[i].weight));
  return participants;
}

std::vector<history::Accepted> publish_round(facility::Context& context,
                                             const plan::RoundPlan& plan,
                                             const std::vector<history::Accepted>& accepted) {
  std::vector<history::Accepted> participants = freeze_participants(context, plan, accepted);
  aggregate_updates(context, plan);
  publish(context, plan);
  return participants;
}

}  // namespace xffl::run
