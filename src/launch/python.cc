#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "xffl/base/error.h"
#include "xffl/launch/ranks.h"

namespace xffl::launch {

namespace fs = std::filesystem;

std::map<std::string, std::string> venv_environment(const std::string& venv) {
  fs::path folder = fs::absolute(venv).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  std::error_code ignored;
  if (folder.stem() == "activate" && !fs::is_directory(folder, ignored))
    folder = folder.parent_path().parent_path();
  const fs::path python = folder / "bin" / "python";
  if (::access(python.c_str(), X_OK) != 0)
    throw Error(ErrorKind::kNotFound, "'" + venv + "' is not a Python environment: it has no " +
                                          python.string() +
                                          "; give its folder or its bin/activate");
  const char* path = std::getenv("PATH");
  const std::string rest = path == nullptr ? "" : ":" + std::string(path);
  return {{"VIRTUAL_ENV", folder.string()}, {"PATH", (folder / "bin").string() + rest}};
}

std::vector<std::string> program_argv(const std::string& program,
                                      const std::map<std::string, std::string>& environment,
                                      const std::vector<std::string>& arguments) {
  std::vector<std::string> argv;
  if (fs::path(program).extension() == ".py") {
    std::error_code ignored;
    if (!fs::is_regular_file(program, ignored))
      throw Error(ErrorKind::kNotFound, "Python script '" + program + "' does not exist");
    const auto venv = environment.find("VIRTUAL_ENV");
    argv.push_back(venv == environment.end() ? "python3" : venv->second + "/bin/python");
  }
  argv.push_back(program);
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return argv;
}

}  // namespace xffl::launch
