// How it works: one thread for each connection, and no blocking call in it. The thread copies bytes
// between the channels of a libssh server session and the pipes of the programs.
#include "support/hostile_server.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>

#include "support/free_port.h"
#include "support/sshd.h"
#include "xffl/base/file.h"

// libssh's messages are the interface without callbacks; some of their accessors are deprecated.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace xffl::test {
namespace {

namespace fs = std::filesystem;
using SteadyClock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr const char* kSftpServer = "/usr/lib/openssh/sftp-server";
constexpr size_t kPieceBytes = 64u << 10;
constexpr size_t kMaxHeldBytes = 1u << 20;

uint32_t number_at(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

// Takes whole packets from the front of `held`.
std::vector<SftpPacket> take_packets(std::string& held) {
  std::vector<SftpPacket> packets;
  while (held.size() >= 4 && held.size() - 4 >= number_at(held, 0)) {
    const uint32_t length = number_at(held, 0);
    SftpPacket packet;
    packet.type = length > 0 ? static_cast<uint8_t>(held[4]) : 0;
    if (length >= 5) {
      packet.id = number_at(held, 5);
      packet.body = held.substr(9, length - 5);
    }
    held.erase(0, 4 + length);
    packets.push_back(std::move(packet));
  }
  return packets;
}

// How many bytes may pass now.
class Allowance {
 public:
  Allowance(double per_second, uint64_t free_bytes)
      : per_second_(per_second), free_(static_cast<double>(free_bytes)) {}
  size_t bytes() const {
    if (per_second_ < 0) return kPieceBytes;
    const double seconds = std::chrono::duration<double>(SteadyClock::now() - began_).count();
    const double left = free_ + per_second_ * seconds - passed_;
    return static_cast<size_t>(std::clamp(left, 0.0, static_cast<double>(kPieceBytes)));
  }
  void pass(size_t bytes) { passed_ += static_cast<double>(bytes); }

 private:
  const double per_second_, free_;
  const SteadyClock::time_point began_ = SteadyClock::now();
  double passed_ = 0;
};

class Pipe {
 public:
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    read_end = UniqueFd(ends[0]);
    write_end = UniqueFd(ends[1]);
  }
  UniqueFd read_end, write_end;
};

void set_nonblocking(const UniqueFd& fd) { ::fcntl(fd.get(), F_SETFL, O_NONBLOCK); }

}  // namespace

std::string SftpPacket::bytes() const {
  return sftp_u32(static_cast<uint32_t>(5 + body.size())) + static_cast<char>(type) + sftp_u32(id) +
         body;
}

std::string sftp_u32(uint32_t value) {
  std::string bytes(4, '\0');
  for (size_t i = 0; i < 4; ++i) bytes[i] = static_cast<char>(value >> (24 - 8 * i));
  return bytes;
}
std::string sftp_u64(uint64_t value) {
  return sftp_u32(static_cast<uint32_t>(value >> 32)) + sftp_u32(static_cast<uint32_t>(value));
}
std::string sftp_string(std::string_view text) {
  return sftp_u32(static_cast<uint32_t>(text.size())) + std::string(text);
}
std::string sftp_status(uint32_t id, uint32_t code, std::string_view message) {
  return SftpPacket{kSftpStatus, id, sftp_u32(code) + sftp_string(message) + sftp_string("en")}
      .bytes();
}

// A channel and the program behind it.
class HostileServer::Channel {
 public:
  explicit Channel(ssh_channel handle) : handle_(handle) {}
  ~Channel() { end_program(); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  ssh_channel handle() const { return handle_; }

  void start(const std::string& command, Behaviour behaviour, const fs::path& home,
             const fs::path& programs) {
    is_sftp_ = command == "sftp";
    behaviour_ = std::move(behaviour);
    sends_.emplace(behaviour_.sends_per_second, behaviour_.free_bytes);
    takes_.emplace(behaviour_.takes_per_second, 0);
    Pipe in, out, err;
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, in.read_end.get(), 0);
    ::posix_spawn_file_actions_adddup2(&actions, out.write_end.get(), 1);
    ::posix_spawn_file_actions_adddup2(&actions, err.write_end.get(), 2);
    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    std::vector<std::string> argv = {"/bin/sh", "-c", command};
    if (is_sftp_) argv = {kSftpServer};
    std::vector<char*> arguments;
    for (std::string& each : argv) arguments.push_back(each.data());
    arguments.push_back(nullptr);
    std::string home_variable = "HOME=" + home.string(),
                path = "PATH=" + (programs.empty() ? "" : programs.string() + ":") +
                       "/usr/bin:/bin:/usr/sbin";
    char* environment[] = {home_variable.data(), path.data(), nullptr};
    const int problem =
        ::posix_spawn(&pid_, arguments[0], &actions, &attributes, arguments.data(), environment);
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
    if (problem != 0) throw std::runtime_error("cannot start " + argv[0]);
    in_ = std::move(in.write_end);
    out_ = std::move(out.read_end);
    err_ = std::move(err.read_end);
    for (const UniqueFd* fd : {&in_, &out_, &err_}) set_nonblocking(*fd);
    if (behaviour_.on_start) behaviour_.on_start(ssh_channel_get_session(handle_), handle_);
  }

