// The coordinator's side of xffl/run/log_in.h.
#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <thread>

#include "xffl/base/file.h"
#include "xffl/base/names.h"
#include "xffl/remote/ssh.h"

namespace xffl::run {

// Listens while it lives. Without a socket (the folder's file system has none) it says so in the
// log and does nothing.
class LoginServer {
 public:
  /// Logs in to a facility; throws Error.
  using LogIn = std::function<void(const FacilityName&, const remote::Ask&)>;

  LoginServer(std::filesystem::path socket, LogIn log_in);
  ~LoginServer();
  LoginServer(const LoginServer&) = delete;

 private:
  void serve(std::stop_token stop);

  const std::filesystem::path path_;
  const LogIn log_in_;
  UniqueFd listener_;
  std::jthread thread_;
};

}  // namespace xffl::run
