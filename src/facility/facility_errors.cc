#include "xffl/facility/facility_errors.h"

#include <exception>
#include <initializer_list>
#include <utility>

#include "xffl/base/error.h"
#include "xffl/remote/stop_scope.h"

namespace xffl::facility {
namespace {

using remote::Session;

bool is_one_of(ErrorKind kind, std::initializer_list<ErrorKind> kinds) {
  for (const ErrorKind each : kinds)
    if (each == kind) return true;
  return false;
}

[[noreturn]] void fail_remote(const std::string& reason) {
  throw Error(ErrorKind::kRemote, reason);
}

/// Calls `body`. Errors of `named` kinds and of a lost link pass, as does kCancelled after a stop
/// request to `stop` or to the thread's StopScope; any other failure becomes kRemote.
template <class Body>
auto call(std::initializer_list<ErrorKind> named, const std::stop_token& stop, Body&& body)
    -> decltype(body()) {
  try {
    return body();
  } catch (const Error& error) {
    if (is_one_of(error.kind(), {ErrorKind::kRemote, ErrorKind::kAuth}) ||
        is_one_of(error.kind(), named) ||
        (error.kind() == ErrorKind::kCancelled &&
         (stop.stop_requested() || remote::StopScope::current().stop_requested())))
      throw;
    fail_remote(error.what());
  } catch (const std::exception& error) {
    fail_remote(error.what());
  }
}

class GuardedSession final : public Session {
 public:
  explicit GuardedSession(std::shared_ptr<Session> inner) : inner_(std::move(inner)) {}

  remote::CommandResult run(const std::vector<std::string>& argv, const std::string& stdin_text,
                            std::chrono::milliseconds timeout, std::stop_token stop) override {
    return call({ErrorKind::kIo}, stop,
                [&] { return inner_->run(argv, stdin_text, timeout, stop); });
  }
  std::optional<remote::FileInfo> stat(const RemotePath& path) override {
    return call({ErrorKind::kIo}, {}, [&]() -> std::optional<remote::FileInfo> {
      try {
        return inner_->stat(path);
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::kNotFound) return std::nullopt;
        throw;
      }
    });
  }
  size_t read(const RemotePath& path, uint64_t offset, std::span<std::byte> out) override {
    return file_call(path, [&] { return inner_->read(path, offset, out); });
  }
  void write(const RemotePath& path, uint64_t offset, std::span<const std::byte> bytes) override {
    call({ErrorKind::kIo}, {}, [&] { inner_->write(path, offset, bytes); });
  }
  void download(const RemotePath& path, uint64_t offset, uint64_t length, const remote::Sink& sink,
                std::stop_token stop) override {
    std::exception_ptr own;  // the sink's error
    const remote::Sink watched = [&](std::span<const std::byte> bytes) {
      keep_error(own, [&] { sink(bytes); });
    };
    prefer(own, [&] {
      try {
        call({ErrorKind::kIo, ErrorKind::kNotFound, ErrorKind::kCorrupt}, stop,
             [&] { inner_->download(path, offset, length, watched, stop); });
      } catch (const Error& error) {
        if (own) throw;
        const bool absent = error.kind() == ErrorKind::kNotFound;
        if (!absent && error.kind() != ErrorKind::kCorrupt) throw;
        const auto info = stat(path);
        if (info && (absent || info->size_bytes >= offset + length)) fail_remote(error.what());
        throw;
      }
    });
  }
  void upload(const RemotePath& path, uint64_t offset, uint64_t length,
              const remote::Source& source, std::stop_token stop) override {
    std::exception_ptr own;  // the source's error
    const remote::Source watched = [&](uint64_t at, std::span<std::byte> out) {
      keep_error(own, [&] { source(at, out); });
    };
    prefer(own, [&] {
      call({ErrorKind::kIo}, stop, [&] { inner_->upload(path, offset, length, watched, stop); });
    });
  }
  std::optional<std::string> sha256(const RemotePath& path, uint64_t offset,
                                    uint64_t length) override {
    return call({ErrorKind::kIo}, {}, [&] { return inner_->sha256(path, offset, length); });
  }
  std::optional<std::vector<std::string>> block_hashes(const RemotePath& path, uint64_t offset,
                                                       uint64_t length,
                                                       uint64_t block_bytes) override {
    return call({ErrorKind::kIo}, {},
                [&] { return inner_->block_hashes(path, offset, length, block_bytes); });
  }
  std::optional<uint64_t> free_bytes(const RemotePath& folder) override {
    return call({ErrorKind::kIo}, {}, [&] { return inner_->free_bytes(folder); });
  }
  void sync(const RemotePath& path) override {
    call({ErrorKind::kIo}, {}, [&] { inner_->sync(path); });
  }
  void rename(const RemotePath& from, const RemotePath& to) override {
    file_call(from, [&] { inner_->rename(from, to); });
  }
  std::vector<remote::FileView> look(const RemotePath& folder,
                                     std::span<const remote::FileQuery> files) override {
    auto views = call({ErrorKind::kIo}, {}, [&] { return inner_->look(folder, files); });
    if (views.size() != files.size()) fail_remote("not every file has an answer");
    return views;
  }
  void put_files(const RemotePath& folder, std::span<const remote::NewFile> files) override {
    call({ErrorKind::kIo}, {}, [&] { inner_->put_files(folder, files); });
  }
  std::vector<std::string> list(const RemotePath& folder) override {
    return file_call(folder, [&] { return inner_->list(folder); });
  }
  void make_dirs(const RemotePath& folder) override {
    call({ErrorKind::kIo}, {}, [&] { inner_->make_dirs(folder); });
  }
  void remove_tree(const RemotePath& path, std::stop_token stop) override {
    call({ErrorKind::kIo}, stop, [&] { inner_->remove_tree(path, stop); });
  }

