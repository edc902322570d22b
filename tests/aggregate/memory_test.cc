// Resident memory while averaging, measured in a child process of its own.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "models.h"
#include "support/peak_memory.h"
#include "support/temp_dir.h"
#include "xffl/aggregate/aggregate.h"

namespace xffl::aggregate {
namespace {

namespace fs = std::filesystem;
constexpr long kModelKiB = 96 << 10;
// A fifth of what server_step reads here; how many mapped pages are resident at a time depends on
// the kernel.
constexpr long kAllowedGrowthKiB = 96 << 10;

long growth(const std::function<void()>& body) {
  return test::lowest_growth_in_child(kAllowedGrowthKiB, body);
}

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
  const long average = growth([&] {
    fs::remove_all(dir / "out");
    average_weights(inputs, Dtype::kF32, dir / "out", {.num_threads = 2});
  });
  ASSERT_TRUE(fs::exists(dir / "out"));
  EXPECT_GE(average, 0);
  EXPECT_LT(average, kAllowedGrowthKiB) << "of " << 3 * kModelKiB << " KiB read";
  const long step = growth([&] {
    fs::remove_all(dir / "m");
    fs::remove_all(dir / "g");
    server_step(dir / "out", inputs, true, Dtype::kBF16, dir / "m", dir / "g", {.num_threads = 2});
  });
  EXPECT_GE(step, 0);
  EXPECT_LT(step, kAllowedGrowthKiB);
  const long check = growth([&] { check_update(dir / "m0", dir / "g", false); });
  EXPECT_GE(check, 0);
  EXPECT_LT(check, kAllowedGrowthKiB);
}

}  // namespace
}  // namespace xffl::aggregate
