#include "rank_sync.h"

#include <torch/types.h>

#include <filesystem>
#include <new>
#include <optional>
#include <string>

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::train {
namespace {

// LibTorch throws several types for out of memory; only their messages identify the cause.
bool is_out_of_memory(const std::exception& error, const std::string& text) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         text.find("out of memory") != std::string::npos ||
         text.find("can't allocate memory") != std::string::npos;
}

enum class Wait { kTimeout, kForFirst };

// Runs `body` on this rank if `mine`. The error of the other ranks names the first rank whose
// `body` threw.
void run_and_sync(comm::Group& group, at::Device device, bool mine, Wait wait,
                  const std::function<void()>& body) {
  at::Tensor failed_W =
      at::zeros({group.size()}, at::TensorOptions().dtype(at::kLong).device(device));
  std::optional<Error> error;
  if (mine) {
    try {
      body();
    } catch (const std::exception& caught) {  // also from the file system and LibTorch
      error = translated(caught);
      failed_W[group.rank()].fill_(1);
    }
  }
  try {
    if (wait == Wait::kForFirst) group.wait_for_first();
    group.all_reduce(failed_W);
  } catch (const Error&) {
    if (error) throw *error;  // more specific than the lost connection
    throw;
  }
  if (error) throw *error;
  if (failed_W.sum().item<int64_t>() == 0) return;
  throw Error(ErrorKind::kFailed, "rank " + std::to_string(failed_W.argmax().item<int64_t>()) +
                                      " stopped the job: see its output for the reason");
}

at::Tensor values_of_ranks(comm::Group& group, at::Device device, int64_t mine) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  at::Tensor all_W = at::empty({group.size()}, options);
  group.all_gather(all_W, at::full({1}, mine, options));
  return all_W;
}

}  // namespace

Error translated(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error)) return *own;
  const std::string text = error.what();
  if (is_out_of_memory(error, text))
    return Error(ErrorKind::kFailed,
                 "out of memory: " + text.substr(0, text.find('\n')) +
                     " (more sharding, recompute: full, a smaller micro_batch_size or offload "
                     "may help)");
  const bool of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&error) != nullptr;
  return Error(of_files ? ErrorKind::kIo : ErrorKind::kInternal, text);
}

void on_first_rank(comm::Group& group, at::Device device, const std::function<void()>& body) {
  run_and_sync(group, device, group.rank() == 0, Wait::kForFirst, body);
}

void on_all_ranks(comm::Group& group, at::Device device, const std::function<void()>& body) {
  run_and_sync(group, device, true, Wait::kTimeout, body);
}

void on_all_ranks_without_timeout(comm::Group& group, at::Device device,
                                  const std::function<void()>& body) {
  run_and_sync(group, device, true, Wait::kForFirst, body);
}

int64_t max_over_ranks(comm::Group& group, at::Device device, int64_t mine) {
  return values_of_ranks(group, device, mine).max().item<int64_t>();
}

int64_t sum_over_ranks(comm::Group& group, at::Device device, int64_t mine) {
  return values_of_ranks(group, device, mine).sum().item<int64_t>();
}

StopRequest strongest_stop_request(comm::Group& group, at::Device device, StopRequest mine) {
  static_assert(StopRequest::kNone < StopRequest::kFinish &&
                StopRequest::kFinish < StopRequest::kAbort);
  return static_cast<StopRequest>(max_over_ranks(group, device, static_cast<int64_t>(mine)));
}

bool stops_with_checkpoint(const job::JobSpec& spec) {
  return spec.training.steps > 0 && spec.on_stop == job::OnStop::kCheckpoint;
}

bool StopControl::should_finish(int64_t steps_done) {
  if (finishing_) return true;
  const StopRequest mine = context_.stop ? context_.stop() : StopRequest::kNone;
  const StopRequest request = strongest_stop_request(context_.group, context_.device, mine);
  if (request == StopRequest::kNone) return false;
  if (request == StopRequest::kAbort)
    throw Error(ErrorKind::kCancelled, "stopped on request: no update was written");
  if (steps_done == 0 && !stops_with_checkpoint(spec_)) {
    throw Error(ErrorKind::kCancelled, spec_.training.steps == 0
                                           ? "asked to finish before the evaluation was complete"
                                           : "asked to finish before the first step was done: no "
                                             "update was written");
  }
  if (context_.group.rank() == 0)
    log::warning("finishing early", {{"steps", steps_done}, {"of", spec_.training.steps}});
  finishing_ = true;
  return true;
}

void StopControl::throw_if_aborted() const {
  if (context_.stop && context_.stop() == StopRequest::kAbort)
    throw Error(ErrorKind::kCancelled, "stopped on request: no update was written");
}

}  // namespace xffl::train
