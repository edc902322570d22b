#include "sftp.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "receive_memory.h"
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
constexpr uint32_t kMaxPacketBytes = 512u << 10;
constexpr size_t kWindowBytes = 8u << 20;
constexpr size_t kMaxNames = 100'000, kMaxNameBytes = 8u << 20;  // per folder
constexpr int kMaxEmptyAnswers = 16;                             // to READDIR, in a row
constexpr int kMaxDepth = 64;
// Old servers answer with at most kReadBytes. The reads in flight are 8 MiB together, and less when
// many downloads run at once.
constexpr uint32_t kReadBytes = 64u << 10;
constexpr size_t kReadsInFlight = 128, kMinReadsInFlight = 16;
constexpr size_t kAnswerBytes = kReadBytes + 16;  // with the head of the packet
constexpr size_t kWriteBytes = 128u << 10, kPortableWriteBytes = 32u << 10;  // of one request
constexpr int kWritesInFlight = 32;
constexpr size_t kSftpBlockBytes = 256u << 10;

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

// For messages: a path may have names that the facility gave.
std::string printable_path(std::string_view path) { return log::printable(path, 5000); }

}  // namespace

Sftp::Sftp(std::shared_ptr<Connection> connection, const std::stop_token& stop)
    : name_(connection->name()),
      channel_(Channel::sftp(connection, deadline_in(connection->timeouts().operation), stop)) {
  start(stop);
}

