#include "support/testbed.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace xffl::test {
namespace {

constexpr int kCannotRunHere = 77;

bool keep() { return ::getenv("XFFL_KEEP_TESTBED") != nullptr; }

ProcessResult run_script(const std::filesystem::path& state, std::vector<std::string> args,
                         const std::string& stdin_text = "") {
  // First: the arguments after a facility's name belong to the command that runs there.
  args.insert(args.begin() + 1, {"--state", state.string()});
  args.insert(args.begin(), XFFL_SOURCE_DIR "/scripts/dev_cluster.sh");
  return run_process({.argv = std::move(args),
                      .env = {{"XFFL_WAN_EMULATOR", XFFL_BINARY_DIR "/bin/xffl-wan-emulator"}},
                      .stdin_text = stdin_text,
                      .timeout = std::chrono::seconds(120)});
}

std::string must(const ProcessResult& result, const std::string& action) {
  if (result.exit_code != 0)
    throw std::runtime_error("the testbed: " + action + ": exit code " +
                             std::to_string(result.exit_code) + "\n" + result.err + result.out);
  return result.out;
}

Facility describe(const std::filesystem::path& state, const std::string& name) {
  std::istringstream lines(must(run_script(state, {"describe", name}), "describe " + name));
  std::map<std::string, std::string> values;
  for (std::string line; std::getline(lines, line);)
    values[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
  Facility facility;
  facility.name = name;
  facility.host = values.at("host");
  facility.inner_host = values.at("inner_host");
  facility.mover = values.at("mover");
  facility.port = std::stoi(values.at("port"));
  facility.user = values.at("user");
  facility.key = values.at("key");
  facility.certified_key = values.at("certified_key");
  facility.known_hosts = values.at("known_hosts");
  facility.scratch = values.at("scratch");
  facility.home = values.at("home");
  facility.folder = values.at("folder");
  return facility;
}

}  // namespace

ProcessResult Facility::script(std::vector<std::string> args, const std::string& stdin_text) const {
  return run_script(state_, std::move(args), stdin_text);
}

ProcessResult Facility::exec_on_login(const std::vector<std::string>& argv,
                                      const std::string& stdin_text) const {
  std::vector<std::string> args = {"exec", name};
  args.insert(args.end(), argv.begin(), argv.end());
  return script(std::move(args), stdin_text);
}

ProcessResult Facility::exec_as_user(const std::vector<std::string>& argv,
                                     const std::string& stdin_text) const {
  std::vector<std::string> args = {"exec", "--user", name};
  args.insert(args.end(), argv.begin(), argv.end());
  return script(std::move(args), stdin_text);
}

std::vector<pid_t> Facility::pids(const std::string& daemon) const {
  std::istringstream text(must(script({"pids", name, daemon}), "pids " + daemon));
  std::vector<pid_t> found;
  for (pid_t pid; text >> pid;) found.push_back(pid);
  return found;
}

void Facility::signal_daemon(const std::string& daemon, int signal) const {
  for (const pid_t pid : pids(daemon)) ::kill(pid, signal);
}

void Facility::stop_daemon(const std::string& daemon, const std::string& signal) const {
  must(script({"stop", name, daemon, signal}), "stop " + daemon);
}

void Facility::start_daemon(const std::string& daemon) const {
  must(script({"start", name, daemon}), "start " + daemon);
}

void Facility::node_down(int number) const {
  must(script({"node", name, std::to_string(number), "down"}), "node down");
}

void Facility::node_up(int number) const {
  must(script({"node", name, std::to_string(number), "up"}), "node up");
}

void Facility::start_requeued(const std::string& job, int nodes) const {
  const std::string idle = "idle " + std::to_string(nodes) + "\n";
  const auto clean = [&] {
    return exec_on_login({"sinfo", "-h", "-o", "%t %D"}).out.find(idle) != std::string::npos &&
           pids("slurmstepd:1").empty() && pids("slurmstepd:2").empty();
  };
  const auto lifted = [&] {
    return exec_on_login({"scontrol", "update", "JobId=" + job, "StartTime=now"}).exit_code == 0;
  };
  // On a slow machine the job may have started, or even completed, meanwhile.
  const auto has_begun = [&] {
    const std::string shown = exec_on_login({"scontrol", "show", "job", job}).out;
    return shown.find("Restarts=0") == std::string::npos &&
           (shown.find("JobState=RUNNING") != std::string::npos ||
            shown.find("JobState=COMPLETED") != std::string::npos);
  };
  for (int i = 0; i < 600; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (has_begun()) return;
    if (!clean()) continue;
    std::this_thread::sleep_for(std::chrono::seconds(2));
    if (lifted()) return;
  }
  throw std::runtime_error("job " + job + " of " + name + " cannot start again: " +
                           exec_on_login({"scontrol", "show", "job", job}).out);
}

void Facility::wan(double delay_ms, double rate_mbit, double loss_percent) const {
  must(script({"wan", name, std::to_string(delay_ms), std::to_string(rate_mbit),
               std::to_string(loss_percent)}),
       "wan");
}

void Facility::wan_off() const { must(script({"wan", name, "off"}), "wan off"); }
void Facility::cut() const { must(script({"wan", name, "cut"}), "wan cut"); }
void Facility::heal() const { must(script({"wan", name, "heal"}), "wan heal"); }

void Facility::certify(const std::string& validity) const {
  must(script({"certificate", name, certified_key.string(), validity}), "certificate");
}

void Facility::change_host_key() const { must(script({"host-key", name}), "host-key"); }

Testbed::Testbed(const std::vector<std::string>& names, const std::vector<std::string>& flavours) {
  add(names, flavours);
}

void Testbed::add(const std::vector<std::string>& names, const std::vector<std::string>& flavours) {
  std::vector<std::string> args = {"up"};
  if (facilities_.empty() && !keep())
    args.insert(args.end(), {"--owner", std::to_string(::getpid())});
  args.insert(args.end(), flavours.begin(), flavours.end());
  args.insert(args.end(), names.begin(), names.end());
  const ProcessResult result = run_script(state(), std::move(args));
  if (result.exit_code == kCannotRunHere) {
    why_not_ = result.err;
    return;
  }
  must(result, "up");
  for (const std::string& name : names) {
    facilities_[name] = describe(state(), name);
    facilities_[name].state_ = state();
  }
}

void Testbed::down() { must(run_script(state(), {"down"}), "down"); }

// Prints the ends of the daemons' logs after a failed test.
void Testbed::show_logs() const {
  std::error_code gone;
  for (const auto& [name, facility] : facilities_)
    for (const auto& log : std::filesystem::directory_iterator(facility.folder / "log", gone)) {
      if (!log.is_regular_file(gone) || log.path().extension() != ".log") continue;
      const ProcessResult tail = run_process({.argv = {"tail", "-n", "25", log.path().string()}});
      std::cerr << "--- " << log.path().string() << "\n" << tail.out;
    }
}

Testbed::~Testbed() {
  if (testing::Test::HasFailure() || std::uncaught_exceptions() > 0) show_logs();
  if (keep()) {
    const std::filesystem::path folder = state();
    dir_.release();  // leaves the folder
    std::cerr << "the testbed stays up: scripts/dev_cluster.sh status --state " << folder << "\n";
    return;
  }
  const ProcessResult result = run_script(state(), {"down"});
  if (result.exit_code != 0) std::cerr << "the testbed: down: " << result.err;
}

}  // namespace xffl::test
