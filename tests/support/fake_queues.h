// A folder with PBS's and Flux's commands that are tests/support/fake_queues.py, first in PATH.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "temp_dir.h"

namespace xffl::test {

class FakeQueues {
 public:
  FakeQueues() {
    const std::filesystem::path bin = dir_ / "bin";
    std::filesystem::create_directory(bin);
    std::filesystem::create_directory(jobs());
    for (const char* name : {"qsub", "qselect", "qstat", "qdel", "pbs_tmrsh", "flux"})
      std::filesystem::create_symlink(
          std::filesystem::path(XFFL_SOURCE_DIR) / "tests/support/fake_queues.py", bin / name);
    path_ = std::getenv("PATH");
    setenv("PATH", (bin.string() + ":" + path_).c_str(), 1);
    setenv("FAKE_QUEUES", jobs().c_str(), 1);
  }
  ~FakeQueues() {
    setenv("PATH", path_.c_str(), 1);
    unsetenv("FAKE_QUEUES");
  }
  FakeQueues(const FakeQueues&) = delete;
  FakeQueues& operator=(const FakeQueues&) = delete;

  std::filesystem::path folder() const { return dir_.path(); }
  std::filesystem::path jobs() const { return dir_ / "jobs"; }

 private:
  TempDir dir_;
  std::string path_;
};

}  // namespace xffl::test
