#include "optimizer_state.h"

#include <torch/types.h>

#include <charconv>
#include <system_error>

#include "checkpoint_files.h"
#include "rank_sync.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"
#include "xffl/job/job_report.h"
#include "xffl/job/job_spec.h"
#include "xffl/train/foreign_error.h"

namespace xffl::train {
namespace {

namespace fs = std::filesystem;

constexpr int kOptimizerStateVersion = 2;

// Identifies the trained parameters and their places in the buffers.
std::string layout_hash(const LoadedModel& model) {
  Json places = Json::array();
  // A layout of all stages; a parameter's place does not depend on the number of shards.
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
                               const LoadedModel& model, Trainer& trainer, const JobGroups& groups)
    : spec_(spec),
      group_(group),
      device_(device),
      model_(model),
      trainer_(trainer),
      groups_(groups),
      parts_(groups, model) {}

// Without the masters and the outer optimizer's anchor: both equal the job's input model.
std::vector<UnitBuffers> OptimizerState::buffers() const {
  std::vector<UnitBuffers> all{{"first", trainer_.optimizer().first_moments()},
                               {"second", trainer_.optimizer().second_moments()}};
  for (const UnitBuffers& outer : trainer_.exchange().outer().buffers())
    if (outer.name != "anchor") all.push_back(outer);
  return all;
}

fs::path OptimizerState::own_folder() const {
  return fs::path(spec_.optimizer_path).parent_path() / spec_.key.optimizer_state_name();
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

// The reason why a state is unusable; empty for a usable one.
std::string OptimizerState::problem_of(const fs::path& folder) const {
  try {
    const Json state = read_checkpoint_json(folder);
    const Json expected = description();
    for (const auto& [key, value] : expected.items())
      if (state.at("of").at(key) != value) return "its " + key + " differs";
    if (state.at("round") != spec_.key.round - 1) return "it is not from the previous round";
    if (state.at("name") != folder.filename().string()) return "it is from another attempt";
    const std::string damaged = damaged_file(folder, state.at("files"));
    return damaged.empty() ? "" : damaged + " is damaged";
  } catch (const std::exception& error) {  // also from the file system and JSON
    return error.what();
  }
}

void OptimizerState::read(const fs::path& folder) {
  const Json json = read_checkpoint_json(folder);
  parts_.read(folder, json.at("num_parts").get<int>(), buffers());
  trainer_.restore_counts(json.at("counts"), 0);
  trainer_.exchange().outer().set_num_steps(json.at("outer_steps").get<int64_t>());
}

std::string OptimizerState::load() {
  const fs::path source(spec_.optimizer_path);
  if (source.empty() || source.filename() == job::kNoOptimizerState) return "";
  std::string problem;
  on_first_rank(group_, device_, [&] { problem = problem_of(source); });
  if (max_over_ranks(group_, device_, problem.empty() ? 0 : 1) == 1) {
    if (group_.rank() == 0)
      log::warning("optimizer state unusable: training starts with zero moments",
                   {{"path", source.string()}, {"problem", problem}});
    return log::printable(problem, job::kMaxReasonBytes / 2);  // and "..."
  }
  on_all_ranks_without_timeout(group_, device_, [&] { read(source); });
  if (group_.rank() == 0)
    log::info("optimizer state of the previous round loaded",
              {{"steps", trainer_.optimizer().num_steps()}});
  return "";
}

void OptimizerState::write(const fs::path& target) const {
  const Json counts = trainer_.gather_counts();
  const CheckpointFolder place{target, target.string() + ".tmp"};
  write_checkpoint(group_, device_, place, parts_, buffers(), [&] {
    return Json{{"of", description()},
                {"round", spec_.key.round},
                {"name", target.filename().string()},
                {"num_parts", parts_.num_parts()},
                {"files", parts_.files(place.temporary)},
                {"counts", counts},
                {"outer_steps", trainer_.exchange().outer().num_steps()}};
  });
  if (group_.rank() == 0) remove_old();
}

// An attempt of an earlier round may still run and must not remove the states of later rounds.
void OptimizerState::remove_old() const {
  std::error_code none;
  for (const fs::path& entry : entries_in(own_folder().parent_path())) {
    const int round = round_of(entry);
    if (round >= 0 && round < spec_.key.round - 1) fs::remove_all(entry, none);
  }
}

void OptimizerState::save() const {
  if (spec_.optimizer_path.empty()) return;
  try {
    write(own_folder());
  } catch (const std::exception& caught) {
    const Error error = translated(caught);
    if (error.kind() == ErrorKind::kCancelled) throw error;
    if (group_.rank() == 0) log::warning("optimizer state not saved", {{"problem", error.what()}});
  }
}

}  // namespace xffl::train
