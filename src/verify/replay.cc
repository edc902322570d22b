// How it works: the replay walks from a float32 master through the server steps of the rounds, with
// two masters in the scratch folder. It hashes each input with SHA-256 before the step, and the
// step compares the bytes that it reads with the hashes of their blocks.
#include <algorithm>
#include <utility>

#include "folders.h"
#include "masters.h"
#include "recorded_run.h"
#include "xffl/aggregate/aggregate.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/facility/run_models.h"

namespace xffl::verify {

namespace fs = std::filesystem;
using checkpoint::Hashes;

namespace {

class Replay {
 public:
  Replay(const RecordedRun& run, const Options& options, Findings& findings)
      : run_(run),
        options_(options),
        findings_(findings),
        scratch_(options.scratch),
        masters_(run, options, scratch_.path()) {}

  void run(int first, int last) {
    for (int round = first; round <= last; ++round) {
      throw_if_stopped(options_.stop);
      options_.on_progress("replaying round " + std::to_string(round) + " of " +
                           std::to_string(last));
      if (!master_ || master_->round != round - 1) master_ = masters_.at(round - 1);
      if (!master_) {
        findings_.skip(masters_.reason(), name(round));
        continue;
      }
      step(round);
    }
  }

 private:
  static std::string name(int round) { return "round " + std::to_string(round); }

  // The updates of the round; throws for a damaged one.
  std::vector<aggregate::Input> inputs(int number) {
    const history::RoundState& round = run_.state.rounds.at(number);
    std::vector<aggregate::Input> inputs;
    for (const history::Participant& participant : round.participants) {
      if (!participant.weight || participant.update_sha256.empty())
        throw Error(ErrorKind::kUnsupported, "an earlier release recorded no weights or updates");
      const fs::path folder = run_.folder.facility(number, participant.facility) / "update";
      std::error_code none;
      if (!fs::exists(folder, none))
        throw Error(ErrorKind::kNotFound, run_.name_of(folder) + " is absent");
      inputs.push_back({folder, *participant.weight, participant.facility.str(),
                        participant.facility.str(),
                        hash_folder(folder, participant.update_sha256, options_.stop)});
    }
    return inputs;
  }

  void step(int round) {
    std::vector<aggregate::Input> updates;
    try {
      updates = inputs(round);
    } catch (const Error& error) {
      if (ends_the_check(error.kind())) throw;
      master_.reset();
      if (error.kind() == ErrorKind::kNotFound || error.kind() == ErrorKind::kUnsupported)
        return findings_.skip("an update is absent or not recorded", name(round));
      return findings_.fail(name(round), error.what());
    }
    const fs::path folder = scratch_.path() / name_of_step(round);
    make_dirs(folder);
    const config::Aggregation& settings = run_.experiment->aggregation;
    aggregate::Options step_options{.hashes = master_->hashes};
    step_options.on_progress = [&](uint64_t, uint64_t) { throw_if_stopped(options_.stop); };
    findings_.guard(name(round), [&] {
      const aggregate::Stepped stepped = aggregate::server_step(
          master_->folder, std::move(updates), settings.update == job::UpdateKind::kDelta,
          facility::dtype_of(settings.publish_dtype), folder / "master", folder / "global",
          step_options, settings.rule());
      fs::remove_all(folder / "global");
      keep(round, folder / "master", stepped);
    });
    if (master_ && master_->round != round) master_.reset();
  }

  // The step's result is the master of the next step when it has the hashes of the journal.
  void keep(int round, const fs::path& master, const aggregate::Stepped& stepped) {
    const std::string earlier = name_of_step(round - 1);
    fs::remove_all(scratch_.path() / earlier);
    if (round == 1) fs::remove_all(masters_.made());
    const std::string model_root = stepped.model.root_sha256();
    const std::string master_root = stepped.master.root_sha256();
    if (model_root != run_.global_sha256(round))
      return findings_.fail(name(round), "the updates give the model " + model_root +
                                             "; the journal has " + run_.global_sha256(round));
    if (master_root != run_.master_sha256(round))
      return findings_.fail(name(round), "the updates give the float32 master " + master_root +
                                             "; the journal has " + run_.master_sha256(round));
    findings_.pass();
    master_ = Master{round, master, std::make_shared<const checkpoint::Manifest>(stepped.master)};
  }

  static std::string name_of_step(int round) { return "step-" + std::to_string(round); }

  const RecordedRun& run_;
  const Options& options_;
  Findings& findings_;
  const ScratchFolder scratch_;
  Masters masters_;
  std::optional<Master> master_;
};

}  // namespace

void check_replay(const RecordedRun& run, const Options& options, std::vector<Check>& checks) {
  Findings findings(checks, "replay", "each round's updates give the model of the journal");
  if (!options.replay) return findings.skip("--replay computes them");
  if (!run.experiment) return findings.skip("config.resolved.yaml is damaged");
  const int last = std::min(options.replay->last, newest_model(run));
  if (options.replay->first > last)
    return findings.skip("no round from " + std::to_string(options.replay->first) +
                         " on has a model");
  Replay(run, options, findings).run(options.replay->first, last);
}

}  // namespace xffl::verify
