// NCCL allows one rank per GPU: with one GPU the world has one rank, which still uses NCCL.
#include "backend_group.h"
#include "gpu_test.h"
#include "support/ranks.h"

namespace xffl::comm {
namespace {

class NcclOnGpu : public GpuTest {};

TEST_F(NcclOnGpu, CollectivesOfOneRank) {
  const Rendezvous rendezvous{0, 1, 0, 1, "127.0.0.1", test::free_port(), std::chrono::seconds(60)};
  const std::unique_ptr<Group> group = make_nccl(rendezvous, kGpu);
  EXPECT_EQ(group->name(), "nccl");
  for (const auto dtype : {at::kFloat, at::kDouble, at::kLong, at::kBFloat16, at::kHalf}) {
    const at::Tensor from = at::arange(64, at::dtype(dtype).device(kGpu));
    const at::Tensor sum = from.clone();
    group->all_reduce(sum);
    const at::Tensor all = at::zeros_like(from), part = at::zeros_like(from);
    Pending gathering = group->start_all_gather(all, from);
    Pending reducing = group->start_reduce_scatter(part, from);
    gathering.wait();
    reducing.wait();
    EXPECT_TRUE(sum.equal(from) && all.equal(from) && part.equal(from)) << dtype;
  }
  group->barrier();
}

}  // namespace
}  // namespace xffl::comm
