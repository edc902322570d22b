// The server step of a federation's round; `xffl aggregate` uses average_weights() instead.
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <optional>

#include "directions.h"
#include "output_folder.h"
#include "xffl/base/file.h"

namespace xffl::aggregate {

namespace fs = std::filesystem;
using checkpoint::Dtype;
using checkpoint::SafetensorsFile;
using checkpoint::TensorSpec;

namespace {

// The number of outputs before the optimizer's state: the master and the published model.
constexpr size_t kModels = 2;

using Floats = std::array<float, kMaxPiece>;

// The values of a piece of F32 bytes, which `origin` names when a value is not finite.
std::span<float> load(std::span<const std::byte> bytes, TensorSpec spec, uint64_t first,
                      const std::string& origin, Floats& values) {
  spec.dtype = Dtype::kF32;
  require_finite(bytes, spec, first, origin);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return std::span(values.data(), bytes.size() / sizeof(float));
}

std::span<const std::byte> floats_of(std::span<const std::byte> bytes, uint64_t offset,
                                     size_t count) {
  return bytes.subspan(offset * sizeof(float), count * sizeof(float));
}

// The optimizer's state beside a master: one file per name, or none before the first step.
class OptimizerState {
  struct State {
    std::string name;  // for messages
    std::optional<SafetensorsFile> file;
  };

 public:
  /// With `hashes` of the master's folder, the readers and verify_all() verify the state.
  OptimizerState(const checkpoint::ModelFolder& master, const ServerOptimizer& optimizer,
                 const checkpoint::Hashes& hashes) {
    for (const std::string_view name : optimizer.state) {
      State& state = all_.emplace_back();
      state.name = "the server optimizer's " + std::string(name);
      const fs::path path = master.path() / file_name(name);
      const checkpoint::ManifestFile* written =
          hashes ? hashes->find(path.filename().string()) : nullptr;
      if (written != nullptr)
        state.file.emplace(path, *written);
      else if (!hashes && has_file(path))
        state.file.emplace(path);
      else
        continue;
      checkpoint::check_same_schema(state.file->tensors(), master.tensors(), /*any_float=*/false,
                                    state.name);
    }
  }

  static std::string file_name(std::string_view name) { return std::string(name) + ".safetensors"; }

  void verify_all() const {
    for (const State& state : all_)
      if (state.file) state.file->verify_all();
  }

  // One block of all state tensors of a model's tensor.
  class Reader {
   public:
    Reader(const OptimizerState& states, const TensorSpec& spec, const Block& block)
        : states_(states.all_), spec_(spec), block_(block), values_(states_.size()) {
      for (const State& state : states_) {
        if (state.file)
          bytes_.push_back(block_bytes(state.file->data(spec.name), Dtype::kF32, block));
        else
          bytes_.emplace_back();
        if (state.file) state.file->verify(bytes_.back());
        windows_.emplace_back(bytes_.back());
      }
    }

    // The values that the step reads and replaces.
    std::span<const std::span<float>> load_piece(uint64_t offset, size_t count) {
      piece_.clear();
      for (size_t i = 0; i < states_.size(); ++i) {
        if (bytes_[i].empty())
          piece_.push_back(std::span(values_[i].data(), count));
        else
          piece_.push_back(load(floats_of(bytes_[i], offset, count), spec_, block_.begin + offset,
                                states_[i].name, values_[i]));
        if (bytes_[i].empty()) std::fill(piece_[i].begin(), piece_[i].end(), 0.0f);
      }
      return piece_;
    }

   private:
    const std::vector<State>& states_;
    const TensorSpec& spec_;
    const Block& block_;
    std::vector<std::span<const std::byte>> bytes_;
    std::deque<PageWindow> windows_;
    std::vector<Floats> values_;
    std::vector<std::span<float>> piece_;
  };

 private:
  // A file that the manifest names must exist: without it the step would start again with zeros.
  static bool has_file(const fs::path& path) {
    if (fs::exists(path)) return true;
    const fs::path master = path.parent_path();
    return fs::exists(master / checkpoint::kManifestName) &&
           checkpoint::read_manifest(master).find(path.filename().string()) != nullptr;
  }

  std::vector<State> all_;
};

bool reads_master(const ServerRule& rule, bool deltas) {
  return deltas || rule.optimizer.reads_master_for_weights;
}

// Computes the next master and the optimizer's state in float32, and rounds the master to the
// published type.
class ServerStep {
 public:
  ServerStep(const checkpoint::ModelFolder& master, const OptimizerState& state,
             const Sources& updates, bool deltas, Dtype publish_dtype, const ServerRule& rule,
             const Directions* directions)
      : master_(master),
        state_(state),
        updates_(updates),
        deltas_(deltas),
        reads_master_(reads_master(rule, deltas)),
        publish_dtype_(publish_dtype),
        rule_(rule),
        directions_(directions) {}

