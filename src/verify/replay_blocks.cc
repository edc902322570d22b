// How it works: federated averaging is elementwise, so that a block of the master follows from the
// same blocks of the first master and of all updates. A batch of blocks goes through all rounds
// before the next batch, so that the memory does not depend on the number of blocks.
#include <algorithm>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include "masters.h"
#include "xffl/aggregate/sampled_step.h"
#include "xffl/base/error.h"
#include "xffl/checkpoint/model_folder.h"
#include "xffl/facility/run_models.h"

namespace xffl::verify {

namespace fs = std::filesystem;
using aggregate::SampledBlock;
using checkpoint::ModelFolder;

namespace {

constexpr size_t kBatch = 64;  // blocks: 32 MiB, and 16 MiB of each mapped update in bf16

struct CarriedBlock {
  SampledBlock block;
  std::vector<float> master;
  bool differs = false;
};

// `count` different numbers below `total`, ascending; the same for the same seed.
std::vector<uint64_t> sample(uint64_t total, uint64_t count, uint64_t seed) {
  std::vector<uint64_t> all(total);
  std::iota(all.begin(), all.end(), uint64_t{0});
  std::mt19937_64 random(seed);
  count = std::min(count, total);
  for (uint64_t i = 0; i < count; ++i) std::swap(all[i], all[i + random() % (total - i)]);
  all.resize(count);
  std::sort(all.begin(), all.end());
  return all;
}

class BlockReplay {
 public:
  BlockReplay(const RecordedRun& run, const Options& options, int newest, Findings& findings)
      : run_(run),
        options_(options),
        settings_(run.experiment->aggregation),
        newest_(newest),
        findings_(findings),
        scratch_(options.scratch),
        masters_(run, options, scratch_.path()) {}

  void run() {
    const auto master = masters_.at(0);
    if (!master) return findings_.skip(masters_.reason());
    tensors_ = ModelFolder(master->folder).tensors();
    const std::vector<uint64_t> chosen =
        sample(aggregate::num_blocks(tensors_), static_cast<uint64_t>(options_.replay_blocks),
               options_.seed);
    for (size_t begin = 0; begin < chosen.size(); begin += kBatch) {
      const size_t end = std::min(begin + kBatch, chosen.size());
      options_.on_progress("replaying blocks " + std::to_string(begin + 1) + " to " +
                           std::to_string(end) + " of " + std::to_string(chosen.size()));
      std::vector<CarriedBlock> batch =
          first_blocks(*master, std::span(chosen).subspan(begin, end - begin));
      if (!carry(batch)) return;
    }
  }

 private:
  // Maps the master for one batch only: pages of a mapped file stay resident.
  static std::vector<CarriedBlock> first_blocks(const Master& master,
                                                std::span<const uint64_t> chosen) {
    const ModelFolder first(master.folder, master.hashes);
    std::vector<CarriedBlock> batch;
    for (const uint64_t index : chosen) batch.push_back(first_block(first, index));
    return batch;
  }

  static CarriedBlock first_block(const ModelFolder& first, uint64_t index) {
    CarriedBlock carried{aggregate::block_at(first.tensors(), index), {}};
    carried.master.resize(carried.block.count);
    const auto bytes = aggregate::bytes_of(first, carried.block);
    first.verify(bytes);
    checkpoint::to_float(bytes, checkpoint::Dtype::kF32, carried.master);
    return carried;
  }

  std::vector<aggregate::Input> inputs(int number) const {
    std::vector<aggregate::Input> inputs;
    for (const history::Participant& participant : run_.state.rounds.at(number).participants) {
      if (!participant.weight)
        throw Error(ErrorKind::kUnsupported, "an earlier release recorded no weights");
      inputs.push_back({.folder = run_.folder.facility(number, participant.facility) / "update",
                        .weight = *participant.weight,
                        .order_key = participant.facility.str(),
                        .label = participant.facility.str()});
      std::error_code none;
      if (!fs::exists(inputs.back().folder, none))
        throw Error(ErrorKind::kUnsupported, "an update is absent");
    }
    return inputs;
  }

  // Returns false when a round cannot be computed: no later block can pass.
  bool carry(std::vector<CarriedBlock>& batch) {
    for (int round = 1; round <= newest_; ++round) {
      throw_if_stopped(options_.stop);
      const std::string name = "round " + std::to_string(round);
      try {
        step(round, batch);
      } catch (const Error& error) {
        if (ends_the_check(error.kind())) throw;
        if (error.kind() == ErrorKind::kUnsupported)
          findings_.skip(error.what(), name);
        else
          findings_.fail(name, error.what());
        return false;
      }
    }
    for (const CarriedBlock& carried : batch)
      if (!carried.differs) findings_.pass();
    return true;
  }

  void step(int round, std::vector<CarriedBlock>& batch) {
    const aggregate::SampledStep step(inputs(round), tensors_);
    std::error_code none;
    std::optional<ModelFolder> model;
    if (fs::exists(run_.folder.global(round), none)) {
      model.emplace(run_.folder.global(round));
      checkpoint::check_same_schema(model->tensors(), tensors_, /*any_float=*/true,
                                    run_.name_of(model->path()));
    }
    for (CarriedBlock& carried : batch) {
      if (carried.differs) continue;
      step.apply(carried.block, settings_.update == job::UpdateKind::kDelta, settings_.rule(),
                 carried.master);
      if (model) compare(round, *model, carried);
    }
  }

  void compare(int round, const ModelFolder& model, CarriedBlock& carried) {
    const checkpoint::Dtype dtype = facility::dtype_of(settings_.publish_dtype);
    std::vector<std::byte> expected(carried.block.count * size_bytes(dtype));
    checkpoint::from_float(carried.master, dtype, expected);
    const auto found = aggregate::bytes_of(model, carried.block);
    const auto differing =
        std::mismatch(expected.begin(), expected.end(), found.begin(), found.end());
    if (differing.first == expected.end() && differing.second == found.end()) return;
    carried.differs = true;
    const auto element =
        static_cast<uint64_t>(differing.first - expected.begin()) / size_bytes(dtype);
    findings_.fail(run_.name_of(model.path()), "tensor '" + carried.block.tensor + "', element " +
                                                   std::to_string(carried.block.begin + element) +
                                                   ": the updates up to round " +
                                                   std::to_string(round) + " give another value");
  }

  const RecordedRun& run_;
  const Options& options_;
  const config::Aggregation& settings_;
  const int newest_;
  Findings& findings_;
  const ScratchFolder scratch_;
  Masters masters_;
  std::vector<checkpoint::TensorSpec> tensors_;  // of the master
};

}  // namespace

void check_blocks(const RecordedRun& run, const Options& options, std::vector<Check>& checks) {
  Findings findings(
      checks, "blocks",
      "random blocks carried through all rounds have the values of the models" +
          (options.replay_blocks > 0 ? ", seed " + std::to_string(options.seed) : std::string()));
  if (options.replay_blocks <= 0) return findings.skip("--replay-blocks computes them");
  if (!run.experiment) return findings.skip("config.resolved.yaml is damaged");
  const config::Aggregation& settings = run.experiment->aggregation;
  if (!settings.rule().optimizer.state.empty())
    return findings.skip("aggregation.server_optimizer " + settings.server_optimizer +
                         " keeps a state beside the master: use --replay");
  const int newest = newest_model(run);
  if (newest == 0) return findings.skip("no round has a model");
  BlockReplay(run, options, newest, findings).run();
}

}  // namespace xffl::verify
