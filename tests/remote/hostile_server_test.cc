// Sessions with a server that answers slowly, without end or not at all: every call ends at its
// stop token, and every transfer ends after a time without a byte of the file.
#include "support/hostile_server.h"

#include <atomic>
#include <thread>

#include "connector.h"
#include "ssh_test.h"
#include "support/free_port.h"
#include "xffl/remote/stop_scope.h"

namespace xffl::remote {
namespace {

using test::HostileServer;
using test::SftpPacket;
using testing::HasSubstr;
using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;
using Behaviour = HostileServer::Behaviour;

constexpr double kByteAMinute = 1.0 / 60;
constexpr uint64_t kFileBytes = 9u << 20;

class HostileServerTest : public SshTest {
 protected:
  void SetUp() override {
    if (!HostileServer::missing().empty()) GTEST_SKIP() << HostileServer::missing();
    server_.emplace();
    file_ = server_->dir() / "file";
    copy_ = server_->dir() / "copy";
    hash_ = numbered_file(file_, kFileBytes);
  }
  SshSettings settings(bool shell, std::chrono::milliseconds operation = 60s) const {
    SshSettings settings = server_->settings(shell);
    settings.timeouts.operation = operation;
    return settings;
  }
  // Every channel that `command` matches behaves so.
  void all(const Behaviour& behaviour, const std::string& part = "") {
    server_->set([behaviour, part](const std::string& command) {
      return command.find(part) == std::string::npos ? Behaviour{} : behaviour;
    });
  }
  // The time that `call` takes to end after a stop request, which comes after a second.
  // As docs/developer/faults.md promises for a whole run.
  static constexpr double kSecondsToStop = 10;

  static double seconds_to_stop(const std::function<void(std::stop_token)>& call) {
    std::stop_source stop;
    SteadyClock::time_point requested;
    const std::jthread stopper([&] {
      std::this_thread::sleep_for(1s);
      requested = SteadyClock::now();
      stop.request_stop();
    });
    const StopScope scope(stop.get_token());
    const Error error = error_of([&] { call(stop.get_token()); });
    EXPECT_EQ(error.kind(), ErrorKind::kCancelled) << error.what();
    return std::chrono::duration<double>(SteadyClock::now() - requested).count();
  }
  // The error of `call`, which a stop request ends after a minute.
  static Error error_in_a_minute(const std::function<void()>& call) {
    std::atomic<bool> has_ended = false;
    std::stop_source stop;
    const std::jthread stopper([&] {
      if (!test::await([&] { return has_ended.load(); }, 60s)) stop.request_stop();
    });
    const StopScope scope(stop.get_token());
    const Error error = error_of(call);
    has_ended = true;
    return error;
  }
  static double seconds_of(const std::function<void()>& call) {
    const auto began = SteadyClock::now();
    call();
    return std::chrono::duration<double>(SteadyClock::now() - began).count();
  }

