#include <filesystem>

#include "xffl/base/error.h"
#include "xffl/round/federation.h"

namespace xffl::round {
namespace {

std::unique_ptr<remote::Session> connect(const config::Facility& facility) {
  switch (facility.access) {
    case config::AccessKind::kLocal:
      return remote::make_local_session();
    case config::AccessKind::kSsh:
      break;
  }
  throw Error(ErrorKind::kUnsupported,
              "facility " + facility.name.str() + ": this kind of access is not in this build");
}

std::unique_ptr<submit::Scheduler> scheduler(const config::Facility& facility) {
  switch (facility.scheduler) {
    case config::SchedulerKind::kProcess:
      return submit::make_process_scheduler();
    case config::SchedulerKind::kSlurm:
      break;
  }
  throw Error(ErrorKind::kUnsupported,
              "facility " + facility.name.str() + ": this scheduler is not in this build");
}

}  // namespace

World make_world(Clock& clock) {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  return World{clock, connect, scheduler, {self, self.parent_path() / "xffl-train"}};
}

}  // namespace xffl::round
