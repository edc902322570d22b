// How it works: file operations use SFTP, which needs no process at the facility for each request.
// Where SFTP is broken (a start-up file that prints) or absent, file operations use shell commands.
// Bulk transfers use commands where the facility has a shell, else SFTP.
#include <algorithm>
#include <atomic>
#include <mutex>

#include "connector.h"
#include "framed_command.h"
#include "known_hosts.h"
#include "sftp.h"
#include "shell_files.h"
#include "ssh_transfer.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/base/shell.h"
#include "xffl/remote/ssh.h"
#include "xffl/remote/stop_scope.h"

namespace xffl::remote {
namespace {

class SshSession final : public Session {
 public:
  explicit SshSession(const SshSettings& settings,
                      std::shared_ptr<ConnectionLimits> limits = nullptr, Ask ask = {})
      : connector_(settings, std::move(limits), std::move(ask)) {
    connector_.on_new = [this](Connection& connection) {
      connection.on_full = [this] { drop_idle(); };
      ++generation_;
      drop_idle();
      sftp_unavailable_ = false;
    };
  }
  ~SshSession() override { drop_idle(); }

  void connect(const Ask* ask) { connector_.get(ask); }

  CommandResult run(const std::vector<std::string>& argv, const std::string& stdin_text,
                    std::chrono::milliseconds timeout, std::stop_token stop) override {
    if (argv.empty()) throw Error(ErrorKind::kInternal, "a command needs a program");
    if (!settings().shell)
      throw Error(ErrorKind::kUnsupported, "'" + argv[0] + "' cannot be run at " +
                                               host_label(settings().hosts.at(0)) +
                                               ": it only transfers files (shell: false)");
    const StopScope scope(stop);
    const auto connection = connector_.get();
    return with_context("'" + argv[0] + "'", [&] {
      return watched(connection, [&] {
        return run_script(connection, "exec " + quote_argv_for_shell(argv), stdin_text, timeout,
                          stop);
      });
    });
  }

  std::optional<FileInfo> stat(const RemotePath& path) override {
    return files([&](auto& way) { return way.stat(path); });
  }
  size_t read(const RemotePath& path, uint64_t offset, std::span<std::byte> out) override {
    return files([&](auto& way) { return way.read(path, offset, out); });
  }
  void write(const RemotePath& path, uint64_t offset, std::span<const std::byte> bytes) override {
    changing([&] { files([&](auto& way) { way.write(path, offset, bytes); }); });
  }
  void sync(const RemotePath& path) override {
    changing([&] { files([&](auto& way) { way.sync(path); }); });
  }
  void rename(const RemotePath& from, const RemotePath& to) override {
    changing([&] { files([&](auto& way) { way.rename(from, to); }); });
  }
  std::vector<std::string> list(const RemotePath& folder) override {
    return files([&](auto& way) { return way.list(folder); });
  }
  void make_dirs(const RemotePath& folder) override {
    changing([&] { files([&](auto& way) { way.make_dirs(folder); }); });
  }
  void remove_tree(const RemotePath& path, std::stop_token stop) override {
    const StopScope scope(stop);
    const auto info = stat(path);
    if (!info) return;
    // One command removes a whole tree where the facility has a shell.
    changing([&] {
      if (settings().shell && info->type == FileInfo::Type::kFolder)
        return ShellFiles(connector_.get()).remove_tree(path, stop);
      files([&](auto& way) { way.remove_tree(path, stop); });
    });
  }
  std::optional<std::string> sha256(const RemotePath& path, uint64_t offset,
                                    uint64_t length) override {
    if (!settings().shell) return std::nullopt;
    return ShellFiles(connector_.get()).sha256(path, offset, length);
  }
  std::optional<std::vector<std::string>> block_hashes(const RemotePath& path, uint64_t offset,
                                                       uint64_t length,
                                                       uint64_t block_bytes) override {
    if (!settings().shell) return std::nullopt;
    return ShellFiles(connector_.get()).block_hashes(path, offset, length, block_bytes);
  }
  std::optional<uint64_t> free_bytes(const RemotePath& folder) override {
    return files([&](auto& way) { return way.free_bytes(folder); });
  }

  std::vector<FileView> look(const RemotePath& folder,
                             std::span<const FileQuery> queries) override {
    if (!settings().shell) return Session::look(folder, queries);
    return look_by_shell(moving("look at the files of " + folder.str()), folder, queries);
  }
  void put_files(const RemotePath& folder, std::span<const NewFile> new_files) override {
    changing([&] {
      if (!settings().shell ||
          !put_by_shell(moving("put files into " + folder.str()), folder, new_files))
        Session::put_files(folder, new_files);
    });
  }