  std::optional<HostileServer> server_;
  std::filesystem::path file_, copy_;
  std::string hash_;
};

TEST_F(HostileServerTest, AnHonestServerWorks) {
  for (const bool shell : {true, false}) {
    const auto session = make_ssh_session(settings(shell));
    EXPECT_EQ(download_hash(*session, file_), hash_);
    upload(*session, file_, copy_);
    EXPECT_EQ(sha256_file(copy_), hash_);
    const std::filesystem::directory_iterator entries(server_->dir().path());
    EXPECT_EQ(session->list(RemotePath(server_->dir().path().string())).size(),
              static_cast<size_t>(std::distance(begin(entries), end(entries))));
    if (shell) expect_works(*session);
  }
}

// Each call of a session, at a server that sends one byte a minute, floods stderr, or reads
// nothing.
TEST_F(HostileServerTest, AStopEndsEachCall) {
  const RemotePath file(file_.string()), copy(copy_.string());
  const std::map<std::string, std::function<void(Session&, std::stop_token)>> calls = {
      {"run",
       [&](Session& s, auto stop) {
         s.run({"cat", file_.string()}, "", 60s, stop);
       }},
      {"stat", [&](Session& s, auto) { s.stat(file); }},
      {"read",
       [&](Session& s, auto) {
         std::byte b[100];
         s.read(file, 0, b);
       }},
      {"list", [&](Session& s, auto) { s.list(file.parent()); }},
      {"look",
       [&](Session& s, auto) {
         s.look(file.parent(), std::vector<FileQuery>{{"file", 0}});
       }},
      {"put_files",
       [&](Session& s, auto) {
         s.put_files(file.parent(), std::vector<NewFile>{{"a", "b"}});
       }},
      {"sha256",
       [&](Session& s, auto) {
         s.sha256(file, 0, 100);
         s.stat(file);
       }},
      {"make_dirs", [&](Session& s, auto) { s.make_dirs(copy / "below"); }},
      {"rename", [&](Session& s, auto) { s.rename(file, copy); }},
      {"download", [&](Session& s, auto) { download_hash(s, file_); }},
      {"upload", [&](Session& s, auto) { upload(s, file_, copy_); }},
      {"remove_tree", [&](Session& s, auto stop) { s.remove_tree(file.parent() / "home", stop); }},
  };
  std::map<std::string, Behaviour> servers(
      {{"a byte a minute", {.sends_per_second = kByteAMinute}},
       {"silent", {.sends_per_second = 0}},
       {"stderr without end", {.sends_per_second = 0, .floods_stderr = true}},
       {"reads nothing", {.sends_per_second = 0, .takes_per_second = 0}}});
  double longest = 0;
  std::vector<std::jthread> threads;  // each with its own server
  std::mutex mutex;
  for (const bool shell : {true, false})
    for (const auto& [name, behaviour] : servers) {
      if (!shell && behaviour.floods_stderr) continue;  // ends before the stop request
      threads.emplace_back([&, shell, name = name, behaviour = behaviour] {
        HostileServer server;
        server.set([&](const std::string&) { return behaviour; });
        for (const auto& [call_name, call] : calls) {
          if (call_name == "run" && !shell) continue;
          const auto session = make_ssh_session(server.settings(shell));
          const double seconds =
              seconds_to_stop([&, &now = call](std::stop_token stop) { now(*session, stop); });
          EXPECT_LT(seconds, kSecondsToStop) << call_name << ", " << name << ", shell " << shell;
          const std::lock_guard lock(mutex);
          longest = std::max(longest, seconds);
        }
      });
    }
  threads.clear();
  std::cout << "the slowest of " << (servers.size() - 1) * (2 * calls.size() - 1) + calls.size()
            << " calls ended " << longest << " s after the stop request\n";
}

// A short call has one time limit, which a trickle does not prolong.
TEST_F(HostileServerTest, ATrickleDoesNotProlongAShortCall) {
  all({.sends_per_second = 4, .free_bytes = 400});  // the version packet passes
  for (const bool shell : {true, false}) {
    const auto session = make_ssh_session(settings(shell, 2s));
    const double seconds = seconds_of([&] {
      for (int i = 0; i < 20; ++i) try {
          session->stat(RemotePath(file_.string()));
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kRemote) << error.what();
          return;
        }
      ADD_FAILURE() << "no call failed";
    });
    EXPECT_LT(seconds, 8);
  }
}

// All requests of a short read have one time limit, too.
TEST_F(HostileServerTest, ATrickleDoesNotProlongAShortRead) {
  all({.sends_per_second = 40, .free_bytes = 400});  // the version packet passes
  const auto session = make_ssh_session(settings(/*shell=*/false, 3s));
  std::vector<std::byte> piece(2048);
  const double seconds = seconds_of([&] {
    const Error error = error_of([&] { session->read(RemotePath(file_.string()), 0, piece); });
    EXPECT_EQ(error.kind(), ErrorKind::kRemote) << error.what();
  });
  EXPECT_LT(seconds, 20) << "the bytes need more than 40 s";
}

// The client of a read serves the later calls.
TEST_F(HostileServerTest, ACallLongAfterAReadHasItsOwnTimeLimit) {
  const auto session = make_ssh_session(settings(/*shell=*/false, 2s));
  const RemotePath file(file_.string());
  std::vector<std::byte> piece(100);
  EXPECT_TRUE(session->stat(file));  // connects
  EXPECT_EQ(session->read(file, 0, piece), piece.size());
  const int channels = server_->channels("sftp");
  std::this_thread::sleep_for(2100ms);
  EXPECT_TRUE(session->stat(file));
  EXPECT_EQ(server_->channels("sftp"), channels);
}

// An SFTP server has nothing to say there, and what libssh holds of it grows without end.
TEST_F(HostileServerTest, AnSftpServerThatFloodsStderrIsGivenUp) {
  HostileServer server;
  server.set(
      [&](const std::string&) { return Behaviour{.sends_per_second = 0, .floods_stderr = true}; });
  const auto session = make_ssh_session(server.settings(/*shell=*/false));
  const double seconds = seconds_of([&] {
    const Error error = error_of([&] { session->stat(RemotePath(file_.string())); });
    EXPECT_THAT(error.what(), HasSubstr("floods stderr"));
  });
  EXPECT_LT(seconds, 30);
}

// Bytes on stderr are no progress of a transfer.
TEST_F(HostileServerTest, ATransferWithoutAByteOfTheFileFailsInTime) {
  const std::map<std::string, Behaviour> servers(
      {{"silent", {.sends_per_second = 0}},
       {"stderr without end", {.sends_per_second = 0, .floods_stderr = true}},
       {"reads nothing", {.takes_per_second = 0}}});
  for (const bool shell : {true, false})
    for (const auto& [name, behaviour] : servers) {
      HostileServer server;
      SshSettings fast = server.settings(shell);
      fast.timeouts.operation = 2s;
      server.set([&](const std::string&) { return behaviour; });
      const auto session = make_ssh_session(fast);
      for (const bool up : {true, false}) {
        // A download by command needs no input.
        if (shell && !up && behaviour.takes_per_second == 0) continue;
        const double seconds = seconds_of([&] {
          const Error error = error_of([&] {
            if (up)
              upload(*session, file_, copy_);
            else
              download_hash(*session, file_);
          });
          EXPECT_TRUE(error.kind() == ErrorKind::kRemote ||
                      (!shell && error.kind() == ErrorKind::kUnsupported))
              << name << ", " << to_string(error.kind()) << ": " << error.what();
        });
        EXPECT_LT(seconds, 60) << name << ", shell " << shell << ", up " << up;
      }
    }
}

// The short calls before and after the bytes have answers.
TEST_F(HostileServerTest, AnSftpTransferWithoutAnswersFailsInTime) {
  for (const uint8_t unanswered : {test::kSftpRead, test::kSftpWrite}) {
    all({.on_request = [unanswered](const SftpPacket& request) -> std::optional<std::string> {
          if (request.type != unanswered) return std::nullopt;
          return "";
        }},
        "sftp");
    const auto session = make_ssh_session(settings(/*shell=*/false, 1s));
    const Error error = error_in_a_minute([&] {
      if (unanswered == test::kSftpRead)
        download_hash(*session, file_);
      else
        upload(*session, file_, copy_);
    });
    ASSERT_EQ(error.kind(), ErrorKind::kRemote) << error.what();
  }
}

// The window of the channel closes inside the file.
TEST_F(HostileServerTest, AnSftpUploadThatTheServerStopsReadingFailsInTime) {
  const auto is_over = std::make_shared<std::atomic<bool>>(false);
  all({.on_request = [is_over](const SftpPacket& request) -> std::optional<std::string> {
        while (request.type == test::kSftpWrite && !*is_over) std::this_thread::sleep_for(10ms);
        return std::nullopt;
      }},
      "sftp");
  SshSettings patient = settings(/*shell=*/false, 2s);
  patient.streams = 1;  // the short calls of another channel would fail in time
  patient.timeouts.keepalive = patient.timeouts.silence = 120s;
  const auto session = make_ssh_session(patient);
  const Error error = error_in_a_minute([&] { upload(*session, file_, copy_); });
  *is_over = true;
  EXPECT_EQ(error.kind(), ErrorKind::kRemote) << error.what();
}

// The file exceeds the window of a channel.
TEST_F(HostileServerTest, AFileThatNoCommandTakesFailsInTime) {
  all({.takes_per_second = 0});
  const auto session = make_ssh_session(settings(/*shell=*/true, 2s));
  const std::vector<NewFile> files = {{"large", std::string(8u << 20, 'x')}};
  const auto put = [&] { session->put_files(RemotePath(copy_.string()), files); };
  const Error error = error_in_a_minute(put);
  EXPECT_EQ(error.kind(), ErrorKind::kRemote) << error.what();
}

// As at a file system that hangs: the command has its whole input.
TEST_F(HostileServerTest, ACommandThatNeverAnswersFailsInTime) {
  all({.sends_per_second = 0});
  const auto session = make_ssh_session(settings(/*shell=*/true, 1s));
  const RemotePath folder(server_->dir().path().string());
  const std::vector<std::function<void()>> calls = {
      [&] {
        session->look(folder, std::vector<FileQuery>{{"file", 0}});
      },
      [&] {
        session->put_files(folder, std::vector<NewFile>{{"a", "b"}});
      },
      [&] { upload(*session, file_, copy_); },
  };
  for (const auto& call : calls) {
    const Error error = error_in_a_minute(call);
    ASSERT_EQ(error.kind(), ErrorKind::kRemote) << error.what();
  }
}

TEST_F(HostileServerTest, ASlowDownloadThatMovesCompletes) {
  for (const bool shell : {true, false}) {
    all({.sends_per_second = 2e6});
    const auto session = make_ssh_session(settings(shell, 1500ms));
    EXPECT_EQ(download_hash(*session, file_), hash_);
  }
}

TEST_F(HostileServerTest, ASlowAnswerThatMovesCompletes) {
  all({.sends_per_second = 4e6});
  const auto session = make_ssh_session(settings(/*shell=*/true, 1500ms));
  const std::vector<FileQuery> query{{"file", kFileBytes}};
  const auto views = session->look(RemotePath(file_.string()).parent(), query);
  EXPECT_EQ(sha256_hex(views.at(0).bytes), hash_);
}

std::string name_answer(uint32_t id, int count) {
  std::string body = test::sftp_u32(static_cast<uint32_t>(count));
  for (int i = 0; i < count; ++i)
    body += test::sftp_string("n" + std::to_string(id) + "-" + std::to_string(i)) +
            test::sftp_string("") + test::sftp_u32(0);
  return SftpPacket{test::kSftpName, id, body}.bytes();
}

// Several channels upload the file: each has a thread of its own.
TEST_F(HostileServerTest, AStopEndsAnUploadWhoseShortCallsGetNoAnswer) {
  for (const uint8_t unanswered : {test::kSftpLstat, test::kSftpOpen, test::kSftpClose}) {
    all({.on_request = [unanswered](const SftpPacket& request) -> std::optional<std::string> {
          if (request.type != unanswered) return std::nullopt;
          return "";
        }},
        "sftp");
    const auto session = make_ssh_session(settings(false));
    EXPECT_LT(seconds_to_stop([&](std::stop_token) { upload(*session, file_, copy_); }),
              kSecondsToStop)
        << "request " << int{unanswered};
  }
}

TEST_F(HostileServerTest, AListingThatNeverEndsIsRejected) {
  for (const int names : {0, 1000}) {
    int answers = 0;
    all({.on_request = [&, names](const SftpPacket& request) -> std::optional<std::string> {
          if (request.type != test::kSftpReaddir) return std::nullopt;
          ++answers;
          return name_answer(request.id, names);
        }},
        "sftp");
    const auto session = make_ssh_session(settings(false));
    const Error error = error_of([&] { session->list(RemotePath("/tmp")); });
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(names == 0 ? "neither ends nor names" : "100000 names"));
    EXPECT_LE(answers, 102);
  }
}

