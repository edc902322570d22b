// The contract of comm::Group, on each implementation that runs here: alone, and Gloo with ranks as
// threads of this process.
#include "xffl/comm/group.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <torch/types.h>

#include <thread>

#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::comm {
namespace {

int free_port() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(fd.get(), generic, size), 0);
  EXPECT_EQ(getsockname(fd.get(), generic, &size), 0);
  return ntohs(address.sin_port);
}

// Runs `body` on `world_size` ranks at once.
void run_ranks(int world_size, const std::function<void(Group&)>& body) {
  const int port = free_port();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      const Rendezvous rendezvous{
          rank, world_size, rank, world_size, "127.0.0.1", port, std::chrono::seconds(30)};
      const std::unique_ptr<Group> group = make_group(rendezvous, at::kCPU);
      body(*group);
      group->barrier();
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

class GroupContract : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (GetParam() > 1 && !has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  }
};

TEST_P(GroupContract, SumsEveryDtype) {
  run_ranks(GetParam(), [&](Group& group) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kLong, at::kBFloat16}) {
      const at::Tensor tensor = at::arange(7, at::TensorOptions().dtype(dtype)) + group.rank();
      group.all_reduce(tensor);
      const int64_t ranks = group.size();
      const at::Tensor expected = at::arange(7, at::kLong) * ranks + ranks * (ranks - 1) / 2;
      EXPECT_TRUE(tensor.to(at::kLong).equal(expected)) << at::toString(dtype);
    }
  });
}

TEST_P(GroupContract, BroadcastsFromAnyRank) {
  run_ranks(GetParam(), [&](Group& group) {
    for (int root = 0; root < group.size(); ++root) {
      const at::Tensor tensor = at::full({3}, group.rank(), at::kFloat);
      group.broadcast(tensor, root);
      EXPECT_TRUE(tensor.eq(root).all().item<bool>());
    }
  });
}

TEST_P(GroupContract, GathersInRankOrder) {
  run_ranks(GetParam(), [&](Group& group) {
    const at::Tensor all_WS = at::zeros({group.size() * 2}, at::kFloat);
    group.all_gather(all_WS, at::full({2}, group.rank() + 1, at::kFloat));
    for (int64_t i = 0; i < all_WS.numel(); ++i)
      EXPECT_EQ(all_WS[i].item<float>(), static_cast<float>(i / 2 + 1));
  });
}

TEST_P(GroupContract, ReduceScatterGivesEachItsPart) {
  run_ranks(GetParam(), [&](Group& group) {
    const at::Tensor all_WS = at::arange(group.size() * 3, at::kFloat);
    const at::Tensor mine_S = at::zeros({3}, at::kFloat);
    group.reduce_scatter(mine_S, all_WS);
    const at::Tensor expected = (at::arange(3, at::kFloat) + 3 * group.rank()) * group.size();
    EXPECT_TRUE(mine_S.equal(expected));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, GroupContract, testing::Values(1, 2, 4));

TEST(Gloo, ARankWhosePeerNeverComesGivesUp) {
  if (!has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  const Rendezvous lonely{0, 2, 0, 2, "127.0.0.1", free_port(), std::chrono::seconds(1)};
  try {
    make_group(lonely, at::kCPU);
    FAIL() << "met a rank that does not exist";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFailed);
    EXPECT_NE(std::string(error.what()).find("rank 0 of 2"), std::string::npos) << error.what();
  }
}

TEST(Gloo, APeersDeathIsAnError) {
  if (!has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  const int port = free_port();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([port, rank] {
      std::unique_ptr<Group> group =
          make_group({rank, 2, rank, 2, "127.0.0.1", port, std::chrono::seconds(5)}, at::kCPU);
      if (rank == 1) return;
      EXPECT_THROW(group->all_reduce(at::ones({4})), Error);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace xffl::comm
