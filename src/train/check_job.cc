#include "xffl/train/check_job.h"

#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <sstream>
#include <thread>

#include "rank_sync.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/checkpoint/llama_config.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/kernels/cuda/gpu.h"
#include "xffl/llama/model_files.h"
#include "xffl/tokens/token_shard.h"
#include "xffl/train/device.h"
#include "xffl/train/loaded_model.h"

namespace xffl::train {
namespace {

using CheckClock = std::chrono::steady_clock;

constexpr std::chrono::seconds kSignalPatience{30};

double seconds_from(CheckClock::time_point start) {
  return std::chrono::duration<double>(CheckClock::now() - start).count();
}

// The speed of a product whose result is known: each element is the sum of n ones.
double measure_product(at::Device device) {
  const int64_t n = device.is_cuda() ? 8192 : 512;
  const at::Tensor ones = at::ones({n, n}, at::TensorOptions(device).dtype(at::kBFloat16));
  at::Tensor product = at::matmul(ones, ones);
  kernels::gpu::synchronize(device);
  const auto start = CheckClock::now();
  constexpr int kRepeats = 3;
  for (int i = 0; i < kRepeats; ++i) product = at::matmul(ones, ones);
  kernels::gpu::synchronize(device);
  const double seconds = std::max(seconds_from(start), 1e-9);
  const at::Tensor wrong = product.ne(static_cast<double>(n)).sum();
  if (const auto count = wrong.item<int64_t>(); count > 0)
    throw Error(ErrorKind::kFailed, "a bf16 product has " + std::to_string(count) + " of " +
                                        std::to_string(n * n) + " elements wrong");
  return kRepeats * 2e-12 * static_cast<double>(n) * static_cast<double>(n) *
         static_cast<double>(n) / seconds;
}

job::CheckedShard check_shard(const std::string& path) {
  job::CheckedShard shard{.path = path, .problem = {}};
  try {
    const tokens::TokenShardReader reader(path);
    shard.vocab_size = static_cast<int64_t>(reader.info().vocab_size);
    shard.sequence_length = static_cast<int64_t>(reader.info().sequence_length);
    shard.sequences = static_cast<int64_t>(reader.info().num_sequences);
  } catch (const std::exception& error) {
    shard.problem = error.what();
  }
  return shard;
}

// The seconds and tokens of the last steps; the first step warms up.
struct StepTimes {
  double seconds = 0, tokens = 0;
};
StepTimes later_steps(const std::filesystem::path& metrics) {
  std::istringstream lines(read_file(metrics, 1 << 20));
  StepTimes sum;
  int steps = 0;
  for (std::string line; std::getline(lines, line); ++steps) {
    const Json step = parse_json(line, metrics.string());
    JsonObject object(step, metrics.string());
    if (steps == 0) continue;
    sum.seconds += object.number("seconds");
    sum.tokens += object.number("tokens_per_second") * object.number("seconds");
  }
  if (steps < 2) throw Error(ErrorKind::kFailed, "the steps of the check were not taken");
  return {sum.seconds / (steps - 1), sum.tokens / (steps - 1)};
}

class Check {
 public:
  Check(const job::JobSpec& spec, const JobContext& context,
        const std::function<void(const job::CheckReport&)>& write)
      : spec_(spec), context_(context), group_(context.group), write_(write) {
    report_.ranks = group_.size();
    report_.backend = group_.name();
    report_.nodes =
        static_cast<int>(sum_over_ranks(group_, context.device, context.local_rank == 0 ? 1 : 0));
  }

  void run(const std::filesystem::path& config_folder, const std::filesystem::path& awaits_signal) {
    part("all-reduce", [&] { all_reduce(); });
    part("signal", [&] { await_signal(awaits_signal); });
    part("model", [&] { make_model(config_folder); });
    part("steps", [&] { take_steps(); });
    report_.part.clear();
    report_.complete = true;
    publish();
  }

 private:
  void publish() {
    if (group_.rank() == 0) write_(report_);
  }
  void part(const char* name, const std::function<void()>& body) {
    report_.part = name;
    publish();
    try {
      body();
    } catch (const std::exception& error) {
      report_.problem = translated(error).what();
      publish();
      throw;
    }
  }

  void all_reduce() {
    const int64_t elements = context_.device.is_cuda() ? 64 << 20 : 1 << 20;
    at::Tensor ones = at::ones({elements}, at::TensorOptions(context_.device).dtype(at::kFloat));
    group_.all_reduce(ones);
    const double sum = ones[elements - 1].item<double>();
    if (sum != group_.size())
      throw Error(ErrorKind::kFailed, "an all-reduce of ones over " +
                                          std::to_string(group_.size()) + " ranks gave " +
                                          std::to_string(sum));
    ones.fill_(1);
    group_.barrier();
    kernels::gpu::synchronize(context_.device);
    constexpr int kRepeats = 5;
    const auto start = CheckClock::now();
    for (int i = 0; i < kRepeats; ++i) group_.all_reduce(ones);
    kernels::gpu::synchronize(context_.device);
    report_.all_reduce_bytes = elements * 4;
    report_.all_reduce_seconds = seconds_from(start) / kRepeats;
  }

