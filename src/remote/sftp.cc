#include "sftp.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::remote {
namespace {

constexpr uint8_t kInit = 1, kVersion = 2, kOpen = 3, kClose = 4, kReadRequest = 5,
                  kWriteRequest = 6, kLstat = 7, kOpendir = 11, kReaddir = 12, kRemove = 13,
                  kMkdir = 14, kRmdir = 15, kRename = 18, kStatus = 101, kHandle = 102, kData = 103,
                  kName = 104, kAttrs = 105, kExtended = 200, kExtendedReply = 201;
constexpr uint32_t kOk = 0, kEof = 1, kNoSuchFile = 2, kDenied = 3, kFailure = 4,
                   kUnsupportedCode = 8;
constexpr uint32_t kHasSize = 1, kHasOwner = 2, kHasMode = 4, kHasTimes = 8,
                   kHasExtended = 0x80000000u;
constexpr size_t kWindowBytes = 8u << 20;
constexpr size_t kMaxNames = 1'000'000, kMaxNameBytes = 64u << 20;  // per folder

FileInfo read_attributes(WireReader& in) {
  const uint32_t flags = in.u32();
  FileInfo info;
  const uint64_t size = flags & kHasSize ? in.u64() : 0;
  if (flags & kHasOwner) in.u64();
  const uint32_t mode = flags & kHasMode ? in.u32() : S_IFREG;
  if (flags & kHasTimes) in.u64();
  if (flags & kHasExtended)
    for (uint32_t left = in.u32(); left > 0; --left) {
      in.string();
      in.string();
    }
  info.type = S_ISREG(mode)   ? FileInfo::Type::kRegular
              : S_ISDIR(mode) ? FileInfo::Type::kFolder
                              : FileInfo::Type::kOther;
  info.size_bytes = info.type == FileInfo::Type::kRegular ? size : 0;
  return info;
}

}  // namespace

Sftp::Sftp(std::shared_ptr<Connection> connection, const std::stop_token& stop)
    : name_(connection->name()),
      channel_(Channel::sftp(connection, deadline_in(connection->timeouts().operation), stop)),
      arrived_(kWindowBytes) {
  start(stop);
}

void Sftp::start(const std::stop_token& stop) {
  send(kInit, WireWriter().u32(3).bytes(), stop);
  try {
    while (!complete()) fill(stop);
  } catch (const Error& error) {
    // The link is alive, but no SFTP server answers.
    if (error.kind() != ErrorKind::kRemote || !channel_.connection().alive()) throw;
    protocol_error(error.what());
  }
  uint32_t length = 0;
  std::string packet(reinterpret_cast<const char*>(arrived_.data() + begin_), end_ - begin_);
  WireReader head(packet, "SFTP");
  length = head.u32();
  if (length < 5 || length > kMaxPacketBytes || head.u8() != kVersion)
    protocol_error("the answer is not SFTP: '" + log::printable(packet, 100) + "'");
  begin_ += 4 + length;
  WireReader in(std::string_view(packet).substr(5, length - 1), "SFTP's version");
  in.u32();
  while (!in.done()) {
    extensions_.emplace(in.string());
    in.string();
  }
}

bool Sftp::complete() const {
  if (end_ - begin_ < 4) return false;
  uint32_t length = 0;
  for (size_t i = 0; i < 4; ++i) length = length << 8 | static_cast<uint32_t>(arrived_[begin_ + i]);
  return length > kMaxPacketBytes || end_ - begin_ >= 4 + size_t{length};
}

void Sftp::protocol_error(const std::string& problem) {
  broken_ = true;
  throw Error(ErrorKind::kUnsupported, "SFTP at " + name_ + ": " + problem);
}