 private:
  // kNotFound passes only when a second check confirms that `path` is absent.
  template <class Body>
  auto file_call(const RemotePath& path, Body&& body) -> decltype(body()) {
    try {
      return call({ErrorKind::kIo, ErrorKind::kNotFound}, {}, body);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kNotFound && stat(path)) fail_remote(error.what());
      throw;
    }
  }
  /// Stores an error of `body` in `own`, and passes it on.
  template <class Body>
  static void keep_error(std::exception_ptr& own, Body&& body) {
    try {
      body();
    } catch (const std::exception&) {
      own = std::current_exception();
      throw;
    }
  }
  /// When `body` fails and `own` is set, throws `own`.
  template <class Body>
  static void prefer(const std::exception_ptr& own, Body&& body) {
    try {
      body();
    } catch (const std::exception&) {
      if (own) std::rethrow_exception(own);
      throw;
    }
  }

  const std::shared_ptr<Session> inner_;
};

class GuardedScheduler final : public submit::Scheduler {
 public:
  explicit GuardedScheduler(std::shared_ptr<submit::Scheduler> inner) : inner_(std::move(inner)) {}

  // A failed system call of a submission leaves open whether a job exists.
  JobId submit(const submit::JobRequest& request, std::stop_token stop) override {
    return call({ErrorKind::kConfig, ErrorKind::kBusy}, stop,
                [&] { return inner_->submit(request, stop); });
  }
  std::vector<JobId> find(const submit::JobRequest& request, std::stop_token stop) override {
    return call({ErrorKind::kIo}, stop, [&] { return inner_->find(request, stop); });
  }
  void release(const submit::KeptAllocation& kept, std::stop_token stop) override {
    call({ErrorKind::kIo}, stop, [&] { inner_->release(kept, stop); });
  }
  std::map<JobId, submit::JobStatus> query(std::span<const submit::SubmittedJob> jobs,
                                           std::stop_token stop) override {
    auto states = call({ErrorKind::kIo}, stop, [&] { return inner_->query(jobs, stop); });
    for (const submit::SubmittedJob& job : jobs) states.try_emplace(job.id);
    return states;
  }
  void cancel(const submit::SubmittedJob& job, std::stop_token stop) override {
    call({ErrorKind::kIo}, stop, [&] { inner_->cancel(job, stop); });
  }
  std::chrono::milliseconds settle_time() const override { return inner_->settle_time(); }
  std::optional<submit::ClockOffset> clock_offset() const override {
    return inner_->clock_offset();
  }

 private:
  const std::shared_ptr<submit::Scheduler> inner_;
};

}  // namespace

std::shared_ptr<Session> guard(std::shared_ptr<Session> inner) {
  return std::make_shared<GuardedSession>(std::move(inner));
}

std::shared_ptr<submit::Scheduler> guard(std::shared_ptr<submit::Scheduler> inner) {
  return std::make_shared<GuardedScheduler>(std::move(inner));
}

std::shared_ptr<Session> GuardedSessions::of(const std::shared_ptr<Session>& session) {
  const std::lock_guard lock(mutex_);
  std::erase_if(all_, [](const auto& entry) { return entry.second.expired(); });
  auto& guarded = all_[session.get()];
  if (auto known = guarded.lock()) return known;
  auto made = guard(session);
  guarded = made;
  return made;
}

}  // namespace xffl::facility
