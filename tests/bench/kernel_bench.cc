// Measures the parts of a training step of a LLaMA one by one, with the calls of the model: matrix
// products, attention, the hand-written kernels, collectives of a world of one rank.
//
//   xffl-kernel-bench --device cpu|cuda [--tiny] [--seconds-per-case S]
//
// Prints a JSON line after each case: `name`, `shape`, `milliseconds`, and
// `tflops` (products, attention) or `gigabytes_per_second` (the rest: bytes that must be read and
// written once). Products and attention also have `layer` and `pass`. A case that fails has `error`
// instead, and the exit code is 1. The shapes are those of Llama-3.1-8B at a batch of 4 x 2048 in
// bfloat16; --tiny is for tests of the program.
//
// B sequences, T positions, M = B T, D hidden, N heads, K key/value heads, H head_dim, I
// intermediate, V vocabulary, R rows of logits.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>

#include "attention.h"
#include "backend_group.h"
#include "on_cpu.h"
#include "pointwise.h"
#include "product.h"
#include "xffl/base/json.h"
#include "xffl/kernels/cuda/gpu.h"
#include "xffl/llama/head_loss.h"
#include "xffl/llama/rope.h"
#include "xffl/llama/weight.h"
#include "xffl/shard/flat_parameters.h"
#include "xffl/shard/optimizer.h"
#include "xffl/train/device.h"

namespace {

using namespace xffl;

struct Shapes {
  int64_t batch = 4, positions = 2048, hidden = 4096, heads = 32, kv_heads = 8, head_dim = 128;
  int64_t intermediate = 14336, vocabulary = 128256;
  int64_t unit = 218'112'000;              // parameters of a block
  int64_t collective_bytes = 436'224'000;  // those in bfloat16
  int64_t tokens() const { return batch * positions; }
};

constexpr Shapes kTiny{2, 32, 64, 4, 2, 16, 96, 384, 40'960, 65'536};

std::string joined(const std::vector<int64_t>& sizes) {
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text;
}

class Bench {
 public:
  Bench(at::Device device, const Shapes& shapes, double seconds_per_case)
      : device_(device), s_(shapes), seconds_per_case_(seconds_per_case) {}

  /// Returns whether every case was measured.
  bool run() {
    products();
    head();
    attention("default");
    pointwise();
    embedding();
    optimizer();
    collectives();
    train::use_attention_of_any_length(device_);  // for the rest of the process
    attention("any length");
    return all_done_;
  }

 private:
  struct Case {
    std::string name, shape, layer, pass;
    double flops = 0, bytes = 0;
  };

  at::Tensor random(const std::vector<int64_t>& sizes, at::ScalarType dtype = at::kBFloat16) const {
    return at::empty(sizes, at::TensorOptions().dtype(dtype).device(device_)).normal_(0, 0.02);
  }
  at::Tensor empty(const std::vector<int64_t>& sizes, at::ScalarType dtype) const {
    return at::empty(sizes, at::TensorOptions().dtype(dtype).device(device_));
  }

  double seconds_of(int64_t times, const std::function<void()>& body) const {
    kernels::gpu::synchronize(device_);
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < times; ++i) body();
    kernels::gpu::synchronize(device_);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  // `setup` makes the tensors and returns the work; its failure fails the case.
  void measure(const Case& what, const std::function<std::function<void()>()>& setup) {
    Json json{{"name", what.name}, {"shape", what.shape}};
    if (!what.layer.empty()) json["layer"] = what.layer;
    if (!what.pass.empty()) json["pass"] = what.pass;
    try {
      const std::function<void()> body = setup();
      seconds_of(1, body);  // loads kernels, plans products
      const double once = std::max(seconds_of(1, body), 1e-7);
      const auto times = static_cast<int64_t>(std::clamp(seconds_per_case_ / once, 1.0, 1e5));
      const double seconds = seconds_of(times, body) / static_cast<double>(times);
      json["milliseconds"] = seconds * 1e3;
      if (what.flops > 0) json["tflops"] = what.flops / seconds * 1e-12;
      if (what.bytes > 0) json["gigabytes_per_second"] = what.bytes / seconds * 1e-9;
    } catch (const std::exception& error) {
      const std::string text = error.what();
      json["error"] = text.substr(0, text.find('\n'));
      all_done_ = false;
    }
    std::puts(json.dump().c_str());
    std::fflush(stdout);
  }

