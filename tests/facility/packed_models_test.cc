// Packing is an optimisation: after any failure the whole model is sent.
#include "xffl/facility/packed_models.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <thread>

#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"
#include "xffl/pack/packed_model.h"

namespace xffl::facility {
namespace {

namespace fs = std::filesystem;

class PackedGlobals : public testing::Test {
 protected:
  PackedGlobals() {
    ::mallopt(M_MMAP_THRESHOLD, 128 << 10);  // freed memory returns to the system
    for (const int round : {1, 2}) {
      make_dirs(folder_.global(round));
      std::string bytes(20u << 20, 'x');
      for (size_t i = 0; i < bytes.size(); i += 64)
        bytes[i] = static_cast<char>(i * static_cast<size_t>(round) >> 6);
      write_file_atomic(folder_.global(round) / "model.safetensors", bytes);
      checkpoint::write_manifest(folder_.global(round));
    }
  }
  // An exit code, of a process that ends with it.
  int go_without_memory() {
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    struct rlimit limit {};
    ::getrlimit(RLIMIT_AS, &limit);
    const struct rlimit usual = limit;
    limit.rlim_cur = pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE)) + (2u << 20);
    ::setrlimit(RLIMIT_AS, &limit);
    bool made = true;
    try {
      made = packed_.of(folder_, 3, {}).has_value();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "thrown: %s\n", error.what());
    }
    ::setrlimit(RLIMIT_AS, &usual);
    const bool left = leaves_something();
    fs::remove_all(dir_.path());
    return made || left ? 1 : 0;
  }
  PackingManifests manifests() const {
    return {checkpoint::read_manifest(folder_.global(2)),
            checkpoint::read_manifest(folder_.global(1))};
  }
  bool leaves_something() const {
    return fs::exists(folder_.packed(2)) || fs::exists(folder_.packed(2).string() + ".tmp");
  }

  test::TempDir dir_;
  history::RunFolder folder_{dir_.path(), RunName("0001")};
  PackedModels packed_;
};

TEST_F(PackedGlobals, AreMadeOnce) {
  ASSERT_TRUE(packed_.of(folder_, 3, {}));
  EXPECT_TRUE(fs::exists(folder_.packed(2)));
  fs::remove_all(folder_.global(1));
  EXPECT_TRUE(packed_.of(folder_, 3, {}));
}

TEST_F(PackedGlobals, AreRemovedAfterTheirRound) {
  ASSERT_TRUE(packed_.of(folder_, 3, {}));
  packed_.drop(folder_, 3);
  EXPECT_FALSE(leaves_something());
}

TEST_F(PackedGlobals, AreMadeFromACheckedReference) {
  int checks = 0;
  EXPECT_FALSE(packed_.of(folder_, 3, {}, [&]() -> PackingManifests {
    ++checks;
    throw Error(ErrorKind::kCorrupt, "global is damaged");
  })) << "the model is sent whole";
  EXPECT_FALSE(leaves_something());
  PackedModels others;
  for (int caller = 0; caller < 2; ++caller)
    EXPECT_TRUE(others.of(folder_, 3, {}, [&] {
      ++checks;
      return manifests();
    }));
  EXPECT_EQ(checks, 2) << "once for all callers";
}

// The job compares the packed model with the hashes in the journal: with another hash each
// facility's first job would fail after its time in the queue.
TEST_F(PackedGlobals, AreMadeFromTheGivenManifestsNotFromADamagedOne) {
  const PackingManifests recorded = manifests();
  const fs::path held = dir_ / "held";  // the facility's reference
  fs::copy(folder_.global(1), held);
  for (const int round : {1, 2}) {
    const fs::path path = folder_.global(round) / "manifest.json";
    std::string text = read_file(path, 1 << 20);
    const std::string sha256 = checkpoint::read_manifest(folder_.global(round)).files[0].sha256;
    char& digit = text[text.find(sha256)];
    digit = digit == '0' ? '1' : '0';
    write_file_atomic(path, text);
  }
  const auto packed = packed_.of(folder_, 3, {}, [&] { return recorded; });
  ASSERT_TRUE(packed);
  job::PackedModel job;
  job.path = packed_.path(folder_, 3);
  job.sha256 = packed->root_sha256();
  job.reference_path = held;
  job.reference_sha256 = recorded.reference.root_sha256();
  pack::unpack_model(job, dir_ / "made", recorded.model.root_sha256(), dir_ / "temporary", 1);
  EXPECT_EQ(sha256_file(dir_ / "made/model.safetensors"), recorded.model.files[0].sha256);
}

