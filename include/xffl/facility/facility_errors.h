// The border between this machine's errors and a facility's.
//
// A session or a scheduler may fail in any way: the server refuses an exec request or sends an
// invalid answer, or a library throws. These decorators translate each failure of a call into a
// kind that the contracts of Session and Scheduler name, so that the coordinator retries the call
// and the error of one facility never ends the run. An error that leaves the facility's code with
// another kind concerns this machine.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "xffl/remote/session.h"
#include "xffl/submit/scheduler.h"

namespace xffl::facility {

/// A session whose calls throw only:
///   kRemote     the link or an answer is lost, or the facility fails in any other way
///   kAuth, kIo  as by `inner`
///   kNotFound   from read(), download(), rename() and list(): the file is absent, checked twice
///   kCorrupt    from download(): the file is shorter than expected, checked twice
///   kCancelled  after a stop request
/// Passes on the errors of sinks and sources unchanged: they are this machine's.
std::shared_ptr<remote::Session> guard(std::shared_ptr<remote::Session> inner);

/// A scheduler whose calls throw only kRemote (as above), kAuth, kCancelled after a stop request,
/// kIo except from submit(), and from submit() kConfig and kBusy. query() answers for every job.
std::shared_ptr<submit::Scheduler> guard(std::shared_ptr<submit::Scheduler> inner);

// The guarded sessions of a run, one for each session, so that a scheduler keeps its session over
// the rounds. Thread-safe.
class GuardedSessions {
 public:
  std::shared_ptr<remote::Session> of(const std::shared_ptr<remote::Session>& session);

 private:
  std::mutex mutex_;
  std::map<remote::Session*, std::weak_ptr<remote::Session>> all_;  // by the session without guard
};

}  // namespace xffl::facility