  void product(const std::string& layer, const std::string& pass, int64_t rows, int64_t depth,
               int64_t width, const std::function<std::function<void()>()>& setup) {
    measure({"gemm", joined({rows, depth, width}), layer, pass,
             2.0 * static_cast<double>(rows * depth * width)},
            setup);
  }

  // float32 gradients accumulate several micro-batches; bfloat16 gradients hold one.
  void weight_gradient(const std::string& layer, int64_t rows, int64_t in, int64_t out,
                       at::ScalarType dtype) {
    const bool narrow = dtype == at::kBFloat16;
    product(layer, narrow ? "weight gradient, bf16" : "weight gradient, fp32", out, rows, in,
            [=, this] {
              llama::Weight weight;
              weight.value = random({out, in});
              weight.gradient = empty({out, in}, dtype);
              weight.finish();
              return [weight, narrow, grad_ME = random({rows, out}),
                      x_MD = random({rows, in})]() mutable {
                if (narrow) weight.clear();
                weight.add_product(grad_ME, x_MD);
              };
            });
  }

  // `shared`: several layers read the same input, whose gradient is summed.
  void layer_products(const std::string& layer, int64_t in, int64_t out, bool shared) {
    const int64_t rows = s_.tokens();
    product(layer, "forward", rows, in, out, [=, this] {
      return [x_BTD = random({s_.batch, s_.positions, in}), w_ED = random({out, in})] {
        llama::multiply_linear(x_BTD, w_ED, {});
      };
    });
    product(layer, "input gradient", rows, out, in, [=, this]() -> std::function<void()> {
      const at::Tensor grad_ME = random({rows, out}), w_ED = random({out, in});
      if (!shared) return [=] { llama::multiply(grad_ME, w_ED); };
      at::Tensor sum_MD;
      llama::add_multiplied(sum_MD, grad_ME, w_ED);
      return [=]() mutable { llama::add_multiplied(sum_MD, grad_ME, w_ED); };
    });
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      weight_gradient(layer, rows, in, out, dtype);
  }

  void products() {
    layer_products("q", s_.hidden, s_.heads * s_.head_dim, true);
    layer_products("k/v", s_.hidden, s_.kv_heads * s_.head_dim, true);
    layer_products("o", s_.heads * s_.head_dim, s_.hidden, false);
    layer_products("gate/up", s_.hidden, s_.intermediate, true);
    layer_products("down", s_.intermediate, s_.hidden, false);
  }

  // One chunk of rows, as in head_loss; then all rows.
  void head() {
    const int64_t rows = llama::head_chunk_rows(device_, s_.tokens(), s_.vocabulary);
    product("head", "forward", rows, s_.hidden, s_.vocabulary, [=, this] {
      return [logits_RV = empty({rows, s_.vocabulary}, at::kBFloat16),
              x_RD = random({rows, s_.hidden}), w_VD = random({s_.vocabulary, s_.hidden})] {
        llama::multiply_into(logits_RV, x_RD, w_VD.t());
      };
    });
    product("head", "input gradient", rows, s_.vocabulary, s_.hidden, [=, this] {
      return
          [grad_RD = empty({rows, s_.hidden}, at::kBFloat16),
           logits_RV = random({rows, s_.vocabulary}), w_VD = random({s_.vocabulary, s_.hidden})] {
            llama::multiply_into(grad_RD, logits_RV, w_VD);
          };
    });
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      weight_gradient("head", rows, s_.hidden, s_.vocabulary, dtype);
    cross_entropy(rows);
    whole_head();
  }

  void cross_entropy(int64_t rows) {
    measure({.name = "cross_entropy",
             .shape = joined({rows, s_.vocabulary}),
             .bytes = 4.0 * static_cast<double>(rows * s_.vocabulary)},
            [=, this] {
              const at::Tensor labels_R = labels(rows), nll_R = empty({rows}, at::kFloat);
              const at::Tensor logits_RV = random({rows, s_.vocabulary});
              return [=] {
                if (!kernels::gpu::cross_entropy(logits_RV, labels_R, nll_R, llama::kIgnoreLabel,
                                                 true, 1e-4))
                  cross_entropy_on_cpu(logits_RV, labels_R, nll_R);
              };
            });
  }

