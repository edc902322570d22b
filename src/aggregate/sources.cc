#include "sources.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/kernels/cpu/mean.h"

namespace xffl::aggregate {

using checkpoint::Dtype;
using checkpoint::TensorSpec;

namespace {

bool is_averaged_type(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16;
}

std::string number(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::string name_of(const Input& input) {
  const std::string& name = input.label.empty() ? input.folder.string() : input.label;
  return log::printable(name, 300);
}

void check_weights(const std::vector<Input>& inputs) {
  for (const Input& input : inputs)
    if (!(input.weight > 0) || !std::isfinite(input.weight))
      throw Error(ErrorKind::kRejected, "the weight of " + name_of(input) +
                                            " must be finite and above 0, and is " +
                                            number(input.weight));
}

void sort_by_key(std::vector<Input>& inputs) {
  std::sort(inputs.begin(), inputs.end(),
            [](const Input& a, const Input& b) { return a.order_key < b.order_key; });
  const auto duplicate =
      std::adjacent_find(inputs.begin(), inputs.end(),
                         [](const Input& a, const Input& b) { return a.order_key == b.order_key; });
  if (duplicate != inputs.end())
    throw Error(ErrorKind::kRejected, name_of(*duplicate) + " and " + name_of(*(duplicate + 1)) +
                                          " have the same order key '" +
                                          log::printable(duplicate->order_key, 100) +
                                          "': the order of the sum would be undefined");
}

}  // namespace

void round_to(std::span<const double> from, Dtype dtype, std::span<std::byte> to) {
  std::array<float, kMaxPiece> rounded;
  if (dtype == Dtype::kF32)
    kernels::round_to_nearest(from, rounded);
  else
    kernels::round_to_odd(from, rounded);
  checkpoint::from_float(std::span(rounded.data(), from.size()), dtype, to);
}

double dot(std::span<const float> x, std::span<const float> y) {
  constexpr size_t kLanes = 32;  // one sum per lane of a vector register
  std::array<float, kLanes> sums{};
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += x[i + lane] * y[i + lane];
  double sum = 0;
  for (; i < x.size(); ++i) sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  for (const float lane : sums) sum += static_cast<double>(lane);
  return sum;
}

void require_float(const std::vector<TensorSpec>& tensors, const std::string& model_name) {
  for (const TensorSpec& spec : tensors)
    if (!is_averaged_type(spec.dtype))
      throw Error(ErrorKind::kRejected, model_name + ": tensor '" + spec.name + "' is " +
                                            std::string(to_string(spec.dtype)) +
                                            "; expected F32, F16 or BF16");
}

std::span<const std::byte> block_bytes(std::span<const std::byte> data, Dtype dtype,
                                       const Block& block) {
  const size_t size = size_bytes(dtype);
  return data.subspan(block.begin * size, block.count * size);
}

void require_finite(std::span<const std::byte> bytes, const TensorSpec& spec, uint64_t first_index,
                    const std::string& model_name) {
  const auto bad = checkpoint::first_non_finite(bytes, spec.dtype);
  if (!bad) return;
  float value = 0;
  const size_t size = size_bytes(spec.dtype);
  to_float(bytes.subspan(*bad * size, size), spec.dtype, std::span(&value, 1));
  throw Error(ErrorKind::kRejected,
              model_name + ": tensor '" + spec.name + "' " + checkpoint::format_shape(spec.shape) +
                  ", element " + std::to_string(first_index + *bad) + " is " +
                  number(static_cast<double>(value)) + "; expected finite values");
}

Sources::Sources(std::vector<Input> inputs) : inputs_(std::move(inputs)) {
  if (inputs_.empty()) throw Error(ErrorKind::kRejected, "no model to average");
  check_weights(inputs_);
  tensors_ = checkpoint::ModelFolder(inputs_.front().folder, inputs_.front().hashes).tensors();
  require_float(tensors_, name_of(inputs_.front()));
  sort_by_key(inputs_);
  for (const Input& input : inputs_) {
    models_.push_back(std::make_unique<checkpoint::ModelFolder>(input.folder, input.hashes));
    check_same_schema(models_.back()->tensors(), tensors_, /*any_float=*/true, name_of(input));
    total_weight_ += input.weight;
  }
  if (!std::isfinite(total_weight_))
    throw Error(ErrorKind::kRejected, "the sum of the weights overflows");
}

void Sources::verify_all() const {
  for (const auto& model : models_) model->verify_all();
}

Sources::Reader::Reader(const Sources& sources, const Block& block)
    : sources_(sources), block_(block) {
  for (size_t i = 0; i < sources.models_.size(); ++i) {
    // Looks a tensor up by name: the shards of another input may differ.
    const checkpoint::ModelFolder& model = *sources.models_[i];
    const std::string& name = sources.tensors_[block.tensor_index].name;
    const TensorSpec& spec = model.spec(name);
    const auto bytes = block_bytes(model.data(name), spec.dtype, block);
    model.verify(bytes);
    parts_.push_back(std::unique_ptr<Part>(new Part{spec, bytes, name_of(sources.inputs_[i]),
                                                    sources.inputs_[i].weight, PageWindow(bytes)}));
  }
}

void Sources::Reader::load(size_t index, uint64_t offset, std::span<float> values) const {
  const Part& part = *parts_[index];
  const size_t size = size_bytes(part.spec.dtype);
  to_float(part.bytes.subspan(offset * size, values.size() * size), part.spec.dtype, values);
}

void Sources::Reader::mean(uint64_t offset, std::span<double> mean) const {
  std::array<float, kMaxPiece> values;
  const std::span<float> x(values.data(), mean.size());
  bool started = false;
  for (const auto& part : parts_) {
    const size_t size = size_bytes(part->spec.dtype);
    const auto bytes = part->bytes.subspan(offset * size, mean.size() * size);
    require_finite(bytes, part->spec, block_.begin + offset, part->model_name);
    to_float(bytes, part->spec.dtype, x);
    if (started)
      kernels::add_to_sum(x, part->weight, mean);
    else
      kernels::start_sum(x, part->weight, mean);
    started = true;
  }
  kernels::divide(mean, sources_.total_weight_);
}

}  // namespace xffl::aggregate