  void operator()(const Block& block, std::span<Bytes> outputs) const {
    const TensorSpec& spec = updates_.tensors()[block.tensor_index];
    const size_t num_files = kModels + rule_.optimizer.state.size();
    for (size_t i = 0; i < num_files; ++i)
      outputs[i].resize(block.count * size_bytes(dtype_of_output(i)));
    std::vector<double> sums(directions_ != nullptr ? directions_->num_sums() : 0, 0.0);
    const auto old_master = reads_master_ ? block_bytes(master_.data(spec.name), Dtype::kF32, block)
                                          : std::span<const std::byte>();
    master_.verify(old_master);
    const PageWindow window(old_master);
    OptimizerState::Reader state(state_, spec, block);
    const Sources::Reader reader(updates_, block);
    for_each_piece(block.count, [&](uint64_t offset, size_t count) {
      std::array<double, kMaxPiece> values;
      Floats master;
      ServerPiece piece{
          .deltas = deltas_, .settings = rule_.settings, .values = std::span(values.data(), count)};
      reader.mean(offset, piece.values);
      if (directions_ != nullptr) directions_->measure(reader, offset, piece.values, sums);
      if (reads_master_)
        piece.master = load(floats_of(old_master, offset, count), spec, block.begin + offset,
                            "the float32 master", master);
      piece.state = state.load_piece(offset, count);
      rule_.optimizer.step(piece);
      store(piece, offset, outputs);
    });
    for (size_t i = 0; i < num_files; ++i)
      require_in_range(outputs[i], spec, dtype_of_output(i), block);
    if (directions_ == nullptr) return;
    const auto bytes = std::as_bytes(std::span(sums));
    outputs[num_files].assign(bytes.begin(), bytes.end());
  }

 private:
  Dtype dtype_of_output(size_t output) const { return output == 1 ? publish_dtype_ : Dtype::kF32; }

  void store(const ServerPiece& piece, uint64_t offset, std::span<Bytes> outputs) const {
    const size_t count = piece.values.size();
    const auto master = piece_of(outputs[0], Dtype::kF32, offset, count);
    Floats rounded;
    round_to(piece.values, Dtype::kF32, master);
    std::memcpy(rounded.data(), master.data(), master.size());
    from_float(std::span(rounded.data(), count), publish_dtype_,
               piece_of(outputs[1], publish_dtype_, offset, count));
    for (size_t i = 0; i < piece.state.size(); ++i)
      std::memcpy(piece_of(outputs[kModels + i], Dtype::kF32, offset, count).data(),
                  piece.state[i].data(), count * sizeof(float));
  }

  const checkpoint::ModelFolder& master_;
  const OptimizerState& state_;
  const Sources& updates_;
  const bool deltas_;
  const bool reads_master_;
  const Dtype publish_dtype_;
  const ServerRule& rule_;
  const Directions* directions_;  // nullptr: not measured
};

// The cosines in the order of `keys`; the sources are in ascending order of the keys.
std::vector<double> in_order_of(const std::vector<std::string>& keys, const Sources& sources,
                                const std::vector<double>& cosines) {
  std::vector<double> ordered(keys.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto key = std::find(keys.begin(), keys.end(), sources.input(i).order_key);
    ordered[static_cast<size_t>(key - keys.begin())] = cosines[i];
  }
  return ordered;
}

void require_master(const checkpoint::ModelFolder& master, const Sources& updates) {
  for (const TensorSpec& spec : master.tensors())
    if (spec.dtype != Dtype::kF32)
      throw Error(ErrorKind::kRejected, "the master " + master.path().string() + ": tensor '" +
                                            spec.name + "' is " +
                                            std::string(to_string(spec.dtype)) + "; expected F32");
  check_same_schema(updates.tensors(), master.tensors(), /*any_float=*/true, "the updates");
}

}  // namespace

Stepped server_step(const fs::path& master, std::vector<Input> updates, bool deltas,
                    Dtype publish_dtype, const fs::path& out_master, const fs::path& out_model,
                    const Options& options, const ServerRule& rule) {
  require_output_dtype(publish_dtype);
  const checkpoint::ModelFolder model(master, options.hashes);
  std::vector<std::string> keys;
  for (const Input& update : updates) keys.push_back(update.order_key);
  const Sources sources(std::move(updates));
  require_master(model, sources);
  const OptimizerState state(model, rule.optimizer, options.hashes);
  const std::vector<TensorSpec>& tensors = model.tensors();
  OutputFolder new_master(out_master, tensors, model, options.max_shard_bytes);
  OutputFolder published(out_model, with_dtype(tensors, publish_dtype), model,
                         options.max_shard_bytes);
  const uint64_t total_bytes =
      new_master.total_bytes() * (1 + rule.optimizer.state.size()) + published.total_bytes();
  require_space(out_master.parent_path(), total_bytes);
  Progress progress(options, total_bytes);
  std::vector<Write> writes{progress.counted(new_master), progress.counted(published)};
  std::deque<checkpoint::SafetensorsWriter> new_state;
  for (const std::string_view name : rule.optimizer.state)
    writes.push_back(progress.counted(
        new_state.emplace_back(new_master.create_file(OptimizerState::file_name(name), tensors))));
  std::optional<Directions> directions;
  if (deltas && sources.size() > 1) {
    directions.emplace(sources);
    writes.push_back([&](std::span<const std::byte> bytes) {  // in order: the same sum each time
      std::vector<double> sums(directions->num_sums());
      std::memcpy(sums.data(), bytes.data(), bytes.size());
      directions->add(sums);
    });
  }
  run_pipeline(BlockList(tensors), options.num_threads,
               ServerStep(model, state, sources, deltas, publish_dtype, rule,
                          directions ? &*directions : nullptr),
               writes);
  for (checkpoint::SafetensorsWriter& file : new_state) new_master.add_file(file.finish());
  new_master.finish();
  published.finish();
  model.verify_all();  // also with weights, which need none of its tensors: its other files are
                       // copied
  state.verify_all();
  sources.verify_all();
  new_master.publish();
  published.publish();
  return {new_master.manifest(), published.manifest(),
          directions ? in_order_of(keys, sources, directions->cosines()) : std::vector<double>()};
}

}  // namespace xffl::aggregate