  static void cross_entropy_on_cpu(const at::Tensor& logits_RV, const at::Tensor& labels_R,
                                   const at::Tensor& nll_R) {
    const int64_t width = logits_RV.size(1);
    llama::on_cpu(logits_RV, [&]<class T>(T) {
      using Wide = llama::Wide<T>;
      at::parallel_for(0, logits_RV.size(0), 1, [&](int64_t begin, int64_t end) {
        std::vector<Wide> scratch(static_cast<size_t>(width));
        for (int64_t row = begin; row < end; ++row)
          llama::mutable_data<Wide>(nll_R)[row] = kernels::block_kernels<T>().cross_entropy(
              llama::mutable_data<T>(logits_RV) + row * width, width,
              llama::const_data<int64_t>(labels_R)[row], Wide{1e-4f}, scratch.data());
      });
    });
  }

  at::Tensor labels(int64_t count) const {
    return at::randint(s_.vocabulary, {count}, at::TensorOptions().dtype(at::kLong)).to(device_);
  }

  void whole_head() {
    measure({"head_loss", joined({s_.tokens(), s_.hidden, s_.vocabulary}), "head", "all",
             6.0 * static_cast<double>(s_.tokens() * s_.hidden * s_.vocabulary)},
            [this] {
              llama::Weight head;
              head.value = random({s_.vocabulary, s_.hidden});
              head.gradient = empty({s_.vocabulary, s_.hidden}, at::kBFloat16);
              const at::Tensor x_MD = random({s_.tokens(), s_.hidden});
              return [=, kept_RV = at::Tensor(), labels_M = labels(s_.tokens())]() mutable {
                head.clear();
                const llama::Targets all{x_MD.size(0), {}};
                llama::head_loss(x_MD, head, labels_M, 1e-4, &kept_RV, all);
              };
            });
  }

  struct Attention {
    at::Tensor q_BTNH, k_BTKH, v_BTKH;
    at::Tensor run() const { return llama::causal_attention(q_BTNH, k_BTKH, v_BTKH); }
  };

  Attention attention_inputs() const {
    const auto heads = [&](int64_t count) {
      return random({s_.batch, s_.positions, count, s_.head_dim}).requires_grad_(true);
    };
    return {heads(s_.heads), heads(s_.kv_heads), heads(s_.kv_heads)};
  }

  // Two products forward and five backward, of a triangle.
  void attention(const std::string& dispatch) {
    const std::string shape = joined({s_.batch, s_.positions, s_.heads, s_.head_dim}) + " kv " +
                              std::to_string(s_.kv_heads);
    const double flops = static_cast<double>(s_.batch * s_.heads * s_.positions * s_.positions) *
                         static_cast<double>(s_.head_dim);
    measure({"attention", shape, dispatch, "forward", 2 * flops}, [this] {
      return [inputs = attention_inputs()] {
        const at::AutoGradMode grad(true);
        inputs.run();
      };
    });
    measure({"attention", shape, dispatch, "backward", 5 * flops}, [this] {
      const at::AutoGradMode grad(true);
      const Attention inputs = attention_inputs();
      const at::Tensor out = inputs.run();
      return [inputs, out, grad_out = at::ones_like(out)] {
        torch::autograd::grad({out}, {inputs.q_BTNH, inputs.k_BTKH, inputs.v_BTKH}, {grad_out},
                              /*retain_graph=*/true);
      };
    });
  }

  // Reads or writes `tensors` of `sizes` once, in bfloat16.
  void kernel(const std::string& name, const std::vector<int64_t>& sizes, int tensors,
              const std::function<std::function<void()>()>& setup) {
    double elements = 1;
    for (const int64_t size : sizes) elements *= static_cast<double>(size);
    measure({.name = name, .shape = joined(sizes), .bytes = 2.0 * tensors * elements}, setup);
  }

