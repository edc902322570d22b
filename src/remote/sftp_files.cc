#include "sftp_files.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::remote {
namespace {

// The maximum answer of old servers; 8 MiB in flight.
constexpr uint32_t kReadBytes = 64u << 10;
constexpr size_t kReadsInFlight = 128;
constexpr int kMaxDepth = 64;

// Checks the type first: opening would follow links and block on a FIFO.
void require_regular(Sftp& sftp, const RemotePath& path, bool may_be_absent) {
  const auto info = sftp.lstat(path.str());
  if (!info && may_be_absent) return;
  if (!info) throw Error(ErrorKind::kNotFound, path.str() + " does not exist at the facility");
  if (info->type != FileInfo::Type::kRegular)
    throw Error(ErrorKind::kIo, path.str() + " at the facility is not a regular file");
}

struct PendingRead {
  uint32_t id;
  uint64_t offset;
  uint32_t count;
  std::string bytes;
  bool answered = false;
};

// Stores an answer; requests the rest of a short one again.
void take_answer(Sftp& sftp, const std::string& handle, std::deque<PendingRead>& pending,
                 const SftpReply& reply, bool& at_end, const std::string& activity,
                 const std::stop_token& stop) {
  const auto read = std::find_if(pending.begin(), pending.end(),
                                 [&](const PendingRead& each) { return each.id == reply.id; });
  if (read == pending.end())
    throw Error(ErrorKind::kRemote, "an answer without a read request, to " + activity);
  const std::string_view data = sftp.data_of(reply, activity);
  const size_t missing = read->count - read->bytes.size();
  read->bytes.append(data.substr(0, missing));
  read->answered = data.empty() || data.size() >= missing;
  if (data.empty()) at_end = true;
  if (!read->answered)
    read->id = sftp.send_read(handle, read->offset + read->bytes.size(),
                              static_cast<uint32_t>(missing - data.size()), stop);
}

void remove_below(Sftp& sftp, const std::string& folder, int depth, const std::stop_token& stop) {
  if (depth > kMaxDepth)
    throw Error(ErrorKind::kIo, folder + " at the facility is nested too deep to be removed");
  for (const auto& [name, info] : sftp.list(folder)) {
    const std::string path = folder + "/" + name;
    if (stop.stop_requested())
      throw Error(ErrorKind::kCancelled, "stopped before " + path + " was removed");
    if (info.type == FileInfo::Type::kFolder)
      remove_below(sftp, path, depth + 1, stop);
    else
      sftp.remove_file(path);
  }
  sftp.remove_folder(folder);
}

}  // namespace

uint64_t sftp_stream(Sftp& sftp, const RemotePath& path, uint64_t offset, uint64_t length,
                     const Sink& sink, const std::stop_token& stop) {
  require_regular(sftp, path, false);
  const std::string activity = "read " + path.str();
  const std::string handle = sftp.open(path.str(), Sftp::kRead, stop);
  std::deque<PendingRead> pending;
  uint64_t asked = 0, given = 0;
  bool at_end = false, short_read = false;
  while (given < length) {
    while (!at_end && asked < length && pending.size() < kReadsInFlight) {
      const auto count = static_cast<uint32_t>(std::min<uint64_t>(kReadBytes, length - asked));
      pending.push_back(
          {sftp.send_read(handle, offset + asked, count, stop), offset + asked, count, {}, false});
      asked += count;
    }
    if (pending.empty()) break;
    take_answer(sftp, handle, pending, sftp.receive(stop), at_end, activity, stop);
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
  sftp.close(handle);
  return given;
}

size_t sftp_read(Sftp& sftp, const RemotePath& path, uint64_t offset, std::span<std::byte> out) {
  size_t done = 0;
  sftp_stream(sftp, path, offset, out.size(),
              [&](std::span<const std::byte> bytes) {
                std::memcpy(out.data() + done, bytes.data(), bytes.size());
                done += bytes.size();
              },
              {});
  return done;
}

std::string sftp_open_to_write(Sftp& sftp, const RemotePath& path) {
  require_regular(sftp, path, true);
  return sftp.open(path.str(), Sftp::kWrite | Sftp::kCreate);
}

void sftp_write(Sftp& sftp, const RemotePath& path, uint64_t offset,
                std::span<const std::byte> bytes) {
  const std::string handle = sftp_open_to_write(sftp, path);
  size_t in_flight = 0;
  std::optional<Error> problem;
  const auto check = [&] {
    const SftpReply reply = sftp.receive({});
    --in_flight;
    try {
      sftp.expect_ok(reply, "write " + path.str());
    } catch (const Error& error) {
      problem = error;  // the other answers must still be received
    }
  };
  while (!bytes.empty() && !problem) {
    const auto block = bytes.first(std::min(bytes.size(), sftp.write_bytes()));
    sftp.send_write(handle, offset, block, {});
    ++in_flight;
    offset += block.size();
    bytes = bytes.subspan(block.size());
    if (in_flight >= 64) check();
  }
  while (in_flight > 0) check();
  if (problem) {
    sftp.close(handle);
    throw *problem;
  }
  sftp.close(handle);
}

void sftp_sync(Sftp& sftp, const RemotePath& path) {
  require_regular(sftp, path, false);
  const std::string handle = sftp.open(path.str(), Sftp::kRead);
  sftp.fsync(handle, path.str());
  sftp.close(handle);
}

void sftp_rename(Sftp& sftp, const RemotePath& from, const RemotePath& to) {
  sftp.rename(from.str(), to.str());
  const std::string folder = sftp.open(to.parent().str(), Sftp::kRead);  // like open(2) of a folder
  sftp.fsync(folder, to.parent().str());
  sftp.close(folder);
}

std::vector<std::string> sftp_list(Sftp& sftp, const RemotePath& folder) {
  std::vector<std::string> names;
  try {
    for (const auto& entry : sftp.list(folder.str())) names.push_back(entry.first);
  } catch (const Error& error) {
    // Version 3 reports "no such file" for a path that is not a folder, too.
    if (error.kind() != ErrorKind::kNotFound || !sftp.usable() || !sftp.lstat(folder.str())) throw;
    throw Error(ErrorKind::kIo, folder.str() + " at the facility is not a folder");
  }
  return names;
}

void sftp_make_dirs(Sftp& sftp, const RemotePath& folder) {
  std::vector<std::string> folders;
  for (RemotePath at = folder; at.str() != "/"; at = at.parent()) folders.push_back(at.str());
  std::reverse(folders.begin(), folders.end());
  sftp.make_folders(folders);
  // A symbolic link to a folder is accepted if it can be listed.
  const auto info = sftp.lstat(folder.str());
  if (info && info->type == FileInfo::Type::kFolder) return;
  if (info && info->type == FileInfo::Type::kOther) {
    sftp_list(sftp, folder);
    return;
  }
  throw Error(ErrorKind::kIo, "cannot create the folder " + folder.str() + " at the facility: " +
                                  (info ? "a file has that name"
                                        : "refused (permissions, a full disk or quota, or "
                                          "an existing file)"));
}

void sftp_remove_tree(Sftp& sftp, const RemotePath& path, const std::stop_token& stop) {
  const auto info = sftp.lstat(path.str());
  if (!info) return;
  if (info->type == FileInfo::Type::kFolder)
    remove_below(sftp, path.str(), 0, stop);
  else
    sftp.remove_file(path.str());
}

}  // namespace xffl::remote
