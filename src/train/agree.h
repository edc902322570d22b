// What all ranks must know together.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>

#include "xffl/comm/group.h"
#include "xffl/train/run_job.h"

namespace xffl::train {

/// Runs `body` on rank 0 while the others wait, however long that takes; when it throws, all ranks
/// throw (rank 0 what it threw, as translated() (foreign_error.h) has it, the others kFailed).
void on_first_rank(comm::Group& group, at::Device device, const std::function<void()>& body);

/// Runs `body` on every rank; when it throws on one, all throw (that one what it threw, translated,
/// the others kFailed).
void on_all_ranks(comm::Group& group, at::Device device, const std::function<void()>& body);

/// The same for work that may take long, and none longer than rank 0, which the others wait for
/// without a limit.
void on_all_ranks_at_length(comm::Group& group, at::Device device,
                            const std::function<void()>& body);

/// The strongest wish of any rank.
StopRequest agree_on_stop(comm::Group& group, at::Device device, StopRequest mine);

/// The largest of the ranks' values.
int64_t max_over_ranks(comm::Group& group, at::Device device, int64_t mine);

}  // namespace xffl::train