  void pointwise() {
    const std::vector<int64_t> x_size{s_.batch, s_.positions, s_.hidden};
    const std::vector<int64_t> inner{s_.batch, s_.positions, s_.intermediate};
    constexpr double kEpsilon = 1e-5;
    kernel("rms_norm", x_size, 2, [=, this] {
      return [x = random(x_size), w = random({s_.hidden})] {
        llama::rms_norm_forward(x, {}, w, kEpsilon);
      };
    });
    kernel("add_rms_norm", x_size, 4, [=, this] {
      return [x = random(x_size), delta = random(x_size), w = random({s_.hidden})] {
        llama::rms_norm_forward(x, delta, w, kEpsilon);
      };
    });
    kernel("rms_norm_backward", x_size, 4, [=, this] {
      const at::Tensor x = random(x_size), w = random({s_.hidden});
      const at::Tensor inverse = llama::rms_norm_forward(x, {}, w, kEpsilon).inverse_BT1;
      return [=, grad_y = random(x_size), grad_sum = random(x_size)] {
        llama::rms_norm_backward(grad_y, grad_sum, x, inverse, w);
      };
    });
    kernel("swiglu", inner, 3, [=, this] {
      return [gate = random(inner), up = random(inner)] { llama::swiglu_forward(gate, up); };
    });
    kernel("swiglu_backward", inner, 5, [=, this] {
      return [grad = random(inner), gate = random(inner), up = random(inner)] {
        llama::swiglu_backward(grad, gate, up);
      };
    });
    for (const double sign : {1.0, -1.0}) {
      const std::vector<int64_t> heads{s_.batch, s_.positions, s_.heads, s_.head_dim};
      kernel(sign > 0 ? "rope" : "rope_backward", heads, 2, [=, this] {
        const at::Tensor x = random(heads);
        const llama::RopeTable table = llama::make_rope_table(
            llama::rope_frequencies({}, s_.head_dim), s_.positions, x.options());
        return [=] { llama::rotate(x, table, sign); };
      });
    }
    const std::vector<int64_t> matrix{s_.hidden, s_.intermediate};
    kernel("accumulate", matrix, 5, [=, this] {  // a float32 sum is read and written
      return [sum = random(matrix, at::kFloat), update = random(matrix)] {
        llama::accumulate(sum, update, 1, false);
      };
    });
  }

  void embedding() {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const double width = dtype == at::kFloat ? 4 : 2;
      measure({.name = "embedding_backward",
               .shape = joined({s_.tokens(), s_.hidden}),
               .pass = dtype == at::kFloat ? "fp32" : "bf16",
               .bytes = (2 + width) * static_cast<double>(s_.tokens() * s_.hidden) +
                        width * static_cast<double>(s_.vocabulary * s_.hidden)},
              [=, this] {
                llama::Weight weight;
                weight.value = random({s_.vocabulary, s_.hidden});
                weight.gradient = empty({s_.vocabulary, s_.hidden}, dtype);
                return [=, rows = labels(s_.tokens()),
                        update = random({s_.tokens(), s_.hidden})]() mutable {
                  weight.clear();
                  weight.add_rows(rows, update);
                };
              });
    }
  }

  struct Storage {
    const char* name;
    shard::Masters masters;
    at::ScalarType gradients, moments;
    double bytes;  // read and written for a parameter
  };

  std::shared_ptr<shard::FlatParameters> flat(const Storage& storage) const {
    shard::FlatOptions options;
    options.device = device_;
    options.compute_dtype = at::kBFloat16;
    options.masters = storage.masters;
    options.gradient_dtype = storage.gradients;
    auto parameters = std::make_shared<shard::FlatParameters>(
        std::vector<shard::Parameter>{{{s_.unit / s_.hidden, s_.hidden}, 0, true}}, options);
    for (shard::UnitState& state : parameters->states()) {
      state.master_S.normal_(0, 0.02);
      if (state.remainder_S.defined()) state.remainder_S.zero_();
      state.gradient_S.normal_(0, 0.02);
    }
    return parameters;
  }

