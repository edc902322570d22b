// Bulk transfers over one connection, or several to a distant host.
//
// How it works: the rate of a transfer is at most channels x window / round trip. A download is one
// `dd` that streams into a window of 4 to 8 MiB, as the round trip needs; many downloads at once
// divide 32 MiB (receive_memory.h). An upload writes ranges through several channels, because the
// server's window is 2 MiB for each channel. Without a shell, SFTP requests in flight replace `dd`.
// Blocks of all channels interleave, so a short command waits for one block, not for the transfer.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "connection.h"
#include "sftp.h"
#include "xffl/remote/session.h"

namespace xffl::remote {

using Connections = std::vector<std::shared_ptr<Connection>>;  // to one host, at least one

/// True when further connections speed up a transfer of `length` bytes: a long transfer with a long
/// round trip.
bool wants_several(Connection& connection, uint64_t length);

/// Throws like Session::download().
void download_by_shell(const Connections& connections, const RemotePath& path, uint64_t offset,
                       uint64_t length, const Sink& sink, const std::stop_token& stop);
/// Writes ranges in parallel, with `dd` if `by_shell` is set, else with SFTP. Throws like
/// Session::upload().
void upload_ranges(const Connections& connections, bool by_shell, const RemotePath& path,
                   uint64_t offset, uint64_t length, const Source& source, int streams,
                   const std::stop_token& stop);

}  // namespace xffl::remote
