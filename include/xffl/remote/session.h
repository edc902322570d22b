// A way to a facility: run a command there, look at files, move bytes. One of the four interfaces
// to the world.
//
// Implementations: Local (this machine), Ssh; tests have fakes. Every call blocks with a deadline
// of its own. A failure of the link throws kRemote and says nothing about whether the effect
// happened: callers look it up. What the facility itself refuses (no such file, no permission, disk
// full) throws kNotFound or kIo. A log-in that needs a person (an expired certificate, a changed
// host key) throws kAuth: calling again is free, and touches the network only once the credential
// has changed. Thread-safe.
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
  enum class Type { kRegular, kFolder, kOther };  // symbolic links are not followed: kOther
  Type type = Type::kRegular;
  uint64_t size_bytes = 0;
};

struct CommandResult {
  int exit_code = 0;
  std::string out;  // at most 16 MiB
  std::string err;
};

/// A file that look() is asked about; its content is wanted when it has at most `max_bytes`.
struct FileQuery {
  std::string name;
  uint64_t max_bytes = 0;
};
struct FileView {
  std::optional<FileInfo> info;  // empty: there is no such file
  std::string bytes;             // of a regular file of at most max_bytes
};
struct NewFile {
  std::string name;  // "name/" is a folder
  std::string bytes;
};

/// Takes the next bytes of a download, in order.
using Sink = std::function<void(std::span<const std::byte>)>;
/// Fills `out` with the bytes at `offset` of what is uploaded; called in any order of offsets, by
/// one thread at a time.
using Source = std::function<void(uint64_t offset, std::span<std::byte> out)>;

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
  /// Streams `length` bytes from `offset` into `sink`. Throws kCorrupt when the file ends before,
  /// what `sink` throws, and kCancelled on `stop`.
  virtual void download(const RemotePath& path, uint64_t offset, uint64_t length, const Sink& sink,
                        std::stop_token stop);
  /// Writes `length` bytes at `offset` of `path` as write() would; in parallel where that is
  /// faster, so that after an error any part of the range may be written.
  virtual void upload(const RemotePath& path, uint64_t offset, uint64_t length,
                      const Source& source, std::stop_token stop);
  /// The SHA-256 of a range, in hexadecimal, computed at the facility; empty when it cannot compute
  /// (no shell) or the file ends before. At most 64 MiB a call, to be light on log-in nodes.
  virtual std::optional<std::string> sha256(const RemotePath& path, uint64_t offset,
                                            uint64_t length);
  /// Bytes that this user may still write under `folder`; empty when the facility does not say.
  virtual std::optional<uint64_t> free_bytes(const RemotePath& folder);
  /// Makes a written file durable.
  virtual void sync(const RemotePath& path) = 0;
  /// Replaces `to` atomically; both in one folder's file system; durable on return.
  virtual void rename(const RemotePath& from, const RemotePath& to) = 0;
  /// Looks at files of one folder, and brings the small ones, in as few round trips as there may
  /// be. One answer for each query, in order; a folder that is not there has none of them.
  virtual std::vector<FileView> look(const RemotePath& folder, std::span<const FileQuery> files);
  /// Makes `folder` and puts small files (32 MiB together) there, each whole or absent, in order: a
  /// file has its name only when those before it have theirs. Durable on return. As few round trips
  /// as there may be.
  virtual void put_files(const RemotePath& folder, std::span<const NewFile> files);
  /// Plain names in a folder, sorted; kNotFound when it does not exist.
  virtual std::vector<std::string> list(const RemotePath& folder) = 0;
  /// mkdir -p, mode 0700.
  virtual void make_dirs(const RemotePath& folder) = 0;
  /// rm -rf of a folder or file; no error when absent; does not follow symbolic links. On `stop`
  /// what is left stays, and kCancelled is thrown.
  virtual void remove_tree(const RemotePath& path, std::stop_token stop) = 0;
  void remove_tree(const RemotePath& path) { remove_tree(path, {}); }
};

/// Reads a whole small file. Throws kCorrupt when it has more than `max_bytes`.
std::string read_text(Session& session, const RemotePath& path, uint64_t max_bytes);
/// Temp name, write, sync, rename.
void write_text_atomic(Session& session, const RemotePath& path, std::string_view text);

/// This machine as a facility.
std::unique_ptr<Session> make_local_session();

}  // namespace xffl::remote
