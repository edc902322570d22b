// `xffl deploy` by a job of PBS and of Flux, whose commands are programs that answer in the
// documented formats. A kill after the submission is followed by the same command.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "support/await.h"
#include "support/fake_queues.h"
#include "support/on_terminal.h"
#include "support/small_bundle.h"
#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"
#include "xffl/base/sha256.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class DeployByQueue : public testing::TestWithParam<const char*> {
 protected:
  DeployByQueue() {
    write_file_atomic(dir_ / "hold", "");
    write_file_atomic(dir_ / "xffl.yaml",
                      "project: p\nmodel: model\nrounds: 1\ntraining: {steps_per_round: 1}\n"
                      "facilities:\n  alba:\n    scheduler: " +
                          std::string(GetParam()) + "\n    " + GetParam() +
                          ": {time: 5m, warning: 1m, settle_time: 2s}\n"
                          "    poll_interval: 100ms\n    deploy: {unpack: job}\n    workdir: " +
                          (dir_ / "work").string() + "\n    environment: ['while [ -e " +
                          (dir_ / "hold").string() +
                          " ]; do sleep 0.1; done']\n    data: {train: [a.tokens]}\n");
  }
  std::vector<std::string> command() const {
    return {XFFL_BINARY_DIR "/bin/xffl", "deploy", "alba",
            archive_.string(),           "-p",     dir_.path().string()};
  }
  fs::path programs() const { return dir_ / "work/xffl.programs"; }
  std::string name() const { return archive_.stem().stem().string(); }
  fs::path jobs() const { return programs() / ".jobs" / name(); }
  // Starts the command, and kills it after the submission; the job waits.
  void interrupt() const { interrupt(command(), jobs()); }
  void interrupt(const std::vector<std::string>& argv, const fs::path& folder) const {
    const pid_t killed = start_detached({.argv = argv}, dir_ / "log");
    EXPECT_TRUE(test::await([&] { return fs::exists(folder / "job1/job.id"); }))
        << read_file(dir_ / "log", 1 << 20);
    ::kill(killed, SIGKILL);
    wait_for_exit(killed);
  }

  test::FakeQueues queues_;
  test::TempDir dir_;
  const fs::path archive_ = test::make_small_bundle(dir_.path(), "exec echo xffl-train 0.1.0");
};

TEST_P(DeployByQueue, AKilledCommandIsContinuedWithItsJob) {
  interrupt();
  fs::remove(dir_ / "hold");
  const ProcessResult done = run_process({.argv = command(), .timeout = std::chrono::seconds(120)});
  ASSERT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("starts there: xffl-train 0.1.0"));
  EXPECT_EQ(fs::read_symlink(programs() / "current").string(), name());
  EXPECT_FALSE(fs::exists(jobs() / "job2"));
}

// The job would put the bundle there again.
TEST_P(DeployByQueue, ARemovalCancelsTheJob) {
  interrupt();
  std::vector<std::string> remove = command();
  remove[3] = "--remove";  // in place of the archive
  test::OnTerminal terminal(remove, 24, 200, {});
  ASSERT_TRUE(terminal.await_text("Remove the folder?")) << terminal.bytes;
  terminal.type("n\n");
  EXPECT_EQ(terminal.finish(), exit_code(ErrorKind::kCancelled)) << terminal.bytes;
  EXPECT_THAT(terminal.bytes, testing::Not(HasSubstr("is cancelled")));
  const ProcessResult done = run_process({.argv = remove, .timeout = std::chrono::seconds(120)});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("is cancelled"));
  EXPECT_FALSE(fs::exists(programs()));
}

TEST_P(DeployByQueue, ARemovalOfImagesCancelsTheJob) {
  const fs::path image = dir_ / "built.sif";
  write_file_atomic(image, "image");
  std::string yaml = read_file(dir_ / "xffl.yaml", 1 << 20);
  yaml.insert(yaml.find("    workdir: "),
              "    image: {file: " + (dir_ / "images/xffl.sif").string() + "}\n");
  write_file_atomic(dir_ / "xffl.yaml", yaml);
  std::vector<std::string> words = command();
  words[3] = image.string();
  interrupt(words, programs() / ".jobs" / ("xffl-image-" + sha256_file(image).substr(0, 8)));
  words[3] = "--remove";
  const ProcessResult done = run_process({.argv = words, .timeout = std::chrono::seconds(120)});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("is cancelled"));
}

INSTANTIATE_TEST_SUITE_P(Queues, DeployByQueue, testing::Values("pbs", "flux"),
                         [](const auto& queue) { return std::string(queue.param); });

}  // namespace
}  // namespace xffl