// An answer that is longer than the room for an ordinary one.
TEST_F(HostileServerTest, ALongListingInOneAnswerIsWhole) {
  constexpr int kNames = 15'000;  // about 300 KB
  all({.on_request = [listed =
                          false](const SftpPacket& request) mutable -> std::optional<std::string> {
        if (request.type != test::kSftpReaddir) return std::nullopt;
        return std::exchange(listed, true) ? test::sftp_status(request.id, 1)
                                           : name_answer(request.id, kNames);
      }},
      "sftp");
  const auto session = make_ssh_session(settings(false));
  EXPECT_EQ(session->list(RemotePath("/tmp")).size(), static_cast<size_t>(kNames));
  EXPECT_TRUE(session->stat(RemotePath(file_.string())));
}

// Each folder of the server holds a folder.
TEST_F(HostileServerTest, ATreeWithoutEndIsNotRemoved) {
  int folders = 0;
  all({.on_request = [&folders, listed = false](
                         const SftpPacket& request) mutable -> std::optional<std::string> {
        const auto packet = [&](uint8_t type, const std::string& body) {
          return SftpPacket{type, request.id, body}.bytes();
        };
        const std::string attributes = test::sftp_u32(4) + test::sftp_u32(040755);
        if (request.type == test::kSftpLstat) return packet(test::kSftpAttrs, attributes);
        if (request.type == test::kSftpOpendir) {
          listed = false;
          // The end for a client without a limit.
          if (++folders > 1000) return test::sftp_status(request.id, 3);
          return packet(test::kSftpHandle, test::sftp_string("handle"));
        }
        if (request.type == test::kSftpReaddir && !std::exchange(listed, true))
          return packet(test::kSftpName, test::sftp_u32(1) + test::sftp_string("below") +
                                             test::sftp_string("") + attributes);
        return test::sftp_status(request.id, request.type == test::kSftpReaddir ? 1u : 0u);
      }},
      "sftp");
  const auto session = make_ssh_session(settings(false));
  const Error error = error_of([&] { session->remove_tree(RemotePath(copy_.string())); });
  EXPECT_EQ(error.kind(), ErrorKind::kIo) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("nested too deep"));
}

