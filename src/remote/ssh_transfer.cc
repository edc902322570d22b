#include "ssh_transfer.h"

#include <linux/tcp.h>  // tcpi_min_rtt, which netinet/tcp.h lacks
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "framed_command.h"
#include "receive_memory.h"
#include "sftp.h"
#include "shell_files.h"
#include "upload_flow.h"
#include "xffl/base/error.h"
#include "xffl/base/shell.h"
#include "xffl/base/threads.h"
#include "xffl/remote/stop_scope.h"

namespace xffl::remote {
namespace {

constexpr uint64_t kMinWindowBytes = 4u << 20;
// Measured at 50 ms and 1 Gbit/s: 34 MB/s with 4 MB, 45 with 6, 41 with 8, 26 with 12, 15 with 14.
constexpr uint64_t kMaxWindowBytes = 8u << 20;
constexpr uint64_t kBytesPerSecond = 200'000'000;  // target of one stream
constexpr uint64_t kStripeBytes = 4u << 20;
constexpr size_t kBlockBytes = 1u << 20;
constexpr size_t kUploadBlockBytes = 256u << 10;
// The server's send buffer (4 MB by default) per round trip limits one connection's rate.
constexpr uint64_t kMinBytesForSeveral = 32u << 20;
constexpr uint64_t kMinRoundTripMicros = 10'000;
// A channel moves its window, 2 MiB at OpenSSH's server, in each round trip. Below this round trip
// two channels exceed the rate of encryption, and more channels only cost cache.
constexpr uint64_t kNearRoundTripMicros = 1'000;
constexpr int kNearChannels = 2;
// Below this size a further channel costs more than it gains.
constexpr uint64_t kMinBytesPerChannel = 4u << 20;

// Writes one range, block after block.
using WriteRange = std::function<void(uint64_t begin, uint64_t end, const std::stop_token& stop)>;

// Calls `write` for `streams` consecutive ranges in parallel. The first error stops the other
// ranges. After the end of all ranges in_parallel() throws the error.
void in_parallel(uint64_t offset, uint64_t length, int streams, const WriteRange& write,
                 const std::stop_token& stop) {
  const uint64_t most = std::max<uint64_t>(1, length / kMinBytesPerChannel);
  const uint64_t count = std::clamp<uint64_t>(static_cast<uint64_t>(std::max(1, streams)), 1, most);
  if (count == 1) return write(offset, offset + length, stop);
  std::stop_source stop_all;
  const auto request = [&] { stop_all.request_stop(); };
  const std::stop_callback forward(stop, request), forward_scope(StopScope::current(), request);
  std::mutex mutex;
  std::exception_ptr problem;
  {
    std::vector<std::jthread> threads;
    for (uint64_t i = 0; i < count; ++i) {
      const auto write_range = [&, begin = offset + length * i / count,
                                end = offset + length * (i + 1) / count] {
        const StopScope scope(stop_all.get_token());  // for the short calls of this thread
        try {
          write(begin, end, stop_all.get_token());
        } catch (...) {  // a thread's top; in_parallel() throws it again
          const std::lock_guard lock(mutex);
          if (!problem) problem = std::current_exception();
          stop_all.request_stop();
        }
      };
      threads.push_back(start_if_granted(write_range));
      if (!threads.back().joinable()) write_range();
    }
  }
  if (problem) std::rethrow_exception(problem);
}

// The minimum round-trip time of the connection, in microseconds.
uint64_t round_trip_micros(Connection& connection) {
  tcp_info info{};
  connection.with([&](ssh_session session) {
    socklen_t size = sizeof info;
    // A tunnel's socket is not TCP; the function assumes a long round trip.
    if (::getsockopt(ssh_get_fd(session), IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
      info.tcpi_min_rtt = 100'000;
  });
  return info.tcpi_min_rtt;
}

// The receive window of one stream. A larger window than the round trip needs is slower: OpenSSH's
// server moves unsent bytes within one buffer. At tens of megabytes these moves dominate the
// server's cost. Many streams at once have smaller windows, down to libssh's own.
class Window {
 public:
  Window(Connection& connection, uint64_t length) {
    const uint64_t window =
        kMinWindowBytes + kBytesPerSecond / 1'000'000 * round_trip_micros(connection);
    most_ = std::clamp<uint64_t>(std::min(window, kMaxWindowBytes), kBlockBytes,
                                 std::max<uint64_t>(length, kBlockBytes));
  }
  size_t bytes() const { return share_.bytes(kBlockBytes, most_); }

 private:
  const MemoryShares::Share share_{receive_memory()};
  size_t most_ = 0;
};

Deadline operation_deadline(const std::shared_ptr<Connection>& connection) {
  return deadline_in(connection->timeouts().operation);
}

void write_range_by_shell(const std::shared_ptr<Connection>& connection, const RemotePath& path,
                          uint64_t begin, uint64_t end, const Source& source, UploadFlow& flow,
                          const std::stop_token& stop) {
  const auto ignore = [](std::string_view) {};
  FramedCommand command(connection, dd_write(path, begin), {}, operation_deadline(connection),
                        stop);
  const auto move = [&](std::span<const std::byte>& rest) {
    const size_t before = rest.size();
    command.move(rest, ignore, deadline_in(kCheckInterval), stop);
    flow.accepted(before - rest.size());
    flow.check();
  };
  std::vector<std::byte> block(std::min<uint64_t>(kUploadBlockBytes, end - begin));
  for (uint64_t at = begin; at < end && command.runs();) {
    flow.wait_for_room(stop);
    const auto part = std::span(block).first(std::min<uint64_t>(end - at, block.size()));
    source(at, part);
    std::span<const std::byte> rest = part;
    while (!rest.empty() && command.runs()) move(rest);
    at += part.size();
  }
  command.end_input();
  for (std::span<const std::byte> none; command.runs();) move(none);
  if (command.exit_code() != 0) fail_by(command.exit_code(), command.err(), "write " + path.str());
  const auto copied = dd_copied(command.err());
  if (copied != end - begin)
    throw Error(ErrorKind::kIo, "cannot write " + path.str() +
                                    " at the facility: " + std::to_string(copied.value_or(0)) +
                                    " of " + std::to_string(end - begin) + " bytes arrived");
}

void write_range_by_sftp(const std::shared_ptr<Connection>& connection, const RemotePath& path,
                         uint64_t begin, uint64_t end, const Source& source, UploadFlow& flow,
                         const std::stop_token& stop) {
  const Source paced = [&](uint64_t at, std::span<std::byte> out) {
    flow.wait_for_room(stop);
    source(at, out);
    flow.accepted(out.size());
  };
  Sftp(connection, stop).upload(path, begin, end, paced, stop);
}

// Distributes the file's stripes over the connections in turn. Each connection streams its stripes
// with `dd`, ahead of the reader as far as its window allows; the reader takes the stripes in
// order.
class StripedDownload {
 public:
  StripedDownload(const Connections& connections, const RemotePath& path, uint64_t offset,
                  uint64_t length, const std::stop_token& stop)
      : path_(path),
        offset_(offset),
        end_(offset + length),
        patience_(connections[0]->timeouts().operation),
        fails_at_(deadline_in(patience_)) {
    const uint64_t count = std::clamp<uint64_t>(length / kStripeBytes, 1, connections.size());
    stripe_bytes_ = count == 1 ? length : kStripeBytes;
    const auto buffer = std::make_shared<std::vector<std::byte>>();
    for (uint64_t i = 0; i < count; ++i) {
      auto& lane = lanes_.emplace_back(std::make_unique<Lane>());
      lane->connection = connections[i];
      lane->window.emplace(*lane->connection, length);
      const uint64_t begin = offset + i * stripe_bytes_, step = count * stripe_bytes_;
      lane->command.emplace(
          lane->connection, script(begin, step),
          FramedCommand::Options{bytes_of(begin, step), lane->window->bytes(), buffer}, fails_at_,
          stop);
      lane->command->end_input();
      lane->command->open_window(keep(*lane));
    }
  }

  void run(const Sink& sink, const std::stop_token& stop) {
    size_t at_lane = 0;
    for (uint64_t at = offset_; at < end_; at_lane = (at_lane + 1) % lanes_.size())
      for (const uint64_t stripe_end = std::min(end_, at + stripe_bytes_); at < stripe_end;)
        at += take(*lanes_[at_lane], at, stripe_end - at, sink, stop);
    for (const auto& lane : lanes_) finish(*lane, end_, stop);
  }

 private:
  struct Lane {
    std::shared_ptr<Connection> connection;
    std::optional<Window> window;
    std::optional<FramedCommand> command;
    std::string early;  // received output of the lane's next stripe
  };

  FrameReader::Output keep(Lane& lane) {
    return [this, &lane](std::string_view bytes) {
      lane.early += bytes;
      note_progress();
    };
  }
  void note_progress() { fails_at_ = deadline_in(patience_); }

  // Waits for the lane's output. Only bytes of the file prolong the time limit.
  void move(Lane& lane, const FrameReader::Output& output, const std::stop_token& stop) {
    std::span<const std::byte> nothing;
    lane.command->set_window(lane.window->bytes());
    if (lane.command->runs() && !lane.command->move(nothing, output, fails_at_, stop))
      throw Error(ErrorKind::kRemote, "no byte of " + path_.str() + " arrived from " +
                                          lane.connection->name() + " for " +
                                          std::to_string(patience_.count() / 1000) + " s");
  }

  std::string script(uint64_t begin, uint64_t step) const {
    const std::string stripe = std::to_string(stripe_bytes_), end = std::to_string(end_);
    return require_regular(path_) + "o=" + std::to_string(begin) + "; while [ $o -lt " + end +
           " ]; do n=" + stripe + "; if [ $((o+n)) -gt " + end + " ]; then n=$((" + end +
           "-o)); fi; " + dd_read(path_, "$o", "$n") + " || exit; o=$((o+" + std::to_string(step) +
           ")); done";
  }

  uint64_t bytes_of(uint64_t begin, uint64_t step) const {
    uint64_t bytes = 0;
    for (uint64_t at = begin; at < end_; at += step)
      bytes += std::min<uint64_t>(stripe_bytes_, end_ - at);
    return bytes;
  }

  // Passes on up to `wanted` bytes at file offset `at`; returns their number.
  uint64_t take(Lane& lane, uint64_t at, uint64_t wanted, const Sink& sink,
                const std::stop_token& stop) {
    uint64_t given = 0;
    const auto pass = [&](std::string_view bytes) {
      const std::string_view now = bytes.substr(0, wanted - given);
      if (!now.empty()) sink(std::as_bytes(std::span(now)));
      given += now.size();
      return now.size();
    };
    if (!lane.early.empty()) {
      lane.early.erase(0, pass(lane.early));
      return given;
    }
    move(
        lane,
        [&](std::string_view bytes) {
          lane.early += bytes.substr(pass(bytes));
          note_progress();
        },
        stop);
    if (!lane.command->runs() && given == 0 && lane.early.empty()) finish(lane, at, stop);
    return given;
  }

  // Throws unless the lane's command succeeded and the file ends at `at`.
  void finish(Lane& lane, uint64_t at, const std::stop_token& stop) {
    uint64_t more = lane.early.size();
    const auto count = [&more](std::string_view bytes) { more += bytes.size(); };
    while (more <= kBlockBytes && lane.command->runs()) move(lane, count, stop);
    if (more > 0)
      throw Error(ErrorKind::kCorrupt,
                  "the facility sent more bytes of " + path_.str() + " than requested");
    const int code = lane.command->exit_code();
    if (code != 0) fail_by(code, lane.command->err(), "read " + path_.str());
    if (at < end_) fail_too_short(path_, at, end_);
  }

  const RemotePath& path_;
  const uint64_t offset_, end_;
  uint64_t stripe_bytes_ = 0;
  std::vector<std::unique_ptr<Lane>> lanes_;
  const std::chrono::milliseconds patience_;  // without a byte of the file
  Deadline fails_at_;
};

}  // namespace

void download_by_shell(const Connections& connections, const RemotePath& path, uint64_t offset,
                       uint64_t length, const Sink& sink, const std::stop_token& stop) {
  StripedDownload(connections, path, offset, length, stop).run(sink, stop);
}

void upload_ranges(const Connections& connections, bool by_shell, const RemotePath& path,
                   uint64_t offset, uint64_t length, const Source& source, int streams,
                   const std::stop_token& stop) {
  const auto write_range = by_shell ? write_range_by_shell : write_range_by_sftp;
  UploadFlow flow(connections, "write " + path.str());
  std::mutex mutex;  // Session::upload() promises calls of Source by one thread at a time
  const Source serialized = [&](uint64_t at, std::span<std::byte> out) {
    const std::lock_guard lock(mutex);
    source(at, out);
  };
  std::atomic<size_t> next = 0;
  if (round_trip_micros(*connections[0]) < kNearRoundTripMicros)
    streams = std::min(streams, kNearChannels);
  const int channels = std::max(streams, 2 * static_cast<int>(connections.size() - 1));
  // Where the server allows few channels, a range waits for those of the other ranges as long as
  // their bytes move.
  const auto write_when_free = [&](uint64_t begin, uint64_t end, const std::stop_token& stop_all) {
    const auto& connection = connections[next++ % connections.size()];
    for (;;) {
      try {
        return write_range(connection, path, begin, end, serialized, flow, stop_all);
      } catch (const NoFreeChannel&) {
        flow.check();
      }
    }
  };
  in_parallel(offset, length, channels, write_when_free, stop);
}

bool wants_several(Connection& connection, uint64_t length) {
  return length >= kMinBytesForSeveral && round_trip_micros(connection) >= kMinRoundTripMicros;
}

}  // namespace xffl::remote