  // The job's script sends the signal on its usual way to all ranks once the file exists.
  void await_signal(const std::filesystem::path& awaits_signal) {
    group_.barrier();
    if (group_.rank() == 0) write_file_atomic(awaits_signal, "");
    const auto start = CheckClock::now();
    const auto got_it = [&] { return context_.stop() != StopRequest::kNone; };
    while (!got_it() && CheckClock::now() - start < kSignalPatience)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    report_.signalled_ranks =
        static_cast<int>(sum_over_ranks(group_, context_.device, got_it() ? 1 : 0));
  }

  void make_model(const std::filesystem::path& config_folder) {
    const auto start = CheckClock::now();
    on_first_rank(group_, context_.device, [&] {
      const std::filesystem::path target(spec_.base_model_path);
      std::filesystem::remove_all(target);
      const checkpoint::LlamaConfig config = checkpoint::read_llama_config(config_folder);
      const std::vector<llama::ParameterSpec> specs = llama::parameter_specs(config);
      llama::write_model(
          target, config, specs,
          [&](size_t i) {
            const at::Tensor value = at::empty(specs[i].shape, at::kFloat);
            llama::initialize_parameter(specs[i], config.initializer_range, 0, value);
            return value;
          },
          checkpoint::Dtype::kBF16);
    });
    report_.model_seconds = seconds_from(start);
  }

  void take_steps() {
    const JobContext quiet{group_,
                           context_.device,
                           context_.local_world_size,
                           context_.trainer,
                           [] { return StopRequest::kNone; },  // the signal has come already
                           true,
                           context_.local_rank};
    job_ = std::make_unique<Job>(spec_, quiet);
    const job::JobReport done = job_->run();
    report_.peak_memory_bytes = done.peak_memory_bytes;
    if (group_.rank() == 0) {
      const StepTimes times = later_steps(spec_.metrics_path);
      report_.step_seconds = times.seconds;
      report_.step_tokens = times.tokens;
      std::filesystem::remove_all(spec_.base_model_path);
    }
  }

  const job::JobSpec& spec_;
  const JobContext& context_;
  comm::Group& group_;
  const std::function<void(const job::CheckReport&)>& write_;
  job::CheckReport report_;
  std::unique_ptr<Job> job_;
};

}  // namespace

job::RankCheck check_rank(const job::JobSpec& spec, const comm::Rendezvous& rendezvous,
                          const std::string& wanted, const std::string& trainer) {
  job::RankCheck check;
  check.rank = rendezvous.rank;
  check.trainer = trainer;
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) == 0) check.host = host.data();
  if (const int version = kernels::gpu::cuda_version(); version > 0)
    check.cuda = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  try {
    check.threads = choose_threads(0, rendezvous, comm::process_environment());
    const std::vector<kernels::gpu::Info> gpus = kernels::gpu::list();
    check.visible_gpus = static_cast<int>(gpus.size());
    const at::Device device = choose_device(wanted, rendezvous.local_rank);
    check.device = device.str();
    if (device.is_cuda()) {
      const kernels::gpu::Info& gpu = gpus.at(static_cast<size_t>(device.index()));
      check.gpu = gpu.name;
      check.memory_bytes = gpu.memory_bytes;
    } else {
      check.memory_bytes = available_memory_bytes(device);
    }
    check.product_tflops = measure_product(device);
  } catch (const std::exception& error) {
    check.problem = translated(error).what();
  }
  // First the shards whose sizes xffl needs: the file has place for 200.
  for (const job::ValidationSet& set : spec.validation) check.data.push_back(check_shard(set.path));
  for (const std::string& path : spec.train_paths) check.data.push_back(check_shard(path));
  return check;
}

void check_job(const job::JobSpec& spec, const JobContext& context,
               const std::filesystem::path& config_folder,
               const std::filesystem::path& awaits_signal,
               const std::function<void(const job::CheckReport&)>& write) {
  // Outlives an error in a group of several ranks: the caller then ends the process.
  auto check = std::make_unique<Check>(spec, context, write);
  try {
    check->run(config_folder, awaits_signal);
  } catch (...) {
    if (context.group.size() > 1) static_cast<void>(check.release());
    throw;
  }
}

}  // namespace xffl::train