  void download(const RemotePath& path, uint64_t offset, uint64_t length, const Sink& sink,
                std::stop_token stop) override {
    if (length == 0) return;
    const StopScope scope(stop);
    if (settings().shell) return download_by_shell(bulk(length), path, offset, length, sink, stop);
    Lease lease(*this, stop);
    const uint64_t given = lease.sftp->download(path, offset, length, sink, stop);
    if (given < length) fail_too_short(path, offset + given, offset + length);
  }

  void upload(const RemotePath& path, uint64_t offset, uint64_t length, const Source& source,
              std::stop_token stop) override {
    const StopScope scope(stop);
    if (length == 0) return write(path, offset, {});
    bool source_failed = false;  // then the login node is not to blame
    const Source watched = [&](uint64_t at, std::span<std::byte> out) {
      source_failed = true;
      source(at, out);
      source_failed = false;
    };
    changing(
        [&] {
          upload_ranges(bulk(length), settings().shell, path, offset, length, watched,
                        settings().streams, stop);
        },
        &source_failed);
  }

 private:
  // An SFTP client for one thread; the destructor returns it to the idle clients.
  struct Lease {
    Lease(SshSession& owner, const std::stop_token& stop = {})
        : session(owner), generation(owner.generation_) {
      const auto connection = owner.connector_.get();
      do  // a site may end the idle processes of its login nodes
        sftp = owner.acquire_idle();
      while (sftp && !sftp->usable());
      if (!sftp) sftp = std::make_unique<Sftp>(connection, stop);
    }
    Lease(const Lease&) = delete;
    ~Lease() {
      if (sftp && sftp->usable()) session.release(std::move(sftp), generation);
    }
    SshSession& session;
    const uint64_t generation;
    std::unique_ptr<Sftp> sftp;
  };

  const SshSettings& settings() const { return connector_.settings(); }

  RunCommand moving(const std::string& activity) {
    return [this, activity](const std::vector<std::string>& argv, const std::string& input) {
      const auto connection = connector_.get();
      return watched(connection, [&] {
        return run_moving_script(connection, "exec " + quote_argv_for_shell(argv), input, activity,
                                 {});
      });
    };
  }

  // Calls `command`, which runs a command through `connection`. A login node may keep its
  // connections and run nothing: at its limit of processes, with a log-in shell that hangs, without
  // a free channel. After repeated failures of this kind the session looks for another node.
  template <class Command>
  CommandResult watched(const std::shared_ptr<Connection>& connection, Command command) {
    try {
      CommandResult result = command();
      const std::lock_guard lock(mutex_);
      failures_ = {};
      return result;
    } catch (const Error& error) {
      const bool has_no_answer =
          error.kind() == ErrorKind::kRemote || error.kind() == ErrorKind::kUnsupported;
      if (has_no_answer && connection->alive() && fails_repeatedly(connection))
        connector_.leave(connection, error.what(), NodeTrouble::kRunsNoCommand);
      throw;
    }
  }

  // Counts a failure of a command.
  bool fails_repeatedly(const std::shared_ptr<Connection>& connection) {
    const auto now = connector_.now();
    const std::lock_guard lock(mutex_);
    if (failures_.through.lock() != connection) failures_ = {connection, 0, now};
    if (++failures_.count < kMaxFailures || now - failures_.since < kFailuresTime) return false;
    failures_ = {};
    return true;
  }

  Connections bulk(uint64_t length) {
    const auto connection = connector_.get();
    if (!wants_several(*connection, length)) return {connection};
    return connector_.get_several(kBulkConnections);
  }

  // Calls `operation`, which changes files. One login node may have lost the file system that the
  // nodes share, or have it read-only. When the node refuses a change and another node can be
  // reached, the caller retries there: kRemote instead of kIo. No node is left when `own_error`.
  template <class Operation>
  void changing(Operation operation, const bool* own_error = nullptr) {
    const auto connection = connector_.get();
    try {
      operation();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kIo || (own_error != nullptr && *own_error) ||
          !connector_.leave(connection, error.what()))
        throw;
      throw Error(ErrorKind::kRemote,
                  std::string(error.what()) + " (the next try uses another log-in node)");
    }
  }

