// The contract of comm::Group, on a single rank and on Gloo, whose ranks are threads of this
// process.
#include "xffl/comm/group.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <numeric>
#include <semaphore>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "backend_group.h"
#include "host_group.h"
#include "support/ranks.h"
#include "support/thrown.h"
#include "xffl/base/error.h"

namespace xffl::comm {
namespace {

using test::free_port;

struct Ranks {
  int count;
  bool through_host;  // as ranks that share a GPU
};

void PrintTo(const Ranks& ranks, std::ostream* out) {
  *out << ranks.count << (ranks.through_host ? " through the host" : "");
}

void run_ranks(const Ranks& ranks, const std::function<void(Group&)>& body) {
  test::run_ranks(ranks.count, [&](Group& group) {
    if (!ranks.through_host) return body(group);
    std::vector<int> all(static_cast<size_t>(group.size()));
    std::iota(all.begin(), all.end(), 0);
    HostGroup host(group.split(all, "host"), at::kCPU, group.size());
    body(host);
  });
}

class GroupContract : public testing::TestWithParam<Ranks> {
 protected:
  void SetUp() override {
    if (GetParam().count > 1 && !has_gloo())
      GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
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

TEST_P(GroupContract, GathersInRankOrder) {
  run_ranks(GetParam(), [&](Group& group) {
    const at::Tensor all_WS = at::zeros({group.size() * 2}, at::kFloat);
    group.all_gather(all_WS, at::full({2}, group.rank() + 1, at::kFloat));
    for (int64_t i = 0; i < all_WS.numel(); ++i)
      EXPECT_EQ(all_WS[i].item<float>(), static_cast<float>(i / 2 + 1));
  });
}

TEST_P(GroupContract, ReduceScatterGivesEachRankItsPart) {
  run_ranks(GetParam(), [&](Group& group) {
    const at::Tensor all_WS = at::arange(group.size() * 3, at::kFloat);
    const at::Tensor mine_S = at::zeros({3}, at::kFloat);
    group.reduce_scatter(mine_S, all_WS);
    const at::Tensor expected = (at::arange(3, at::kFloat) + 3 * group.rank()) * group.size();
    EXPECT_TRUE(mine_S.equal(expected));
  });
}

// Sums of 0.1 are inexact and show their order. The sum of an element does not depend on its part.
TEST_P(GroupContract, ReduceScatterSumsInTheSameOrderForAllParts) {
  run_ranks(GetParam(), [&](Group& group) {
    const at::Tensor all_WS = at::full({group.size() * 4}, 0.1 * (group.rank() + 1), at::kFloat);
    at::Tensor expected = at::full({4}, 0.1, at::kFloat);
    for (int rank = 1; rank < group.size(); ++rank)
      expected += at::full({4}, 0.1 * (rank + 1), at::kFloat);
    const at::Tensor part_S = all_WS.narrow(0, group.rank() * 4, 4);
    group.reduce_scatter(part_S, all_WS);
    EXPECT_TRUE(part_S.equal(expected));
    group.all_gather(all_WS, part_S);
    EXPECT_TRUE(all_WS.equal(expected.repeat({group.size()})));
  });
}

// In bfloat16, 256 + 1 is 256.
TEST_P(GroupContract, ReduceScatterRoundsSumsOf16BitsOnce) {
  run_ranks(GetParam(), [&](Group& group) {
    const at::Tensor all_WS =
        at::full({group.size() * 2}, group.rank() == 0 ? 256 : 1, at::kBFloat16);
    const at::Tensor mine_S = at::zeros({2}, at::kBFloat16);
    group.reduce_scatter(mine_S, all_WS);
    EXPECT_TRUE(mine_S.equal(at::full({2}, 256 + group.size() - 1, at::kBFloat16)));
  });
}

TEST_P(GroupContract, ConcurrentCollectivesKeepTheirData) {
  run_ranks(GetParam(), [&](Group& group) {
    std::vector<at::Tensor> wholes, sums;
    std::vector<Pending> pending;
    for (int i = 0; i < 5; ++i) {
      wholes.push_back(at::empty({group.size() * 3}, at::kFloat));
      sums.push_back(at::empty({3}, at::kFloat));
      pending.push_back(
          group.start_all_gather(wholes.back(), at::full({3}, 10 * i + group.rank(), at::kFloat)));
      pending.push_back(
          group.start_reduce_scatter(sums.back(), at::full({group.size() * 3}, i, at::kFloat)));
    }
    group.barrier();  // all data arrive before the first sum
    for (Pending& one : pending) one.wait();
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(sums[static_cast<size_t>(i)].eq(i * group.size()).all().item<bool>());
      for (int rank = 0; rank < group.size(); ++rank)
        EXPECT_EQ(wholes[static_cast<size_t>(i)][rank * 3].item<float>(),
                  static_cast<float>(10 * i + rank));
    }
  });
}

TEST_P(GroupContract, SplitsIntoIndependentGroups) {
  run_ranks(GetParam(), [&](Group& group) {
    std::vector<int> like_me;  // even ranks, odd ranks
    for (int rank = group.rank() % 2; rank < group.size(); rank += 2) like_me.push_back(rank);
    const std::unique_ptr<Group> part = group.split(like_me, "parity");
    EXPECT_EQ(part->size(), static_cast<int>(like_me.size()));
    EXPECT_EQ(like_me[static_cast<size_t>(part->rank())], group.rank());
    const at::Tensor sum = at::full({2}, group.rank(), at::kFloat);
    part->all_reduce(sum);
    int expected = 0;
    for (const int rank : like_me) expected += rank;
    EXPECT_TRUE(sum.eq(expected).all().item<bool>());
  });
}

TEST_P(GroupContract, SendsArriveInOrder) {
  if (GetParam().count == 1) return;  // no peer
  run_ranks(GetParam(), [&](Group& group) {
    const int next = (group.rank() + 1) % group.size();
    const int former = (group.rank() + group.size() - 1) % group.size();
    std::vector<at::Tensor> received{at::empty({2}), at::empty({2})};
    std::vector<Pending> pending;
    for (int i = 0; i < 2; ++i) {
      pending.push_back(group.start_send(at::full({2}, 10 * i + group.rank(), at::kFloat), next));
      pending.push_back(group.start_receive(received[static_cast<size_t>(i)], former));
    }
    for (Pending& one : pending) one.wait();
    for (int i = 0; i < 2; ++i)
      EXPECT_TRUE(received[static_cast<size_t>(i)].eq(10 * i + former).all().item<bool>());
  });
}

// All ranks see rank 0's earlier writes, although rank 0 is the last to arrive each time.
TEST_P(GroupContract, WaitsForRankZero) {
  std::atomic<int> done{0};
  run_ranks(GetParam(), [&](Group& group) {
    for (int i = 1; i <= 3; ++i) {
      if (group.rank() == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        done = i;
      }
      group.wait_for_first();
      EXPECT_GE(done, i);
      group.barrier();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, GroupContract,
                         testing::Values(Ranks{1, false}, Ranks{2, false}, Ranks{4, false},
                                         Ranks{1, true}, Ranks{2, true}, Ranks{4, true}));

TEST(RanksPerDevice, CountsTheRanksOfTheMostSharedGpu) {
  const auto most = [](const std::vector<std::string>& names) {
    const int port = free_port(), size = static_cast<int>(names.size());
    std::vector<int> found(names.size());
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size; ++rank)
      ranks.emplace_back([&, rank] {
        const Rendezvous rendezvous{
            rank, size, rank, size, "127.0.0.1", port, std::chrono::seconds(60)};
        static std::array<Store, 4> stores;  // rank 0's store ends after the others' answers
        Store& store = stores[static_cast<size_t>(rank)];
        store = connect_store(rendezvous);
        const auto index = static_cast<size_t>(rank);
        found[index] = ranks_per_device(store, rendezvous, names[index]);
      });
    for (std::thread& rank : ranks) rank.join();
    EXPECT_EQ(std::count(found.begin(), found.end(), found[0]), size);
    return found[0];
  };
  EXPECT_EQ(most({"a/0", "a/1", "b/0", "b/1"}), 1);
  EXPECT_EQ(most({"a/0", "a/0", "b/0"}), 2);
  EXPECT_EQ(most({"a/0", "a/0", "a/0"}), 3);
}

// A peer that connects slowly would lose a rank that leaves at once.
TEST(Gloo, EachRankWaitsUntilAllHaveConnected) {
  if (!has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  const int port = free_port();
  std::atomic<int> num_connected = 0;
  test::run_ranks(2, [&](Group& world) {
    const Rendezvous rendezvous{
        world.rank(), 2, world.rank(), 2, "127.0.0.1", port, std::chrono::seconds(60)};
    BackendMaker maker = gloo_maker(rendezvous);
    maker.connect = [&num_connected, connect = maker.connect](auto store, int mine, int size) {
      auto backend = connect(store, mine, size);
      if (mine == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      ++num_connected;
      return backend;
    };
    const BackendGroup group(std::move(maker), connect_store(rendezvous), rendezvous);
    EXPECT_EQ(num_connected, 2) << "rank " << world.rank();
  });
}

struct FinishedWork final : c10d::Work {
  bool wait(std::chrono::milliseconds) override { return true; }
};

// Each rank keeps its own numbers.
class UnconnectedBackend final : public c10d::Backend {
 public:
  using Backend::Backend;
  const std::string getBackendName() const override { return "unconnected"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&,
                                           const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<FinishedWork>();
  }
};

TEST(SelfTest, RefusesABackEndWithWrongSums) {
  const BackendMaker maker{
      "unconnected", at::kCPU,
      [](c10::intrusive_ptr<c10d::Store>, int rank, int size) -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<UnconnectedBackend>(rank, size);
      },
      false};
  const Rendezvous rendezvous{0, 2, 0, 2, "127.0.0.1", 1, std::chrono::seconds(1)};
  const std::string message = test::message_of(ErrorKind::kUnsupported, [&] {
    make_backend_group(maker, rendezvous, c10::make_intrusive<c10d::HashStore>());
  });
  EXPECT_NE(message.find("self-test of unconnected failed"), std::string::npos) << message;
}

TEST(Gloo, TimesOutWithoutItsPeer) {
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

TEST(Gloo, UsesTheNamedInterfaceOnly) {
  if (!has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  ASSERT_EQ(::setenv("GLOO_SOCKET_IFNAME", "absent0", 1), 0);
  const int port = free_port();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([port, rank] {
      const Rendezvous rendezvous{rank, 2, rank, 2, "127.0.0.1", port, std::chrono::seconds(60)};
      EXPECT_THROW(make_group(rendezvous, at::kCPU), Error);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  ::unsetenv("GLOO_SOCKET_IFNAME");
}

// Rank 0 may write for any time.
TEST(Gloo, WaitForFirstExceedsTheTimeout) {
  if (!has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  test::run_ranks(
      2,
      [](Group& group) {
        if (group.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(5));
        EXPECT_NO_THROW(group.wait_for_first());
      },
      std::chrono::seconds(2));
}

// Notes the times at which a rank asks whether rank 0 has arrived.
struct PolledStore final : c10d::HashStore {
  using Clock = std::chrono::steady_clock;
  bool check(const std::vector<std::string>& keys) override {
    if (keys.at(0).starts_with("arrived/")) polls.push_back(Clock::now());
    return HashStore::check(keys);
  }
  std::vector<Clock::time_point> polls;
};

// A pause that grows with the wait would delay the other ranks by more than the time-out.
TEST(Gloo, WaitForFirstPollsOftenAfterALongWait) {
  if (!has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  const auto store = c10::make_intrusive<PolledStore>();
  test::run_ranks(2, [&](Group& world) {
    const Rendezvous rendezvous{
        world.rank(), 2, world.rank(), 2, "127.0.0.1", free_port(), std::chrono::seconds(60)};
    BackendGroup group(gloo_maker(rendezvous), store, rendezvous);
    if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(3));
    group.wait_for_first();
  });
  const std::vector<PolledStore::Clock::time_point>& polls = store->polls;
  ASSERT_GT(polls.size(), 3u);
  auto shortest = PolledStore::Clock::duration::max();
  for (size_t i = polls.size() - 3; i < polls.size(); ++i)
    shortest = std::min(shortest, polls[i] - polls[i - 1]);
  EXPECT_LT(shortest, std::chrono::milliseconds(250));
}

// A buffer of its own for each sum would fill a machine's memory within hours.
TEST(Gloo, SumsReuseTheirBuffers) {
  if (!has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  const auto resident_mib = [] {
    std::ifstream file("/proc/self/statm");
    int64_t size = 0, resident = 0;
    file >> size >> resident;
    return resident * ::sysconf(_SC_PAGESIZE) >> 20;
  };
  test::run_ranks(2, [&](Group& group) {
    const at::Tensor all_WS = at::ones({2 << 20}, at::kFloat);
    const at::Tensor mine_S = at::empty({1 << 20}, at::kFloat);
    group.reduce_scatter(mine_S, all_WS);
    group.barrier();
    const int64_t before = resident_mib();
    for (int i = 0; i < 40; ++i) group.reduce_scatter(mine_S, all_WS);
    group.barrier();
    EXPECT_LT(resident_mib() - before, 100) << "40 buffers of a rank have 320 MiB";
  });
}

TEST(Gloo, WaitForFirstDetectsTheDeathOfRankZero) {
  if (!has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  const int port = free_port();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([port, rank] {
      std::unique_ptr<Group> group =
          make_group({rank, 3, rank, 3, "127.0.0.1", port, std::chrono::seconds(600)}, at::kCPU);
      if (rank == 0) return;
      EXPECT_THROW(group->wait_for_first(), Error);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(Gloo, DeathOfAPeerThrows) {
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

// The connections of a rank that hangs stay open.
TEST(Gloo, AHungPeerEndsASumAfterTheTimeout) {
  if (!has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  std::binary_semaphore has_ended{0};
  const int port = free_port();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      std::unique_ptr<Group> group =
          make_group({rank, 2, rank, 2, "127.0.0.1", port, std::chrono::seconds(2)}, at::kCPU);
      if (rank == 1) {
        EXPECT_TRUE(has_ended.try_acquire_for(std::chrono::seconds(60)));
        return;
      }
      EXPECT_THROW(group->all_reduce(at::ones({4})), Error);
      has_ended.release();
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace xffl::comm
