#include "metrics.h"

#include <gtest/gtest.h>

#include "support/temp_dir.h"
#include "xffl/base/json.h"

namespace xffl::train {
namespace {

TEST(Metrics, OneJsonObjectPerLine) {
  const test::TempDir dir;
  {
    MetricsFile file(dir / "in/metrics.jsonl");
    file.append({1, 2.5, 1e-4, 0.75, 300, 0.5, 1 << 20});
    file.append({2, 2.25, 2e-4, 0.5, 310, 0.5, 1 << 20});
  }
  const std::string text = read_file(dir / "in/metrics.jsonl", 1 << 20);
  const Json first = parse_json(text.substr(0, text.find('\n')), "metrics.jsonl");
  EXPECT_EQ(first["step"], 1);
  EXPECT_EQ(first["loss"], 2.5);
  EXPECT_EQ(first["lr"], 1e-4);
  EXPECT_EQ(first["grad_norm"], 0.75);
  EXPECT_EQ(first["tokens"], 300);
  EXPECT_EQ(first["tokens_per_second"], 600);
  EXPECT_EQ(first["memory_bytes"], 1 << 20);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST(Metrics, AValidationHasALineOfItsOwn) {
  const test::TempDir dir;
  MetricsFile file(dir / "m.jsonl");
  file.append_validation(20, {{"it", 300, 4.0, 3.25}, {"cs", 200, 5.0, 4.5}});
  EXPECT_EQ(read_file(dir / "m.jsonl", 1 << 20),
            "{\"step\":20,\"validation\":{\"it\":3.25,\"cs\":4.5}}\n");
}

TEST(Metrics, ARestartedJobBeginsAnew) {
  const test::TempDir dir;
  MetricsFile(dir / "m.jsonl").append({1, 2.5, 1e-4, 0.75, 300, 0.5, 0});
  MetricsFile(dir / "m.jsonl").append({1, 2.5, 1e-4, 0.75, 300, 0.5, 0});
  const std::string text = read_file(dir / "m.jsonl", 1 << 20);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

}  // namespace
}  // namespace xffl::train