  // Moves some bytes; false when there were none to move.
  bool step() {
    if (pid_ == 0 || closed_) return false;
    if (ssh_channel_is_closed(handle_)) {
      end_program();
      closed_ = true;
      return false;
    }
    bool moved = take_input();
    moved = feed_program() || moved;
    moved = read_program(out_, true) || moved;
    moved = read_program(err_, false) || moved;
    moved = send() || moved;
    moved = flood() || moved;
    if (behaviour_.on_step && ssh_channel_is_open(handle_))
      moved = behaviour_.on_step(ssh_channel_get_session(handle_), handle_) || moved;
    if (!out_ && !err_ && to_client_.empty()) finish();
    return moved;
  }

 private:
  bool take_input() {
    const size_t most =
        std::min(takes_->bytes(), kMaxHeldBytes - std::min(kMaxHeldBytes, to_program_.size()));
    if (most == 0 || input_ended_) return false;
    std::array<char, kPieceBytes> bytes;
    const int n =
        ssh_channel_read_nonblocking(handle_, bytes.data(), static_cast<uint32_t>(most), 0);
    if (n == SSH_EOF || (n <= 0 && ssh_channel_is_eof(handle_))) {
      input_ended_ = true;
      return true;
    }
    if (n <= 0) return false;
    takes_->pass(static_cast<size_t>(n));
    const std::string_view piece(bytes.data(), static_cast<size_t>(n));
    if (!is_sftp_ || !behaviour_.on_request) {
      to_program_ += piece;
      return true;
    }
    from_client_ += piece;
    for (const SftpPacket& request : take_packets(from_client_)) {
      const bool starts = request.type == kSftpInit;  // its id is the version
      const auto forged = starts ? std::nullopt : behaviour_.on_request(request);
      if (forged)
        to_client_ += *forged;
      else
        to_program_ += request.bytes();
    }
    return true;
  }

  bool feed_program() {
    if (to_program_.empty()) {
      if (input_ended_) in_ = UniqueFd();
      return false;
    }
    const ssize_t n = in_ ? ::write(in_.get(), to_program_.data(), to_program_.size()) : -1;
    if (n < 0 && in_ && errno == EAGAIN) return false;
    to_program_.erase(0, n < 0 ? to_program_.size() : static_cast<size_t>(n));
    return true;
  }

  bool read_program(UniqueFd& fd, bool is_out) {
    std::string& held = is_out ? to_client_ : errors_;
    if (!fd || held.size() >= kMaxHeldBytes) return false;
    std::array<char, kPieceBytes> bytes;
    const ssize_t n = ::read(fd.get(), bytes.data(), bytes.size());
    if (n < 0) return false;
    if (n == 0) {
      fd = UniqueFd();
      return true;
    }
    const std::string_view piece(bytes.data(), static_cast<size_t>(n));
    has_output_ = true;
    if (is_out && is_sftp_ && behaviour_.on_answer) {
      from_program_ += piece;
      for (const SftpPacket& reply : take_packets(from_program_))
        held += reply.type == kSftpVersion ? reply.bytes() : behaviour_.on_answer(reply);
    } else if (is_out && !is_sftp_ && behaviour_.on_output) {
      held += behaviour_.on_output(piece);
    } else if (!is_out && !is_sftp_ && behaviour_.on_error) {
      held += behaviour_.on_error(piece);
    } else {
      held += piece;
    }
    return true;
  }

  bool send() {
    bool moved = write_some(errors_, errors_.size(), true) > 0;
    const uint64_t left = behaviour_.closes_after - std::min(behaviour_.closes_after, sent_);
    const size_t most = std::min<uint64_t>({sends_->bytes(), to_client_.size(), left});
    const size_t n = write_some(to_client_, most, false);
    sends_->pass(n);
    sent_ += n;
    if (sent_ >= behaviour_.closes_after) {
      ssh_channel_close(handle_);
      closed_ = true;
      end_program();
    }
    return moved || n > 0;
  }

  size_t write_some(std::string& held, size_t most, bool to_stderr) {
    most = std::min<size_t>({most, held.size(), ssh_channel_window_size(handle_), kPieceBytes});
    if (most == 0 || !ssh_channel_is_open(handle_)) return 0;
    if (ssh_get_poll_flags(ssh_channel_get_session(handle_)) & SSH_WRITE_PENDING) return 0;
    const auto count = static_cast<uint32_t>(most);
    const int n = to_stderr ? ssh_channel_write_stderr(handle_, held.data(), count)
                            : ssh_channel_write(handle_, held.data(), count);
    if (n <= 0) return 0;
    held.erase(0, static_cast<size_t>(n));
    return static_cast<size_t>(n);
  }

