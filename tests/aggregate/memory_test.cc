// Resident memory while averaging, measured in a child process of its own.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "models.h"
#include "support/temp_dir.h"
#include "xffl/aggregate/aggregate.h"

namespace xffl::aggregate {
namespace {

namespace fs = std::filesystem;

constexpr long kModelKiB = 96 << 10;
// A fifth of what server_step reads here; how many mapped pages are resident at a time depends on
// the kernel.
constexpr long kAllowedGrowthKiB = 96 << 10;

void write_large_model(const fs::path& folder, uint32_t seed) {
  const std::vector<float> row = some_values(1 << 20, seed);  // 2 MiB of bf16
  std::vector<checkpoint::TensorSpec> specs;
  const std::string names[] = {"a", "b", "c"};
  for (const std::string& name : names) specs.push_back({name, Dtype::kBF16, {16, 1 << 20}});
  checkpoint::ModelWriter writer(folder, specs);
  std::vector<std::byte> bytes(row.size() * 2);
  from_float(row, Dtype::kBF16, bytes);
  for (int i = 0; i < 48; ++i) writer.write(bytes);
  writer.finish();
  std::ofstream(folder / "config.json") << "{}";
}

long peak_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stol(line.substr(6));
  return -1;
}

// Growth of the peak in KiB; -1 when it failed.
long growth_in_child(const std::function<void()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return -1;
  const pid_t child = ::fork();
  if (child == 0) {
    long growth = -1;
    try {
      std::ofstream("/proc/self/clear_refs") << 5;  // resets the peak
      const long before = peak_kib();
      body();
      growth = peak_kib() - before;
    } catch (const Error&) {
      growth = -1;
    }
    const bool sent = ::write(ends[1], &growth, sizeof growth) == sizeof growth;
    ::_exit(sent ? 0 : 1);
  }
  ::close(ends[1]);
  long growth = -1;
  const bool read = ::read(ends[0], &growth, sizeof growth) == sizeof growth;
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return read ? growth : -1;
}

TEST(AggregateMemory, DoesNotGrowWithTheModel) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers allocate additional memory";
#endif
  const test::TempDir dir;
  std::vector<Input> inputs;
  for (uint32_t i = 0; i < 3; ++i) {
    const std::string name = "m" + std::to_string(i);
    write_large_model(dir / name, i);
    inputs.push_back({dir / name, 1, name, name});
  }
  ASSERT_GE(static_cast<long>(fs::file_size(dir / "m0" / "model.safetensors") >> 10), kModelKiB);
  const long average = growth_in_child(
      [&] { average_weights(inputs, Dtype::kF32, dir / "out", {.num_threads = 2}); });
  ASSERT_TRUE(fs::exists(dir / "out"));
  EXPECT_GE(average, 0);
  EXPECT_LT(average, kAllowedGrowthKiB) << "of " << 3 * kModelKiB << " KiB read";
  const long step = growth_in_child([&] {
    server_step(dir / "out", inputs, true, Dtype::kBF16, dir / "m", dir / "g", {.num_threads = 2});
  });
  EXPECT_GE(step, 0);
  EXPECT_LT(step, kAllowedGrowthKiB);
  const long check = growth_in_child([&] { check_update(dir / "m0", dir / "g", false); });
  EXPECT_GE(check, 0);
  EXPECT_LT(check, kAllowedGrowthKiB);
}

}  // namespace
}  // namespace xffl::aggregate
