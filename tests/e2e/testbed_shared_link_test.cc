// Many facilities behind the coordinator's one slow link: real SSH sessions, each with its own
// push, through the emulated link of one testbed facility.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <mutex>
#include <random>
#include <thread>

#include "support/await.h"
#include "support/testbed.h"
#include "support/testbed_ssh.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/transfer/transfer.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;

constexpr uint64_t kModelBytes = 5'300'000;  // a file of its own
// What each push may send twice: a block, which is the unit of resumption, and the bytes that this
// machine has passed to the connection but not sent. In addition the link's queue is lost once.
constexpr uint64_t kBlockBytes = 256u << 10, kUnsentBytes = 512u << 10;
constexpr uint64_t kLinkQueueBytes = 4u << 20;
constexpr uint64_t kSmallFilesBytes = 10'000;
constexpr double kLinkBytes = 50e6 / 8;  // per second, with the headers of all protocols

void write_noise(const fs::path& path, uint64_t bytes) {
  std::mt19937_64 random(7);
  std::vector<uint64_t> words(bytes / 8 + 1);
  for (uint64_t& word : words) word = random();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(words.data()), static_cast<std::streamsize>(bytes));
}

// The peak of this process's memory.
uint64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    uint64_t kib = 0;
    if (key == "VmHWM:" && status >> kib) return kib << 10;
  }
  return 0;
}

// The link is cut in the midst of all pushes, and each push continues where it was.
TEST(TestbedSharedLink, AllPushesFinishAndACutCostsEachABlockAndTheBytesOnTheirWay) {
  const int count = std::getenv("XFFL_CAMPAIGN") != nullptr ? 100 : 20;
  test::Testbed testbed({"alba"}, {"--max-startups", "200:1:200"});
  if (!testbed.up()) GTEST_SKIP() << testbed.why_not();
  const test::Facility& alba = testbed.facility("alba");
  const test::TempDir dir;
  write_noise(dir / "model.safetensors", kModelBytes);
  write_file_atomic(dir / "config.json", "{}\n");
  const checkpoint::Manifest manifest = checkpoint::make_manifest(dir.path());
  remote::SshSettings settings = ssh_settings(alba);
  settings.timeouts.keepalive = 3s;  // a dead link is detected within 9 s
  settings.timeouts.silence = 6s;
  alba.wan(25, 50, 0);

  const uint64_t before = peak_bytes();
  std::atomic<uint64_t> done = 0, moved = 0;
  std::atomic<int> finished = 0, tries = 0;
  std::mutex mutex;
  std::vector<std::string> problems;
  const auto push = [&](int number) {
    const auto session = make_ssh_session(settings);
    const RemotePath to(alba.scratch + "/many/f" + std::to_string(number));
    for (int left = 20;; --left) {
      uint64_t last_done = 0, last_moved = 0;
      ++tries;
      try {
        transfer::push(*session, dir.path(), manifest, to, {},
                       [&](const transfer::Progress& progress) {
                         done += progress.moved_bytes - last_moved;
                         last_moved = progress.moved_bytes;
                         last_done = progress.done_bytes;
                       });
        moved += last_moved;
        ++finished;
        return;
      } catch (const Error& error) {
        moved += last_moved;
        if (error.kind() == ErrorKind::kRemote && left > 0) {
          std::this_thread::sleep_for(1s);
          continue;
        }
        const std::lock_guard lock(mutex);
        problems.emplace_back(error.what());
        return;
      }
    }
  };
  const auto began = SteadyClock::now();
  const uint64_t total = manifest.total_bytes() * static_cast<uint64_t>(count);
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < count; ++i) threads.emplace_back(push, i);
    ASSERT_TRUE(test::await([&] { return done > total * 2 / 5; }, 300s));
    alba.cut();
    std::this_thread::sleep_for(15s);
    alba.heal();
  }
  const double seconds = std::chrono::duration<double>(SteadyClock::now() - began).count() - 15;
  for (const std::string& problem : problems) ADD_FAILURE() << problem;
  EXPECT_EQ(finished, count);
  const std::string expected = sha256_file(dir / "model.safetensors");
  for (int i = 0; i < count; ++i) {
    const fs::path there = alba.folder / "scratch/many" / ("f" + std::to_string(i));
    ASSERT_TRUE(fs::exists(there / "manifest.json")) << i;
    EXPECT_EQ(sha256_file(there / "model.safetensors"), expected) << i;
  }
  std::cout << count << " pushes of 5.3 MB through 50 Mbit/s and 50 ms: " << seconds
            << " s without the cut, " << static_cast<double>(total) / seconds / kLinkBytes
            << " of the link's rate, " << tries << " tries, "
            << static_cast<double>(moved - std::min<uint64_t>(moved, total)) / count
            << " bytes sent twice by each; "
            << (peak_bytes() - before) / static_cast<uint64_t>(count)
            << " bytes of memory for each\n";
  EXPECT_GT(tries, count) << "the cut ended no push";
  EXPECT_LE(moved,
            total + kLinkQueueBytes +
                static_cast<uint64_t>(count) * (kBlockBytes + kUnsentBytes + kSmallFilesBytes));
}

}  // namespace
}  // namespace xffl
