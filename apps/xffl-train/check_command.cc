#include <cstdlib>
#include <filesystem>
#include <string>

#include "setup.h"
#include "signals.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/job/check_report.h"
#include "xffl/train/check_job.h"

namespace xffl::train_app {
namespace {

namespace fs = std::filesystem;

// NCCL then names the network that it chose: each machine's first rank keeps NCCL's log.
void log_nccl(const fs::path& file) {
  ::setenv("NCCL_DEBUG", "INFO", 1);
  ::setenv("NCCL_DEBUG_SUBSYS", "INIT,NET", 1);
  ::setenv("NCCL_DEBUG_FILE", file.c_str(), 1);
}

}  // namespace

void check_command(const CommonOptions& common, const std::string& job_path) {
  take_signals();
  const job::JobSpec spec = job::read_job_spec(job_path);
  const fs::path folder = fs::absolute(job_path).parent_path();
  const comm::Rendezvous rendezvous = comm::read_rendezvous(comm::process_environment());
  const int number = rendezvous.rank;
  if (rendezvous.local_rank == 0) log_nccl(folder / job::nccl_log_file(number));
  const auto write = [&](const job::CheckReport& report) {
    const bool is_last = report.complete || !report.problem.empty();
    write_file_atomic(folder / (is_last ? job::kCheckReport : job::kCheckProgress),
                      job::format_check_report(report));
  };
  write_file_atomic(
      folder / job::rank_check_file(number),
      job::format_rank_check(train::check_rank(spec, rendezvous, common.device, version_line())));
  Rank rank;
  try {
    rank = set_up_rank(common);
  } catch (const Error& error) {
    job::CheckReport report;
    report.ranks = rendezvous.world_size;
    report.part = "rendezvous";
    report.problem = error.what();
    if (number == 0) write(report);
    throw;
  }
  rank_is_set_up();
  const train::JobContext context{
      *rank.group,    rank.device, rank.rendezvous.local_world_size, version_line(),
      requested_stop, true,        rank.rendezvous.local_rank};
  run_as_rank(rank, [&] {
    train::with_translated_context("check", [&] {
      train::check_job(spec, context, (folder / job::kCheckConfig).parent_path(),
                       folder / job::kAwaitsSignal, write);
    });
  });
}

}  // namespace xffl::train_app
