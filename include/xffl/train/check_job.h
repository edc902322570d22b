// The trainer's part of `xffl doctor --job`: whether a job would train here, and how fast.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "xffl/comm/rendezvous.h"
#include "xffl/job/check_report.h"
#include "xffl/job/job_spec.h"
#include "xffl/train/run_job.h"

namespace xffl::train {

/// This rank's facts, without other ranks: its device (`wanted` as choose_device()), a bf16 product
/// whose result is compared, and the headers of the job's shards. Problems are in the result.
job::RankCheck check_rank(const job::JobSpec& spec, const comm::Rendezvous& rendezvous,
                          const std::string& wanted, const std::string& trainer);

/// Collective. Measures an all-reduce, waits for the warning signal, makes the model of
/// `config_folder` with random weights in spec.base_model_path, and runs the job's steps without an
/// update. Rank 0 calls `write` after each part, and with the problem of a part that fails; the
/// error then continues. As after Job::run(), with several ranks the caller must end the process
/// after an error. Removes the model.
void check_job(const job::JobSpec& spec, const JobContext& context,
               const std::filesystem::path& config_folder,
               const std::filesystem::path& awaits_signal,
               const std::function<void(const job::CheckReport&)>& write);

}  // namespace xffl::train
