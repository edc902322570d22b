#include "setup.h"
#include "signals.h"
#include "xffl/job/job_spec.h"
#include "xffl/train/run_job.h"

namespace xffl::train_app {

void train_command(const CommonOptions& common, const std::string& job_path, bool benchmark) {
  take_signals();
  const job::JobSpec spec = job::read_job_spec(job_path);
  const Rank rank = set_up_rank(common);
  rank_is_set_up();
  const train::JobContext context{
      *rank.group,    rank.device, rank.rendezvous.local_world_size, version_line(),
      requested_stop, benchmark,   rank.rendezvous.local_rank};
  // The job outlives an error in run_as_rank(): see end_process().
  train::Job job(spec, context);
  run_as_rank(rank, [&] { train::with_translated_context(spec.key.name(), [&] { job.run(); }); });
}

}  // namespace xffl::train_app