  bool flood() {
    // A command's flood begins after its first output, the mark that frames its stderr.
    if (!is_sftp_ && !has_output_) return false;
    bool moved = false;
    for (const bool to_stderr : {true, false})
      if (to_stderr ? behaviour_.floods_stderr : behaviour_.floods_stdout) {
        std::string zeros(32'768, '\0');
        moved = write_some(zeros, zeros.size(), to_stderr) > 0 || moved;
      }
    return moved;
  }

  // The program has closed its outputs, and the client has them.
  void finish() {
    if (pid_ < 0) return;
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) != pid_) return;
    pid_ = 0;
    if (behaviour_.hides_exit || behaviour_.floods_stderr || behaviour_.floods_stdout) {
      pid_ = -1;  // the flood goes on
      return;
    }
    if (!behaviour_.exit_signal.empty())
      ssh_channel_request_send_exit_signal(handle_, behaviour_.exit_signal.c_str(), 0,
                                           behaviour_.exit_signal.c_str(), "en");
    else
      ssh_channel_request_send_exit_status(handle_, WIFEXITED(status) ? WEXITSTATUS(status) : 255);
    ssh_channel_send_eof(handle_);
    ssh_channel_close(handle_);
    closed_ = true;
  }

  void end_program() {
    if (pid_ <= 0) return;
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

  const ssh_channel handle_;
  bool is_sftp_ = false, has_output_ = false, input_ended_ = false, closed_ = false;
  Behaviour behaviour_;
  std::optional<Allowance> sends_, takes_;
  pid_t pid_ = 0;
  UniqueFd in_, out_, err_;
  std::string from_client_, to_program_, from_program_, to_client_, errors_;
  uint64_t sent_ = 0;
};

std::string HostileServer::missing() {
  if (!fs::exists(kSftpServer)) return std::string(kSftpServer) + " is not installed";
  return Sshd::missing();
}