  // Calls `operation` with an Sftp, or with ShellFiles where SFTP does not work.
  template <class Operation>
  auto files(Operation operation) -> decltype(operation(std::declval<Sftp&>())) {
    if (!sftp_unavailable_ || !settings().shell) {
      std::optional<Lease> lease;
      try {
        lease.emplace(*this);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kUnsupported) throw;
        if (!settings().shell) throw Error(ErrorKind::kRemote, error.what());
        log::warning("SFTP does not work, using shell commands instead",
                     {{"host", host_label(settings().hosts.at(0))}, {"why", error.what()}});
        sftp_unavailable_ = true;
      }
      if (lease) return operation(*lease->sftp);
    }
    ShellFiles shell(connector_.get());
    return operation(shell);
  }

  std::unique_ptr<Sftp> acquire_idle() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return nullptr;
    auto sftp = std::move(idle_.back());
    idle_.pop_back();
    return sftp;
  }
  // An Sftp of an earlier connection ends.
  void release(std::unique_ptr<Sftp> sftp, uint64_t generation) {
    const std::lock_guard lock(mutex_);
    if (generation == generation_ && idle_.size() < kMaxIdle) idle_.push_back(std::move(sftp));
  }
  void drop_idle() {
    std::vector<std::unique_ptr<Sftp>> dropped;  // destroyed after the mutex is released
    const std::lock_guard lock(mutex_);
    dropped.swap(idle_);
  }

  static constexpr size_t kMaxIdle = 2;
  static constexpr int kBulkConnections = 3;
  // A burst of failures, as at a limit of processes, may end by itself.
  static constexpr int kMaxFailures = 3;
  static constexpr std::chrono::minutes kFailuresTime{5};
  // Commands without an answer since the last answer, through one connection.
  struct Failures {
    std::weak_ptr<Connection> through;
    int count = 0;
    Clock::MonotonicTime since{};
  };
  std::mutex mutex_;
  std::vector<std::unique_ptr<Sftp>> idle_;
  Failures failures_;
  std::atomic<bool> sftp_unavailable_ = false;
  std::atomic<uint64_t> generation_ = 0;  // of the connection
  Connector connector_;
};

HostKey host_key(const SshHost& host, const PublicKey& key) {
  return {host, key.type, key_fingerprint(key.blob), host_label(host) + " " + key.line()};
}

PublicKey parsed(const HostKey& key) {
  const std::string& line = key.line;
  const auto parsed = parse_public_key(line.substr(std::min(line.find(' ') + 1, line.size())));
  if (!parsed) throw Error(ErrorKind::kInternal, "not a known_hosts line: " + line);
  return *parsed;
}

}  // namespace

std::shared_ptr<Session> make_ssh_session(const SshSettings& settings,
                                          std::shared_ptr<ConnectionLimits> limits, Ask ask) {
  return std::make_shared<SshSession>(settings, std::move(limits), std::move(ask));
}

std::shared_ptr<Session> log_in(const SshSettings& settings, const Ask& ask) {
  auto session = std::make_shared<SshSession>(settings);
  session->connect(&ask);
  return session;
}

void log_in(Session& session, const Ask& ask) {
  if (auto* ssh = dynamic_cast<SshSession*>(&session)) ssh->connect(&ask);
}

std::string renewal(const SshSettings& settings) {
  return settings.renew.empty() ? "renew the key or certificate"
                                : "renew it with: " + log::printable(settings.renew, 300);
}

HostKey fetch_host_key(const SshSettings& settings, const SshHost& host, const Ask& ask) {
  Connector connector(settings, nullptr, ask);
  const auto shown = [&](const std::vector<PublicKey>& wanted) {
    const auto greeting = connector.greet(host, wanted);
    return host_key(host, server_key(greeting.session.get()));
  };
  // A host may have several keys; the user compares the key of a pinned type.
  const auto pinned = pinned_keys(settings.known_hosts, host);
  if (pinned.empty()) return shown({});
  try {
    return shown(pinned);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kAuth) throw;
    return shown({});
  }
}

std::vector<HostKey> trusted_keys(const SshSettings& settings, const SshHost& host) {
  std::vector<HostKey> keys;
  for (const PublicKey& key : pinned_keys(settings.known_hosts, host))
    keys.push_back(host_key(host, key));
  return keys;
}

void trust(const SshSettings& settings, const HostKey& key) {
  pin_key(settings.known_hosts, key.host, parsed(key));
}

void trust_also(const SshSettings& settings, const HostKey& key) {
  pin_also(settings.known_hosts, key.host, parsed(key));
}

}  // namespace xffl::remote
