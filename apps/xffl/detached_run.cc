#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "project.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/base/process.h"
#include "xffl/history/run_history.h"
#include "xffl/history/store.h"

namespace xffl {
namespace {

// True when the process holds the run's lock and the run has a first event.
bool holds(const history::RunFolder& folder, pid_t pid) {
  return history::lock_holder(folder.journal()).starts_with("pid " + std::to_string(pid) + " ") &&
         std::filesystem::exists(folder.journal()) &&
         history::read_newest(folder.journal()).identity.has_value();
}

ErrorKind kind_of_exit(int status) {
  for (int kind = 0; kind <= static_cast<int>(ErrorKind::kFailed); ++kind)
    if (WIFEXITED(status) && exit_code(static_cast<ErrorKind>(kind)) == WEXITSTATUS(status))
      return static_cast<ErrorKind>(kind);
  return ErrorKind::kFailed;
}

// The error message in the output of an `xffl`: from its "xffl: error" line to the end.
std::string error_message(const std::string& output) {
  const size_t error = output.rfind("xffl: error (");
  const size_t message = error == std::string::npos ? error : output.find("): ", error);
  std::string text = message == std::string::npos ? output : output.substr(message + 3);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.empty() ? "it printed nothing" : log::printable(text);
}

std::string text_from(const std::filesystem::path& path, uintmax_t offset) {
  std::ifstream file(path);
  file.seekg(static_cast<std::streamoff>(offset));
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

void run_detached(const ProjectOptions& options, const RunName& name, bool fresh,
                  bool network_allowed) {
  std::vector<std::string> argv = {std::filesystem::read_symlink("/proc/self/exe").string(), "run",
                                   "-p", std::filesystem::absolute(options.project).string()};
  if (!options.workdir.empty())
    argv.insert(argv.end(), {"-w", std::filesystem::absolute(options.workdir).string()});
  if (!options.run.empty()) argv.insert(argv.end(), {"--run", options.existing_run().run().str()});
  if (fresh) argv.push_back("--new");
  if (network_allowed) argv.push_back("--allow-network-fs");
  make_dirs(options.runs());
  // Every coordinator of a run appends to one file, so that the messages of earlier coordinators
  // stay.
  const std::filesystem::path output = options.runs() / ("detached-" + name.str() + ".out");
  std::error_code none;
  const auto size_before = std::filesystem::file_size(output, none);
  const pid_t pid = start_detached({.argv = argv}, output);
  int status = 0;
  for (int i = 0; i < 300; ++i) {
    if (::waitpid(pid, &status, WNOHANG) == pid) break;
    const auto held = options.run.empty() ? history::latest_run(options.runs())
                                          : std::optional(RunName(options.run));
    if (held && holds(history::RunFolder(options.runs(), *held), pid)) {
      std::printf(
          "run %s continues in process %d\nfollow it with `xffl attach` or `xffl status`; "
          "`kill %d` ends the coordinator, and jobs at the facilities keep running\n",
          held->str().c_str(), pid, pid);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    status = -1;
  }
  if (status == -1)  // a slow machine or file system
    throw Error(ErrorKind::kFailed,
                "the coordinator, process " + std::to_string(pid) +
                    ", is still starting after 30 s and goes on; look with `xffl status` and in " +
                    output.string());
  const std::string text = text_from(output, none ? 0 : size_before);
  if (status == 0) {  // the run is complete
    std::fputs(text.c_str(), stdout);
    return;
  }
  throw Error(kind_of_exit(status), "the coordinator has not started: " + error_message(text));
}

}  // namespace xffl
