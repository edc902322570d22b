#include "ssh_transfer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "command_files.h"
#include "framed_command.h"
#include "sftp_files.h"
#include "xffl/base/error.h"
#include "xffl/base/shell.h"

namespace xffl::remote {
namespace {

constexpr uint64_t kLeastWindowBytes = 4u << 20;
// At 50 ms and 1 Gbit/s a stream got 34 MB/s with 4 MB, 45 with 6, 41 with 8, 26 with 12, 15 with 14.
constexpr uint64_t kMostWindowBytes = 8u << 20;
constexpr uint64_t kBytesPerSecond = 200'000'000;  // that a window lets one stream reach
constexpr size_t kBlockBytes = 1u << 20;
// Below this a further channel costs more than it brings.
constexpr uint64_t kBytesForAChannel = 4u << 20;

// A range's writer: gives block after block until the range is done.
using WriteRange = std::function<void(uint64_t begin, uint64_t end, const std::stop_token& stop)>;

// Calls `write` for `streams` consecutive parts at once. The first error stops the others and is
// thrown when all have ended.
void in_parallel(uint64_t offset, uint64_t length, int streams, const WriteRange& write,
                 const std::stop_token& stop) {
  const uint64_t most = std::max<uint64_t>(1, length / kBytesForAChannel);
  const uint64_t count = std::clamp<uint64_t>(static_cast<uint64_t>(std::max(1, streams)), 1, most);
  if (count == 1) return write(offset, offset + length, stop);
  std::stop_source stop_all;
  const std::stop_callback forward(stop, [&] { stop_all.request_stop(); });
  std::mutex mutex;
  std::exception_ptr problem;
  {
    std::vector<std::jthread> threads;
    for (uint64_t i = 0; i < count; ++i)
      threads.emplace_back(
          [&, begin = offset + length * i / count, end = offset + length * (i + 1) / count] {
            try {
              write(begin, end, stop_all.get_token());
            } catch (...) {  // a thread's top: thrown again below
              const std::lock_guard lock(mutex);
              if (!problem) problem = std::current_exception();
              stop_all.request_stop();
            }
          });
  }
  if (problem) std::rethrow_exception(problem);
}

// No more than the round trip needs: what the network does not take at once, OpenSSH's server moves
// about in one buffer, which costs it more than all the rest when that is tens of megabytes.
size_t window_for(Connection& connection, uint64_t length) {
  tcp_info info{};
  connection.with([&](ssh_session session) {
    socklen_t size = sizeof info;
    // Through a tunnel there is no TCP here: as for a far host.
    if (::getsockopt(ssh_get_fd(session), IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
      info.tcpi_rtt = 100'000;
  });
  const uint64_t window = kLeastWindowBytes + kBytesPerSecond / 1'000'000 * info.tcpi_rtt;
  return std::clamp<uint64_t>(std::min(window, kMostWindowBytes), kBlockBytes,
                              std::max<uint64_t>(length, kBlockBytes));
}

Deadline progress_deadline(const std::shared_ptr<Connection>& connection) {
  return deadline_in(connection->timeouts().operation);
}

// Source is promised to be called by one thread at a time.
Source one_at_a_time(const Source& source, std::mutex& mutex) {
  return [&source, &mutex](uint64_t offset, std::span<std::byte> out) {
    const std::lock_guard lock(mutex);
    source(offset, out);
  };
}

void write_range_by_shell(const std::shared_ptr<Connection>& connection, const RemotePath& path,
                          uint64_t begin, uint64_t end, const Source& source,
                          const std::stop_token& stop) {
  const auto ignore = [](std::string_view) {};
  FramedCommand command(connection, dd_write(path, begin), {}, progress_deadline(connection), stop);
  std::vector<std::byte> block(std::min<uint64_t>(kBlockBytes, end - begin));
  for (uint64_t at = begin; at < end && !command.ended();) {
    const auto part = std::span(block).first(std::min<uint64_t>(end - at, block.size()));
    source(at, part);
    command.give(part, ignore, progress_deadline(connection), stop);
    at += part.size();
  }
  command.end_input();
  while (command.take(ignore, progress_deadline(connection), stop)) continue;
  if (command.exit_code() != 0) fail_by(command.exit_code(), command.err(), "write " + path.str());
  const auto copied = dd_copied(command.err());
  if (copied != end - begin)
    throw Error(ErrorKind::kIo, "cannot write " + path.str() +
                                    " at the facility: " + std::to_string(copied.value_or(0)) +
                                    " of " + std::to_string(end - begin) + " bytes arrived");
}

void write_range_by_sftp(const std::shared_ptr<Connection>& connection, const RemotePath& path,
                         uint64_t begin, uint64_t end, const Source& source,
                         const std::stop_token& stop) {
  constexpr int kWritesInFlight = 32;
  Sftp sftp(connection, stop);
  const std::string doing = "write " + path.str();
  const std::string handle = sftp_open_to_write(sftp, path);
  std::vector<std::byte> block(std::min<uint64_t>(kBlockBytes, end - begin));
  int in_flight = 0;
  for (uint64_t at = begin; at < end;) {
    auto part = std::span(block).first(std::min<uint64_t>(end - at, block.size()));
    source(at, part);
    for (; !part.empty(); ++in_flight) {
      if (in_flight >= kWritesInFlight) {
        sftp.expect_ok(sftp.receive(stop), doing);
        --in_flight;
      }
      const auto piece = part.first(std::min(part.size(), sftp.write_bytes()));
      sftp.send_write(handle, at, piece, stop);
      at += piece.size();
      part = part.subspan(piece.size());
    }
  }
  for (; in_flight > 0; --in_flight) sftp.expect_ok(sftp.receive(stop), doing);
  sftp.close(handle);
}

}  // namespace

void fail_too_short(const RemotePath& path, uint64_t present, uint64_t expected) {
  throw Error(ErrorKind::kCorrupt, path.str() + " at the facility ends after " +
                                       std::to_string(present) + " bytes; " +
                                       std::to_string(expected) + " were expected");
}

void download_by_shell(const std::shared_ptr<Connection>& connection, const RemotePath& path,
                       uint64_t offset, uint64_t length, const Sink& sink,
                       const std::stop_token& stop) {
  const auto pass = [&](std::string_view bytes) {
    sink(std::as_bytes(std::span(bytes.data(), bytes.size())));
  };
  const size_t window = window_for(*connection, length);
  FramedCommand command(connection, require_regular(path) + "exec " + dd_read(path, offset, length),
                        {.expected_bytes = length, .window_bytes = window},
                        progress_deadline(connection), stop);
  command.end_input();
  while (command.take(pass, progress_deadline(connection), stop)) continue;
  if (command.exit_code() != 0) fail_by(command.exit_code(), command.err(), "read " + path.str());
  if (command.output_bytes() < length)
    fail_too_short(path, offset + command.output_bytes(), offset + length);
}

void upload_by_shell(const std::shared_ptr<Connection>& connection, const RemotePath& path,
                     uint64_t offset, uint64_t length, const Source& source, int streams,
                     const std::stop_token& stop) {
  std::mutex mutex;
  const Source careful = one_at_a_time(source, mutex);
  in_parallel(
      offset, length, streams,
      [&](uint64_t begin, uint64_t end, const std::stop_token& stop_all) {
        write_range_by_shell(connection, path, begin, end, careful, stop_all);
      },
      stop);
}

void upload_by_sftp(const std::shared_ptr<Connection>& connection, const RemotePath& path,
                    uint64_t offset, uint64_t length, const Source& source, int streams,
                    const std::stop_token& stop) {
  std::mutex mutex;
  const Source careful = one_at_a_time(source, mutex);
  in_parallel(
      offset, length, streams,
      [&](uint64_t begin, uint64_t end, const std::stop_token& stop_all) {
        write_range_by_sftp(connection, path, begin, end, careful, stop_all);
      },
      stop);
}

}  // namespace xffl::remote
