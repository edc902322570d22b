// How it works: plain POSIX calls. open_regular() uses O_NOFOLLOW and O_NONBLOCK, so that it
// follows no symbolic link and does not block on a FIFO.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"
#include "xffl/remote/session.h"
#include "xffl/remote/stop_scope.h"

namespace xffl::remote {
namespace {

namespace fs = std::filesystem;

UniqueFd open_regular(const RemotePath& path, int flags) {
  UniqueFd fd = open_file(path.str(), flags | O_NOFOLLOW | O_NONBLOCK, 0600);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw system_error("stat " + path.str(), errno);
  if (!S_ISREG(info.st_mode))
    throw Error(ErrorKind::kIo, "cannot open " + path.str() + ": it is not a regular file");
  return fd;
}

[[noreturn]] void rethrow(const fs::filesystem_error& error, const std::string& activity) {
  throw system_error(activity, error.code().value());
}

class LocalSession final : public Session {
 public:
  CommandResult run(const std::vector<std::string>& argv, const std::string& stdin_text,
                    std::chrono::milliseconds timeout, std::stop_token stop) override {
    if (argv.empty()) throw Error(ErrorKind::kInternal, "a command needs a program");
    const StopScope scope(stop);
    ProcessResult result;
    try {
      result = run_process({.argv = argv, .stdin_text = stdin_text, .timeout = timeout},
                           StopScope::current());
    } catch (const Error& error) {
      // A missing program gives exit code 127, as in a shell.
      if (error.kind() != ErrorKind::kNotFound) throw;
      return {.exit_code = 127, .out = {}, .err = error.what()};
    }
    if (result.timed_out)
      throw Error(ErrorKind::kRemote, "'" + argv[0] + "' did not end within " +
                                          std::to_string(timeout.count()) + " ms");
    StopScope::check("'" + argv[0] + "' was running");
    return {result.exit_code, std::move(result.out), std::move(result.err)};
  }

  std::optional<FileInfo> stat(const RemotePath& path) override {
    struct stat info {};
    if (::lstat(path.str().c_str(), &info) != 0) {
      if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
      throw system_error("stat " + path.str(), errno);
    }
    const uint64_t size = static_cast<uint64_t>(info.st_size);
    if (S_ISREG(info.st_mode)) return FileInfo{FileInfo::Type::kRegular, size};
    if (S_ISDIR(info.st_mode)) return FileInfo{FileInfo::Type::kFolder, 0};
    return FileInfo{FileInfo::Type::kOther, 0};
  }

  size_t read(const RemotePath& path, uint64_t offset, std::span<std::byte> out) override {
    return read_at(open_regular(path, O_RDONLY).get(), offset, out, path.str());
  }

  void write(const RemotePath& path, uint64_t offset, std::span<const std::byte> bytes) override {
    write_at(open_regular(path, O_WRONLY | O_CREAT).get(), offset, bytes, path.str());
  }

  std::optional<uint64_t> free_bytes(const RemotePath& folder) override {
    struct statvfs info {};
    if (::statvfs(folder.str().c_str(), &info) != 0)
      throw system_error("query the free space of " + folder.str(), errno);
    return uint64_t{info.f_bavail} * info.f_frsize;
  }

  void sync(const RemotePath& path) override {
    const UniqueFd fd = open_regular(path, O_RDONLY);
    if (::fsync(fd.get()) != 0) throw system_error("fsync " + path.str(), errno);
  }

  void rename(const RemotePath& from, const RemotePath& to) override {
    rename_durable(from.str(), to.str());
  }

  std::vector<std::string> list(const RemotePath& folder) override {
    std::vector<std::string> names;
    try {
      for (const auto& entry : fs::directory_iterator(folder.str()))
        names.push_back(entry.path().filename().string());
    } catch (const fs::filesystem_error& error) {
      rethrow(error, "list the folder " + folder.str());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  void make_dirs(const RemotePath& folder) override {
    try {
      xffl::make_dirs(folder.str());
    } catch (const fs::filesystem_error& error) {
      rethrow(error, "create the folder " + folder.str());
    }
  }

  void remove_tree(const RemotePath& path, std::stop_token stop) override {
    if (stop.stop_requested())
      throw Error(ErrorKind::kCancelled, "stopped before " + path.str() + " was removed");
    std::error_code problem;
    fs::remove_all(path.str(), problem);  // libstdc++ uses openat and follows no symbolic link
    if (problem) throw system_error("remove " + path.str(), problem.value());
  }
};

}  // namespace

std::unique_ptr<Session> make_local_session() { return std::make_unique<LocalSession>(); }

}  // namespace xffl::remote