TEST_F(PackedGlobals, AreSkippedWhenAModelIsGone) {
  fs::remove_all(folder_.global(1));
  EXPECT_FALSE(packed_.of(folder_, 3, {}));
  EXPECT_FALSE(leaves_something());
}

TEST_F(PackedGlobals, AFailureLeavesNoModelOfTheRoundBefore) {
  ASSERT_TRUE(packed_.of(folder_, 3, {}));
  EXPECT_FALSE(packed_.of(folder_, 4, {})) << "round 3 has published no model";
}

// A process of its own, because memory that earlier tests freed would be reused.
TEST_F(PackedGlobals, AreSkippedWithoutMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(go_without_memory()), testing::ExitedWithCode(0), "could not be packed");
}

TEST_F(PackedGlobals, StopOnRequest) {
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(test::kind_of([&] { packed_.of(folder_, 3, stop.get_token()); }),
            ErrorKind::kCancelled);
  EXPECT_FALSE(leaves_something());
  EXPECT_TRUE(packed_.of(folder_, 3, {})) << "later it is tried again";
}

// A stop or the deadline would otherwise wait until another facility has packed a whole model.
TEST_F(PackedGlobals, AStopEndsTheWaitForAnotherCaller) {
  std::promise<void> begun, end;
  std::jthread first([&] {
    packed_.of(folder_, 3, {}, [&] {
      begun.set_value();
      end.get_future().wait();
      return manifests();
    });
  });
  begun.get_future().wait();
  std::stop_source stop;
  stop.request_stop();
  auto second = std::async(std::launch::async, [&] {
    return test::kind_of([&] { packed_.of(folder_, 3, stop.get_token()); });
  });
  EXPECT_EQ(second.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  end.set_value();
  EXPECT_EQ(second.get(), ErrorKind::kCancelled);
}

TEST_F(PackedGlobals, AStoppedCallerReadsNoModel) {
  std::stop_source stop;
  stop.request_stop();
  bool reads = false;
  EXPECT_EQ(test::kind_of([&] {
              packed_.of(folder_, 3, stop.get_token(), [&] {
                reads = true;
                return manifests();
              });
            }),
            ErrorKind::kCancelled);
  EXPECT_FALSE(reads);
}

// The durations of a facility's pushes, by round.
class TakesPacked : public testing::Test {
 protected:
  TakesPacked() { facility_.access = config::AccessKind::kSsh; }
  void pushed(int round, int64_t megabytes, double seconds) {
    history::Attempt attempt{.number = 1, .pushed = true};
    attempt.moved_bytes = megabytes << 20;
    attempt.push_seconds = seconds;
    states_[round].attempts.push_back(attempt);
    states_[round].accepted.emplace();
  }
  bool takes(int round, int attempt = 1) {
    const plan::RoundPlan plan{.round = round};
    return takes_packed(facility_, plan, attempt, [this](int n) { return states_[n]; });
  }

  config::Facility facility_;
  std::map<int, history::FacilityState> states_;
};

TEST_F(TakesPacked, WhenTheLinksRateIsUnknown) {
  pushed(1, 1, 0.001);
  EXPECT_TRUE(takes(2));
  EXPECT_FALSE(takes(2, 2));
  states_[1].accepted.reset();
  EXPECT_FALSE(takes(2));
}

TEST_F(TakesPacked, WhenTheLinkIsSlow) {
  pushed(1, 1000, 50);
  EXPECT_TRUE(takes(2));
  states_.clear();
  pushed(1, 1000, 0.1);
  EXPECT_FALSE(takes(2));
  facility_.transfer.pack = config::PackModels::kAlways;
  EXPECT_TRUE(takes(2));
}

TEST_F(TakesPacked, TheNewestMeasurablePushCounts) {
  pushed(1, 1000, 0.1);
  pushed(2, 1000, 50);
  pushed(3, 0, 0.01);
  EXPECT_TRUE(takes(4));
  EXPECT_NEAR(push_rate(4, [this](int n) { return states_[n]; }).value(), 20.97e6, 1e4);
  EXPECT_FALSE(takes(2));
}

TEST_F(TakesPacked, NeverAnAdapter) {
  pushed(1, 1000, 50);
  plan::RoundPlan lora{.round = 2};
  lora.adapted_sha256 = std::string(64, 'b');
  const auto state = [this](int n) { return states_[n]; };
  EXPECT_FALSE(takes_packed(facility_, lora, 1, state));
  facility_.transfer.pack = config::PackModels::kAlways;
  EXPECT_FALSE(takes_packed(facility_, lora, 1, state));
}

}  // namespace
}  // namespace xffl::facility
