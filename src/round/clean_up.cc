#include "clean_up.h"

#include <algorithm>
#include <optional>

#include "context.h"
#include "stay.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::round {
namespace {

namespace fs = std::filesystem;

// The number of "r0007", a round's folder; none for any other name.
std::optional<int> round_of(const std::string& name) {
  if (name.size() < 5 || name.size() > 9 || name.front() != 'r' ||
      name.find_first_not_of("0123456789", 1) != std::string::npos)
    return std::nullopt;
  return std::stoi(name.substr(1));
}

bool is_model(const std::string& name) {
  return name.size() == 16 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string model_after(const History& history, int round) {
  return round == 0 ? history.initial_sha256 : history.rounds.at(round).model_sha256;
}

std::optional<plan::RoundPlan> plan_of(const Context& context, const History& history, int round) {
  return plan::next_round(context.experiment, context.identity,
                          {.rounds_published = round - 1,
                           .model_sha256 = model_after(history, round - 1),
                           .accepted = {},
                           .adapted_sha256 = history.adapted_sha256});
}

std::vector<std::string> names_in(remote::Session& session, const RemotePath& folder) {
  try {
    return session.list(folder);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kNotFound) return {};  // nothing was ever put there
    throw;
  }
}

// Everything of the facility's folder that is not of the rounds after `old`, nor needed by the job
// that came to the round `newest` by staying.
void remove_all_old(remote::Session& session, const plan::FacilityPlan& facility, int old,
                    int newest, const StateOf& state, const std::set<std::string>& needed) {
  for (const std::string& name : names_in(session, facility.folder))
    if (const auto round = round_of(name); round && *round <= old)
      remove_round(session, facility, *round, newest, state);
  const RemotePath models = facility.folder / "models";
  for (const std::string& name : names_in(session, models))
    if (is_model(name) && !needed.contains(name)) session.remove_tree(models / name);
}

}  // namespace

void clean_up(Context& context, const plan::RoundPlan& plan) {
  const int old = plan.round - context.experiment.policy.keep_rounds;
  if (old < 1) return;
  std::error_code none;
  for (int round = 0; round < old; ++round) fs::remove_all(context.folder.master(round), none);
  const History history = context.ledger.history();
  const auto old_plan = plan_of(context, history, old);
  if (!old_plan) return;
  std::set<std::string> needed;
  for (int round = old; round <= plan.round; ++round)
    needed.insert(model_after(history, round).substr(0, 16));
  if (!history.adapted_sha256.empty()) needed.insert(history.adapted_sha256.substr(0, 16));
  for (const plan::FacilityPlan& facility : old_plan->facilities) try {
      const bool tidy = context.tidiness.is_tidy(facility.facility);
      context.tidiness.set_tidy(facility.facility, false);
      const auto session = context.world.connect(context.experiment.facility(facility.facility));
      const StateOf state = [&](int round) {
        return context.ledger.facility(round, facility.facility);
      };
      if (!tidy) {
        remove_all_old(*session, facility, old, plan.round, state, needed);
      } else {
        remove_round(*session, facility, old, plan.round, state);
        if (!needed.contains(facility.model_folder.filename()))
          session->remove_tree(facility.model_folder);
      }
      context.tidiness.set_tidy(facility.facility, true);
    } catch (const Error& error) {
      log::warning(
          "an old round stays at the facility",
          {{"facility", facility.facility.str()}, {"round", old}, {"problem", error.what()}});
    }
}

}  // namespace xffl::round
