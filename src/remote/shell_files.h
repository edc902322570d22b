// Session's file operations by shell commands: POSIX sh, GNU coreutils and find.
//
// look_by_shell() and put_by_shell() serve every facility with a shell. ShellFiles is for hosts
// where SFTP is broken or absent; it is slower than SFTP, with one command for each call.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "connection.h"
#include "xffl/base/names.h"
#include "xffl/remote/session.h"

namespace xffl::remote {

/// The beginning of a script: exits with kNotThere or kNotRegular unless `path` is a regular file.
std::string require_regular(const RemotePath& path);
/// A dd command that reads or writes a range of `path`.
std::string dd_read(const RemotePath& path, uint64_t offset, uint64_t length);
/// The same dd command with two shell expressions, such as "$o" and "$n".
std::string dd_read(const RemotePath& path, const char* offset, const char* length);
std::string dd_write(const RemotePath& path, uint64_t offset);
/// The number of copied bytes in dd's messages; empty when absent.
std::optional<uint64_t> dd_copied(std::string_view err);

/// Throws the error of a failed script: kNotFound, kUnsupported (a command does not start), else
/// kIo.
[[noreturn]] void fail_by(int exit_code, const std::string& err, const std::string& activity);

class ShellFiles {
 public:
  explicit ShellFiles(std::shared_ptr<Connection> connection)
      : connection_(std::move(connection)) {}

  std::optional<FileInfo> stat(const RemotePath& path);
  size_t read(const RemotePath& path, uint64_t offset, std::span<std::byte> out);
  void write(const RemotePath& path, uint64_t offset, std::span<const std::byte> bytes);
  void sync(const RemotePath& path);
  void rename(const RemotePath& from, const RemotePath& to);
  std::vector<std::string> list(const RemotePath& folder);
  void make_dirs(const RemotePath& folder);
  void remove_tree(const RemotePath& path, const std::stop_token& stop);
  std::optional<std::string> sha256(const RemotePath& path, uint64_t offset, uint64_t length);
  std::optional<std::vector<std::string>> block_hashes(const RemotePath& path, uint64_t offset,
                                                       uint64_t length, uint64_t block_bytes);
  std::optional<uint64_t> free_bytes(const RemotePath& folder);

 private:
  CommandResult run(const std::string& script, std::string_view stdin_text = {},
                    const std::stop_token& stop = {});
  CommandResult check(const std::string& activity, const std::string& script,
                      std::string_view stdin_text = {});

  std::shared_ptr<Connection> connection_;
};

/// Runs a command that moves files through `input` or its output.
using RunCommand =
    std::function<CommandResult(const std::vector<std::string>& argv, const std::string& input)>;

/// See Session::look(). Throws kRemote when the answer is incomplete, kIo when the folder or a file
/// cannot be examined.
std::vector<FileView> look_by_shell(const RunCommand& run, const RemotePath& folder,
                                    std::span<const FileQuery> files);

/// See Session::put_files(). False when the facility's tools fail: no file has its final name then,
/// or all have it and only the sync of the folder failed.
/// Throws kRemote, kIo.
bool put_by_shell(const RunCommand& run, const RemotePath& folder, std::span<const NewFile> files);

}  // namespace xffl::remote
