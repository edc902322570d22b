// A bundle as scripts/package.sh makes it, whose xffl-train is a shell script.
#pragma once

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "xffl/base/process.h"

namespace xffl::test {

/// Writes the folder and the archive of the bundle into `dir`; `line` is the program. Returns the
/// archive's path.
inline std::filesystem::path make_small_bundle(const std::filesystem::path& dir,
                                               const std::string& line) {
  namespace fs = std::filesystem;
  const auto output = [](const std::vector<std::string>& argv) {
    const ProcessResult done = run_process({.argv = argv});
    if (done.exit_code != 0) throw std::runtime_error(argv.at(0) + ": " + done.err);
    return done.out;
  };
  const fs::path tree = dir / "tree";
  fs::remove_all(tree);
  fs::create_directories(tree / "bin");
  fs::create_directories(tree / "lib");
  std::ofstream(tree / "bin/xffl-train") << "#!/bin/sh\n" << line << "\n";
  fs::permissions(tree / "bin/xffl-train", fs::perms::owner_all);
  std::ofstream(tree / "lib/large") << std::string(200'000, 'x') << line;
  output({"sh", "-c", "cd \"$0\" && find bin lib -type f | sort | xargs sha256sum >MANIFEST",
          tree.string()});
  std::string machine = output({"uname", "-m"});
  machine.pop_back();
  const std::string name = "xffl-trainer-0.1.0-" + machine + "-cpu-" +
                           output({"sha256sum", (tree / "MANIFEST").string()}).substr(0, 8);
  fs::remove_all(dir / name);
  fs::rename(tree, dir / name);
  // Old times, as of a bundle that was built long ago.
  output({"sh", "-c", "find \"$0\" -exec touch -d '2020-01-01' {} +", (dir / name).string()});
  output({"tar", "-czf", (dir / (name + ".tar.gz")).string(), "-C", dir.string(), name});
  return dir / (name + ".tar.gz");
}

}  // namespace xffl::test
