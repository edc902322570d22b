#include "xffl/remote/login_shell.h"

#include <utility>

namespace xffl::remote {
namespace {

// The profile gets other files than the command: a welcome text on stdout would be read as the
// command's answer, and a profile that reads stdin would take the job script.
constexpr const char* kInLoginShell =
    R"sh(exec 7<&0 8>&1 9>&2; exec bash -lc 'exec 0<&7 1>&8 2>&9 7<&- 8>&- 9>&-; exec "$@"' )sh"
    R"sh(bash "$@" </dev/null >/dev/null 2>&1)sh";

class LoginShellSession final : public Session {
 public:
  explicit LoginShellSession(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  CommandResult run(const std::vector<std::string>& argv, const std::string& stdin_text,
                    std::chrono::milliseconds timeout, std::stop_token stop) override {
    return session_->run(in_login_shell(argv), stdin_text, timeout, std::move(stop));
  }

  std::optional<FileInfo> stat(const RemotePath& path) override { return session_->stat(path); }
  size_t read(const RemotePath& path, uint64_t offset, std::span<std::byte> out) override {
    return session_->read(path, offset, out);
  }
  void write(const RemotePath& path, uint64_t offset, std::span<const std::byte> bytes) override {
    session_->write(path, offset, bytes);
  }
  void download(const RemotePath& path, uint64_t offset, uint64_t length, const Sink& sink,
                std::stop_token stop) override {
    session_->download(path, offset, length, sink, std::move(stop));
  }
  void upload(const RemotePath& path, uint64_t offset, uint64_t length, const Source& source,
              std::stop_token stop) override {
    session_->upload(path, offset, length, source, std::move(stop));
  }
  std::optional<std::string> sha256(const RemotePath& path, uint64_t offset,
                                    uint64_t length) override {
    return session_->sha256(path, offset, length);
  }
  std::optional<std::vector<std::string>> block_hashes(const RemotePath& path, uint64_t offset,
                                                       uint64_t length,
                                                       uint64_t block_bytes) override {
    return session_->block_hashes(path, offset, length, block_bytes);
  }
  std::optional<uint64_t> free_bytes(const RemotePath& folder) override {
    return session_->free_bytes(folder);
  }
  void sync(const RemotePath& path) override { session_->sync(path); }
  void rename(const RemotePath& from, const RemotePath& to) override { session_->rename(from, to); }
  std::vector<FileView> look(const RemotePath& folder, std::span<const FileQuery> files) override {
    return session_->look(folder, files);
  }
  void put_files(const RemotePath& folder, std::span<const NewFile> files) override {
    session_->put_files(folder, files);
  }
  std::vector<std::string> list(const RemotePath& folder) override {
    return session_->list(folder);
  }
  void make_dirs(const RemotePath& folder) override { session_->make_dirs(folder); }
  void remove_tree(const RemotePath& path, std::stop_token stop) override {
    session_->remove_tree(path, std::move(stop));
  }

 private:
  const std::shared_ptr<Session> session_;
};

}  // namespace

std::vector<std::string> in_login_shell(const std::vector<std::string>& argv) {
  std::vector<std::string> wrapped{"sh", "-c", kInLoginShell, "sh"};
  wrapped.insert(wrapped.end(), argv.begin(), argv.end());
  return wrapped;
}

std::shared_ptr<Session> make_login_shell_session(std::shared_ptr<Session> session) {
  return std::make_shared<LoginShellSession>(std::move(session));
}

}  // namespace xffl::remote