  void optimizer() {
    using enum shard::Masters;
    constexpr auto kFloat = at::kFloat, kBf16 = at::kBFloat16;
    const double elements = static_cast<double>(s_.unit);
    const Storage storages[] = {
        {"masters fp32, gradients fp32, moments fp32", kFloat32, kFloat, kFloat, 8 + 2 + 4 + 16},
        {"masters fp32, gradients bf16, moments bf16", kFloat32, kBf16, kBf16, 8 + 2 + 2 + 8},
        {"masters split, gradients fp32, moments fp32", kSplit, kFloat, kFloat, 8 + 4 + 16},
        {"masters split, gradients bf16, moments fp32", kSplit, kBf16, kFloat, 8 + 2 + 16},
        {"masters split, gradients bf16, moments bf16", kSplit, kBf16, kBf16, 8 + 2 + 8},
        {"masters none, gradients bf16, moments bf16", kNone, kBf16, kBf16, 4 + 2 + 8}};
    const std::string shape = std::to_string(s_.unit);
    for (const Storage& storage : storages) {
      measure({.name = "adamw",
               .shape = shape,
               .pass = storage.name,
               .bytes = storage.bytes * elements},
              [&, this]() -> std::function<void()> {
                const auto parameters = flat(storage);
                const auto adamw = std::make_shared<shard::Optimizer>(
                    *parameters, shard::OptimizerOptions{0.9, 0.95, 1e-8, 0.1, storage.moments});
                return [parameters, adamw] { adamw->step(1e-5, 0.5); };
              });
    }
    for (const Storage& storage : {storages[0], storages[5]}) {
      const bool wide = storage.gradients == kFloat;
      measure({.name = "gradient_norm",
               .shape = shape,
               .pass = wide ? "fp32" : "bf16",
               .bytes = (wide ? 4 : 2) * elements},
              [&, this] {
                return [parameters = flat(storage)] { parameters->gradient_square_sum(); };
              });
    }
    measure({.name = "split_masters", .shape = shape, .bytes = 8 * elements}, [this] {
      return [master = random({s_.unit}, at::kFloat), weight = empty({s_.unit}, at::kBFloat16),
              remainder = empty({s_.unit}, at::kShort)] {
        shard::split_masters(master, weight, remainder);
      };
    });
    measure({.name = "join_masters", .shape = shape, .bytes = 8 * elements}, [this] {
      return [weight = random({s_.unit}), remainder = empty({s_.unit}, at::kShort).zero_()] {
        shard::join_masters(weight, remainder);
      };
    });
  }

  // A world of one rank: the cost of a collective without its links.
  void collectives() {
    const int64_t count = s_.collective_bytes / 2;
    const double bytes = static_cast<double>(s_.collective_bytes);
    const comm::Rendezvous rendezvous{0, 1, 0, 1, "127.0.0.1", 0, std::chrono::seconds(60)};
    std::shared_ptr<comm::Group> group;
    const auto collective = [&](const char* name, const auto& work) {
      measure({.name = name, .shape = std::to_string(count), .bytes = bytes},
              [&]() -> std::function<void()> {
                if (!group)
                  group = device_.is_cuda() ? comm::make_nccl(rendezvous, device_)
                                            : comm::make_gloo(rendezvous);
                const at::Tensor all = random({count}), part = random({count});
                return [=, group = group] { work(*group, all, part); };
              });
    };
    using Tensor = const at::Tensor&;
    collective("all_reduce", [](comm::Group& on, Tensor all, Tensor) { on.all_reduce(all); });
    collective("all_gather",
               [](comm::Group& on, Tensor all, Tensor part) { on.all_gather(all, part); });
    collective("reduce_scatter",
               [](comm::Group& on, Tensor all, Tensor part) { on.reduce_scatter(part, all); });
  }

  at::Device device_;
  Shapes s_;
  double seconds_per_case_;
  bool all_done_ = true;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Times the parts of a training step.", "xffl-kernel-bench"};
  std::string device = "auto";
  bool tiny = false;
  double seconds_per_case = -1;
  app.add_option("--device", device, "auto, cpu or cuda")->capture_default_str();
  app.add_flag("--tiny", tiny, "small shapes, one thread: a test of the program");
  app.add_option("--seconds-per-case", seconds_per_case, "0.2; with --tiny 0.01");
  CLI11_PARSE(app, argc, argv);
  try {
    if (seconds_per_case < 0) seconds_per_case = tiny ? 0.01 : 0.2;
    train::keep_freed_memory();  // as xffl-train does
    if (tiny) at::set_num_threads(1);
    Bench bench(train::choose_device(device, 0), tiny ? kTiny : Shapes{}, seconds_per_case);
    return bench.run() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "xffl-kernel-bench: %s\n", error.what());
    return 2;
  }
}
