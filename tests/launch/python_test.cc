#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "helper.h"
#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/launch/ranks.h"

namespace xffl::launch {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::StartsWith;

class Venv : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_ / "bin");
    // A fake Python that prints its arguments.
    write_file_atomic(folder_ / "bin/python",
                      "#!/bin/sh\necho \"venv $VIRTUAL_ENV home ${PYTHONHOME-none} $*\"\n", 0700);
    write_file_atomic(folder_ / "bin/activate", "");
    write_file_atomic(folder_ / "train.py", "import sys; print('real', sys.argv[1:])\n");
  }
  test::TempDir dir_;
  fs::path folder_ = fs::canonical(dir_.path());
};

TEST_F(Venv, AcceptsItsFolderOrItsActivateScript) {
  const auto env = venv_environment(folder_.string());
  EXPECT_EQ(env.at("VIRTUAL_ENV"), folder_.string());
  EXPECT_THAT(env.at("PATH"), StartsWith((folder_ / "bin").string() + ":"));
  EXPECT_FALSE(env.contains("PYTHONHOME"));
  EXPECT_EQ(venv_environment((folder_ / "bin/activate").string()), env);
  EXPECT_EQ(venv_environment(folder_.string() + "/"), env);
  EXPECT_EQ(venv_environment(fs::relative(folder_).string()), env)
      << "a rank may change its folder";
}

TEST_F(Venv, RejectsAFolderWithoutPython) {
  fs::create_directory(folder_ / "empty");
  for (const char* name : {"empty", "no", "no/bin/activate"}) {
    try {
      venv_environment((folder_ / name).string());
      FAIL() << "no error for " << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
    }
  }
}

TEST_F(Venv, RunsAScriptWithItsPython) {
  const auto env = venv_environment(folder_.string());
  const std::string script = (folder_ / "train.py").string();
  EXPECT_THAT(program_argv(script, env, {"--model", "M"}),
              ElementsAre((folder_ / "bin/python").string(), script, "--model", "M"));
  EXPECT_THAT(program_argv(script, {}, {}), ElementsAre("python3", script));
  EXPECT_THAT(program_argv("./train", env, {"x"}), ElementsAre("./train", "x"));
  EXPECT_THROW(program_argv((folder_ / "no.py").string(), env, {}), Error);
}

TEST_F(Venv, RanksGetItsEnvironmentWithoutPythonhome) {
  const auto env = venv_environment(folder_.string());
  ::setenv("PYTHONHOME", "/elsewhere", 1);
  testing::internal::CaptureStdout();
  const int code = run_ranks({.argv = {"python", "x"}, .world_size = 1, .env = env}, {});
  const std::string out = testing::internal::GetCapturedStdout();
  ::unsetenv("PYTHONHOME");
  EXPECT_EQ(code, 0);
  EXPECT_EQ(out, "[0] venv " + folder_.string() + " home none x\n");
}

TEST_F(Venv, RealPythonRunsAScript) {
  if (run_process({.argv = {"sh", "-c", "command -v python3"}}).exit_code != 0)
    GTEST_SKIP() << "there is no python3 in PATH";
  testing::internal::CaptureStdout();
  const int code = run_ranks(
      {.argv = program_argv((folder_ / "train.py").string(), {}, {"--a", "b c"}), .world_size = 2},
      {});
  const std::string out = testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, 0);
  EXPECT_THAT(out, testing::HasSubstr("[0] real ['--a', 'b c']\n"));
  EXPECT_THAT(out, testing::HasSubstr("[1] real ['--a', 'b c']\n"));
}

}  // namespace
}  // namespace xffl::launch
