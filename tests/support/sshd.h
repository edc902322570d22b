// A private sshd on the loopback interface, with its own host key, keys and certificate authority.
//
// Runs as whoever runs the tests, who is also the one who logs in. HOME is a folder of its own, so
// that nobody's start-up files take part. Everything ends with the object.
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
  std::string login_shell = "/bin/sh";  // used when before_login or this is set
  bool sftp_only = false;               // ForceCommand internal-sftp
  bool authorize_key = true;            // false: only certificates are accepted
  std::string host_key_type = "ed25519";
};

class Sshd {
 public:
  /// Why there can be none here; empty when there can.
  static std::string missing();

  explicit Sshd(SshdOptions options = {});
  Sshd(const Sshd&) = delete;
  ~Sshd();

  int port() const { return port_; }
  /// A log-in with the authorized key and the host key trusted, without an agent.
  remote::SshSettings settings() const;
  std::filesystem::path key() const { return dir_ / "id"; }
  std::filesystem::path known_hosts() const { return dir_ / "known_hosts"; }
  const TempDir& dir() const { return dir_; }

  /// Signs key() by the authority: "<key>-cert.pub". `validity` as for ssh-keygen -V.
  void certify(const std::string& validity, const std::string& principals);
  /// Another key pair "<dir>/NAME", not authorized.
  std::filesystem::path make_key(const std::string& name, const std::string& type = "ed25519");
  /// A new host key, from the next start() on; known_hosts() keeps the old one.
  void change_host_key();
  void trust_host_key();

  void start();
  void stop();  // the listener and every session
  /// The processes that serve the connections that are open.
  std::vector<pid_t> session_processes() const;
  std::string log() const;
  /// How often the log says `text`.
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

/// The name of whoever runs this process.
std::string own_user();
/// Runs a program that must succeed; returns its output.
std::string must_run(const std::vector<std::string>& argv);

}  // namespace xffl::test
