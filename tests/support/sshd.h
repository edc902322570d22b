// A private sshd on the loopback interface, with its own host key, keys and certificate authority.
//
// Server and login use the account that runs the tests. HOME is a private folder, so that the
// account's start-up files do not run. The destructor ends the server and its sessions.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/temp_dir.h"
#include "xffl/remote/ssh.h"

namespace xffl::test {

struct SshdOptions {
  std::vector<std::string> config;      // lines of sshd_config
  std::string before_login;             // a POSIX script run before every command: noise, a pause
  std::string login_shell = "/bin/sh";  // runs the commands
  bool sftp_only = false;               // ForceCommand internal-sftp
  bool authorize_key = true;            // false: only certificates are accepted
  std::string host_key_type = "ed25519";
  /// A POSIX script that mounts the server's own view of the files (in a mount namespace); see
  /// Sshd::no_own_view().
  std::string own_view;
};

class Sshd {
 public:
  /// The reason why no sshd can run here; empty when one can.
  static std::string missing();
  /// The reason why a server cannot have mounts of its own here; empty when it can.
  static std::string no_own_view();

  explicit Sshd(SshdOptions options = {});
  Sshd(const Sshd&) = delete;
  ~Sshd();

  int port() const { return port_; }
  /// Settings for a login with the authorized key, a trusted host key and no agent.
  remote::SshSettings settings() const;
  std::filesystem::path key() const { return dir_ / "id"; }
  std::filesystem::path known_hosts() const { return dir_ / "known_hosts"; }
  const TempDir& dir() const { return dir_; }

  /// The authority signs key(): "<key>-cert.pub". `validity` as for ssh-keygen -V.
  void certify(const std::string& validity, const std::string& principals);
  /// Creates another key pair "<dir>/NAME", not authorized.
  std::filesystem::path make_key(const std::string& name, const std::string& type = "ed25519");
  /// Creates a new host key for the next start(); known_hosts() keeps the old key.
  void change_host_key();
  void trust_host_key();

  void start();
  void stop();  // the listener and every session
  /// The processes that serve open connections.
  std::vector<pid_t> session_processes() const;
  std::string log() const;
  /// The number of occurrences of `text` in the log.
  int count(const std::string& text) const;
  int connections() const { return count("Connection from "); }

 private:
  void write_config();
  void make_host_key();

  TempDir dir_;
  SshdOptions options_;
  int port_ = 0;
  pid_t pid_ = 0;
};

/// The account name of this process.
std::string own_user();
/// Runs a program that must succeed; returns its output.
std::string must_run(const std::vector<std::string>& argv);

}  // namespace xffl::test
