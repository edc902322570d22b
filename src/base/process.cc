#include "xffl/base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "xffl/base/error.h"
#include "xffl/base/file.h"

extern char** environ;

namespace xffl {
namespace {

using std::chrono::steady_clock;

std::vector<std::string> environment_of(const ProcessSpec& spec) {
  std::vector<std::string> entries;
  if (spec.inherit_env)
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      if (!spec.env.contains(text.substr(0, text.find('=')))) entries.push_back(text);
    }
  for (const auto& [name, value] : spec.env) entries.push_back(name + "=" + value);
  return entries;
}

// Everything that fork's child needs, made before fork: after it only async-signal-safe calls are
// allowed.
struct ChildPlan {
  std::vector<std::string> argv, env;
  std::vector<char*> argv_pointers, env_pointers;
  std::string cwd;
  int in = -1, out = -1, err = -1, status = -1;
};

ChildPlan make_plan(const ProcessSpec& spec) {
  if (spec.argv.empty()) throw Error(ErrorKind::kInternal, "a process needs a program");
  ChildPlan plan;
  plan.argv = spec.argv;
  plan.env = environment_of(spec);
  plan.argv_pointers = exec_pointers(plan.argv);
  plan.env_pointers = exec_pointers(plan.env);
  plan.cwd = spec.cwd.string();
  return plan;
}

[[noreturn]] void become(const ChildPlan& plan) {
  ::setsid();  // a session and process group of its own: it survives us, and all of it can be
               // signalled
  for (int signal_number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD, SIGQUIT, SIGUSR1, SIGUSR2})
    ::signal(signal_number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const bool ready = ::dup2(plan.in, 0) >= 0 && ::dup2(plan.out, 1) >= 0 &&
                     ::dup2(plan.err, 2) >= 0 &&
                     (plan.cwd.empty() || ::chdir(plan.cwd.c_str()) == 0);
  if (ready) ::execvpe(plan.argv_pointers[0], plan.argv_pointers.data(), plan.env_pointers.data());
  const int problem = errno;
  [[maybe_unused]] const ssize_t told = ::write(plan.status, &problem, sizeof problem);
  ::_exit(127);
}

// While SIGCHLD is ignored, as some parents leave it, the kernel reaps children by itself.
void keep_exit_codes() {
  struct sigaction action {};
  ::sigaction(SIGCHLD, nullptr, &action);
  if (action.sa_handler == SIG_IGN || (action.sa_flags & SA_NOCLDWAIT) != 0)
    ::signal(SIGCHLD, SIG_DFL);
}

// Forks and waits until exec has succeeded or failed.
pid_t start(ChildPlan& plan, const std::string& name) {
  keep_exit_codes();
  Pipe status = make_pipe();
  plan.status = status.write.get();
  const pid_t pid = ::fork();
  if (pid < 0) throw system_error("start " + name, errno);
  if (pid == 0) become(plan);
  status.write = UniqueFd();
  if (const int problem = exec_error(status.read.get()); problem != 0) {
    wait_for_exit(pid);
    throw system_error("start " + name, problem);
  }
  return pid;
}

int exit_code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Reaps a child that has ended; empty while it runs.
std::optional<int> exit_of(pid_t pid) {
  int status = 0;
  const pid_t ended = ::waitpid(pid, &status, WNOHANG);
  if (ended < 0 && errno != EINTR) throw system_error("wait for a child process", errno);
  return ended == pid ? std::optional(exit_code_of(status)) : std::nullopt;
}

// Moves bytes between the child's pipes and memory until both outputs are closed.
class Pump {
 public:
  Pump(const ProcessSpec& spec, ProcessResult& result, UniqueFd in, UniqueFd out, UniqueFd err)
      : spec_(spec),
        result_(result),
        in_(std::move(in)),
        out_(std::move(out)),
        err_(std::move(err)) {
    if (spec_.stdin_text.empty()) in_ = UniqueFd();
    for (int fd : {in_.get(), out_.get(), err_.get()})
      if (fd >= 0) ::fcntl(fd, F_SETFL, O_NONBLOCK);
  }

  bool done() const { return !out_ && !err_; }

