// Bulk transfers over one or several connections to a real sshd.
#include "ssh_transfer.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "connector.h"
#include "ssh_test.h"
#include "support/await.h"
#include "support/failing_call.h"
#include "support/fake_clock.h"
#include "support/peak_memory.h"
#include "support/refused_threads.h"
#include "upload_flow.h"

namespace xffl::remote {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;
using SshTransfer = SshTest;

// Without it the connection would notice its threads' writes only every few seconds.
TEST_F(SshTransfer, NeedsAnEventDescriptor) {
  constexpr int kSkipped = 77;
  test::Sshd sshd;
  const int code = test::in_child([&] {
    const auto session = make_ssh_session(sshd.settings());
    if (!test::fail_calls(SYS_eventfd2, EMFILE)) return kSkipped;
    try {
      session->stat(RemotePath("/"));
      return 1;
    } catch (const Error& error) {
      const bool is_named =
          std::string(error.what()).find("Too many open files") != std::string::npos;
      return error.kind() == ErrorKind::kIo && is_named ? 0 : 2;
    }
  });
  if (code == kSkipped) GTEST_SKIP() << "no system call filters here";
  EXPECT_EQ(code, 0);
}

// With one channel no other traffic wakes a writer that missed an event.
TEST_F(SshTransfer, ALoneWriterMissesNoEvent) {
  test::Sshd sshd;
  SshSettings settings = sshd.settings();
  settings.streams = 1;
  settings.timeouts.keepalive = settings.timeouts.silence = settings.timeouts.operation = 90s;
  const auto file = sshd.dir() / "file";
  numbered_file(file, 96u << 20);
  std::vector<std::jthread> busy;  // a loaded machine makes the race more likely
  for (int i = 0; i < 3; ++i)
    busy.emplace_back([&, copy = sshd.dir() / ("copy" + std::to_string(i))] {
      const auto session = make_ssh_session(settings);
      for (int j = 0; j < 8; ++j) {
        const auto begin = SteadyClock::now();
        upload(*session, file, copy);
        EXPECT_LT(SteadyClock::now() - begin, 60s);  // one second, or an operation's deadline
      }
    });
}

TEST_F(SshTransfer, AnUploadedFileIsTheUsersAlone) {
  for (const bool sftp_only : {false, true}) {  // by the shell, and by SFTP
    test::Sshd sshd({.before_login = sftp_only ? "" : "umask 022", .sftp_only = sftp_only});
    const auto session = make_ssh_session(sshd.settings());
    numbered_file(sshd.dir() / "file", 9'000'000);
    upload(*session, sshd.dir() / "file", sshd.dir() / "copy");
    EXPECT_EQ(std::filesystem::status(sshd.dir() / "copy").permissions(),
              std::filesystem::perms(0600));
  }
}

TEST_F(SshTransfer, WritesAndReadsBeyondFourGibibytes) {
  constexpr uint64_t kOffset = (uint64_t{5} << 30) + 7;  // after a hole
  const std::string bytes = "the end";
  for (const bool sftp_only : {false, true}) {
    test::Sshd sshd({.sftp_only = sftp_only});
    const auto session = make_ssh_session(sshd.settings());
    const RemotePath file((sshd.dir() / "file").string());
    session->upload(file, kOffset, bytes.size(),
                    [&](uint64_t offset, std::span<std::byte> out) {
                      std::memcpy(out.data(), bytes.data() + (offset - kOffset), out.size());
                    },
                    {});
    EXPECT_EQ(session->stat(file)->size_bytes, kOffset + bytes.size());
    std::string back(bytes.size(), '\0');
    session->read(file, kOffset, std::as_writable_bytes(std::span(back)));
    EXPECT_EQ(back, bytes);
  }
}

void cut(Connection& connection) {
  connection.with([](ssh_session session) { ssh_disconnect(session); });
}

TEST_F(SshTransfer, TransfersToADistantHostUseSeveralConnections) {
  test::Sshd sshd;
  test::FakeClock clock;
  Connector connector(sshd.settings(), std::make_shared<ConnectionLimits>(clock));
  const Connections connections = connector.get_several(3);
  ASSERT_EQ(connections.size(), 3u);
  EXPECT_EQ(connector.get_several(3), connections);  // kept for the next transfer
  EXPECT_EQ(connector.get(), connections[0]);
  const auto file = sshd.dir() / "file", copy = sshd.dir() / "copy";
  numbered_file(file, 45'000'004);
  const std::string bytes = read_file(file, 100'000'000);
  for (const auto& [offset, length] :
       std::vector<std::pair<uint64_t, uint64_t>>{{0, 45'000'004},
                                                  {17, 30'000'000},
                                                  {4u << 20, 8u << 20},
                                                  {44'999'999, 5},
                                                  {3, 4 << 20}}) {
    std::string back;
    download_by_shell(connections, RemotePath(file.string()), offset, length,
                      [&](std::span<const std::byte> part) {
                        back.append(reinterpret_cast<const char*>(part.data()), part.size());
                      },
                      {});
    EXPECT_TRUE(back == bytes.substr(offset, length)) << offset << " " << length;
  }
  const auto too_long = [&] {
    download_by_shell(connections, RemotePath(file.string()), 0, 70'000'000, [](auto) {}, {});
  };
  EXPECT_EQ(error_of(too_long).kind(), ErrorKind::kCorrupt);
  upload_ranges(connections, /*by_shell=*/true, RemotePath(copy.string()), 0, bytes.size(),
                [&](uint64_t offset, std::span<std::byte> out) {
                  std::copy_n(reinterpret_cast<const std::byte*>(bytes.data()) + offset, out.size(),
                              out.begin());
                },
                4, {});
  EXPECT_EQ(sha256_file(copy), sha256_file(file));
  EXPECT_EQ(sshd.connections(), 3);
  // A dead connection is replaced, as soon as half of the minute's limit is left; the first one is
  // kept.
  cut(*connections[1]);
  EXPECT_EQ(connector.get_several(3).size(), 2u);
  clock.advance(1min);
  const Connections again = connector.get_several(3);
  EXPECT_EQ(again.size(), 3u);
  EXPECT_EQ(again[0], connections[0]);
  EXPECT_EQ(sshd.connections(), 4);
}

// Two facilities on one host share its limits.
TEST_F(SshTransfer, FurtherConnectionsLeaveRoomForNecessaryOnes) {
  test::Sshd sshd;
  test::FakeClock clock;
  const auto limits = std::make_shared<ConnectionLimits>(clock);
  Connector alba(sshd.settings(), limits), brno(sshd.settings(), limits);
  for (const size_t expected : {3u, 1u, 1u}) {
    const Connections connections = alba.get_several(3);
    EXPECT_EQ(connections.size(), expected);
    for (size_t i = 1; i < connections.size(); ++i) cut(*connections[i]);
  }
  EXPECT_TRUE(brno.get()->alive());
  EXPECT_EQ(sshd.connections(), 4);
  clock.advance(1min);
  EXPECT_EQ(alba.get_several(3).size(), 3u);
}

// A login node counts the connections of a user, and a run lasts weeks.
TEST_F(SshTransfer, FurtherConnectionsEndAMinuteAfterTheLastTransfer) {
  test::Sshd sshd;
  test::FakeClock clock;
  clock.advance(1h);
  Connector connector(sshd.settings(), std::make_shared<ConnectionLimits>(clock));
  const std::weak_ptr<Connection> further = connector.get_several(3).at(1);
  for (int i = 0; i < 2; ++i) {
    clock.advance(50s);
    EXPECT_EQ(connector.get_several(3).size(), 3u);
    EXPECT_FALSE(further.expired()) << "50 s after a transfer";
  }
  clock.advance(61s);
  connector.get();
  EXPECT_TRUE(further.expired());
}

TEST_F(SshTransfer, SurvivesARekeyDuringATransfer) {
  test::Sshd sshd({.config = {"RekeyLimit 4M"}});
  const auto session = make_ssh_session(sshd.settings());
  const auto file = sshd.dir() / "file", copy = sshd.dir() / "copy";
  const std::string hash = numbered_file(file, 50'000'000);
  EXPECT_EQ(download_hash(*session, file), hash);
  upload(*session, file, copy);
  EXPECT_EQ(sha256_file(copy), hash);
  EXPECT_EQ(sshd.connections(), 1);
}

TEST_F(SshTransfer, WorksWithAServerThatAllowsFewChannels) {
  for (const char* limit : {"MaxSessions 1", "MaxSessions 2"}) {
    test::Sshd sshd({.config = {limit}});
    const auto session = make_ssh_session(sshd.settings());
    const auto file = sshd.dir() / "file", copy = sshd.dir() / "copy";
    const std::string hash = numbered_file(file, 20'000'000);
    EXPECT_TRUE(session->stat(RemotePath(file.string())));
    upload(*session, file, copy);
    EXPECT_EQ(sha256_file(copy), hash);
    EXPECT_TRUE(session->stat(RemotePath(file.string())));
    expect_works(*session);  // perhaps in the channel of the idle SFTP client
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back([&] { expect_works(*session); });
    threads.clear();
    EXPECT_EQ(sshd.connections(), 1);
  }
}

// The second range waits longer for the first one's channel than a command may take.
TEST_F(SshTransfer, ASlowUploadThroughOneChannelCompletes) {
  test::Sshd sshd({.config = {"MaxSessions 1"}});
  SshSettings settings = sshd.settings();
  settings.timeouts.operation = 2s;
  const auto session = make_ssh_session(settings);
  const auto file = sshd.dir() / "file", copy = sshd.dir() / "copy";
  const std::string hash = numbered_file(file, 9u << 20);
  const MappedFile bytes(file);
  session->upload(RemotePath(copy.string()), 0, bytes.bytes().size(),
                  [&](uint64_t offset, std::span<std::byte> out) {
                    std::this_thread::sleep_for(200ms);
                    const auto part = bytes.bytes().subspan(offset, out.size());
                    std::copy(part.begin(), part.end(), out.begin());
                  },
                  {});
  EXPECT_EQ(sha256_file(copy), hash);
  EXPECT_EQ(sshd.connections(), 1);
}

TEST_F(SshTransfer, ARefusedChannelWaitsForAFreeOne) {
  test::Sshd sshd({.config = {"MaxSessions 1"}});
  Connector connector(sshd.settings());
  const auto connection = connector.get();
  const Channel busy = Channel::exec(connection, "cat", deadline_in(20s), {});
  const Error error = error_of([&] { Channel::exec(connection, "true", deadline_in(1500ms), {}); });
  EXPECT_EQ(error.kind(), ErrorKind::kRemote);
  EXPECT_THAT(error.what(), HasSubstr("waiting for a free channel"));
}

TEST_F(SshTransfer, ARefusedChannelLeavesThoseThatTheServerAllows) {
  test::Sshd sshd({.config = {"MaxSessions 2"}});
  Connector connector(sshd.settings());
  const auto connection = connector.get();
  const auto start = [&](std::chrono::milliseconds patience) {
    return Channel::exec(connection, "cat", deadline_in(patience), {});
  };
  const Channel one = start(20s);
  {
    const Channel two = start(20s);
    EXPECT_EQ(error_of([&] { start(1500ms); }).kind(), ErrorKind::kRemote);
  }
  bool has_second = false;
  connection->with([&](ssh_session) { has_second = connection->take_channel(); });
  EXPECT_TRUE(has_second);
}

// A frozen server: the kernel and libssh hold the sent bytes until it goes on.
class FrozenServer {
 public:
  FrozenServer(const test::Sshd& sshd, const std::shared_ptr<Connection>& connection) {
    Channel::exec(connection, "true", deadline_in(20s), {});  // the log-in's processes have ended
    processes_ = sshd.session_processes();
    for (const pid_t pid : processes_) ::kill(pid, SIGSTOP);
    connection->with([&](ssh_session session) {
      ASSERT_NE(::fcntl(ssh_get_fd(session), F_GETFL) & O_NONBLOCK, 0);  // the sends would wait
      const int no_limit = 0;
      ::setsockopt(ssh_get_fd(session), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &no_limit, sizeof no_limit);
      for (int i = 0; i < 400; ++i) ssh_send_ignore(session, std::string(20'000, 'x').c_str());
      ASSERT_EQ(::ioctl(ssh_get_fd(session), SIOCOUTQ, &queued_bytes), 0);
    });
  }
  ~FrozenServer() {
    for (const pid_t pid : processes_) ::kill(pid, SIGCONT);
  }
  int queued_bytes = 0;

 private:
  std::vector<pid_t> processes_;
};

constexpr int kFullQueueBytes = 1'200'000;
constexpr auto kMeasures = 200ms;  // a flow measures the queue every 100 ms

TEST_F(SshTransfer, AStopEndsAnUploadThatWaitsForRoom) {
  test::Sshd sshd;
  SshSettings settings = sshd.settings();
  settings.timeouts.operation = 10s;
  Connector connector(settings);
  const auto connection = connector.get();
  std::optional<FrozenServer> frozen(std::in_place, sshd, connection);
  if (HasFatalFailure()) return;
  if (frozen->queued_bytes < kFullQueueBytes)
    GTEST_SKIP() << "this kernel queues " << frozen->queued_bytes << " bytes";
  UploadFlow flow({connection}, "write /file");
  std::this_thread::sleep_for(kMeasures);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(error_of([&] { flow.wait_for_room(stop.get_token()); }).kind(), ErrorKind::kCancelled);
  frozen.reset();
  flow.wait_for_room({});
}

// The connection stays alive, and its queue stays full.
TEST_F(SshTransfer, AnUploadWhoseQueueStandsStillFailsInTime) {
  test::Sshd sshd;
  SshSettings settings = sshd.settings();
  settings.timeouts.operation = 2s;
  settings.timeouts.keepalive = settings.timeouts.silence = 120s;
  Connector connector(settings);
  const auto connection = connector.get();
  const FrozenServer frozen(sshd, connection);
  if (HasFatalFailure()) return;
  if (frozen.queued_bytes < kFullQueueBytes)
    GTEST_SKIP() << "this kernel queues " << frozen.queued_bytes << " bytes";
  UploadFlow flow({connection}, "write /file");
  std::this_thread::sleep_for(kMeasures);
  std::stop_source stop;
  const std::jthread stopper([&](const std::stop_token& is_over) {
    if (!test::await([&] { return is_over.stop_requested(); }, 20s)) stop.request_stop();
  });
  EXPECT_EQ(error_of([&] { flow.wait_for_room(stop.get_token()); }).kind(), ErrorKind::kRemote);
}

TEST_F(SshTransfer, ALostLinkEndsAnUploadThatWaitsForRoom) {
  test::Sshd sshd;
  SshSettings settings = sshd.settings();
  settings.timeouts.keepalive = 500ms;
  settings.timeouts.silence = 2s;
  settings.timeouts.operation = 5s;
  Connector connector(settings);
  const auto connection = connector.get();
  const FrozenServer frozen(sshd, connection);
  if (HasFatalFailure()) return;
  if (frozen.queued_bytes < kFullQueueBytes)
    GTEST_SKIP() << "this kernel queues " << frozen.queued_bytes << " bytes";
  ASSERT_TRUE(test::await([&] { return !connection->alive(); }));
  UploadFlow flow({connection}, "write /file");
  std::this_thread::sleep_for(kMeasures);
  const Error error = error_of([&] { flow.wait_for_room({}); });
  EXPECT_EQ(error.kind(), ErrorKind::kRemote);
  EXPECT_THAT(error.what(), HasSubstr("was lost while waiting to write /file"));
}

TEST_F(SshTransfer, AShortCommandDoesNotWaitForATransfer) {
  test::Sshd sshd;
  const auto session = make_ssh_session(sshd.settings());
  const auto file = sshd.dir() / "zeros";
  std::ofstream(file).put('x');
  std::filesystem::resize_file(file, 8'000'000'000);  // holes
  std::stop_source stop;
  std::atomic<bool> moves = false;
  std::jthread transfer([&] {
    try {
      session->download(
          RemotePath(file.string()), 0, 8'000'000'000, [&](auto) { moves = true; },
          stop.get_token());
      ADD_FAILURE() << "the transfer ended too early";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCancelled);
    }
  });
  ASSERT_TRUE(test::await([&] { return moves.load(); }));
  for (int i = 0; i < 3; ++i) {
    expect_works(*session);
    EXPECT_TRUE(session->stat(RemotePath(file.string())));
  }
  stop.request_stop();  // of a transfer that has not ended
  transfer.join();
  EXPECT_EQ(sshd.connections(), 1);
}

// The reader accepts only the requested bytes.
TEST_F(SshTransfer, RejectsADownloadThatNeverEnds) {
  test::TempDir dir;
  const auto dd = dir / "dd";
  write_file_atomic(dd, "#!/bin/sh\n/bin/dd \"$@\" && exec yes\n", 0755);
  write_file_atomic(dir / "file", std::string(100'000, 'x'));
  test::Sshd sshd({.before_login = "PATH=" + dir.path().string() + ":$PATH; export PATH"});
  const auto session = make_ssh_session(sshd.settings());
  uint64_t taken = 0;
  const Error error = error_of([&] {
    session->download(RemotePath((dir / "file").string()), 0, 100'000,
                      [&](std::span<const std::byte> bytes) { taken += bytes.size(); }, {});
  });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("more bytes of"));
  EXPECT_EQ(taken, 100'000u);
}

TEST_F(SshTransfer, AFullDiskIsAnIoError) {
  test::Sshd sshd({.before_login = "ulimit -f 2000"});  // 1 MB
  const auto session = make_ssh_session(sshd.settings());
  const auto file = sshd.dir() / "file";
  numbered_file(file, 30'000'000);
  EXPECT_EQ(error_of([&] { upload(*session, file, sshd.dir() / "copy"); }).kind(), ErrorKind::kIo);
  expect_works(*session);
}

// Behind the noise SFTP does not work, and commands write small files, too.
TEST_F(SshTransfer, AWriteOfTooFewBytesIsAnIoError) {
  test::TempDir dir;
  write_file_atomic(dir / "dd", "#!/bin/sh\n{ head -c 1000; cat >/dev/null; } | /bin/dd \"$@\"\n",
                    0755);
  test::Sshd sshd(
      {.before_login = "echo noise; PATH=" + dir.path().string() + ":$PATH; export PATH"});
  const auto session = make_ssh_session(sshd.settings());
  const RemotePath copy((sshd.dir() / "copy").string());
  const std::vector<std::byte> bytes(3000);
  EXPECT_EQ(error_of([&] { session->write(copy, 0, bytes); }).kind(), ErrorKind::kIo);
  const Error error = error_of([&] { session->upload(copy, 0, 3000, [](auto...) {}, {}); });
  EXPECT_EQ(error.kind(), ErrorKind::kIo);
  EXPECT_THAT(error.what(), HasSubstr("1000 of 3000 bytes arrived"));
}

// A file system may report a full disk when dd closes the file, behind its last byte.
TEST_F(SshTransfer, AnUploadByACommandThatFailsAtItsEndIsAnIoError) {
  test::TempDir dir;
  write_file_atomic(dir / "dd", "#!/bin/sh\n/bin/dd \"$@\"\nexit 1\n", 0755);
  test::Sshd sshd({.before_login = "PATH=" + dir.path().string() + ":$PATH; export PATH"});
  const auto session = make_ssh_session(sshd.settings());
  const RemotePath copy((sshd.dir() / "copy").string());
  const Error error = error_of([&] { session->upload(copy, 0, 3000, [](auto...) {}, {}); });
  EXPECT_EQ(error.kind(), ErrorKind::kIo) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("exit code 1"));
}

// Behind the noise SFTP does not work, and commands read small files.
TEST_F(SshTransfer, BytesBeyondThoseOfAReadByACommandAreRejected) {
  test::TempDir dir;
  write_file_atomic(dir / "dd", "#!/bin/sh\n/bin/dd \"$@\"\nexec head -c 1000 /dev/zero\n", 0755);
  write_file_atomic(dir / "file", std::string(100, 'x'));
  test::Sshd sshd(
      {.before_login = "echo noise; PATH=" + dir.path().string() + ":$PATH; export PATH"});
  const auto session = make_ssh_session(sshd.settings());
  const RemotePath file((dir / "file").string());
  std::string memory(4000, '-');
  const auto piece = std::as_writable_bytes(std::span(memory)).first(100);
  EXPECT_EQ(error_of([&] { session->read(file, 0, piece); }).kind(), ErrorKind::kIo);
  EXPECT_EQ(memory, std::string(4000, '-'));
}

// A source may keep a state, as the meter of a push does.
TEST_F(SshTransfer, OneThreadAtATimeReadsTheSource) {
  test::Sshd sshd;
  const auto session = make_ssh_session(sshd.settings());
  std::atomic<int> num_inside = 0, num_overlaps = 0;
  const Source source = [&](uint64_t, std::span<std::byte>) {
    if (++num_inside > 1) ++num_overlaps;
    std::this_thread::sleep_for(5ms);
    --num_inside;
  };
  session->upload(RemotePath((sshd.dir() / "copy").string()), 0, 9u << 20, source, {});
  EXPECT_EQ(num_overlaps.load(), 0);
}

// At a limit of processes the calling thread sends the ranges of the missing threads.
TEST_F(SshTransfer, AnUploadWithoutFurtherThreadsIsComplete) {
  test::Sshd sshd;
  const auto session = make_ssh_session(sshd.settings());
  expect_works(*session);  // starts the connection's own thread
  const auto file = sshd.dir() / "file", copy = sshd.dir() / "copy";
  const std::string hash = numbered_file(file, 9'000'000);  // two ranges
  for (const int granted : {0, 1}) {
    std::filesystem::remove(copy);
    const test::RefusedThreads refused(granted, 100);
    upload(*session, file, copy);
    EXPECT_TRUE(refused.any());
    ASSERT_TRUE(std::filesystem::exists(copy));
    EXPECT_EQ(sha256_file(copy), hash) << granted;
  }
}

// The first block fails; the other channel would send half of the file.
TEST_F(SshTransfer, AFailedChannelEndsTheOthers) {
  constexpr uint64_t kLength = 64u << 20;
  test::Sshd sshd;
  Connector connector(sshd.settings());
  uint64_t asked = 0;
  const Source source = [&](uint64_t, std::span<std::byte> out) {
    if (std::exchange(asked, asked + out.size()) == 0)
      throw Error(ErrorKind::kIo, "the disk here is broken");
    std::this_thread::sleep_for(2ms);
  };
  const RemotePath copy((sshd.dir() / "copy").string());
  const Error error = error_of([&] {
    upload_ranges({connector.get()}, /*by_shell=*/true, copy, 0, kLength, source, 2, {});
  });
  EXPECT_EQ(error.kind(), ErrorKind::kIo) << error.what();
  EXPECT_LT(asked, kLength / 2);
}

TEST_F(SshTransfer, ASinkThatThrowsEndsOnlyTheTransfer) {
  test::Sshd sshd;
  const auto session = make_ssh_session(sshd.settings());
  const auto file = sshd.dir() / "file";
  numbered_file(file, 30'000'000);
  const Sink full = [](auto) { throw Error(ErrorKind::kIo, "the disk here is full"); };
  EXPECT_EQ(error_of([&] {
              session->download(RemotePath(file.string()), 0, 30'000'000, full, {});
            }).kind(),
            ErrorKind::kIo);
  expect_works(*session);
  EXPECT_EQ(sshd.connections(), 1);
}

// The growth of memory, in KiB, by downloads at once whose readers wait as for a slow disk.
long growth_by_waiting_readers(const SshSettings& settings, const RemotePath& file,
                               uint64_t length) {
  constexpr int kSessions = 8, kReaders = 8;
  return test::growth_in_child([&] {
    std::atomic<int> num_waiting = 0;
    std::stop_source stop;
    std::vector<std::shared_ptr<Session>> sessions;
    std::vector<std::jthread> readers;
    const auto wait = [&](std::span<const std::byte>) {
      ++num_waiting;
      while (!stop.stop_requested()) std::this_thread::sleep_for(10ms);
      throw Error(ErrorKind::kCancelled, "read enough");
    };
    for (int i = 0; i < kSessions; ++i) {
      const auto& session = sessions.emplace_back(make_ssh_session(settings));
      for (int j = 0; j < kReaders; ++j)
        readers.emplace_back(
            [&, session] { error_of([&] { session->download(file, 0, length, wait, {}); }); });
    }
    const bool all = test::await([&] { return num_waiting == kSessions * kReaders; }, 60s);
    std::this_thread::sleep_for(1s);  // for the bytes on their way
    stop.request_stop();
    readers.clear();
    if (!all) throw Error(ErrorKind::kInternal, "not all downloads began");
  });
}

// One download alone may hold 8 MiB in a window of 4 MiB and its buffer.
TEST_F(SshTransfer, ManyDownloadsAtOnceDivideTheirMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers allocate additional memory";
#endif
  const test::Sshd sshd;
  const auto file = sshd.dir() / "file";
  constexpr uint64_t kBytes = 12u << 20;
  numbered_file(file, kBytes);
  SshSettings by_shell = sshd.settings(), by_sftp = sshd.settings();
  by_sftp.shell = false;
  const RemotePath path(file.string());
  const long shell_kib = growth_by_waiting_readers(by_shell, path, kBytes);
  const long sftp_kib = growth_by_waiting_readers(by_sftp, path, kBytes);
  std::cout << "64 downloads: " << shell_kib << " KiB by commands, " << sftp_kib << " by SFTP\n";
  for (const long kib : {shell_kib, sftp_kib}) {
    EXPECT_GT(kib, 0);
    EXPECT_LT(kib, 450 << 10);
  }
}

}  // namespace
}  // namespace xffl::remote
