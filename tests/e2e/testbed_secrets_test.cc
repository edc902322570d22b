// A private key is in no file, argument or environment variable while a federation runs or after
// it, and all files are the user's alone, even with umask 0.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

#include "e2e/testbed_project.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using test::Facility;
using test::TestbedProject;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The lines of a key file that hold the key.
std::vector<std::string> secrets_of(const fs::path& key) {
  std::istringstream lines(text_of(key));
  std::vector<std::string> secrets;
  for (std::string line; std::getline(lines, line);)
    if (line.size() > 30 && line.find("PRIVATE KEY") == std::string::npos) secrets.push_back(line);
  // The first line of an OpenSSH key holds the public half.
  if (secrets.size() > 1) secrets.erase(secrets.begin());
  return secrets;
}

bool contains_any(const std::string& text, const std::vector<std::string>& secrets) {
  return std::any_of(secrets.begin(), secrets.end(), [&](const std::string& secret) {
    return text.find(secret) != std::string::npos;
  });
}

void expect_private_files(const fs::path& folder, const std::vector<std::string>& secrets) {
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_symlink()) continue;
    struct stat info {};
    if (::stat(entry.path().c_str(), &info) != 0) continue;
    EXPECT_EQ(info.st_mode & 077, 0u) << entry.path() << " " << std::oct << info.st_mode;
    if (!entry.is_regular_file()) continue;
    EXPECT_FALSE(contains_any(text_of(entry.path()), secrets)) << entry.path();
    ++files;
  }
  EXPECT_GT(files, 10) << folder;
}

TEST(TestbedSecrets, AreInNoFileArgumentOrEnvironment) {
  TestbedProject project;
  NEED_TESTBED(project);
  const std::vector<std::string> secrets = secrets_of(project.facility("alba").key);
  ASSERT_FALSE(secrets.empty());
  project.set_hold();
  project.write_config();
  project.hold("brno", 3);
  const mode_t mask = ::umask(0);
  auto run = project.start_run();
  ::umask(mask);
  // Every process of this machine: the coordinator, its children, the facilities' shells and jobs.
  std::atomic<int> looks = 0;
  std::jthread watch([&](const std::stop_token& stop) {
    for (; !stop.stop_requested(); ++looks) {
      for (const auto& entry : fs::directory_iterator("/proc"))
        for (const char* name : {"cmdline", "environ"})
          if (const std::string text = text_of(entry.path() / name); contains_any(text, secrets))
            ADD_FAILURE() << entry.path() / name << ": " << text;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  ASSERT_TRUE(project.await_events("submitted", 2));
  const std::string limits = text_of("/proc/" + std::to_string(run.pid()) + "/limits");
  EXPECT_NE(limits.find("Max core file size        0 "), std::string::npos) << limits;
  project.release();
  ASSERT_TRUE(project.await_held_training("brno"));
  // The facility's files of the round in progress; a finished round is removed there.
  ASSERT_TRUE(project.await_events("submitted", 6));
  expect_private_files(project.facility("brno").folder / "scratch/work", secrets);
  project.release("brno", 3);
  EXPECT_EQ(run.finish(), 0);
  watch = {};
  EXPECT_GT(looks, 20);
  expect_private_files(project.run_folder(), secrets);
  EXPECT_FALSE(contains_any(text_of(project.log()), secrets));
}

}  // namespace
}  // namespace xffl