void Sftp::fill(const std::stop_token& stop) {
  if (begin_ > 0) {
    std::memmove(arrived_.data(), arrived_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  try {
    const auto deadline = deadline_in(channel_.connection().timeouts().operation);
    const size_t n = channel_.read(std::span(arrived_).subspan(end_), deadline, stop,
                                   "waiting for an answer about files", kWindowBytes);
    if (n == 0) throw Error(ErrorKind::kRemote, "SFTP at " + name_ + " ended without an answer");
    end_ += n;
  } catch (const Error&) {
    broken_ = true;
    throw;
  }
}

SftpReply Sftp::next_packet() {
  const std::string_view all(reinterpret_cast<const char*>(arrived_.data() + begin_),
                             end_ - begin_);
  WireReader in(all, "SFTP");
  const uint32_t length = in.u32();
  if (length < 5 || length > kMaxPacketBytes)
    protocol_error("an answer of " + std::to_string(length) + " bytes");
  SftpReply reply;
  reply.type = in.u8();
  reply.id = in.u32();
  reply.payload = in.rest().substr(0, length - 5);
  begin_ += 4 + length;
  --waiting_;
  return reply;
}

SftpReply Sftp::receive(const std::stop_token& stop) {
  while (!complete()) fill(stop);
  return next_packet();
}

std::optional<SftpReply> Sftp::try_receive() {
  if (!complete()) return std::nullopt;
  return next_packet();
}

void Sftp::send(uint8_t type, const std::string& body, const std::stop_token& stop,
                std::span<const std::byte> tail) {
  const auto size = static_cast<uint32_t>(1 + body.size() + tail.size());
  std::string packet = WireWriter().u32(size).u8(type).bytes() + body;
  packet.append(reinterpret_cast<const char*>(tail.data()), tail.size());
  try {
    channel_.write(std::as_bytes(std::span(packet)),
                   deadline_in(channel_.connection().timeouts().operation), stop,
                   "sending a request about files");
  } catch (const Error&) {
    broken_ = true;  // a part of the packet may have been sent
    throw;
  }
}

uint32_t Sftp::request(uint8_t type, const WireWriter& body, const std::stop_token& stop,
                       std::span<const std::byte> tail) {
  const uint32_t id = next_id_++;
  send(type, WireWriter().u32(id).bytes() + body.bytes(), stop, tail);
  ++waiting_;
  return id;
}

SftpReply Sftp::call(uint8_t type, const WireWriter& body, const std::stop_token& stop) {
  const uint32_t id = request(type, body, stop);
  SftpReply reply = receive(stop);
  if (reply.id != id) protocol_error("an answer without a request");
  return reply;
}

SftpStatus Sftp::status_of(const SftpReply& reply) {
  if (reply.type != kStatus)
    protocol_error("an unexpected answer of type " + std::to_string(reply.type));
  WireReader in(reply.payload, "SFTP's status");
  SftpStatus status{in.u32(), {}};
  if (!in.done()) status.message = in.string();
  return status;
}

// Version 3 has one code, "failure", for a full disk, an existing name and other errors.
void Sftp::fail(const SftpStatus& status, const std::string& activity) {
  const ErrorKind kind = status.code == kNoSuchFile        ? ErrorKind::kNotFound
                         : status.code == kUnsupportedCode ? ErrorKind::kUnsupported
                                                           : ErrorKind::kIo;
  const char* meaning = status.code == kNoSuchFile ? "no such file"
                        : status.code == kDenied   ? "permission denied"
                        : status.code == kFailure
                            ? "refused (a full disk or quota, or an existing name?)"
                            : "refused";
  throw Error(kind, "cannot " + activity + " at " + name_ + ": " + meaning + " (SFTP code " +
                        std::to_string(status.code) + ": " + log::printable(status.message, 200) +
                        ")");
}

void Sftp::expect_ok(const SftpReply& reply, const std::string& activity) {
  const SftpStatus status = status_of(reply);
  if (status.code != kOk) fail(status, activity);
}

std::string_view Sftp::data_of(const SftpReply& reply, const std::string& activity) {
  if (reply.type == kData) return WireReader(reply.payload, "SFTP's data").string();
  const SftpStatus status = status_of(reply);
  if (status.code != kEof) fail(status, activity);
  return {};
}

std::optional<FileInfo> Sftp::lstat(const std::string& path) {
  const SftpReply reply = call(kLstat, WireWriter().string(path));
  if (reply.type == kAttrs) {
    WireReader in(reply.payload, "SFTP's attributes");
    return read_attributes(in);
  }
  const SftpStatus status = status_of(reply);
  if (status.code == kNoSuchFile) return std::nullopt;
  fail(status, "look at " + path);
}

std::string Sftp::open(const std::string& path, uint32_t flags, const std::stop_token& stop) {
  WireWriter body;
  body.string(path).u32(flags).u32(kHasMode).u32(0600);
  const SftpReply reply = call(kOpen, body, stop);
  if (reply.type == kHandle)
    return std::string(WireReader(reply.payload, "SFTP's handle").string());
  fail(status_of(reply), "open " + path);
}

void Sftp::close(const std::string& handle) {
  expect_ok(call(kClose, WireWriter().string(handle)), "close a file");
}

void Sftp::fsync(const std::string& handle, const std::string& path) {
  if (!has("fsync@openssh.com")) return;  // durability is then the server's
  expect_ok(call(kExtended, WireWriter().string("fsync@openssh.com").string(handle)),
            "make durable " + path);
}

void Sftp::rename(const std::string& from, const std::string& to) {
  WireWriter body;
  const bool posix = has("posix-rename@openssh.com");
  if (posix) body.string("posix-rename@openssh.com");
  body.string(from).string(to);
  expect_ok(call(posix ? kExtended : kRename, body), "rename " + from + " to " + to);
}

std::map<std::string, FileInfo> Sftp::list(const std::string& folder) {
  const SftpReply opened = call(kOpendir, WireWriter().string(folder));
  if (opened.type != kHandle) fail(status_of(opened), "list the folder " + folder);
  const std::string handle(WireReader(opened.payload, "SFTP's handle").string());
  std::map<std::string, FileInfo> names;
  size_t count = 0, bytes = 0;  // also counts repeated names
  for (;;) {
    const SftpReply reply = call(kReaddir, WireWriter().string(handle));
    if (reply.type != kName) {
      const SftpStatus status = status_of(reply);
      close(handle);
      if (status.code != kEof) fail(status, "list the folder " + folder);
      return names;
    }
    WireReader in(reply.payload, "SFTP's names");
    for (uint32_t left = in.u32(); left > 0; --left) {
      const std::string name(in.string());
      in.string();  // the line of ls -l
      const FileInfo info = read_attributes(in);
      if (name.find('/') != std::string::npos || name.empty())
        protocol_error("a folder entry is named '" + log::printable(name, 100) + "'");
      if (name != "." && name != "..") names[name] = info;
      bytes += name.size();
      if (++count > kMaxNames || bytes > kMaxNameBytes)
        protocol_error("more than a million names in " + folder);
    }
  }
}

void Sftp::make_folders(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders)
    request(kMkdir, WireWriter().string(folder).u32(kHasMode).u32(0700));
  for (size_t i = 0; i < folders.size(); ++i) receive({});
}

void Sftp::remove_file(const std::string& path) {
  const SftpStatus status = status_of(call(kRemove, WireWriter().string(path)));
  if (status.code != kOk && status.code != kNoSuchFile) fail(status, "remove " + path);
}

void Sftp::remove_folder(const std::string& path) {
  const SftpStatus status = status_of(call(kRmdir, WireWriter().string(path)));
  if (status.code != kOk && status.code != kNoSuchFile) fail(status, "remove the folder " + path);
}

std::optional<uint64_t> Sftp::free_bytes(const std::string& folder) {
  if (!has("statvfs@openssh.com")) return std::nullopt;
  const SftpReply reply =
      call(kExtended, WireWriter().string("statvfs@openssh.com").string(folder));
  if (reply.type != kExtendedReply) fail(status_of(reply), "query the free space of " + folder);
  WireReader in(reply.payload, "SFTP's file system");
  in.u64();
  const uint64_t unit = in.u64();
  in.u64();
  in.u64();
  return unit * in.u64();
}

uint32_t Sftp::send_read(const std::string& handle, uint64_t offset, uint32_t count,
                         const std::stop_token& stop) {
  return request(kReadRequest, WireWriter().string(handle).u64(offset).u32(count), stop);
}

uint32_t Sftp::send_write(const std::string& handle, uint64_t offset,
                          std::span<const std::byte> bytes, const std::stop_token& stop) {
  WireWriter body;
  body.string(handle).u64(offset).u32(static_cast<uint32_t>(bytes.size()));
  return request(kWriteRequest, body, stop, bytes);
}

}  // namespace xffl::remote
