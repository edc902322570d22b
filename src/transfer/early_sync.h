// A part file at a facility reaches its disk while more of it arrives.
//
// Without this all of a large file waits in the facility's memory for the sync at the end, which
// then takes as long as the disk for the whole.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "xffl/base/names.h"
#include "xffl/remote/session.h"

namespace xffl::transfer {

/// While it lives, `part` is synced now and then; that it could not be is for the sync at the end
/// to say.
class EarlySync {
 public:
  EarlySync(remote::Session& session, const RemotePath& part);

 private:
  void work(const std::stop_token& stop);

  remote::Session& session_;
  const RemotePath part_;
  std::mutex mutex_;
  std::condition_variable_any stopped_;
  std::jthread thread_;  // last: it uses what is above
};

}  // namespace xffl::transfer
