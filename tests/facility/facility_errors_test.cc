// The decorators that keep a facility's errors apart from this machine's.
#include "xffl/facility/facility_errors.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "support/fake_scheduler.h"
#include "support/fake_session.h"
#include "support/forwarding_scheduler.h"
#include "support/thrown.h"

namespace xffl::facility {
namespace {

using test::kind_of;

constexpr ErrorKind kAllKinds[] = {
    ErrorKind::kInternal, ErrorKind::kUsage,    ErrorKind::kConfig,    ErrorKind::kNotFound,
    ErrorKind::kCorrupt,  ErrorKind::kRejected, ErrorKind::kIo,        ErrorKind::kRemote,
    ErrorKind::kAuth,     ErrorKind::kBusy,     ErrorKind::kCancelled, ErrorKind::kUnsupported,
    ErrorKind::kFailed};

// The model is on the facility; reads and downloads fail as the test says.
class FailingSession final : public test::FakeSession {
 public:
  std::function<void()> fail;

  std::optional<FileInfo> stat(const RemotePath& path) override {
    if (stat_fails) fail();
    return FakeSession::stat(path);
  }
  size_t read(const RemotePath& path, uint64_t offset, std::span<std::byte> out) override {
    fail();
    return FakeSession::read(path, offset, out);
  }
  void download(const RemotePath&, uint64_t, uint64_t, const remote::Sink& sink,
                std::stop_token) override {
    const std::byte some[3] = {};
    sink(some);
    fail();
  }
  void upload(const RemotePath&, uint64_t, uint64_t, const remote::Source& source,
              std::stop_token) override {
    std::byte some[3] = {};
    source(0, some);
    fail();
  }
  void make_dirs(const RemotePath& folder) override {
    if (fail) fail();
    FakeSession::make_dirs(folder);
  }
  bool stat_fails = false;
};

struct GuardedFile : testing::Test {
  GuardedFile() {
    inner->put("/f", "12345");
    inner->on_run = [this](const auto&, const auto&) {
      inner->fail();
      return remote::CommandResult{};
    };
  }
  void fail_with(ErrorKind kind) {
    inner->fail = [kind] { throw Error(kind, "text"); };
  }
  ErrorKind download(const RemotePath& path, uint64_t length, const remote::Sink& sink) {
    return kind_of([&] { session->download(path, 0, length, sink, {}); });
  }
  const std::shared_ptr<FailingSession> inner = std::make_shared<FailingSession>();
  const std::shared_ptr<remote::Session> session = guard(std::shared_ptr<remote::Session>(inner));
  const RemotePath file{"/f"}, absent{"/absent"};
};

TEST_F(GuardedFile, AnyErrorOfACommandIsALostAnswer) {
  for (const ErrorKind kind : kAllKinds) {
    fail_with(kind);
    const bool keeps = kind == ErrorKind::kAuth || kind == ErrorKind::kIo;
    const ErrorKind expected = keeps ? kind : ErrorKind::kRemote;
    EXPECT_EQ(kind_of([&] { session->run({"true"}, "", {}, {}); }), expected) << to_string(kind);
    EXPECT_EQ(kind_of([&] { session->make_dirs(file); }), expected) << to_string(kind);
  }
  inner->fail = [] { throw std::out_of_range("map::at"); };
  EXPECT_EQ(kind_of([&] { session->run({"true"}, "", {}, {}); }), ErrorKind::kRemote);
}

TEST_F(GuardedFile, ACancellationPassesOnlyAfterAStopRequest) {
  fail_with(ErrorKind::kCancelled);
  std::stop_source stop;
  EXPECT_EQ(kind_of([&] { session->run({"true"}, "", {}, stop.get_token()); }), ErrorKind::kRemote);
  stop.request_stop();
  EXPECT_EQ(kind_of([&] { session->run({"true"}, "", {}, stop.get_token()); }),
            ErrorKind::kCancelled);
}

// An absent or a short file is evidence against an update, so it is looked at twice.
TEST_F(GuardedFile, AnAbsentOrShortFileIsCheckedTwice) {
  std::byte byte[1];
  const remote::Sink none = [](auto) {};
  fail_with(ErrorKind::kNotFound);
  EXPECT_EQ(kind_of([&] { session->read(file, 0, byte); }), ErrorKind::kRemote);
  EXPECT_EQ(kind_of([&] { session->read(absent, 0, byte); }), ErrorKind::kNotFound);
  EXPECT_EQ(download(file, 5, none), ErrorKind::kRemote);
  EXPECT_EQ(download(absent, 5, none), ErrorKind::kNotFound);
  fail_with(ErrorKind::kCorrupt);
  EXPECT_EQ(kind_of([&] { session->read(file, 0, byte); }), ErrorKind::kRemote);
  EXPECT_EQ(download(file, 5, none), ErrorKind::kRemote);
  EXPECT_EQ(download(file, 6, none), ErrorKind::kCorrupt);
}

TEST_F(GuardedFile, AStatOfAnAbsentFileIsEmptyWhateverItThrows) {
  inner->stat_fails = true;
  fail_with(ErrorKind::kNotFound);
  EXPECT_FALSE(session->stat(file));
  fail_with(ErrorKind::kUnsupported);
  EXPECT_EQ(kind_of([&] { session->stat(file); }), ErrorKind::kRemote);
}

// A model at the facility counts as whole after its sync.
TEST_F(GuardedFile, ASyncReachesTheFacility) {
  session->sync(file);
  EXPECT_EQ(kind_of([&] { session->sync(absent); }), ErrorKind::kRemote);
}

// A full disk or a damaged model of this machine must not be taken for the facility's error.
TEST_F(GuardedFile, ErrorsOfSinksAndSourcesPassUnchanged) {
  inner->fail = [] {};
  for (const ErrorKind kind : kAllKinds) {
    EXPECT_EQ(download(file, 3, [kind](auto) { throw Error(kind, "here"); }), kind);
    EXPECT_EQ(kind_of([&] {
                session->upload(file, 0, 3, [kind](auto, auto) { throw Error(kind, "here"); }, {});
              }),
              kind);
  }
}

TEST_F(GuardedFile, ARunKeepsOneGuardForASession) {
  GuardedSessions all;
  const std::shared_ptr<remote::Session> raw = inner;
  const auto first = all.of(raw);
  EXPECT_EQ(all.of(raw), first);
  EXPECT_NE(all.of(std::make_shared<test::FakeSession>()), first);
}

class FailingScheduler final : public test::ForwardingScheduler {
 public:
  using ForwardingScheduler::ForwardingScheduler;
  JobId submit(const submit::JobRequest&, std::stop_token) override { throw Error(kind, "text"); }
  std::vector<JobId> find(const submit::JobRequest&, std::stop_token) override {
    throw Error(kind, "text");
  }
  std::map<JobId, submit::JobStatus> query(std::span<const submit::SubmittedJob>,
                                           std::stop_token) override {
    if (silent) return {};
    throw Error(kind, "text");
  }
  void cancel(const submit::SubmittedJob&, std::stop_token) override { throw Error(kind, "text"); }
  ErrorKind kind = ErrorKind::kInternal;
  bool silent = false;
};

TEST(GuardedScheduler, LeavesOnlyTheKindsOfItsContract) {
  test::FakeCluster cluster;
  const auto inner =
      std::make_shared<FailingScheduler>(std::make_shared<test::FakeScheduler>(cluster));
  const auto scheduler = guard(std::shared_ptr<submit::Scheduler>(inner));
  const submit::SubmittedJob job{JobId("7"), "n"};
  for (const ErrorKind kind : kAllKinds) {
    inner->kind = kind;
    const auto expected = [&](std::initializer_list<ErrorKind> named) {
      return std::find(named.begin(), named.end(), kind) == named.end() ? ErrorKind::kRemote : kind;
    };
    // A failed system call leaves open whether a job exists.
    EXPECT_EQ(kind_of([&] { scheduler->submit({}, {}); }),
              expected({ErrorKind::kAuth, ErrorKind::kConfig, ErrorKind::kBusy}));
    const ErrorKind other = expected({ErrorKind::kAuth, ErrorKind::kIo});
    EXPECT_EQ(kind_of([&] { scheduler->find({}, {}); }), other);
    EXPECT_EQ(kind_of([&] { scheduler->query({&job, 1}, {}); }), other);
    EXPECT_EQ(kind_of([&] { scheduler->cancel(job, {}); }), other);
  }
  inner->silent = true;
  EXPECT_EQ(scheduler->query({&job, 1}, {}).at(job.id).state, submit::JobState::kUnknown);
}

}  // namespace
}  // namespace xffl::facility
