#include "metrics.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "support/failing_call.h"
#include "support/temp_dir.h"
#include "xffl/base/json.h"

namespace xffl::train {
namespace {

TEST(Metrics, OneJsonObjectPerLine) {
  const test::TempDir dir;
  {
    MetricsFile file(dir / "in/metrics.jsonl");
    file.append({1, 2.5, 1e-4, 0.75, 300, 0.5, 1 << 20});
    file.append({2,
                 2.25,
                 2e-4,
                 0.5,
                 310,
                 0.5,
                 1 << 20,
                 {0.125, 0.25, 0.5, 0.0625, 0.03125},
                 0.375,
                 2,
                 9,
                 8,
                 4});
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
  const Json second = parse_json(text.substr(text.find('\n') + 1), "metrics.jsonl");
  const Json phases = {
      {"forward", 0.125}, {"head", 0.25}, {"backward", 0.5}, {"norm", 0.0625}, {"adamw", 0.03125}};
  EXPECT_EQ(second["phase_seconds"], phases);
  EXPECT_EQ(second["accuracy"], 0.375);
  EXPECT_EQ(second["job_step"], 2);
  EXPECT_EQ(second["job_steps"], 9);
  EXPECT_EQ(second["samples_per_second"], 16);
  EXPECT_EQ(second["tokens_per_second_per_rank"], 155);
}

TEST(Metrics, AValidationIsALine) {
  const test::TempDir dir;
  MetricsFile file(dir / "m.jsonl");
  file.append_validation(20, {{"it", 300, 4.0, 3.25, 0.125, 0.25}, {"cs", 200, 5.0, 4.5}});
  EXPECT_EQ(read_file(dir / "m.jsonl", 1 << 20),
            "{\"step\":20,\"validation\":{\"it\":3.25,\"cs\":4.5},"
            "\"validation_accuracy\":{\"it\":0.25,\"cs\":0.0}}\n");
}

// Writes to /dev/full fail as on a full disk.
TEST(Metrics, AFullDiskIsLoggedOnce) {
  testing::internal::CaptureStderr();
  MetricsFile file("/dev/full");
  for (int step = 1; step <= 3; ++step) file.append({step, 2.5, 1e-4, 0.75, 300, 0.5, 0});
  file.append_validation(3, {{"it", 300, 4.0, 3.25}});
  const std::string logged = testing::internal::GetCapturedStderr();
  const size_t first = logged.find("metrics not written");
  ASSERT_NE(first, std::string::npos) << logged;
  EXPECT_EQ(logged.find("metrics not written", first + 1), std::string::npos) << logged;
}

TEST(Metrics, AnInvalidPathIsLogged) {
  const test::TempDir dir;
  write_file_atomic(dir / "file", "");
  testing::internal::CaptureStderr();
  MetricsFile file(dir / "file/metrics.jsonl");
  file.append({1, 2.5, 1e-4, 0.75, 300, 0.5, 0});
  EXPECT_NE(testing::internal::GetCapturedStderr().find("metrics not written"), std::string::npos);
}

// A file size limit cuts the second line, which must be removed.
TEST(Metrics, AFailedWriteLeavesNoTornLine) {
  const test::TempDir dir;
  const int torn = test::in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    MetricsFile file(dir / "m.jsonl");
    file.append({1, 2.5, 1e-4, 0.75, 300, 0.5, 0});
    const auto size = static_cast<rlim_t>(std::filesystem::file_size(dir / "m.jsonl"));
    const rlimit narrow{size + 10, RLIM_INFINITY}, wide{RLIM_INFINITY, RLIM_INFINITY};
    if (::setrlimit(RLIMIT_FSIZE, &narrow) != 0) return 1;
    file.append({2, 2.5, 1e-4, 0.75, 300, 0.5, 0});
    if (std::filesystem::file_size(dir / "m.jsonl") != size) return 2;
    if (::setrlimit(RLIMIT_FSIZE, &wide) != 0) return 3;
    file.append({3, 2.5, 1e-4, 0.75, 300, 0.5, 0});
    return std::filesystem::file_size(dir / "m.jsonl") == 2 * size ? 0 : 4;
  });
  EXPECT_EQ(torn, 0);
}

TEST(Metrics, AResumedJobReplacesTheLinesOfRepeatedSteps) {
  const test::TempDir dir;
  const auto metrics = [](int64_t step, double loss) {
    return StepMetrics{step, loss, 1e-4, 0.75, 300, 0.5, 0};
  };
  {
    MetricsFile file(dir / "m.jsonl");
    for (int64_t step = 1; step <= 4; ++step) file.append(metrics(step, 2.5));
  }
  MetricsFile(dir / "m.jsonl", 2).append(metrics(3, 2.25));
  EXPECT_EQ(read_file(dir / "m.jsonl", 1 << 20), format_metrics(metrics(1, 2.5)) +
                                                     format_metrics(metrics(2, 2.5)) +
                                                     format_metrics(metrics(3, 2.25)));
}

TEST(Metrics, AResumedJobKeepsThousandsOfLines) {
  const test::TempDir dir;
  std::string kept;
  for (int64_t step = 1; step <= 20'000; ++step)
    kept += format_metrics({step, 2.5, 1e-4, 0.75, 300, 0.5, 0});
  ASSERT_GT(kept.size(), 2u << 20);
  write_file_atomic(dir / "m.jsonl", kept + format_metrics({20'001, 2.5, 1e-4, 0.75, 300, 0.5, 0}));
  MetricsFile resumed(dir / "m.jsonl", 20'000);
  EXPECT_TRUE(read_file(dir / "m.jsonl", 1u << 30) == kept);
}

TEST(Metrics, ARestartedJobStartsAnEmptyFile) {
  const test::TempDir dir;
  MetricsFile(dir / "m.jsonl").append({1, 2.5, 1e-4, 0.75, 300, 0.5, 0});
  MetricsFile(dir / "m.jsonl").append({1, 2.5, 1e-4, 0.75, 300, 0.5, 0});
  const std::string text = read_file(dir / "m.jsonl", 1 << 20);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

}  // namespace
}  // namespace xffl::train