  void step(std::chrono::milliseconds wait) {
    pollfd fds[3] = {{in_.get(), POLLOUT, 0}, {out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}};
    if (::poll(fds, 3, static_cast<int>(wait.count())) <= 0) return;
    if (fds[0].revents != 0) feed();
    if (fds[1].revents != 0) drain(out_, result_.out);
    if (fds[2].revents != 0) drain(err_, result_.err);
  }

 private:
  void feed() {
    const ssize_t n =
        ::write(in_.get(), spec_.stdin_text.data() + fed_, spec_.stdin_text.size() - fed_);
    if (n > 0) fed_ += static_cast<size_t>(n);
    if ((n < 0 && errno != EAGAIN && errno != EINTR) || fed_ == spec_.stdin_text.size())
      in_ = UniqueFd();
  }
  void drain(UniqueFd& fd, std::string& text) {
    char block[1 << 15];
    const ssize_t n = ::read(fd.get(), block, sizeof block);
    if (n > 0)
      text.append(block, std::min(static_cast<size_t>(n), spec_.max_output_bytes - text.size()));
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) fd = UniqueFd();
  }

  const ProcessSpec& spec_;
  ProcessResult& result_;
  UniqueFd in_, out_, err_;
  size_t fed_ = 0;
};

// A write to a child that has closed its stdin must be an error, not our end.
void ignore_sigpipe() {
  struct sigaction action {};
  ::sigaction(SIGPIPE, nullptr, &action);
  if (action.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

ProcessResult run_process(const ProcessSpec& spec, std::stop_token stop) {
  ignore_sigpipe();
  ChildPlan plan = make_plan(spec);
  Pipe in = make_pipe(), out = make_pipe(), err = make_pipe();
  plan.in = in.read.get();
  plan.out = out.write.get();
  plan.err = err.write.get();
  const pid_t pid = start(plan, spec.argv[0]);
  in.read = UniqueFd();
  out.write = UniqueFd();
  err.write = UniqueFd();

  ProcessResult result;
  Pump pump(spec, result, std::move(in.write), std::move(out.read), std::move(err.read));
  const auto began = steady_clock::now();
  std::optional<steady_clock::time_point> terminated;
  std::optional<int> exit_code;
  while (!pump.done() || !(exit_code = exit_of(pid))) {
    // A child may close its outputs and go on.
    if (pump.done())
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    else
      pump.step(std::chrono::milliseconds(100));
    const auto now = steady_clock::now();
    const bool late = spec.timeout.count() > 0 && now - began > spec.timeout;
    if (!terminated && (late || stop.stop_requested())) {
      result.timed_out = late;
      ::kill(-pid, SIGTERM);
      terminated = now;
    }
    if (terminated && now - *terminated > std::chrono::seconds(2)) {
      ::kill(-pid, SIGKILL);
      break;
    }
  }
  result.exit_code = exit_code ? *exit_code : wait_for_exit(pid);
  return result;
}

pid_t start_detached(const ProcessSpec& spec, const std::filesystem::path& output) {
  ChildPlan plan = make_plan(spec);
  UniqueFd null = open_file("/dev/null", O_RDONLY);
  UniqueFd log = open_file(output, O_WRONLY | O_CREAT | O_APPEND, 0600);
  plan.in = null.get();
  plan.out = plan.err = log.get();
  return start(plan, spec.argv[0]);
}

std::vector<char*> exec_pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

int exec_error(int pipe) {
  int problem = 0;
  ssize_t n;
  do {
    n = ::read(pipe, &problem, sizeof problem);
  } while (n < 0 && errno == EINTR);
  return n == sizeof problem ? problem : 0;
}

int wait_for_exit(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) throw system_error("wait for a child process", errno);
  return exit_code_of(status);
}

std::optional<uint64_t> process_start_ticks(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  // The program's name, field 2, may hold spaces and parentheses: count fields from the last ')'.
  std::istringstream rest(text.substr(text.rfind(')') + 1));
  std::string field;
  for (int index = 3; index <= 22; ++index) {
    if (!(rest >> field)) return std::nullopt;
    if (index == 3 && (field == "Z" || field == "X")) return std::nullopt;  // ended, not yet reaped
  }
  return std::stoull(field);
}

}  // namespace xffl