void Sftp::start(const std::stop_token& stop) {
  const Deadline deadline = operation_deadline();
  send(kInit, WireWriter().u32(3).bytes(), stop, {}, deadline);
  try {
    while (!complete()) fill(stop, deadline);
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
  consume(4 + length);
  WireReader in(std::string_view(packet).substr(5, length - 1), "SFTP's version");
  in.u32();
  while (!in.done()) {
    extensions_.emplace(in.string());
    in.string();
  }
}

bool Sftp::usable() {
  if (broken_ || waiting_ != 0 || num_open_ != 0 || !channel_.connection().alive()) return false;
  bool is_open = false;
  channel_.connection().with(
      [&](ssh_session) { is_open = channel_.takes_input() && !channel_.at_end(); });
  return is_open;
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

// The buffer has room for the outstanding answers: 64 KiB for a request, up to the 8 MiB of a
// window for a download, because libssh 0.10 opens the window only as far as the buffer reaches.
// Behind an unread part that fills the buffer, a longer answer needs more.
void Sftp::make_room() {
  const size_t outstanding = static_cast<size_t>(std::max(waiting_, 1));
  const size_t longer = end_ < arrived_.size() ? 0 : 2 * end_;
  const size_t room = std::max(std::min(kWindowBytes, outstanding * kAnswerBytes), longer);
  if (room > arrived_.size()) arrived_.resize(room);
}

// A session keeps idle clients for days, one or two for each facility, so that a client without
// outstanding answers holds no buffer.
void Sftp::consume(size_t num_bytes) {
  begin_ += num_bytes;
  if (begin_ < end_ || waiting_ > 0) return;
  begin_ = end_ = 0;
  arrived_ = std::vector<std::byte>();
}

void Sftp::fill(const std::stop_token& stop, Deadline deadline) {
  if (begin_ > 0) {
    std::memmove(arrived_.data(), arrived_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  make_room();
  try {
    const size_t n =
        channel_.read(std::span(arrived_).subspan(end_), std::min(deadline, operation_deadline()),
                      stop, "waiting for an answer about files", arrived_.size());
    if (n == 0) throw Error(ErrorKind::kRemote, "SFTP at " + name_ + " ended without an answer");
    end_ += n;
  } catch (const Error&) {
    broken_ = true;
    throw;
  }
}

Sftp::Reply Sftp::receive(const std::stop_token& stop, Deadline deadline) {
  while (!complete()) fill(stop, deadline);
  const std::string_view all(reinterpret_cast<const char*>(arrived_.data() + begin_),
                             end_ - begin_);
  WireReader in(all, "SFTP");
  const uint32_t length = in.u32();
  if (length < 5 || length > kMaxPacketBytes)
    protocol_error("an answer of " + std::to_string(length) + " bytes");
  Reply reply;
  reply.type = in.u8();
  reply.id = in.u32();
  reply.payload = in.rest().substr(0, length - 5);
  --waiting_;
  consume(4 + length);
  return reply;
}

void Sftp::send(uint8_t type, const std::string& body, const std::stop_token& stop,
                std::span<const std::byte> tail, Deadline deadline) {
  const auto size = static_cast<uint32_t>(1 + body.size() + tail.size());
  std::string packet = WireWriter().u32(size).u8(type).bytes() + body;
  packet.append(reinterpret_cast<const char*>(tail.data()), tail.size());
  try {
    channel_.write(std::as_bytes(std::span(packet)), std::min(deadline, operation_deadline()), stop,
                   "sending a request about files");
  } catch (const Error&) {
    broken_ = true;  // the server may have received a part of the packet
    throw;
  }
}

uint32_t Sftp::request(uint8_t type, const WireWriter& body, const std::stop_token& stop,
                       std::span<const std::byte> tail, Deadline deadline) {
  const uint32_t id = next_id_++;
  send(type, WireWriter().u32(id).bytes() + body.bytes(), stop, tail, deadline);
  ++waiting_;
  return id;
}

Sftp::Reply Sftp::call(uint8_t type, const WireWriter& body, const std::stop_token& stop) {
  const Deadline deadline = operation_deadline();
  const uint32_t id = request(type, body, stop, {}, deadline);
  Reply reply = receive(stop, deadline);
  if (reply.id != id) protocol_error("an answer without a request");
  return reply;
}

Sftp::Status Sftp::status_of(const Reply& reply) {
  if (reply.type != kStatus)
    protocol_error("an unexpected answer of type " + std::to_string(reply.type));
  WireReader in(reply.payload, "SFTP's status");
  Status status{in.u32(), {}};
  if (!in.done()) status.message = in.string();
  return status;
}

// Version 3 has one code, "failure", for a full disk, an existing name and other errors.
void Sftp::fail(const Status& status, const std::string& activity) {
  const ErrorKind kind = status.code == kNoSuchFile        ? ErrorKind::kNotFound
                         : status.code == kUnsupportedCode ? ErrorKind::kUnsupported
                                                           : ErrorKind::kIo;
  const char* meaning = status.code == kNoSuchFile ? "no such file"
                        : status.code == kDenied   ? "permission denied"
                        : status.code == kFailure
                            ? "refused (a full disk or quota, or an existing name?)"
                            : "refused";
  throw Error(kind, "cannot " + printable_path(activity) + " at " + name_ + ": " + meaning +
                        " (SFTP code " + std::to_string(status.code) + ": " +
                        log::printable(status.message, 200) + ")");
}

void Sftp::expect_ok(const Reply& reply, const std::string& activity) {
  const Status status = status_of(reply);
  if (status.code != kOk) fail(status, activity);
}

std::optional<FileInfo> Sftp::lstat(const std::string& path) {
  const Reply reply = call(kLstat, WireWriter().string(path));
  if (reply.type == kAttrs) {
    WireReader in(reply.payload, "SFTP's attributes");
    return read_attributes(in);
  }
  const Status status = status_of(reply);
  if (status.code == kNoSuchFile) return std::nullopt;
  fail(status, "look at " + path);
}

std::string Sftp::open(const std::string& path, uint32_t flags, const std::stop_token& stop) {
  WireWriter body;
  body.string(path).u32(flags).u32(kHasMode).u32(0600);
  const Reply reply = call(kOpen, body, stop);
  if (reply.type != kHandle) fail(status_of(reply), "open " + path);
  ++num_open_;
  return std::string(WireReader(reply.payload, "SFTP's handle").string());
}

void Sftp::close(const std::string& handle) {
  --num_open_;
  expect_ok(call(kClose, WireWriter().string(handle)), "close a file");
}

void Sftp::fsync(const std::string& handle, const std::string& path) {
  if (!has("fsync@openssh.com")) return;  // the server decides when files are durable
  expect_ok(call(kExtended, WireWriter().string("fsync@openssh.com").string(handle)),
            "make durable " + path);
}

std::map<std::string, FileInfo> Sftp::entries(const std::string& folder) {
  const Reply opened = call(kOpendir, WireWriter().string(folder));
  if (opened.type != kHandle) fail(status_of(opened), "list the folder " + folder);
  ++num_open_;
  const std::string handle(WireReader(opened.payload, "SFTP's handle").string());
  std::map<std::string, FileInfo> names;
  size_t count = 0, bytes = 0;  // also counts repeated names
  int empty_answers = 0;
  for (;;) {
    const Reply reply = call(kReaddir, WireWriter().string(handle));
    if (reply.type != kName) {
      const Status status = status_of(reply);
      close(handle);
      if (status.code != kEof) fail(status, "list the folder " + folder);
      return names;
    }
    WireReader in(reply.payload, "SFTP's names");
    const uint32_t num_names = in.u32();
    empty_answers = num_names > 0 ? 0 : empty_answers + 1;
    if (empty_answers > kMaxEmptyAnswers)
      protocol_error("the listing of " + folder + " neither ends nor names a file");
    for (uint32_t left = num_names; left > 0; --left) {
      const std::string name(in.string());
      in.string();  // the line of ls -l
      const FileInfo info = read_attributes(in);
      if (name.find('/') != std::string::npos || name.empty())
        protocol_error("a folder entry is named '" + log::printable(name, 100) + "'");
      if (name != "." && name != "..") names[name] = info;
      bytes += name.size();
      if (++count > kMaxNames || bytes > kMaxNameBytes)
        protocol_error("more than " + std::to_string(kMaxNames) + " names in " + folder);
    }
  }
}

void Sftp::remove(uint8_t type, const std::string& path) {
  const Status status = status_of(call(type, WireWriter().string(path)));
  if (status.code != kOk && status.code != kNoSuchFile) fail(status, "remove " + path);
}

void Sftp::remove_below(const std::string& folder, int depth, const std::stop_token& stop) {
  if (depth > kMaxDepth)
    throw Error(ErrorKind::kIo,
                printable_path(folder) + " at the facility is nested too deep to be removed");
  for (const auto& [name, info] : entries(folder)) {
    const std::string path = folder + "/" + name;
    if (stop.stop_requested())
      throw Error(ErrorKind::kCancelled, "stopped before " + printable_path(path) + " was removed");
    if (info.type == FileInfo::Type::kFolder)
      remove_below(path, depth + 1, stop);
    else
      remove(kRemove, path);
  }
  remove(kRmdir, folder);
}

// Checks the type first: opening would follow symbolic links and block on a FIFO.
void Sftp::require_regular(const RemotePath& path, bool may_be_absent) {
  const auto info = stat(path);
  if (!info && may_be_absent) return;
  if (!info) throw Error(ErrorKind::kNotFound, path.str() + " does not exist at the facility");
  if (info->type != FileInfo::Type::kRegular)
    throw Error(ErrorKind::kIo, path.str() + " at the facility is not a regular file");
}

uint32_t Sftp::send_read(const std::string& handle, uint64_t offset, uint32_t count,
                         const std::stop_token& stop) {
  return request(kReadRequest, WireWriter().string(handle).u64(offset).u32(count), stop);
}

// Receives and stores an answer; after a short answer requests the rest again.
void Sftp::take_answer(const std::string& handle, std::deque<PendingRead>& pending, bool& at_end,
                       const std::string& activity, const std::stop_token& stop) {
  const Reply reply = receive(stop);
  const auto read = std::find_if(pending.begin(), pending.end(),
                                 [&](const PendingRead& each) { return each.id == reply.id; });
  if (read == pending.end())
    throw Error(ErrorKind::kRemote, "an answer without a read request, to " + activity);
  std::string_view data;  // empty at the end of the file
  if (reply.type == kData)
    data = WireReader(reply.payload, "SFTP's data").string();
  else if (const Status status = status_of(reply); status.code != kEof)
    fail(status, activity);
  const size_t missing = read->count - read->bytes.size();
  read->bytes.append(data.substr(0, missing));
  read->answered = data.empty() || data.size() >= missing;
  if (data.empty()) at_end = true;
  if (!read->answered)
    read->id = send_read(handle, read->offset + read->bytes.size(),
                         static_cast<uint32_t>(missing - data.size()), stop);
}

std::optional<FileInfo> Sftp::stat(const RemotePath& path) { return lstat(path.str()); }

size_t Sftp::read(const RemotePath& path, uint64_t offset, std::span<std::byte> out) {
  struct OneLimit {  // small pieces of files are short calls
    explicit OneLimit(Deadline& at) : latest(at) {}
    ~OneLimit() { latest = kWhileMoving; }
    Deadline& latest;
  };
  const OneLimit limit(latest_);
  latest_ = operation_deadline();
  size_t done = 0;
  download(path, offset, out.size(),
           [&](std::span<const std::byte> bytes) {
             std::memcpy(out.data() + done, bytes.data(), bytes.size());
             done += bytes.size();
           },
           {});
  return done;
}

void Sftp::write(const RemotePath& path, uint64_t offset, std::span<const std::byte> bytes) {
  upload(path, offset, offset + bytes.size(),
         [&](uint64_t at, std::span<std::byte> out) {
           std::memcpy(out.data(), bytes.data() + (at - offset), out.size());
         },
         {});
}

void Sftp::sync(const RemotePath& path) {
  require_regular(path, false);
  sync_open(path.str());
}

void Sftp::sync_open(const std::string& path) {
  const std::string handle = open(path, kRead);
  fsync(handle, path);
  close(handle);
}

void Sftp::rename(const RemotePath& from, const RemotePath& to) {
  WireWriter body;
  const bool posix = has("posix-rename@openssh.com");
  if (posix) body.string("posix-rename@openssh.com");
  body.string(from.str()).string(to.str());
  expect_ok(call(posix ? kExtended : kRename, body), "rename " + from.str() + " to " + to.str());
  sync_open(to.parent().str());  // like open(2) of a folder
}

std::vector<std::string> Sftp::list(const RemotePath& folder) {
  std::vector<std::string> names;
  try {
    for (const auto& entry : entries(folder.str())) names.push_back(entry.first);
  } catch (const Error& error) {
    // Version 3 reports "no such file" for a path that is not a folder, too.
    if (error.kind() != ErrorKind::kNotFound || !usable() || !stat(folder)) throw;
    throw Error(ErrorKind::kIo, printable_path(folder.str()) + " at the facility is not a folder");
  }
  return names;
}

void Sftp::make_dirs(const RemotePath& folder) {
  std::vector<std::string> folders;
  for (RemotePath at = folder; at.str() != "/"; at = at.parent()) folders.push_back(at.str());
  std::reverse(folders.begin(), folders.end());
  const Deadline deadline = operation_deadline();
  for (const std::string& each : folders)
    request(kMkdir, WireWriter().string(each).u32(kHasMode).u32(0700), {}, {}, deadline);
  for (size_t i = 0; i < folders.size(); ++i) receive({}, deadline);  // stat() shows the result
  // make_dirs() accepts a symbolic link to a folder if list() succeeds.
  const auto info = stat(folder);
  if (info && info->type == FileInfo::Type::kFolder) return;
  if (info && info->type == FileInfo::Type::kOther) {
    list(folder);
    return;
  }
  throw Error(ErrorKind::kIo, "cannot create the folder " + folder.str() + " at the facility: " +
                                  (info ? "a file has that name"
                                        : "refused (permissions, a full disk or quota, or "
                                          "an existing file)"));
}

void Sftp::remove_tree(const RemotePath& path, const std::stop_token& stop) {
  const auto info = stat(path);
  if (!info) return;
  if (info->type == FileInfo::Type::kFolder)
    remove_below(path.str(), 0, stop);
  else
    remove(kRemove, path.str());
}

std::optional<uint64_t> Sftp::free_bytes(const RemotePath& folder) {
  if (!has("statvfs@openssh.com")) return std::nullopt;
  const Reply reply =
      call(kExtended, WireWriter().string("statvfs@openssh.com").string(folder.str()));
  if (reply.type != kExtendedReply)
    fail(status_of(reply), "query the free space of " + folder.str());
  WireReader in(reply.payload, "SFTP's file system");
  in.u64();
  const uint64_t unit = in.u64();
  in.u64();
  in.u64();
  return unit * in.u64();
}

uint64_t Sftp::download(const RemotePath& path, uint64_t offset, uint64_t length, const Sink& sink,
                        const std::stop_token& stop) {
  require_regular(path, false);
  const std::string activity = "read " + path.str();
  const std::string handle = open(path.str(), kRead, stop);
  std::deque<PendingRead> pending;
  uint64_t asked = 0, given = 0;
  bool at_end = false, short_read = false;
  const MemoryShares::Share share(receive_memory());
  while (given < length) {
    const size_t share_bytes =
        share.bytes(kMinReadsInFlight * kReadBytes, kReadsInFlight * kReadBytes);
    while (!at_end && asked < length && pending.size() < share_bytes / kReadBytes) {
      const auto count = static_cast<uint32_t>(std::min<uint64_t>(kReadBytes, length - asked));
      pending.push_back(
          {send_read(handle, offset + asked, count, stop), offset + asked, count, {}, false});
      asked += count;
    }
    if (pending.empty()) break;
    take_answer(handle, pending, at_end, activity, stop);
    while (!pending.empty() && pending.front().answered) {
      const std::string& bytes = pending.front().bytes;
      if (!short_read) {
        sink(std::as_bytes(std::span(bytes)));
        given += bytes.size();
      }
      short_read = short_read || bytes.size() < pending.front().count;
      pending.pop_front();
    }
  }
  close(handle);
  return given;
}

void Sftp::upload(const RemotePath& path, uint64_t begin, uint64_t end, const Source& source,
                  const std::stop_token& stop) {
  require_regular(path, true);
  const std::string activity = "write " + path.str();
  const std::string handle = open(path.str(), kWrite | kCreate);
  const size_t piece_bytes = has("posix-rename@openssh.com") ? kWriteBytes : kPortableWriteBytes;
  std::vector<std::byte> block(std::min<uint64_t>(kSftpBlockBytes, end - begin));
  std::optional<Error> problem;
  int in_flight = 0;
  const auto check_answer = [&] {
    const Reply reply = receive(stop);
    --in_flight;
    try {
      expect_ok(reply, activity);
    } catch (const Error& error) {
      problem = error;  // upload() must still receive the other answers
    }
  };
  for (uint64_t at = begin; at < end && !problem;) {
    auto part = std::span(block).first(std::min<uint64_t>(end - at, block.size()));
    source(at, part);
    while (!part.empty() && !problem) {
      if (in_flight >= kWritesInFlight) check_answer();
      const auto piece = part.first(std::min(part.size(), piece_bytes));
      WireWriter body;
      body.string(handle).u64(at).u32(static_cast<uint32_t>(piece.size()));
      request(kWriteRequest, body, stop, piece);
      ++in_flight;
      at += piece.size();
      part = part.subspan(piece.size());
    }
  }
  while (in_flight > 0) check_answer();
  close(handle);
  if (problem) throw *problem;
}

}  // namespace xffl::remote
