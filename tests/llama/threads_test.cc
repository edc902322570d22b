// xffl's loops and LibTorch's run on the same threads.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <filesystem>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "pointwise.h"
#include "small_model.h"
#include "support/temp_dir.h"
#include "xffl/llama/head_loss.h"
#include "xffl/llama/model_files.h"

namespace xffl::llama {
namespace {

class Threads : public ::testing::Test {
 protected:
  ~Threads() override { at::set_num_threads(before_); }

  static std::set<std::thread::id> threads_of_parallel_for() {
    std::mutex mutex;
    std::set<std::thread::id> ids;
    at::parallel_for(0, 64, 1, [&](int64_t, int64_t) {
      const std::lock_guard lock(mutex);
      ids.insert(std::this_thread::get_id());
    });
    return ids;
  }

  static int64_t threads_of_process() {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  }

 private:
  int before_ = at::get_num_threads();
};

TEST_F(Threads, ParallelForUsesAllThreads) {
  at::set_num_threads(2);
  EXPECT_EQ(threads_of_parallel_for().size(), 2);
}

TEST_F(Threads, AreLibTorchsThreads) {
  at::set_num_threads(2);
  const at::Tensor x = at::ones({1 << 20});
  const int64_t before = threads_of_process();
  EXPECT_EQ(at::add(x, x).sum().item<float>(), 1 << 21);
  EXPECT_EQ(threads_of_parallel_for().size(), 2);
  EXPECT_LE(threads_of_process(), before + 1);
}

TEST_F(Threads, DoNotChangeTheLoss) {
  const auto loss_of = [](int threads) {
    at::set_num_threads(threads);
    const at::Generator generator = at::detail::createCPUGenerator(3);
    const at::TensorOptions options(at::kFloat);
    const at::Tensor x_ND = at::randn({70, 32}, generator, options);
    Weight head;
    head.value = at::randn({1000, 32}, generator, options);
    head.gradient = at::zeros({1000, 32});
    const at::Tensor labels_N = at::randint(1000, {70}, generator, at::kLong);
    const HeadLoss loss = head_loss(x_ND, head, labels_N, 0.5);
    return std::make_pair(loss.nll_sum.item<double>(), loss.grad_x_ND);
  };
  const auto one = loss_of(1), two = loss_of(2);
  EXPECT_EQ(one.first, two.first);
  EXPECT_LE((one.second - two.second).abs().max().item<float>(), 1e-5);
}

// More rows than one thread takes.
TEST_F(Threads, DoNotChangeTheNorm) {
  const at::Generator generator = at::detail::createCPUGenerator(3);
  const at::TensorOptions options(at::kFloat);
  const at::Tensor x_BTD = at::randn({2, 500, 64}, generator, options);
  const at::Tensor delta_BTD = at::randn({2, 500, 64}, generator, options);
  for (const at::Tensor& delta : {at::Tensor(), delta_BTD}) {
    const auto norm_of = [&](int threads) {
      at::set_num_threads(threads);
      return rms_norm_forward(x_BTD, delta, at::ones({64}), 1e-5);
    };
    const Normed one = norm_of(1), two = norm_of(2);
    EXPECT_TRUE(two.sum_BTD.equal(one.sum_BTD));
    EXPECT_TRUE(two.normed_BTD.equal(one.normed_BTD));
    EXPECT_TRUE(two.inverse_BT1.equal(one.inverse_BT1));
  }
}

// More elements than one thread takes.
TEST_F(Threads, DoNotChangeTheActivation) {
  const at::Generator generator = at::detail::createCPUGenerator(3);
  const auto normal = [&] {
    return at::randn({2, 500, 64}, generator, at::TensorOptions(at::kFloat));
  };
  const at::Tensor gate_BTI = normal(), up_BTI = normal(), grad_BTI = normal();
  const auto results_of = [&](int threads) {
    at::set_num_threads(threads);
    const auto [grad_gate_BTI, grad_up_BTI] = swiglu_backward(grad_BTI, gate_BTI, up_BTI);
    return std::vector<at::Tensor>{swiglu_forward(gate_BTI, up_BTI), grad_gate_BTI, grad_up_BTI};
  };
  const std::vector<at::Tensor> one = results_of(1), two = results_of(2);
  for (size_t i = 0; i < one.size(); ++i)
    EXPECT_LE((one[i] - two[i]).abs().max().item<float>(), 1e-5) << i;
}

TEST_F(Threads, DoNotChangeASumOfGradients) {
  at::set_num_threads(2);
  const at::Tensor update = at::arange(40'000, at::kFloat);
  const at::Tensor sum = at::full({40'000}, NAN, at::kFloat);
  accumulate(sum, update, 0.5, /*overwrite=*/true);
  EXPECT_TRUE(sum.equal(update * 0.5));
  accumulate(sum, update, 2, /*overwrite=*/false);
  EXPECT_TRUE(sum.equal(update * 2.5));
}

// More elements than one thread reads.
TEST_F(Threads, DoNotChangeAReadParameter) {
  const test::TempDir dir;
  const ParameterSpec spec{"lm_head.weight", {300, 1000}, 0};
  const at::Tensor values = at::arange(300'000, at::kFloat).view(spec.shape);
  write_model(
      dir / "m", small_config(), {spec}, [&](size_t) { return Values(values); },
      checkpoint::Dtype::kF32);
  at::set_num_threads(2);
  const at::Tensor found = at::empty(spec.shape, at::kFloat);
  read_parameter(checkpoint::ModelFolder(dir / "m"), spec, 0, found);
  EXPECT_TRUE(found.equal(values));
}

}  // namespace
}  // namespace xffl::llama
