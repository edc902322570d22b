// `xffl deploy --remove` asks on a terminal, and nowhere else. The images of `xffl deploy`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/on_terminal.h"
#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kQuestion = "Remove the folder? (type yes to remove)";

class DeployRemove : public testing::Test {
 protected:
  DeployRemove() {
    write_config("");
    fs::create_directories(bundle());
  }
  // `more`: further keys of alba.
  void write_config(const std::string& more) const {
    write_file_atomic(dir_ / "xffl.yaml",
                      "project: p\nmodel: model\nrounds: 1\n"
                      "training: {steps_per_round: 1, batch_size: 2}\nfacilities:\n"
                      "  aarau: {workdir: other, data: {train: [a.tokens]}}\n"
                      "  alba: {workdir: work, data: {train: [a.tokens]}" +
                          more + "}\n");
  }
  fs::path programs() const { return dir_ / "work/xffl.programs"; }
  fs::path bundle() const { return programs() / "xffl-trainer-0.1.0-x86_64-cpu-0a1b2c3d"; }
  std::vector<std::string> command(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"deploy", "alba", "--remove", "-p", dir_.path().string()});
    return more;
  }

  test::TempDir dir_;
};

TEST_F(DeployRemove, ShowsTheBundlesAndWaitsForYes) {
  test::OnTerminal terminal(command(), 24, 200, {});
  ASSERT_TRUE(terminal.await_text(kQuestion)) << terminal.bytes;
  EXPECT_TRUE(terminal.screen.shows("  xffl-trainer-0.1.0-x86_64-cpu-0a1b2c3d")) << terminal.bytes;
  EXPECT_TRUE(fs::exists(bundle())) << "before the answer";
  terminal.type("yes\n");
  EXPECT_EQ(terminal.finish(), 0) << terminal.bytes;
  EXPECT_FALSE(fs::exists(programs()));
  EXPECT_TRUE(fs::exists(dir_ / "work"));
}

TEST_F(DeployRemove, AnotherAnswerRemovesNothing) {
  for (const char* answer : {"n\n", "\n", "y\n", "\4"}) {  // \4: end of the input
    test::OnTerminal terminal(command(), 24, 200, {});
    ASSERT_TRUE(terminal.await_text(kQuestion)) << terminal.bytes;
    terminal.type(answer);
    const bool is_end = *answer == '\4';
    EXPECT_EQ(terminal.finish(), exit_code(is_end ? ErrorKind::kUsage : ErrorKind::kCancelled))
        << answer << terminal.bytes;
    EXPECT_TRUE(fs::exists(bundle())) << answer;
  }
}

TEST_F(DeployRemove, AsksNothingWithYesOrInAPipe) {
  test::OnTerminal terminal(command({"--yes"}), 24, 200, {});
  EXPECT_EQ(terminal.finish(), 0) << terminal.bytes;
  EXPECT_THAT(terminal.bytes, Not(HasSubstr(kQuestion)));
  EXPECT_FALSE(fs::exists(programs()));
  fs::create_directories(bundle());
  std::vector<std::string> argv = command();
  argv.insert(argv.begin(), XFFL_BINARY_DIR "/bin/xffl");
  const ProcessResult result = run_process({.argv = argv});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("is removed"));
  EXPECT_FALSE(fs::exists(programs()));
}

// The image's program stands in for Apptainer: it runs the image as a script.
TEST_F(DeployRemove, AnImageIsStartedBeforeItsPromotion) {
  const fs::path program = dir_ / "apptainer", image = dir_ / "built.sif";
  const fs::path link = dir_ / "images/xffl.sif";
  write_file_atomic(program, "#!/bin/sh\n[ \"$1\" = exec ] && exec sh \"$2\" \"$3\"\n");
  fs::permissions(program, fs::perms::owner_all);
  write_config(", scheduler: flux, image: {file: " + link.string() +
               ", program: " + program.string() + "}");
  const auto deploy = [&](const std::string& line) {
    write_file_atomic(image, line + "\n");
    return run_process({.argv = {XFFL_BINARY_DIR "/bin/xffl", "deploy", "alba", image.string(),
                                 "-p", dir_.path().string()},
                        .timeout = std::chrono::seconds(60)});
  };
  const ProcessResult broken = deploy("echo no libtorch >&2; exit 1");
  EXPECT_EQ(broken.exit_code, exit_code(ErrorKind::kFailed)) << broken.out << broken.err;
  EXPECT_FALSE(fs::exists(fs::symlink_status(link)));
  const ProcessResult done = deploy("echo xffl-train " XFFL_VERSION);
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("starts there: xffl-train " XFFL_VERSION));
  EXPECT_EQ(read_file(link, 1000), "echo xffl-train " XFFL_VERSION "\n");
}

TEST_F(DeployRemove, ImagesAreRemovedOnlyAfterAYes) {
  const fs::path image = dir_ / "images/xffl-0a1b2c3d.sif", link = dir_ / "images/xffl.sif";
  fs::create_directories(image.parent_path());
  write_file_atomic(image, "image");
  fs::create_symlink(image.filename(), link);
  write_config(", scheduler: flux, image: {file: " + link.string() + "}");
  for (const char* answer : {"y\n", "yes\n"}) {
    EXPECT_TRUE(fs::exists(image)) << "after the answer y";
    test::OnTerminal terminal(command(), 24, 200, {});
    ASSERT_TRUE(terminal.await_text("Remove them? (type yes to remove)")) << terminal.bytes;
    EXPECT_TRUE(terminal.screen.shows("  xffl-0a1b2c3d.sif")) << terminal.bytes;
    terminal.type(answer);
    terminal.finish();
  }
  EXPECT_FALSE(fs::exists(image));
  EXPECT_FALSE(fs::exists(fs::symlink_status(link)));
  EXPECT_TRUE(fs::exists(bundle())) << "of another kind";
}

}  // namespace
}  // namespace xffl
