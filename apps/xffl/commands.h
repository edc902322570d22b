// The commands of xffl. Each function adds one or several commands to the command line; a command
// runs as a callback, which may throw Error.
//
// This header only declares CLI::App: CLI11's header costs seconds of compile time.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace xffl {

enum class Colours;  // xffl/base/console.h

/// `aggregate`: FedAvg of Hugging Face folders on this machine, without a project.
void add_aggregate_command(CLI::App& app);

/// `config` writes a project's xffl.yaml; its sub-commands validate, schema, preset and show.
void add_config_commands(CLI::App& app);

/// `demo`: a small federation of two languages on this machine, compared with each facility alone.
void add_demo_command(CLI::App& app);

/// `deploy`: puts a bundle of the facility's programs into place.
void add_deploy_command(CLI::App& app);

/// `doctor`: checks the prerequisites of a run, and names a fix for each problem.
void add_doctor_command(CLI::App& app);

/// `export`: a run's figures in the formats of other programs.
void add_export_commands(CLI::App& app);

/// `inspect`: the kind of a file or folder, and its content.
void add_inspect_command(CLI::App& app);

/// `cancel`, `pause` and `resume`: requests to a run; `journal`: repair of its journal.
void add_operate_commands(CLI::App& app);

/// `completion`: the completion script of a shell.
void add_completion_command(CLI::App& app);

/// `man`: the manual pages of `app`, which outlives the command.
void add_man_command(CLI::App& app);

/// `plan`: the jobs, transfers and cost of the next round; `render`: the job script that a facility
/// would get, to read or to submit by hand.
void add_plan_commands(CLI::App& app);

/// `prepare`: tokenizes a facility's text there.
void add_prepare_command(CLI::App& app);

/// `report`: a run's story as one HTML file, as text or as JSON.
void add_report_command(CLI::App& app);
/// Adds `usage`.
void add_usage_command(CLI::App& app);

/// `run`: starts or continues the federation.
void add_run_command(CLI::App& app);

/// Splits the command line of `xffl simulate` and `xffl exec` at the first `--arguments` or `--`:
/// the arguments behind the separator belong to the started program. Does not split the command
/// lines of other commands.
struct CommandLine {
  std::vector<std::string> own;      // without argv[0]
  std::vector<std::string> program;  // without the separator
};
CommandLine split_command_line(int argc, const char* const* argv);

/// `simulate` with its alias `exec`: any program, or the training of one facility, as N ranks on
/// this machine. `program_arguments` is CommandLine::program. The callback sets `exit_code` to the
/// exit code of the first rank that failed.
void add_simulate_commands(CLI::App& app, int& exit_code,
                           std::vector<std::string> program_arguments = {});

/// `trust FACILITY [--yes FINGERPRINT]...`: pins a facility's host keys after the user has compared
/// them with the keys that the site publishes; `login FACILITY`: logs in with a user at the
/// terminal.
void add_ssh_commands(CLI::App& app);

/// `logs`: the coordinator's log, and the output of the facilities' jobs.
void add_logs_command(CLI::App& app);

/// `status` and `attach`: the progress of a run. `colours` is the value of --color when a
/// command runs.
void add_status_commands(CLI::App& app, const Colours& colours);

/// `verify`: checks that a run's models follow from its journal and its updates; `sign`: signs a
/// published model.
void add_verify_command(CLI::App& app);

}  // namespace xffl
