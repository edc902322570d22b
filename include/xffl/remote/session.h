// A way to a facility: run a command there, look at files, move bytes. One of the four interfaces
// to the world.
//
// Implementations: Local (this machine), Ssh; tests have fakes. Every call blocks with a deadline
// of its own. A failure of the link throws kRemote and says nothing about whether the effect
// happened: callers look it up. What the facility itself refuses (no such file, no permission, disk
// full) throws kNotFound or kIo. Thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "xffl/base/names.h"

namespace xffl::remote {

struct FileInfo {
  enum class Type { kRegular, kFolder, kOther };  // symbolic links are not followed: kOther
  Type type = Type::kRegular;
  uint64_t size_bytes = 0;
};

struct CommandResult {
  int exit_code = 0;
  std::string out;  // at most 16 MiB
  std::string err;
};

class Session {
 public:
  virtual ~Session() = default;

  /// Runs an argument vector; no shell sees unquoted text. Throws kRemote on timeout or a lost
  /// link.
  virtual CommandResult run(const std::vector<std::string>& argv, const std::string& stdin_text,
                            std::chrono::milliseconds timeout, std::stop_token stop) = 0;

  /// Empty when there is no such file.
  virtual std::optional<FileInfo> stat(const RemotePath& path) = 0;
  /// Up to out.size() bytes from `offset`; fewer only at the end of the file. Returns their number.
  virtual size_t read(const RemotePath& path, uint64_t offset, std::span<std::byte> out) = 0;
  /// Writes at `offset` of `path`, creating it (mode 0600); the file keeps what lies before.
  virtual void write(const RemotePath& path, uint64_t offset, std::span<const std::byte> bytes) = 0;
  /// Makes a written file durable.
  virtual void sync(const RemotePath& path) = 0;
  /// Replaces `to` atomically; both in one folder's file system; durable on return.
  virtual void rename(const RemotePath& from, const RemotePath& to) = 0;
  /// Plain names in a folder, sorted; kNotFound when it does not exist.
  virtual std::vector<std::string> list(const RemotePath& folder) = 0;
  /// mkdir -p, mode 0700.
  virtual void make_dirs(const RemotePath& folder) = 0;
  /// rm -rf of a folder or file; no error when absent; does not follow symbolic links.
  virtual void remove_tree(const RemotePath& path) = 0;
};

/// Reads a whole small file. Throws kCorrupt when it has more than `max_bytes`.
std::string read_text(Session& session, const RemotePath& path, uint64_t max_bytes);
/// Temp name, write, sync, rename.
void write_text_atomic(Session& session, const RemotePath& path, std::string_view text);

/// This machine as a facility.
std::unique_ptr<Session> make_local_session();

}  // namespace xffl::remote
