// Ranks are threads over Gloo.
#include "rank_sync.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "support/ranks.h"
#include "support/thrown.h"
#include "xffl/base/error.h"

namespace xffl::train {
namespace {

class RankSync : public testing::Test {
 protected:
  void SetUp() override {
    if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  }
};

using Body = std::function<void()>;

// The error kinds that two ranks throw when `body` throws on the first rank.
std::vector<ErrorKind> kinds_of(const Body& body, bool on_all) {
  std::vector<ErrorKind> kinds(2, ErrorKind::kUsage);
  test::run_ranks(
      2,
      [&](comm::Group& group) {
        try {
          const Body mine = [&] {
            if (group.rank() == 0) body();
          };
          on_all ? on_all_ranks(group, at::kCPU, mine) : on_first_rank(group, at::kCPU, mine);
        } catch (const Error& error) {
          kinds[static_cast<size_t>(group.rank())] = error.kind();
        }
      },
      std::chrono::seconds(20));
  return kinds;
}

TEST_F(RankSync, ExceptionOfAnyTypeStopsAllRanks) {
  const std::pair<Body, ErrorKind> thrown[] = {
      {[] { throw Error(ErrorKind::kRejected, "x"); }, ErrorKind::kRejected},
      {[] {
         throw std::filesystem::filesystem_error("x", std::make_error_code(std::errc::io_error));
       },
       ErrorKind::kIo},
      {[] { throw std::bad_alloc(); }, ErrorKind::kFailed},
      {[] { at::empty({1}, at::kFloat).view({2}); }, ErrorKind::kInternal},
      {[] { throw std::out_of_range("x"); }, ErrorKind::kInternal},
  };
  for (const auto& [body, kind] : thrown)
    for (const bool on_all : {false, true})
      EXPECT_EQ(kinds_of(body, on_all), (std::vector{kind, ErrorKind::kFailed})) << on_all;
}

TEST_F(RankSync, AnErrorOfALaterRankStopsTheFirst) {
  test::run_ranks(
      3,
      [](comm::Group& group) {
        const bool mine = group.rank() == 1;
        try {
          on_all_ranks(group, at::kCPU, [&] {
            if (mine) throw Error(ErrorKind::kRejected, "x");
          });
          ADD_FAILURE() << "rank " << group.rank() << " went on";
        } catch (const Error& error) {
          const std::string text = error.what();
          EXPECT_EQ(error.kind(), mine ? ErrorKind::kRejected : ErrorKind::kFailed);
          EXPECT_EQ(text.find("rank 1 stopped the job") != std::string::npos, !mine) << text;
        }
      },
      std::chrono::seconds(20));
}

// A group whose other rank has ended.
class LostGroup final : public comm::Group {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string name() const override { return "lost"; }
  void all_reduce(at::Tensor) override { lose(); }
  comm::Pending start_all_gather(at::Tensor, at::Tensor) override { return lose(); }
  comm::Pending start_reduce_scatter(at::Tensor, at::Tensor) override { return lose(); }
  comm::Pending start_send(at::Tensor, int) override { return lose(); }
  comm::Pending start_receive(at::Tensor, int) override { return lose(); }
  void barrier() override { lose(); }
  void wait_for_first() override {}
  std::unique_ptr<comm::Group> split(const std::vector<int>&, const std::string&) override {
    return comm::make_single_rank();
  }

 private:
  static comm::Pending lose() { throw Error(ErrorKind::kFailed, "connection closed"); }
};

TEST(RankSyncAlone, AnOwnErrorIsMoreSpecificThanTheLostConnection) {
  LostGroup group;
  const auto kind_after = [&](const Body& body, bool on_all) {
    return test::kind_of([&] {
      on_all ? on_all_ranks(group, at::kCPU, body) : on_first_rank(group, at::kCPU, body);
    });
  };
  const Body reject = [] { throw Error(ErrorKind::kRejected, "x"); };
  for (const bool on_all : {false, true}) {
    EXPECT_EQ(kind_after(reject, on_all), ErrorKind::kRejected) << on_all;
    EXPECT_EQ(kind_after([] {}, on_all), ErrorKind::kFailed) << on_all;
  }
}

// A scheduler may warn one rank of the end of the walltime, or all.
TEST_F(RankSync, TheStrongestStopRequestReachesAllRanks) {
  using enum StopRequest;
  test::run_ranks(2, [](comm::Group& group) {
    const auto agreed = [&](StopRequest first, StopRequest second) {
      return strongest_stop_request(group, at::kCPU, group.rank() == 0 ? first : second);
    };
    EXPECT_EQ(agreed(kNone, kNone), kNone);
    EXPECT_EQ(agreed(kNone, kFinish), kFinish);
    EXPECT_EQ(agreed(kFinish, kFinish), kFinish) << "two warnings are no request to abort";
    EXPECT_EQ(agreed(kAbort, kFinish), kAbort);
  });
}

TEST_F(RankSync, OtherRanksWaitForASlowFirstRank) {
  test::run_ranks(
      2,
      [](comm::Group& group) {
        const Body slow = [&] {
          if (group.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(5));
        };
        EXPECT_NO_THROW(on_first_rank(group, at::kCPU, slow));
        EXPECT_NO_THROW(on_all_ranks_without_timeout(group, at::kCPU, slow));
      },
      std::chrono::seconds(2));
}

}  // namespace
}  // namespace xffl::train
