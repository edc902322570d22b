// The commands of xffl: each function adds one or several to the command line; they run as
// callbacks, which throw Error.
//
// CLI11 is only declared here: its header costs seconds of CPU time in each file that includes it.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace xffl {

/// `aggregate`: FedAvg of Hugging Face folders on this machine, without a project.
void add_aggregate_command(CLI::App& app);

/// `config` and its sub-commands validate, schema and show: makes, checks and shows a project's
/// xffl.yaml.
void add_config_commands(CLI::App& app);

/// `demo`: a small federation of two languages on this machine, beside each facility alone.
void add_demo_command(CLI::App& app);

/// `doctor`: checks that everything is in place, and names the remedy of each problem.
void add_doctor_command(CLI::App& app);

/// `generate`, which becomes xffl-tokenize generate: that program has the tokenizers, and this one
/// links none. All words go on to it.
void add_generate_command(CLI::App& app);

/// `inspect`: the kind of a file or folder, and its content.
void add_inspect_command(CLI::App& app);

/// `login FACILITY`: logs in to a facility with a user at the terminal.
void add_login_command(CLI::App& app);

/// `cancel`, `pause` and `resume`: requests to a run; `journal`: repair of its memory.
void add_operate_commands(CLI::App& app);

/// `plan`: the next round, without doing it.
void add_plan_command(CLI::App& app);

/// `render`: the job script that a facility would get, to read or to submit by hand.
void add_render_command(CLI::App& app);

/// `run`: the federation; `attach` follows a run that another process coordinates.
void add_run_command(CLI::App& app);

/// A command line in two: the words that xffl parses, and those behind the first `--arguments` or
/// `--` of `xffl simulate` and `xffl exec`, which belong to the program that they start, whatever
/// they look like. Lines of other commands come back whole.
struct CommandLine {
  std::vector<std::string> own;      // without argv[0]
  std::vector<std::string> program;  // without the separator
};
CommandLine split_command_line(int argc, const char* const* argv);

/// `simulate` with its alias `exec`: any program, or the training of one facility, as N ranks on
/// this machine. `program_arguments` is CommandLine::program. Its callback sets `exit_code` to that
/// of the first rank that failed.
void add_simulate_commands(CLI::App& app, int& exit_code,
                           std::vector<std::string> program_arguments = {});

/// `status` and `logs`: the progress of a run.
void add_status_commands(CLI::App& app);

/// `trust FACILITY [--yes FINGERPRINT]...`: a user compares a facility's host keys with those that
/// its site publishes, and pins them.
void add_trust_command(CLI::App& app);

}  // namespace xffl
