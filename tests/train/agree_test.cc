// Ranks are threads over Gloo.
#include "agree.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>
#include <functional>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "support/ranks.h"
#include "xffl/base/error.h"

namespace xffl::train {
namespace {

class Agree : public testing::Test {
 protected:
  void SetUp() override {
    if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  }
};

using Body = std::function<void()>;

// The kind of what `body`, which throws on the first rank, makes each of two ranks throw.
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

// Exceptions of any type reach the agreement: nobody waits for a rank that is on its way out.
TEST_F(Agree, ForeignExceptionsStopAllRanks) {
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

TEST_F(Agree, NobodyIsLateForTheFirstRank) {
  test::run_ranks(
      2,
      [](comm::Group& group) {
        const Body slow = [&] {
          if (group.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(5));
        };
        EXPECT_NO_THROW(on_first_rank(group, at::kCPU, slow));
        EXPECT_NO_THROW(on_all_ranks_at_length(group, at::kCPU, slow));
      },
      std::chrono::seconds(2));
}

}  // namespace
}  // namespace xffl::train
