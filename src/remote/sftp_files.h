// Session's file operations by SFTP.
#pragma once

#include "sftp.h"
#include "xffl/remote/session.h"

namespace xffl::remote {

size_t sftp_read(Sftp& sftp, const RemotePath& path, uint64_t offset, std::span<std::byte> out);
void sftp_write(Sftp& sftp, const RemotePath& path, uint64_t offset,
                std::span<const std::byte> bytes);
void sftp_sync(Sftp& sftp, const RemotePath& path);
void sftp_rename(Sftp& sftp, const RemotePath& from, const RemotePath& to);
std::vector<std::string> sftp_list(Sftp& sftp, const RemotePath& folder);
void sftp_make_dirs(Sftp& sftp, const RemotePath& folder);
void sftp_remove_tree(Sftp& sftp, const RemotePath& path, const std::stop_token& stop);

/// Opens or creates a regular file for writing; the caller closes the handle.
std::string sftp_open_to_write(Sftp& sftp, const RemotePath& path);
/// Reads `length` bytes from `offset` with many requests in flight; fewer only when the file ends
/// early. Returns the number of bytes passed to `sink`.
uint64_t sftp_stream(Sftp& sftp, const RemotePath& path, uint64_t offset, uint64_t length,
                     const Sink& sink, const std::stop_token& stop);

}  // namespace xffl::remote