TEST_F(HostileServerTest, BytesBeyondThoseOfARequestAreNotRead) {
  all({.on_request = [](const SftpPacket& request) -> std::optional<std::string> {
        if (request.type != test::kSftpRead) return std::nullopt;
        const std::string more = test::sftp_string(std::string(1000, 'x'));
        return SftpPacket{test::kSftpData, request.id, more}.bytes();
      }},
      "sftp");
  const auto session = make_ssh_session(settings(false));
  std::string memory(4000, '-');
  const auto piece = std::as_writable_bytes(std::span(memory)).first(100);
  EXPECT_EQ(session->read(RemotePath(file_.string()), 0, piece), 100u);
  EXPECT_EQ(memory, std::string(100, 'x') + std::string(3900, '-'));
}

// The server may answer each request with a part of the bytes, several times for one read.
TEST_F(HostileServerTest, SeveralShortAnswersGiveTheWholeFile) {
  all({.on_answer =
           [](const SftpPacket& answer) {
             if (answer.type != test::kSftpData) return answer.bytes();
             const std::string part = answer.body.substr(4, 20'000);  // behind its length
             return SftpPacket{test::kSftpData, answer.id, test::sftp_string(part)}.bytes();
           }},
      "sftp");
  const auto session = make_ssh_session(settings(false));
  EXPECT_EQ(download_hash(*session, file_), hash_);
  constexpr uint64_t kOffset = 1'000'003;  // a transfer that continues
  std::string part(300'000, '\0');
  const auto out = std::as_writable_bytes(std::span(part));
  EXPECT_EQ(session->read(RemotePath(file_.string()), kOffset, out), part.size());
  EXPECT_TRUE(part == read_file(file_, 2 * kFileBytes).substr(kOffset, part.size()));
}

// A session keeps an SFTP client for weeks, and a server has a limit of open files.
TEST_F(HostileServerTest, ACallClosesItsHandles) {
  std::atomic<int> num_open = 0;
  all({.on_request = [&](const SftpPacket& request) -> std::optional<std::string> {
        if (request.type == test::kSftpOpen || request.type == test::kSftpOpendir) ++num_open;
        if (request.type == test::kSftpClose) --num_open;
        return std::nullopt;
      }},
      "sftp");
  const auto session = make_ssh_session(settings(false));
  const RemotePath folder(server_->dir().path().string());
  std::vector<std::byte> bytes(100);
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"write", [&] { session->write(folder / "one", 0, bytes); }},
      {"sync", [&] { session->sync(folder / "one"); }},
      {"rename", [&] { session->rename(folder / "one", folder / "two"); }},
      {"read", [&] { session->read(folder / "two", 0, bytes); }},
      {"download", [&] { session->download(folder / "two", 0, 100, [](auto) {}, {}); }},
      {"list", [&] { session->list(folder); }},
      {"make_dirs", [&] { session->make_dirs(folder / "tree/below"); }},
      {"remove_tree", [&] { session->remove_tree(folder / "tree"); }},
  };
  for (const auto& [name, call] : calls) {
    call();
    EXPECT_EQ(num_open.exchange(0), 0) << name;
  }
}

