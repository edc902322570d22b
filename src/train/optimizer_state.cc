#include "optimizer_state.h"

#include <torch/types.h>

#include <charconv>
#include <system_error>

#include "agree.h"
#include "group_counts.h"
#include "state_folder.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"
#include "xffl/job/job_report.h"
#include "xffl/job/optimizer_names.h"
#include "xffl/train/foreign_error.h"

namespace xffl::train {
namespace {

namespace fs = std::filesystem;

constexpr int kOptimizerStateVersion = 2;

// Which parameters are trained, and where each lies: other buffers mean something else.
std::string layout_hash(const LoadedModel& model) {
  Json places = Json::array();
  // Of all stages; where a parameter lies does not depend on the number of shards.
  const shard::FlatLayout layout(flat_parameters_of(model.specs), 1);
  for (size_t i = 0; i < model.specs.size(); ++i) {
    const shard::Place& place = layout.places().at(i);
    places.push_back(Json{model.specs[i].name, place.unit, place.offset, place.shape});
  }
  return sha256_hex(places.dump());
}

// The round in a folder's name "r0002-...", or -1.
int round_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  const size_t end = name.find('-');
  if (!name.starts_with('r') || end == std::string::npos) return -1;
  int round = -1;
  const auto [last, error] = std::from_chars(name.data() + 1, name.data() + end, round);
  return error == std::errc() && last == name.data() + end ? round : -1;
}

}  // namespace

OptimizerState::OptimizerState(const job::JobSpec& spec, comm::Group& group, at::Device device,
                               const LoadedModel& model, Trainer& trainer, const JobGroups& groups,
                               GroupExchange& exchange)
    : spec_(spec),
      group_(group),
      device_(device),
      model_(model),
      trainer_(trainer),
      groups_(groups),
      exchange_(exchange),
      parts_(groups, model) {}

// Not the masters and the last exchange's model, which are the model that this job is given.
std::vector<UnitBuffers> OptimizerState::buffers() const {
  std::vector<UnitBuffers> all{{"first", trainer_.optimizer().first_moments()},
                               {"second", trainer_.optimizer().second_moments()}};
  for (const UnitBuffers& outer : exchange_.outer().buffers())
    if (outer.name != "anchor") all.push_back(outer);
  return all;
}

fs::path OptimizerState::mine() const {
  return fs::path(spec_.optimizer_path).parent_path() / job::optimizer_state_name(spec_.key);
}

Json OptimizerState::description() const {
  return Json{{"version", kOptimizerStateVersion},
              {"project", spec_.key.project},
              {"run", spec_.key.run},
              {"facility", spec_.key.facility},
              {"layout", layout_hash(model_)},
              {"groups", groups_.count()},
              {"outer", job::to_string(spec_.training.groups.outer.kind)}};
}

// Why a state cannot be used; empty when it can.
std::string OptimizerState::problem_of(const fs::path& folder) const {
  try {
    const Json state = read_state_file(folder);
    const Json expected = description();
    for (const auto& [key, value] : expected.items())
      if (state.at("of").at(key) != value) return "it has another " + key;
    if (state.at("round") != spec_.key.round - 1) return "it is not of the round before";
    if (state.at("name") != folder.filename().string()) return "it is of another attempt";
    const std::string damaged = damaged_file(folder, state.at("files"));
    return damaged.empty() ? "" : damaged + " is not what was written";
  } catch (const std::exception& error) {  // the file system's and JSON's too
    return error.what();
  }
}

void OptimizerState::read(const fs::path& folder) {
  const Json json = read_state_file(folder);
  parts_.read(folder, json.at("num_parts").get<int>(), buffers());
  restore_counts(json.at("counts"), 0, groups_, trainer_, exchange_);
  exchange_.outer().set_num_steps(json.at("outer_steps").get<int64_t>());
}

std::string OptimizerState::load() {
  const fs::path given(spec_.optimizer_path);
  if (given.empty() || given.filename() == job::kNoOptimizerState) return "";
  std::string problem;
  on_first_rank(group_, device_, [&] { problem = problem_of(given); });
  if (max_over_ranks(group_, device_, problem.empty() ? 0 : 1) == 1) {
    if (group_.rank() == 0)
      log::warning("the optimizer's state cannot be used: it begins anew",
                   {{"path", given.string()}, {"problem", problem}});
    return log::printable(problem, job::kMaxReasonBytes / 2);  // and "..."
  }
  on_all_ranks_at_length(group_, device_, [&] { read(given); });
  if (group_.rank() == 0)
    log::info("the optimizer goes on from the round before",
              {{"steps", trainer_.optimizer().num_steps()}});
  return "";
}

void OptimizerState::write(const fs::path& target) const {
  const Json counts = gather_counts(groups_, device_, trainer_, exchange_);
  const StateFolder place{target, target.string() + ".tmp"};
  write_state_folder(group_, device_, place, parts_, buffers(), [&] {
    return Json{{"of", description()},
                {"round", spec_.key.round},
                {"name", target.filename().string()},
                {"num_parts", parts_.num_parts()},
                {"files", parts_.files(place.temporary)},
                {"counts", counts},
                {"outer_steps", exchange_.outer().num_steps()}};
  });
  if (group_.rank() == 0) remove_old();
}

// An attempt of an earlier round may still be at work: it knows of no later rounds.
void OptimizerState::remove_old() const {
  std::error_code none;
  for (const fs::path& entry : entries_in(mine().parent_path())) {
    const int round = round_of(entry);
    if (round >= 0 && round < spec_.key.round - 1) fs::remove_all(entry, none);
  }
}

void OptimizerState::save() const {
  if (spec_.optimizer_path.empty()) return;
  try {
    write(mine());
  } catch (const std::exception& caught) {
    const Error error = translated(caught);
    if (error.kind() == ErrorKind::kCancelled) throw error;
    if (group_.rank() == 0)
      log::warning("the optimizer's state could not be kept", {{"problem", error.what()}});
  }
}

}  // namespace xffl::train
