// The job's result: an HF folder with the trained weights, or with what training added to the given
// ones.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "xffl/job/job_spec.h"
#include "xffl/train/trainer.h"

namespace xffl::train {

/// Throws kRejected unless `folder`'s manifest has the root hash `sha256` and its files are as the
/// manifest says.
void check_base_model(const std::filesystem::path& folder, const std::string& sha256);

/// The whole masters of a model, one unit at a time: what is in shards is gathered for the rank
/// that writes. Collective: each rank calls value() for every parameter in order, or finish().
class MasterStream {
 public:
  explicit MasterStream(const LoadedModel& model) : model_(model) {}
  /// float32 on the host, valid until the next call.
  at::Tensor value(size_t index);
  /// Takes part in gathering the units that are left.
  void finish();

 private:
  void gather_up_to(int unit);

  const LoadedModel& model_;
  int unit_ = -1;
  at::Tensor flat_P_;
};

/// Writes `spec.update_path` by rename, with its manifest; a delta is trained minus given, both in
/// float32, rounded once. An incomplete or unreported one that is there is replaced. Returns the
/// manifest's root hash. `before_tensor` is called before each tensor; what it throws ends the
/// writing. By rank 0, while the others finish() their streams; its own is finished in any case.
std::string write_update(const job::JobSpec& spec, const LoadedModel& model, MasterStream& masters,
                         const std::function<void()>& before_tensor);

}  // namespace xffl::train
