// xffl: registers the commands, one file each, and maps errors to exit codes.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <system_error>

#include "commands.h"
#include "completion.h"
#include "xffl/base/console.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/base/process.h"
#include "xffl/base/scrub.h"

namespace {

// Prints the error, and returns its exit code.
int report(const xffl::Error& error) {
  const std::string kind(xffl::to_string(error.kind()));
  const char* what = error.kind() == xffl::ErrorKind::kCancelled ? "stopped" : "error";
  std::fprintf(stderr, "xffl: %s (%s): %s\n", what, kind.c_str(),
               xffl::scrubbed(error.what()).c_str());
  return xffl::exit_code(error.kind());
}

// Opens closed standard descriptors: the next opened file would get a closed descriptor's number,
// and messages would go into that file.
void fill_standard_descriptors() {
  for (int fd = 0; fd < 3; ++fd)
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != fd) std::abort();
}

// Reports lost standard output (a full disk, a closed pipe) by the exit code.
int flushed(int exit_code) {
  if ((std::fflush(stdout) == 0 && std::ferror(stdout) == 0) || exit_code != 0) return exit_code;
  return report(xffl::Error(xffl::ErrorKind::kIo, "standard output could not be written"));
}

// A core file would hold passwords and private keys. The hard limit stays, so that a job's script
// can enable core files again.
void disable_core_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_CORE, &limit) != 0) return;
  limit.rlim_cur = 0;
  ::setrlimit(RLIMIT_CORE, &limit);
}

// `generate` is a command of xffl-tokenize: only that program links the tokenizers.
[[noreturn]] void exec_tokenize(std::vector<std::string> args) {
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "xffl-tokenize";
  args.insert(args.begin(), {program, "generate"});
  ::execv(program.c_str(), xffl::exec_pointers(args).data());
  throw xffl::Error(xffl::ErrorKind::kNotFound, program +
                                                    " cannot be started: " + std::strerror(errno) +
                                                    " (it is built with XFFL_TOKENIZE=ON)");
}

void add_generate(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "generate", "continue a text with a model: --model DIR --prompt TEXT (runs xffl-train)");
  command->prefix_command();
  command->set_help_flag();
  command->callback([command] { exec_tokenize(command->remaining()); });
}

void add_commands(CLI::App& app, int& exit_code, std::vector<std::string> program,
                  const xffl::Colours& colours) {
  xffl::add_config_commands(app);
  xffl::add_run_command(app);
  xffl::add_simulate_commands(app, exit_code, std::move(program));
  xffl::add_status_commands(app, colours);
  xffl::add_logs_command(app);
  xffl::add_report_command(app);
  xffl::add_usage_command(app);
  xffl::add_export_commands(app);
  xffl::add_verify_command(app);
  xffl::add_operate_commands(app);
  xffl::add_plan_commands(app);
  xffl::add_doctor_command(app);
  xffl::add_deploy_command(app);
  xffl::add_prepare_command(app);
  xffl::add_ssh_commands(app);
  xffl::add_aggregate_command(app);
  xffl::add_inspect_command(app);
  xffl::add_demo_command(app);
  add_generate(app);
  xffl::add_completion_command(app);
  xffl::add_man_command(app);
}

// The values of -v, -q and --color.
struct ConsoleOptions {
  bool verbose = false, quiet = false;
  xffl::Colours colours = xffl::Colours::kAuto;

  void apply() const {
    using xffl::log::Level;
    xffl::log::set_console_level(quiet ? Level::kWarning : verbose ? Level::kDebug : Level::kInfo);
    xffl::log::set_colours(colours);
  }
};

// Adds the options that xffl accepts before and after the command: `xffl -v run`, `xffl run -v`.
void add_console_options(CLI::App& app, ConsoleOptions& options) {
  using xffl::Colours;
  static const std::map<std::string, Colours> kColours = {
      {"auto", Colours::kAuto}, {"always", Colours::kAlways}, {"never", Colours::kNever}};
  app.add_flag("-v,--verbose", options.verbose, "show debug messages, too");
  app.add_flag("-q,--quiet", options.quiet, "show warnings and errors only");
  app.add_option("--color", options.colours,
                 "colours (default: auto, on a terminal without NO_COLOR)")
      ->transform(CLI::CheckedTransformer(kColours).description("{auto,always,never}"))
      ->type_name("WHEN");
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    if (!command->get_prefix_command()) add_console_options(*command, options);
}

// CLI11's own message does not name the unknown command.
void require_known_command(const CLI::App& app, const std::vector<std::string>& args) {
  if (args.empty() || args.front().starts_with("-")) return;
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  if (std::none_of(commands.begin(), commands.end(),
                   [&](const CLI::App* command) { return command->check_name(args.front()); }))
    throw xffl::Error(xffl::ErrorKind::kUsage, "unknown command '" +
                                                   xffl::log::printable(args.front(), 80) +
                                                   "': `xffl --help` lists the commands");
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_descriptors();
  disable_core_files();
  xffl::end_on_unreadable_mapping("xffl");
  CLI::App app{"Fine-tunes one LLaMA across HPC facilities without moving their data.", "xffl"};
  app.set_version_flag("--version", std::string("xffl ") + XFFL_VERSION);
  app.require_subcommand(1);
  ConsoleOptions console;
  app.parse_complete_callback([&] { console.apply(); });
  int exit_code = 0;
  xffl::CommandLine line = xffl::split_command_line(argc, argv);
  add_commands(app, exit_code, std::move(line.program), console.colours);
  add_console_options(app, console);
  if (!line.own.empty() && line.own.front() == xffl::kCompleteWords) {
    line.own.erase(line.own.begin());
    std::fputs(xffl::format_completion(xffl::complete(app, line.own)).c_str(), stdout);
    return 0;
  }
  try {
    require_known_command(app, line.own);
    std::reverse(line.own.begin(), line.own.end());  // CLI11 expects the reverse order
    app.parse(line.own);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    return xffl::exit_code(xffl::ErrorKind::kUsage);
  } catch (const xffl::Error& error) {
    return report(error);
  } catch (const std::filesystem::filesystem_error& error) {
    return report(xffl::Error(xffl::ErrorKind::kIo, error.what()));
  } catch (const std::system_error& error) {
    return report(xffl::Error(xffl::ErrorKind::kIo,
                              std::string("this machine refused a thread: ") + error.what() +
                                  "; is it at its limit of processes (ulimit -u)?"));
  } catch (const std::exception& error) {
    return report(xffl::Error(xffl::ErrorKind::kInternal, error.what()));
  }
  return flushed(exit_code);
}
