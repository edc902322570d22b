#include "support/sshd.h"

#include <pwd.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "support/free_port.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"
#include "xffl/base/shell.h"

namespace xffl::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr const char* kServer = "/usr/sbin/sshd";
constexpr const char* kSftpServer = "/usr/lib/openssh/sftp-server";

// 0 for a process that has just ended.
pid_t parent_of(pid_t pid) try {
  const std::string status = read_file("/proc/" + std::to_string(pid) + "/status", 100'000);
  const size_t at = status.find("\nPPid:");
  return at == std::string::npos ? 0 : std::stoi(status.substr(at + 6));
} catch (const Error&) {
  return 0;
}

// Appends all descendants of `top`, children before their parents.
void descendants(pid_t top, std::vector<pid_t>& found) {
  for (const ProcessInfo& process : list_processes())
    if (process.alive() && parent_of(process.pid) == top) {
      descendants(process.pid, found);
      found.push_back(process.pid);
    }
}

void write_file(const fs::path& path, const std::string& text, mode_t mode = 0600) {
  std::ofstream(path) << text;
  ::chmod(path.c_str(), mode);
}

}  // namespace

std::string own_user() { return ::getpwuid(::geteuid())->pw_name; }

std::string must_run(const std::vector<std::string>& argv) {
  const ProcessResult result = run_process({.argv = argv, .timeout = 30s});
  if (result.exit_code != 0) throw std::runtime_error(argv[0] + ": " + result.err + result.out);
  return result.out;
}

std::string Sshd::missing() {
  for (const char* program : {kServer, kSftpServer, "/usr/bin/ssh-keygen"})
    if (!fs::exists(program)) return std::string(program) + " is not installed";
  return "";
}

std::string Sshd::no_own_view() {
  const ProcessResult tried = run_process(
      {.argv = {"unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"}, .timeout = 30s});
  return tried.exit_code == 0 ? "" : "a mount namespace is refused: " + tried.err;
}

Sshd::Sshd(SshdOptions options) : options_(std::move(options)) {
  fs::create_directory(dir_ / "home");
  make_key("id");
  make_key("ca");
  if (options_.authorize_key)
    fs::copy_file(dir_ / "id.pub", dir_ / "authorized_keys");
  else
    write_file(dir_ / "authorized_keys", "");
  make_host_key();
  if (::geteuid() == 0) {
    fs::create_directory("/run/sshd");
    ::chmod("/run/sshd", 0755);
  }
  for (int attempt = 0;; ++attempt) try {
      port_ = free_port();
      write_config();
      start();
      break;
    } catch (const std::runtime_error&) {  // another program took the port meanwhile
      if (attempt == 3) throw;
    }
  trust_host_key();
}

Sshd::~Sshd() { stop(); }

fs::path Sshd::make_key(const std::string& name, const std::string& type) {
  must_run({"ssh-keygen", "-q", "-t", type, "-N", "", "-C", name, "-f", (dir_ / name).string()});
  return dir_ / name;
}

void Sshd::make_host_key() { make_key("host_key", options_.host_key_type); }

void Sshd::change_host_key() {
  fs::remove(dir_ / "host_key");
  fs::remove(dir_ / "host_key.pub");
  make_host_key();
}

void Sshd::trust_host_key() {
  write_file(known_hosts(), "[127.0.0.1]:" + std::to_string(port_) + " " +
                                read_file(dir_ / "host_key.pub", 10'000));
}

void Sshd::certify(const std::string& validity, const std::string& principals) {
  fs::remove(dir_ / "id-cert.pub");
  must_run({"ssh-keygen", "-q", "-s", (dir_ / "ca").string(), "-I", "test id", "-n", principals,
            "-V", validity, (dir_ / "id.pub").string()});
}

remote::SshSettings Sshd::settings() const {
  remote::SshSettings settings;
  settings.facility = "test";
  settings.hosts = {{"127.0.0.1", port_}};
  settings.user = own_user();
  settings.keys = {key()};
  settings.agent = false;
  settings.known_hosts = known_hosts();
  settings.shell = !options_.sftp_only;
  return settings;
}

void Sshd::write_config() {
  std::ostringstream text;
  for (const std::string& line : options_.config)
    text << line << "\n";  // sshd takes the first value
  text << "ListenAddress 127.0.0.1:" << port_ << "\nHostKey " << (dir_ / "host_key").string()
       << "\nPidFile none\nUsePAM no\nUseDNS no\nStrictModes no\nLogLevel VERBOSE\n"
       << "PermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
       << "PrintMotd no\nAuthorizedKeysFile " << (dir_ / "authorized_keys").string()
       << "\nTrustedUserCAKeys " << (dir_ / "ca.pub").string()
       << "\nSetEnv HOME=" << (dir_ / "home").string() << "\n";
  if (options_.sftp_only) {
    text << "Subsystem sftp internal-sftp\nForceCommand internal-sftp\n";
  } else {
    const fs::path wrapper = dir_ / "login";
    write_file(wrapper,
               "#!/bin/sh\n" + options_.before_login + "\nexec " +
                   quote_for_shell(options_.login_shell) + " -c \"$SSH_ORIGINAL_COMMAND\"\n",
               0700);
    text << "Subsystem sftp " << kSftpServer << "\nForceCommand exec " << wrapper.string() << "\n";
  }
  write_file(dir_ / "sshd_config", text.str());
}

void Sshd::start() {
  const int listening = count("Server listening on");
  std::vector<std::string> argv = {kServer, "-D", "-e", "-f", (dir_ / "sshd_config").string()};
  if (!options_.own_view.empty()) {
    const std::vector<std::string> inside = {
        "unshare", "--mount", "sh", "-c", "set -e\n" + options_.own_view + "\nexec \"$0\" \"$@\""};
    argv.insert(argv.begin(), inside.begin(), inside.end());
  }
  pid_ = start_detached({.argv = argv}, dir_ / "log");
  for (int i = 0; i < 500; ++i) {
    if (count("Server listening on") > listening) return;
    if (::waitpid(pid_, nullptr, WNOHANG) == pid_) break;
    std::this_thread::sleep_for(10ms);
  }
  throw std::runtime_error("sshd did not start: " + log());
}

std::vector<pid_t> Sshd::session_processes() const {
  std::vector<pid_t> found;
  if (pid_ > 0) descendants(pid_, found);
  return found;
}

void Sshd::stop() {
  if (pid_ <= 0) return;
  const std::vector<pid_t> sessions = session_processes();
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  for (const pid_t pid : sessions) ::kill(pid, SIGKILL);
  pid_ = 0;
}

std::string Sshd::log() const {
  return fs::exists(dir_ / "log") ? read_file(dir_ / "log", 64u << 20) : "";
}

int Sshd::count(const std::string& text) const {
  const std::string all = log();
  int times = 0;
  for (size_t at = all.find(text); at != std::string::npos; at = all.find(text, at + 1)) ++times;
  return times;
}

}  // namespace xffl::test
