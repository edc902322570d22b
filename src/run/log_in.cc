// How it works: each message is one JSON object on a SOCK_SEQPACKET socket. The client sends
// {"facility"}; the coordinator sends {"prompt", "echo"} for each prompt, receives {"answer"}, and
// ends with {"error", "kind"}, where an empty error is success.
#include "xffl/run/log_in.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <system_error>

#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/history/run_history.h"
#include "xffl/remote/stop_scope.h"

namespace xffl::run {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kAnswerPatience{110};  // OpenSSH closes a connection without login after 120 s
constexpr seconds kLogInPatience{300};
constexpr size_t kMaxMessage = 8192;
constexpr int kMaxKind = static_cast<int>(ErrorKind::kFailed);

// A folder's path may exceed the limit of a socket's path: a descriptor replaces the folder's path.
struct Address {
  explicit Address(const std::filesystem::path& path)
      : folder(open_file(path.parent_path(), O_PATH | O_DIRECTORY)) {
    const std::string text =
        "/proc/self/fd/" + std::to_string(folder.get()) + "/" + path.filename().string();
    name.sun_family = AF_UNIX;
    text.copy(name.sun_path, sizeof name.sun_path - 1);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }

  UniqueFd folder;
  sockaddr_un name{};
};

UniqueFd make_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) throw system_error("make a socket", errno);
  return fd;
}

// False when no input comes within `patience` or on `stop`.
bool await_input(int fd, milliseconds patience, const std::stop_token& stop) {
  const auto ends = std::chrono::steady_clock::now() + patience;
  while (!stop.stop_requested() && std::chrono::steady_clock::now() < ends) {
    pollfd wait{fd, POLLIN, 0};
    if (::poll(&wait, 1, 100) > 0) return true;
  }
  return false;
}

void send_message(int fd, const Json& message) {
  std::string text = message.dump(-1, ' ', false, Json::error_handler_t::replace);
  const ssize_t sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
  explicit_bzero(text.data(), text.size());
  if (sent < 0)
    throw Error(ErrorKind::kAuth, "the other side of the log-in has closed the connection");
}

Json receive_message(int fd, milliseconds patience, const std::stop_token& stop) {
  if (!await_input(fd, patience, stop))
    throw Error(ErrorKind::kAuth,
                "no answer within " + std::to_string(patience.count() / 1000) + " s");
  char text[kMaxMessage];
  const ssize_t size = ::recv(fd, text, sizeof text, 0);
  if (size <= 0)
    throw Error(ErrorKind::kAuth, "the other side of the log-in has closed the connection");
  const Json message = parse_json({text, static_cast<size_t>(size)}, "a log-in's message");
  explicit_bzero(text, sizeof text);
  return message;
}

bool is_this_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0);
}

// Serves one client, from its request to the result.
void serve_client(int fd, const LoginServer::LogIn& log_in, const std::stop_token& stop) {
  Json end = {{"error", ""}, {"kind", 0}};
  try {
    const Json request = receive_message(fd, seconds(10), stop);
    const FacilityName facility(JsonObject(request, "a log-in's request").string("facility"));
    log_in(facility, [&](const std::string& prompt, bool echo) {
      send_message(fd, {{"prompt", prompt}, {"echo", echo}});
      const Json answer = receive_message(fd, kAnswerPatience, stop);
      return JsonObject(answer, "a log-in's answer").string("answer");
    });
    log::info("logged in by a user", {{"facility", facility.str()}});
  } catch (const Error& error) {
    end = {{"error", error.what()}, {"kind", static_cast<int>(error.kind())}};
  }
  send_message(fd, end);
}

// 0: there is no file.
uint64_t inode_of(const std::filesystem::path& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

}  // namespace

LoginServer::LoginServer(std::filesystem::path socket, history::RunHistory& history, LogIn log_in)
    : path_(std::move(socket)), log_in_(std::move(log_in)) {
  const std::filesystem::path work = history.work_name(path_);
  try {
    const Address address(work);
    UniqueFd listener = make_socket();
    if (::bind(listener.get(), address.get(), sizeof address.name) != 0 ||
        ::listen(listener.get(), 4) != 0)
      throw system_error("listen at " + path_.string(), errno);
    std::error_code problem;
    std::filesystem::permissions(work, std::filesystem::perms(0600), problem);
    if (problem) throw system_error("chmod " + work.string(), problem.value());
    inode_ = inode_of(work);
    history.check_writer();
    rename_durable(work, path_);  // in place of a killed coordinator's socket
    listener_ = std::move(listener);
    thread_ = std::jthread([this](std::stop_token stop) { serve(stop); });
  } catch (const Error& error) {
    std::error_code none;
    std::filesystem::remove(work, none);
    log::warning("`xffl login` cannot reach this run", {{"problem", error.what()}});
  }
}

LoginServer::~LoginServer() {
  if (!listener_) return;
  thread_.request_stop();
  thread_.join();
  // A coordinator that took the run over has a socket of its own there.
  std::error_code none;
  if (inode_of(path_) == inode_) std::filesystem::remove(path_, none);
}

void LoginServer::serve(std::stop_token stop) {
  const remote::StopScope stop_scope(stop);  // for a log-in at a host that hardly answers
  while (!stop.stop_requested()) {
    if (!await_input(listener_.get(), seconds(1), stop)) continue;
    const UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client) SystemClock().sleep(seconds(1), stop);  // no descriptor is left
    if (!client || !is_this_user(client.get())) continue;
    try {
      serve_client(client.get(), log_in_, stop);
    } catch (const std::exception& error) {  // a thread's top
      log::debug("a log-in was abandoned", {{"problem", error.what()}});
    }
  }
}

bool log_in_through_coordinator(const history::RunFolder& folder, const FacilityName& facility,
                                const remote::Ask& ask) {
  if (!std::filesystem::exists(folder.login())) return false;
  const Address address(folder.login());
  const UniqueFd fd = make_socket();
  if (::connect(fd.get(), address.get(), sizeof address.name) != 0) return false;
  send_message(fd.get(), {{"facility", facility.str()}});
  for (;;) {
    const Json message = receive_message(fd.get(), kLogInPatience, {});
    JsonObject object(message, "the coordinator's message");
    if (object.has("error")) {
      const std::string error = object.string("error");
      if (error.empty()) return true;
      throw Error(static_cast<ErrorKind>(object.integer("kind", 0, kMaxKind)), error);
    }
    std::string answer = ask(object.string("prompt"), object.boolean("echo"));
    send_message(fd.get(), {{"answer", answer}});
    explicit_bzero(answer.data(), answer.size());
  }
}

}  // namespace xffl::run