// A read of one packet has no further answers, which would end the client as well.
TEST_F(HostileServerTest, AFailedCallEndsTheClientThatHasAnOpenHandle) {
  std::atomic<bool> fails = false;
  all({.on_request = [&](const SftpPacket& request) -> std::optional<std::string> {
        const bool is_sync = request.body.find("fsync@openssh.com") != std::string::npos;
        if (fails && (is_sync || request.type == test::kSftpRead))
          return test::sftp_status(request.id, 4);
        return std::nullopt;
      }},
      "sftp");
  const auto session = make_ssh_session(settings(false));
  const RemotePath file(file_.string());
  std::vector<std::byte> bytes(100);
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"read", [&] { session->read(file, 0, bytes); }},
      {"sync", [&] { session->sync(file); }},
  };
  EXPECT_TRUE(session->stat(file));  // connects
  for (const auto& [name, call] : calls) {
    EXPECT_TRUE(session->stat(file));
    const int clients = server_->channels("sftp");
    fails = true;
    EXPECT_EQ(error_of(call).kind(), ErrorKind::kIo) << name;
    fails = false;
    EXPECT_TRUE(session->stat(file));
    EXPECT_EQ(server_->channels("sftp"), clients + 1) << name;
  }
}

// A site may end the idle processes of its login nodes.
TEST_F(HostileServerTest, AnIdleClientThatTheServerHasEndedIsNotUsed) {
  std::atomic<bool> ends = false;
  all({.on_step =
           [&](ssh_session, ssh_channel channel) {
             if (ends.exchange(false)) ssh_channel_close(channel);
             return false;
           }},
      "sftp");
  const auto session = make_ssh_session(settings(/*shell=*/true));
  const RemotePath file(file_.string());
  expect_works(*session);
  EXPECT_TRUE(session->stat(file));
  ends = true;
  ASSERT_TRUE(test::await([&] { return !ends; }));
  expect_works(*session);  // its answer follows the end of the client
  EXPECT_TRUE(session->stat(file));
  EXPECT_EQ(server_->channels("sftp"), 2);
}

