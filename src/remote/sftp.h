// An SFTP version 3 client over one channel, with requests in flight.
//
// libssh's own client waits for each answer and cannot pipeline writes; this client sends any
// number of requests and receives the answers in any order. Source: draft-ietf-secsh-filexfer-02
// and OpenSSH's PROTOCOL section 4 (posix-rename, fsync, statvfs). One thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "channel.h"
#include "wire.h"
#include "xffl/remote/session.h"

namespace xffl::remote {

/// The server's answer to one request.
struct SftpReply {
  uint32_t id = 0;
  uint8_t type = 0;
  std::string payload;  // after the id
};

/// SSH_FXP_STATUS.
struct SftpStatus {
  uint32_t code = 0;  // 0: ok, 1: end of file
  std::string message;
};

class Sftp {
 public:
  enum Open : uint32_t { kRead = 1, kWrite = 2, kCreate = 8 };

  /// Throws kRemote; kUnsupported when the answer is not SFTP (a start-up file that prints).
  Sftp(std::shared_ptr<Connection> connection, const std::stop_token& stop);

  /// False after a lost answer, which makes the client unusable.
  bool usable() const { return !broken_ && waiting_ == 0; }
  bool alive() { return channel_.connection().alive(); }
  bool has(const std::string& extension) const { return extensions_.count(extension) != 0; }

  std::optional<FileInfo> lstat(const std::string& path);
  std::string open(const std::string& path, uint32_t flags, const std::stop_token& stop = {});
  void close(const std::string& handle);
  void fsync(const std::string& handle, const std::string& path);
  void rename(const std::string& from, const std::string& to);
  /// Names with their types, without "." and "..".
  std::map<std::string, FileInfo> list(const std::string& folder);
  /// mkdir -p; ignores errors, the caller checks the result.
  void make_folders(const std::vector<std::string>& folders);
  void remove_file(const std::string& path);
  void remove_folder(const std::string& path);
  std::optional<uint64_t> free_bytes(const std::string& folder);

  // Requests in flight.
  uint32_t send_read(const std::string& handle, uint64_t offset, uint32_t count,
                     const std::stop_token& stop);
  uint32_t send_write(const std::string& handle, uint64_t offset, std::span<const std::byte> bytes,
                      const std::stop_token& stop);
  /// The next answer, to any of the requests.
  SftpReply receive(const std::stop_token& stop);
  /// The next answer if it has arrived already.
  std::optional<SftpReply> try_receive();
  /// Throws unless the status is ok.
  void expect_ok(const SftpReply& reply, const std::string& activity);
  /// The bytes of an answer to a read; empty at the end of the file.
  std::string_view data_of(const SftpReply& reply, const std::string& activity);

  /// The maximum bytes of one write request.
  size_t write_bytes() const { return has("posix-rename@openssh.com") ? 128u << 10 : 32u << 10; }

 private:
  static constexpr uint32_t kMaxPacketBytes = 512u << 10;

  void start(const std::stop_token& stop);
  void send(uint8_t type, const std::string& body, const std::stop_token& stop,
            std::span<const std::byte> tail = {});
  uint32_t request(uint8_t type, const WireWriter& body, const std::stop_token& stop = {},
                   std::span<const std::byte> tail = {});
  SftpReply call(uint8_t type, const WireWriter& body, const std::stop_token& stop = {});
  bool complete() const;
  SftpReply next_packet();
  void fill(const std::stop_token& stop);
  SftpStatus status_of(const SftpReply& reply);
  [[noreturn]] void fail(const SftpStatus& status, const std::string& activity);
  [[noreturn]] void protocol_error(const std::string& problem);

  std::string name_;
  Channel channel_;
  std::set<std::string> extensions_;
  std::vector<std::byte> arrived_;
  size_t begin_ = 0, end_ = 0;  // the unread part of arrived_
  uint32_t next_id_ = 1;
  int waiting_ = 0;  // outstanding answers
  bool broken_ = false;
};

}  // namespace xffl::remote
