// An SFTP version 3 client over one channel, with requests in flight.
//
// libssh's own client waits for each answer and cannot pipeline writes; this client sends any
// number of requests and receives the answers in any order. Source: draft-ietf-secsh-filexfer-02
// and OpenSSH's PROTOCOL section 4 (posix-rename, fsync, statvfs). Only one thread at a time may
// use a client. The file operations have the contracts of Session. A request without its whole
// answer within timeouts().operation throws kRemote, as does a read() that takes longer; download()
// and upload() wait for as long while no byte arrives.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "connection.h"
#include "wire.h"
#include "xffl/remote/session.h"

namespace xffl::remote {

class Sftp {
 public:
  /// Throws kRemote; kUnsupported when the answer is not SFTP (a start-up file that prints).
  Sftp(std::shared_ptr<Connection> connection, const std::stop_token& stop);

  /// False after a lost answer, a lost link, the server's end of the channel, or a failed call that
  /// left a handle open; the client is then unusable. The server closes a client's handles with it.
  bool usable();

  std::optional<FileInfo> stat(const RemotePath& path);
  size_t read(const RemotePath& path, uint64_t offset, std::span<std::byte> out);
  void write(const RemotePath& path, uint64_t offset, std::span<const std::byte> bytes);
  void sync(const RemotePath& path);
  void rename(const RemotePath& from, const RemotePath& to);
  std::vector<std::string> list(const RemotePath& folder);
  void make_dirs(const RemotePath& folder);
  void remove_tree(const RemotePath& path, const std::stop_token& stop);
  std::optional<uint64_t> free_bytes(const RemotePath& folder);

  /// Reads `length` bytes from `offset` with many requests in flight; fewer only when the file ends
  /// early. Returns the number of bytes passed to `sink`.
  uint64_t download(const RemotePath& path, uint64_t offset, uint64_t length, const Sink& sink,
                    const std::stop_token& stop);
  /// Writes the range with many requests in flight; creates the file.
  void upload(const RemotePath& path, uint64_t begin, uint64_t end, const Source& source,
              const std::stop_token& stop);

 private:
  struct Reply {
    uint32_t id = 0;
    uint8_t type = 0;
    std::string payload;  // after the id
  };
  struct Status {  // SSH_FXP_STATUS
    uint32_t code = 0;
    std::string message;
  };
  struct PendingRead {
    uint32_t id;
    uint64_t offset;
    uint32_t count;
    std::string bytes;
    bool answered = false;
  };
  enum Open : uint32_t { kRead = 1, kWrite = 2, kCreate = 8 };

  // Packets and answers. One deadline holds for a request and its answer; with kWhileMoving the
  // time starts again with each received byte.
  static constexpr Deadline kWhileMoving = Deadline::max();
  Deadline operation_deadline() {
    return std::min(latest_, deadline_in(channel_.connection().timeouts().operation));
  }
  void start(const std::stop_token& stop);
  void send(uint8_t type, const std::string& body, const std::stop_token& stop,
            std::span<const std::byte> tail, Deadline deadline);
  uint32_t request(uint8_t type, const WireWriter& body, const std::stop_token& stop = {},
                   std::span<const std::byte> tail = {}, Deadline deadline = kWhileMoving);
  Reply call(uint8_t type, const WireWriter& body, const std::stop_token& stop = {});
  bool complete() const;
  void make_room();
  void consume(size_t num_bytes);
  // The next answer, to any of the requests.
  Reply receive(const std::stop_token& stop, Deadline deadline = kWhileMoving);
  void fill(const std::stop_token& stop, Deadline deadline);
  Status status_of(const Reply& reply);
  void expect_ok(const Reply& reply, const std::string& activity);
  [[noreturn]] void fail(const Status& status, const std::string& activity);
  [[noreturn]] void protocol_error(const std::string& problem);
  bool has(const std::string& extension) const { return extensions_.contains(extension); }

  // Requests for files.
  std::optional<FileInfo> lstat(const std::string& path);
  std::string open(const std::string& path, uint32_t flags, const std::stop_token& stop = {});
  void close(const std::string& handle);
  void fsync(const std::string& handle, const std::string& path);
  /// Opens, syncs and closes a file or folder.
  void sync_open(const std::string& path);
  std::map<std::string, FileInfo> entries(const std::string& folder);
  void remove(uint8_t type, const std::string& path);
  void remove_below(const std::string& folder, int depth, const std::stop_token& stop);
  void require_regular(const RemotePath& path, bool may_be_absent);
  uint32_t send_read(const std::string& handle, uint64_t offset, uint32_t count,
                     const std::stop_token& stop);
  void take_answer(const std::string& handle, std::deque<PendingRead>& pending, bool& at_end,
                   const std::string& activity, const std::stop_token& stop);

  std::string name_;
  Channel channel_;
  std::set<std::string> extensions_;
  std::vector<std::byte> arrived_;  // empty while no answer is outstanding
  size_t begin_ = 0, end_ = 0;      // the unread part of arrived_
  uint32_t next_id_ = 1;
  int waiting_ = 0;                 // outstanding answers
  int num_open_ = 0;                // handles
  Deadline latest_ = kWhileMoving;  // of all requests of a read()
  bool broken_ = false;
};

}  // namespace xffl::remote
