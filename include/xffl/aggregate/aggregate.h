// Federated averaging (McMahan et al., 2017) of model folders, tensor by tensor, in bounded memory.
//
// Each element is sum_k(w_k * x_k) / sum_k(w_k), accumulated in float64 in the fixed order of
// Input::order_key and rounded once. The output bytes do not depend on the order of the inputs, the
// number of threads or the block size. The functions read sources by mmap. The memory is a few
// blocks per thread, independent of the model's size and of the number of inputs. In all functions
// a folder may hold a LoRA adapter (checkpoint/lora.h) instead of a model; the functions average A
// and B separately.
//
// A function verifies the blocks of an input with `hashes` as it reads them, and publishes nothing
// unless all bytes of the input are those that were written: it throws kCorrupt, naming the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "xffl/aggregate/server_optimizer.h"
#include "xffl/base/spare_memory.h"
#include "xffl/checkpoint/dtype.h"
#include "xffl/checkpoint/model_folder.h"

namespace xffl::aggregate {

struct Input {
  std::filesystem::path folder;  // weights or deltas: HF folder
  double weight = 1;             // > 0, finite
  std::string order_key;         // unique; the sum runs in ascending order of the keys
  std::string label;             // for messages: the facility, or the folder
  checkpoint::Hashes hashes{};   // of the folder
};

struct Options {
  int num_threads = 0;  // 0: all CPUs that this process may use
  uint64_t max_shard_bytes = 5ull << 30;
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)>
      on_progress;               // output bytes; from any thread, serialised
  SpareMemory* spare = nullptr;  // memory that the output may use
  checkpoint::Hashes hashes{};   // of the master or model that the function begins with
};

/// Writes the weighted mean of weights as an HF folder `out` with tensors of `dtype`. Every input
/// must have exactly the tensors and shapes of `inputs[0]` by name (any of F32/F16/BF16), finite
/// everywhere. config.json and tokenizer files come from the input with the smallest order_key.
/// `out` must not exist; it appears by rename, with manifest.json. Throws kRejected (input, tensor,
/// index, value; shapes expected and found), kNotFound, kCorrupt, kIo.
void average_weights(std::vector<Input> inputs, checkpoint::Dtype dtype,
                     const std::filesystem::path& out, const Options& options = {});

struct Stepped {
  checkpoint::Manifest master, model;  // with block hashes, computed while writing
  // For each update, in the order of the list: the cosine of the angle between the update and the
  // weighted sum of the others. 1: the same direction; 0: unrelated, or the others cancel out; -1:
  // against them. Empty unless the updates are two or more deltas. Does not depend on the threads.
  std::vector<double> cosines;
};
/// One step of the server optimizer of `rule` on a float32 master, from the mean of the updates,
/// which are deltas or weights. Reads the master folder `master` (F32, HF layout), writes
/// `out_master` (F32) and `out_model` (`publish_dtype`, rounded from the new float32 master) in one
/// pass. Both appear by rename, with manifest.json; config.json (with the output's torch_dtype) and
/// tokenizer files come from `master`. The folders of the masters hold the optimizer's state; a
/// master without state files starts with zeros. Throws as average_weights(). The schema of the
/// updates must equal the schema of the master.
Stepped server_step(const std::filesystem::path& master, std::vector<Input> updates, bool deltas,
                    checkpoint::Dtype publish_dtype, const std::filesystem::path& out_master,
                    const std::filesystem::path& out_model, const Options& options = {},
                    const ServerRule& rule = {});

/// Converts a model folder (float tensors only) to `dtype`, for example to make the first master
/// (F32) from an HF folder. Returns the manifest with block hashes, computed while writing.
checkpoint::Manifest convert(const std::filesystem::path& model, checkpoint::Dtype dtype,
                             const std::filesystem::path& out, const Options& options = {});

// The largest change that check_update() accepts.
struct ChangeLimit {
  double norm = 0;       // the L2 norm of the change; 0: any change
  double base_norm = 0;  // the L2 norm of the input model; 0: its direction does not matter
};

/// Verifies an update and returns the L2 norm of its change (the delta; the weights minus `base`),
/// 0 without a limit. Throws kRejected, with tensor, element index and value, unless `update`
/// has exactly the schema of `base` (shapes; any float dtype) and is finite everywhere. Also
/// rejects an update without a change (all zero, or equal to `base`) and, with a limit, a change
/// with a larger norm, and a change that takes away more than nine tenths of `base` (by the
/// projection of the changed model onto `base`), such as delta = -base. Rejects an update with
/// which an element leaves the range of its type in `base`, the published model, so that the mean
/// of accepted updates stays in the range.
double check_update(const std::filesystem::path& update, const std::filesystem::path& base,
                    bool delta, const ChangeLimit& limit = {},
                    const checkpoint::Hashes& update_hashes = {},
                    const checkpoint::Hashes& base_hashes = {});

/// The L2 norm of all elements of a model or adapter. Throws kRejected for types other
/// than F32, F16 and BF16.
double l2_norm(const std::filesystem::path& folder, const checkpoint::Hashes& hashes = {});

}  // namespace xffl::aggregate
