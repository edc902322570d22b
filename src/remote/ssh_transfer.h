// Bulk transfers over one connection, or over several to a far host.
//
// How it works: what limits a transfer is channels x window / round trip. Down, one `dd` streams
// into a window of 4 to 8 MiB, as large as the round trip needs; up, several channels write a
// range each, because the server's window is 2 MiB a channel. Where there is no shell, SFTP
// requests in flight do the same. Blocks of all channels interleave, so that a short command waits
// for one block, not for the transfer.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "connection.h"
#include "sftp.h"
#include "xffl/remote/session.h"

namespace xffl::remote {

using Connections = std::vector<std::shared_ptr<Connection>>;  // to one host, at least one

/// True when a transfer of `length` bytes gains by further connections: it is long and the host
/// far.
bool wants_several(Connection& connection, uint64_t length);

/// Throws as Session::download does.
void download_by_shell(const Connections& connections, const RemotePath& path, uint64_t offset,
                       uint64_t length, const Sink& sink, const std::stop_token& stop);
void upload_by_shell(const Connections& connections, const RemotePath& path, uint64_t offset,
                     uint64_t length, const Source& source, int streams,
                     const std::stop_token& stop);
void upload_by_sftp(const Connections& connections, const RemotePath& path, uint64_t offset,
                    uint64_t length, const Source& source, int streams,
                    const std::stop_token& stop);

/// The error of a file that is shorter than it should be.
[[noreturn]] void fail_too_short(const RemotePath& path, uint64_t present, uint64_t expected);

}  // namespace xffl::remote
