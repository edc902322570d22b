// Access to a facility: commands, file queries and transfers. One of the four interfaces with side
// effects (docs/developer/architecture.md).
//
// Implementations: the local machine and SSH; tests have fakes. Every call blocks with its own
// deadline. A failure of the link throws kRemote, and the effect of the call is then unknown:
// callers query the facility's state. A refusal by the facility (no such file, no permission, disk
// full) throws kNotFound or kIo. A StopScope (stop_scope.h) ends every call of its thread. A log-in
// that needs a user's action (an expired certificate, a changed host key) throws kAuth; a repeated
// call uses the network only minutes later or after the credential has changed. Thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "xffl/base/names.h"

namespace xffl::remote {

struct FileInfo {
  enum class Type { kRegular, kFolder, kOther };  // kOther includes symbolic links
  Type type = Type::kRegular;
  uint64_t size_bytes = 0;
};

struct CommandResult {
  int exit_code = 0;
  std::string out;  // at most 16 MiB
  std::string err;
};

/// A file for look(), which returns its content up to `max_bytes`.
struct FileQuery {
  std::string name;
  uint64_t max_bytes = 0;
};
struct FileView {
  std::optional<FileInfo> info;  // empty: the file does not exist
  std::string bytes;             // the content of a regular file of at most max_bytes
};
struct NewFile {
  std::string name;  // "name/" is a folder
  std::string bytes;
};

/// Receives the next bytes of a download, in order.
using Sink = std::function<void(std::span<const std::byte>)>;
/// Fills `out` with the bytes of an upload at `offset`; the session calls the source in any order
/// of offsets, by one thread at a time.
using Source = std::function<void(uint64_t offset, std::span<std::byte> out)>;

class Session {
 public:
  virtual ~Session() = default;

  /// Runs an argument vector, quoted for every shell on the way. Throws kRemote after a time-out or
  /// a lost link.
  virtual CommandResult run(const std::vector<std::string>& argv, const std::string& stdin_text,
                            std::chrono::milliseconds timeout, std::stop_token stop) = 0;

  /// Empty when the file does not exist.
  virtual std::optional<FileInfo> stat(const RemotePath& path) = 0;
  /// Reads up to out.size() bytes from `offset`, fewer only at the end of the file. Returns their
  /// number.
  virtual size_t read(const RemotePath& path, uint64_t offset, std::span<std::byte> out) = 0;
  /// Writes `bytes` at `offset` of `path` and keeps all other bytes. Creates a missing file (mode
  /// 0600).
  virtual void write(const RemotePath& path, uint64_t offset, std::span<const std::byte> bytes) = 0;
  /// Streams `length` bytes from `offset` into `sink`. Throws kCorrupt when the file ends early and
  /// kCancelled on `stop`; passes on exceptions of `sink`.
  virtual void download(const RemotePath& path, uint64_t offset, uint64_t length, const Sink& sink,
                        std::stop_token stop);
  /// Writes `length` bytes at `offset` of `path` like write(), in parallel where parallel writes
  /// are faster. After an error any part of the range may be written.
  virtual void upload(const RemotePath& path, uint64_t offset, uint64_t length,
                      const Source& source, std::stop_token stop);
  /// The SHA-256 of a range, in hexadecimal, computed at the facility; empty when the facility has
  /// no shell or the file ends early. At most 64 MiB for each call, to limit the load of login
  /// nodes.
  virtual std::optional<std::string> sha256(const RemotePath& /*path*/, uint64_t /*offset*/,
                                            uint64_t /*length*/) {
    return std::nullopt;
  }
  /// The SHA-256 of each block of a range, in order; the last block may be shorter. Otherwise like
  /// sha256(), with one command for the range.
  virtual std::optional<std::vector<std::string>> block_hashes(const RemotePath& path,
                                                               uint64_t offset, uint64_t length,
                                                               uint64_t block_bytes);
  /// The free bytes under `folder` for this user; empty when the facility does not report them.
  virtual std::optional<uint64_t> free_bytes(const RemotePath& /*folder*/) { return std::nullopt; }
  /// Makes a written file durable.
  virtual void sync(const RemotePath& path) = 0;
  /// Replaces `to` atomically, within one file system; durable on return.
  virtual void rename(const RemotePath& from, const RemotePath& to) = 0;
  /// Queries files of one folder, and reads the small files, in few round trips. Returns one answer
  /// for each query, in order; a missing folder has no files.
  virtual std::vector<FileView> look(const RemotePath& folder, std::span<const FileQuery> files);
  /// Creates `folder` and writes small files (32 MiB together), each whole or absent, in few round
  /// trips. A file gets its final name only after all files before it have their final names.
  /// Durable on return.
  virtual void put_files(const RemotePath& folder, std::span<const NewFile> files);
  /// The names in a folder, sorted. Throws kNotFound when the folder does not exist.
  virtual std::vector<std::string> list(const RemotePath& folder) = 0;
  /// Creates a folder and its missing parents (mode 0700).
  virtual void make_dirs(const RemotePath& folder) = 0;
  /// Removes a folder or file; no error when absent; does not follow symbolic links. Throws
  /// kCancelled on `stop` and keeps the remaining files.
  virtual void remove_tree(const RemotePath& path, std::stop_token stop) = 0;
  void remove_tree(const RemotePath& path) { remove_tree(path, {}); }
};

/// Reads a small file. Throws kCorrupt when the file has more than `max_bytes`.
std::string read_text(Session& session, const RemotePath& path, uint64_t max_bytes);
/// Writes a temporary file, syncs it and renames it to `path`.
void write_text_atomic(Session& session, const RemotePath& path, std::string_view text);

/// Throws kCorrupt: the file is shorter than expected.
[[noreturn]] void fail_too_short(const RemotePath& path, uint64_t present, uint64_t expected);

/// The local machine as a facility.
std::unique_ptr<Session> make_local_session();

}  // namespace xffl::remote