HostileServer::HostileServer() {
  for (const char* key : {"host_key", "id"})
    must_run({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", (dir_ / key).string()});
  fs::create_directory(dir_ / "home");
  for (int attempt = 0; bind_ == nullptr; ++attempt) {
    port_ = free_port();
    ssh_bind candidate = ssh_bind_new();
    const bool no = false;
    ssh_bind_options_set(candidate, SSH_BIND_OPTIONS_PROCESS_CONFIG, &no);
    ssh_bind_options_set(candidate, SSH_BIND_OPTIONS_BINDADDR, "127.0.0.1");
    ssh_bind_options_set(candidate, SSH_BIND_OPTIONS_BINDPORT, &port_);
    ssh_bind_options_set(candidate, SSH_BIND_OPTIONS_HOSTKEY, (dir_ / "host_key").c_str());
    if (ssh_bind_listen(candidate) == SSH_OK)
      bind_ = candidate;
    else if (ssh_bind_free(candidate); attempt == 3)  // another program took the port meanwhile
      throw std::runtime_error("no port for a server");
  }
  std::ofstream(dir_ / "known_hosts")
      << "[127.0.0.1]:" << port_ << " " << read_file(dir_ / "host_key.pub", 10'000);
  listener_ = std::jthread([this](const std::stop_token& stop) { listen(stop); });
}

HostileServer::~HostileServer() {
  listener_.request_stop();
  listener_.join();
  connections_.clear();
  ssh_bind_free(bind_);
}

remote::SshSettings HostileServer::settings(bool shell) const {
  remote::SshSettings settings;
  settings.facility = "test";
  settings.hosts = {{"127.0.0.1", port_}};
  settings.user = own_user();
  settings.keys = {dir_ / "id"};
  settings.agent = false;
  settings.known_hosts = dir_ / "known_hosts";
  settings.shell = shell;
  return settings;
}

void HostileServer::set(OnChannel on_channel) {
  const std::lock_guard lock(mutex_);
  on_channel_ = std::move(on_channel);
}

void HostileServer::set_greeting(Greeting greeting) {
  const std::lock_guard lock(mutex_);
  greeting_ = std::move(greeting);
}

HostileServer::Greeting HostileServer::greeting() const {
  const std::lock_guard lock(mutex_);
  return greeting_;
}

int HostileServer::channels(const std::string& part) const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(std::count_if(
      commands_.begin(), commands_.end(),
      [&](const std::string& command) { return command.find(part) != std::string::npos; }));
}

HostileServer::Behaviour HostileServer::behaviour_of(const std::string& command) {
  const std::lock_guard lock(mutex_);
  commands_.push_back(command);
  return on_channel_ ? on_channel_(command) : Behaviour{};
}

void HostileServer::listen(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    pollfd wait{ssh_bind_get_fd(bind_), POLLIN, 0};
    if (::poll(&wait, 1, 50) <= 0) continue;
    UniqueFd socket(::accept4(ssh_bind_get_fd(bind_), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) continue;
    ++num_connections_;
    if (auto raw = greeting().raw) {
      auto shared = std::make_shared<UniqueFd>(std::move(socket));
      connections_.emplace_back(
          [raw, shared](const std::stop_token& end) { raw(shared->get(), end); });
      continue;
    }
    ssh_session session = ssh_new();
    if (ssh_bind_accept_fd(bind_, session, socket.release()) != SSH_OK) {
      ssh_free(session);
      continue;
    }
    connections_.emplace_back([this, session](const std::stop_token& end) { serve(session, end); });
  }
}

void HostileServer::serve(ssh_session session, const std::stop_token& stop) {
  {
    std::list<Channel> channels;
    if (ssh_handle_key_exchange(session) == SSH_OK) {
      ssh_set_blocking(session, 0);
      while (!stop.stop_requested() && ssh_is_connected(session)) {
        bool moved = false;
        while (ssh_message message = ssh_message_get(session)) {
          moved = true;
          if (!answer(session, message, channels)) ssh_message_reply_default(message);
          ssh_message_free(message);
        }
        for (Channel& channel : channels) moved = channel.step() || moved;
        if (moved) continue;
        pollfd wait{ssh_get_fd(session), POLLIN, 0};
        if (ssh_get_poll_flags(session) & SSH_WRITE_PENDING) wait.events |= POLLOUT;
        ::poll(&wait, 1, 2);
      }
    }
  }
  ssh_disconnect(session);
  ssh_free(session);
}

bool HostileServer::log_in(ssh_session session, ssh_message message, int method) const {
  const Greeting now = greeting();
  if (!now.banner.empty()) {
    const ssh_string text = ssh_string_new(now.banner.size());
    ssh_string_fill(text, now.banner.data(), now.banner.size());
    ssh_send_issue_banner(session, text);
    ssh_string_free(text);
  }
  int methods = SSH_AUTH_METHOD_PUBLICKEY;
  if (now.prompts) {
    methods |= SSH_AUTH_METHOD_INTERACTIVE;
    if (method == SSH_AUTH_METHOD_INTERACTIVE) {
      const char* prompts[] = {now.prompt.c_str()};
      char echo[] = {0};
      ssh_message_auth_interactive_request(message, now.prompt.c_str(), now.prompt.c_str(), 1,
                                           prompts, echo);
      return true;
    }
  }
  if (method == SSH_AUTH_METHOD_PUBLICKEY && !now.refuses && !now.prompts) {
    if (ssh_message_auth_publickey_state(message) == SSH_PUBLICKEY_STATE_NONE)
      ssh_message_auth_reply_pk_ok_simple(message);
    else
      ssh_message_auth_reply_success(message, now.partial ? 1 : 0);
    return true;
  }
  ssh_message_auth_set_methods(message, methods);
  return false;
}

bool HostileServer::answer(ssh_session session, ssh_message message, std::list<Channel>& channels) {
  const int type = ssh_message_type(message), subtype = ssh_message_subtype(message);
  if (type == SSH_REQUEST_SERVICE) return ssh_message_service_reply_success(message), true;
  if (type == SSH_REQUEST_AUTH) return log_in(session, message, subtype);
  if (type == SSH_REQUEST_CHANNEL_OPEN && subtype == SSH_CHANNEL_SESSION) {
    if (greeting().no_channels) return false;
    ssh_channel handle = ssh_message_channel_request_open_reply_accept(message);
    if (handle != nullptr) channels.emplace_back(handle);
    return true;
  }
  if (type != SSH_REQUEST_CHANNEL) return false;
  const ssh_channel handle = ssh_message_channel_request_channel(message);
  const auto channel = std::find_if(channels.begin(), channels.end(),
                                    [&](const Channel& each) { return each.handle() == handle; });
  if (channel == channels.end()) return false;
  std::string command;
  if (subtype == SSH_CHANNEL_REQUEST_EXEC)
    command = ssh_message_channel_request_command(message);
  else if (subtype == SSH_CHANNEL_REQUEST_SUBSYSTEM)
    command = ssh_message_channel_request_subsystem(message);
  else
    return false;
  Behaviour behaviour = behaviour_of(command);
  if (behaviour.refuses) return false;
  ssh_message_channel_request_reply_success(message);
  channel->start(command, std::move(behaviour), dir_ / "home", programs_);
  return true;
}

}  // namespace xffl::test
