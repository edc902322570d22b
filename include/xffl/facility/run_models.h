// The models of a run on this machine: their hashes, and the rebuilding of damaged models.
//
// The journal has the root hash of each model and master. RunModels gives the block hashes with
// which readers verify the bytes that they read. RunModels rounds a damaged global model again from
// its master. It averages a damaged master again from the previous master and the round's updates;
// the master of round 0, and the model under the adapters, come from the models in xffl.yaml.
// RunModels accepts only the bytes on record.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "xffl/aggregate/aggregate.h"
#include "xffl/base/error.h"
#include "xffl/checkpoint/block_hashes.h"
#include "xffl/checkpoint/dtype.h"
#include "xffl/config/experiment.h"
#include "xffl/history/run_folder.h"
#include "xffl/history/run_history.h"

namespace xffl::facility {

/// RunHistory::publish_folder() of a folder with this manifest, and its block hashes.
void publish_with_hashes(history::RunHistory& history, const std::filesystem::path& folder,
                         const checkpoint::Manifest& manifest);

/// The dtype of tensors of `type` in a file.
checkpoint::Dtype dtype_of(job::FloatType type);

/// Thread-safe. All functions throw kCorrupt, naming the file and a remedy, for a damaged model
/// that cannot be rebuilt, and kBusy instead of a change when another coordinator has the run.
class RunModels {
 public:
  RunModels(const config::Experiment& experiment, const history::RunFolder& folder,
            history::RunHistory& history)
      : experiment_(experiment), folder_(folder), history_(history) {}

  /// Makes the models of round 0 in a folder like RunFolder::round(0), as the import did. Empty:
  /// the models of round 0 cannot be rebuilt.
  std::function<void(const std::filesystem::path& round)> make_first;

  /// The hashes of a round's model, by the journal: 0 is the imported model. A model without block
  /// hashes is hashed once, and rebuilt when it is damaged.
  checkpoint::Hashes global(int round);
  checkpoint::Hashes master(int round);
  /// With LoRA: the model under the adapters.
  checkpoint::Hashes adapted();

  /// The updates of the round's frozen participants, with the frozen weights; computed ones where
  /// the journal of an earlier release has none. Throws kCorrupt for a damaged update.
  std::vector<aggregate::Input> inputs(int round) const;

  /// Rebuilds the model if it is damaged. Reads the whole model.
  void restore_global(int round);
  void restore_master(int round);
  void restore_adapted();
  /// Reads the global model and compares its block hashes; rebuilds a damaged model.
  void check_global(int round);

  /// Calls body(hashes) for a body that reads the global model of `round`. When the body throws
  /// kCorrupt or kRejected, restores the model if it is damaged, and calls the body once again. A
  /// second such error comes from a disk that fails now and then: it becomes kIo, as a later read
  /// may succeed.
  /// When many readers find the same damage, one of them rebuilds the model, and the others do not
  /// read the whole model once more.
  template <class Body>
  auto with_global(int round, const Body& body) {
    const int before = times_rebuilt(folder_.global(round));
    return again([&] { return body(global(round)); },
                 [&] { restore_since(before, [&] { return global_model(round); }); });
  }
  template <class Body>
  auto with_adapted(const Body& body) {
    const int before = times_rebuilt(folder_.adapted());
    return again([&] { return body(adapted()); },
                 [&] { restore_since(before, [&] { return adapted_model(); }); });
  }

 private:
  struct Model {
    std::filesystem::path folder;
    std::string root_sha256;
    std::function<void(const Model&)> make;  // again; throws kCorrupt
  };
  Model global_model(int round);
  Model master_model(int round);
  Model adapted_model();
  Model first_model(const std::filesystem::path& folder, const std::string& root_sha256);
  Model first_global();

  template <class Body, class Restore>
  static auto again(const Body& body, const Restore& restore) {
    try {
      return body();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCorrupt && error.kind() != ErrorKind::kRejected) throw;
    }
    restore();
    try {
      return body();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCorrupt && error.kind() != ErrorKind::kRejected) throw;
      throw Error(ErrorKind::kIo,
                  std::string("this machine has read a whole model wrong twice: ") + error.what());
    }
  }

  int times_rebuilt(const std::filesystem::path& folder);
  // Restores the model unless it was rebuilt since times_rebuilt() was `before`.
  void restore_since(int before, const std::function<Model()>& model);

  // The caller holds the mutex.
  checkpoint::Hashes hashes_of(const Model& model);
  checkpoint::Hashes restored(const Model& model);
  void make_global(int round, const Model& model);
  void make_master(int round, const Model& model);
  void replace(const Model& model, const std::filesystem::path& made);
  std::filesystem::path work_name(const std::filesystem::path& folder) const;

  const config::Experiment& experiment_;
  const history::RunFolder& folder_;
  history::RunHistory& history_;
  std::mutex mutex_;
  std::map<std::filesystem::path, checkpoint::Hashes> known_;
  std::map<std::filesystem::path, int> times_rebuilt_;
};

}  // namespace xffl::facility
