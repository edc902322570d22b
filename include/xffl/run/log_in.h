// Interactive login through a coordinator without a terminal: `xffl login F` shows a facility's
// prompts on its own terminal and sends the answers to the coordinator, which keeps the connection.
//
// The command and the coordinator use runs/0003/login.sock, which only this user may open. xffl
// neither keeps the answers nor writes them to a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <thread>

#include "xffl/base/file.h"
#include "xffl/base/names.h"
#include "xffl/history/run_folder.h"
#include "xffl/remote/ssh.h"

namespace xffl::run {

/// The coordinator's side, which listens during its lifetime. On a file system without sockets, the
/// server logs a warning and does nothing.
class LoginServer {
 public:
  /// Logs in to a facility; throws Error.
  using LogIn = std::function<void(const FacilityName&, const remote::Ask&)>;

  /// `history`: of the run. A coordinator that has lost the run leaves `socket` to its successor.
  LoginServer(std::filesystem::path socket, history::RunHistory& history, LogIn log_in);
  ~LoginServer();
  LoginServer(const LoginServer&) = delete;

 private:
  void serve(std::stop_token stop);

  const std::filesystem::path path_;
  const LogIn log_in_;
  uint64_t inode_ = 0;  // of this server's socket
  UniqueFd listener_;
  std::jthread thread_;
};

/// Lets the coordinator of the run log in to `facility` with the answers of `ask`. False when no
/// coordinator listens on this machine. Throws the coordinator's error: kAuth, kRemote, kNotFound.
/// Blocks.
bool log_in_through_coordinator(const history::RunFolder& folder, const FacilityName& facility,
                                const remote::Ask& ask);

}  // namespace xffl::run