TEST_F(HostileServerTest, AnAnswerOfTwoGibibytesIsRejected) {
  all({.on_request = [](const SftpPacket& request) -> std::optional<std::string> {
        if (request.type != test::kSftpLstat) return std::nullopt;
        std::string answer = test::sftp_status(request.id, 2);
        return answer.replace(0, 4, test::sftp_u32(0x7fffffff));  // the length
      }},
      "sftp");
  const auto session = make_ssh_session(settings(false));
  const Error error = error_of([&] { session->stat(RemotePath(file_.string())); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("an answer of 2147483647 bytes"));
}

// Sizes count fragments (f_frsize), and a part of the free ones is for root alone.
TEST_F(HostileServerTest, TheFreeSpaceIsThatOfTheUser) {
  all({.on_request = [](const SftpPacket& request) -> std::optional<std::string> {
        if (request.type != test::kSftpExtended) return std::nullopt;
        std::string body(1, static_cast<char>(test::kSftpExtendedReply));
        body += test::sftp_u32(request.id);
        for (const uint64_t value : {1u << 20, 4096u, 1000u, 500u, 100u, 0u, 0u, 0u, 0u, 0u, 0u})
          body += test::sftp_u64(value);
        return test::sftp_u32(static_cast<uint32_t>(body.size())) + body;
      }},
      "sftp");
  EXPECT_EQ(make_ssh_session(settings(false))->free_bytes(RemotePath("/")), 409'600u);
}

// Some file systems report a full disk at fsync only.
TEST_F(HostileServerTest, AFailedFsyncIsAnIoError) {
  all({.on_request = [](const SftpPacket& request) -> std::optional<std::string> {
        if (request.type != test::kSftpExtended ||
            request.body.find("fsync@openssh.com") == std::string::npos)
          return std::nullopt;
        return test::sftp_status(request.id, 4);
      }},
      "sftp");
  const auto session = make_ssh_session(settings(false));
  const RemotePath file(file_.string()), copy(copy_.string());
  EXPECT_EQ(error_of([&] { session->sync(file); }).kind(), ErrorKind::kIo);
  EXPECT_EQ(error_of([&] { session->rename(file, copy); }).kind(), ErrorKind::kIo)
      << "of the folder";
}

// Others report it when a file is closed.
TEST_F(HostileServerTest, AFailedCloseIsAnIoError) {
  all({.on_request = [](const SftpPacket& request) -> std::optional<std::string> {
        if (request.type != test::kSftpClose) return std::nullopt;
        return test::sftp_status(request.id, 4);
      }},
      "sftp");
  const auto session = make_ssh_session(settings(false));
  const std::vector<std::byte> bytes(4);
  EXPECT_EQ(error_of([&] { session->write(RemotePath(copy_.string()), 0, bytes); }).kind(),
            ErrorKind::kIo);
}

// A listing that fails is not whole, and a file that stays is not removed.
TEST_F(HostileServerTest, AFailedListingOrRemovalIsAnIoError) {
  for (const uint8_t failing : {test::kSftpReaddir, test::kSftpRemove}) {
    all({.on_request = [failing](const SftpPacket& request) -> std::optional<std::string> {
          if (request.type != failing) return std::nullopt;
          return test::sftp_status(request.id, 4);
        }},
        "sftp");
    const auto session = make_ssh_session(settings(false));
    const RemotePath file(file_.string());
    const Error error = error_of([&] {
      if (failing == test::kSftpReaddir)
        session->list(file.parent());
      else
        session->remove_tree(file);
    });
    EXPECT_EQ(error.kind(), ErrorKind::kIo) << error.what();
  }
}

// The first SFTP server answers each request when the next one arrives.
TEST_F(HostileServerTest, ALateAnswerBelongsToNoLaterRequest) {
  int servers = 0;
  server_->set([&](const std::string&) {
    Behaviour behaviour;
    if (++servers == 2)
      behaviour.on_request = [late = std::string()](const SftpPacket& request) mutable {
        return std::optional(std::exchange(late, test::sftp_status(request.id, 2)));
      };
    return behaviour;
  });
  const auto session = make_ssh_session(settings(false));
  const RemotePath file(file_.string());
  EXPECT_TRUE(session->stat(file));  // connects
  std::stop_source stop;
  const std::jthread user([&] {
    std::this_thread::sleep_for(200ms);
    stop.request_stop();
  });
  EXPECT_EQ(error_of([&] { session->remove_tree(file, stop.get_token()); }).kind(),
            ErrorKind::kCancelled);
  EXPECT_TRUE(session->stat(file));
  EXPECT_EQ(server_->channels("sftp"), 3);
}

// For a while the server refuses channels, as at its limit of processes.
TEST_F(HostileServerTest, AConnectionWhoseOnlyChannelWasRefusedOpensAnotherLater) {
  server_->set_greeting({.no_channels = true});
  Connector connector(settings(true));
  const auto connection = connector.get();
  const auto start = [&](std::chrono::milliseconds patience) {
    Channel::exec(connection, "true", deadline_in(patience), {});
  };
  EXPECT_EQ(error_of([&] { start(500ms); }).kind(), ErrorKind::kRemote);
  server_->set_greeting({});
  EXPECT_NO_THROW(start(20s));
}

// A token of the file system has expired: the file may be there.
TEST_F(HostileServerTest, ADeniedLookIsNoAbsence) {
  for (const uint32_t code : {2u, 3u}) {
    all({.on_request = [code](const SftpPacket& request) -> std::optional<std::string> {
          if (request.type != test::kSftpLstat) return std::nullopt;
          return test::sftp_status(request.id, code);
        }},
        "sftp");
    const auto session = make_ssh_session(settings(false));
    const auto look = [&] { return session->stat(RemotePath(file_.string())); };
    if (code == 2) {
      EXPECT_EQ(look(), std::nullopt) << "no such file";
    } else {
      EXPECT_EQ(error_of([&] { look(); }).kind(), ErrorKind::kIo);
    }
  }
}

// A host that accepts connections and says nothing: the connecting thread and the thread that waits
// for the connection both obey a stop request.
TEST_F(HostileServerTest, AStopEndsAConnectionAttempt) {
  test::Sshd sshd;  // provides settings; a frozen server accepts connections
  const SshSettings settings = sshd.settings();
  sshd.stop();
  const UniqueFd silent = test::listen_on(sshd.port());
  const auto session = make_ssh_session(settings);
  std::vector<double> seconds(2);
  std::vector<std::jthread> threads;
  for (double& each : seconds)
    threads.emplace_back(
        [&] { each = seconds_to_stop([&](std::stop_token) { session->stat(RemotePath("/")); }); });
  threads.clear();
  EXPECT_LT(*std::max_element(seconds.begin(), seconds.end()), kSecondsToStop);
}

// Another login node may serve, or a later try.
TEST_F(HostileServerTest, AHostThatSaysNothingFailsInTime) {
  test::Sshd sshd;  // provides settings; a frozen server accepts connections
  SshSettings impatient = sshd.settings();
  impatient.timeouts.log_in = 500ms;
  sshd.stop();
  const UniqueFd silent = test::listen_on(sshd.port());
  const auto session = make_ssh_session(impatient);
  const Error error = error_in_a_minute([&] { session->stat(RemotePath("/")); });
  EXPECT_EQ(error.kind(), ErrorKind::kRemote) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("no answer within 500 ms"));
}

}  // namespace
}  // namespace xffl::remote
