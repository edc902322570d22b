// Deployments at a facility whose log-in node must not unpack (deploy.unpack: job): the log-in node
// receives the archive and moves the link; a short job hashes, unpacks and starts the programs.
//
//   WORKDIR/xffl.programs/.jobs/<bundle>/job1, job2, ...   the jobs, each with its script and
//   report
//
// A job is submitted once: after an interruption at any point the next deployment follows the job,
// or uses its report.
#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

#include "xffl/config/experiment.h"
#include "xffl/deploy/deploy.h"
#include "xffl/deploy/deploy_image.h"
#include "xffl/facility/services.h"

namespace xffl::deploy {

using OnState = std::function<void(const std::string& message)>;

/// The facility as the bundle's job needs it: one task without an image, for at most half an hour,
/// in the queue for work without GPUs, or else for checks, if the settings name one.
config::Facility job_shape(const config::Facility& facility, const Bundle& bundle);

/// As deploy(), in the facility's work folder. Asks for the job's state every
/// `facility.poll_interval`, at most twice a second. `on_state` gets each change of the job. Also
/// throws kFailed when the job ends without a report, with the end of its output, and kConfig when
/// the queue manager rejects the job. On kCancelled and kRemote the job goes on.
Deployed deploy_by_job(const config::Facility& facility, facility::Services& services,
                       const Bundle& bundle, std::stop_token stop,
                       const transfer::OnProgress& on_progress = {}, const OnState& on_state = {});

/// As deploy_image(); the image has to start on the job's node, which has loaded the facility's
/// modules. Otherwise as deploy_by_job().
DeployedImage deploy_image_by_job(const config::Facility& facility, facility::Services& services,
                                  const std::filesystem::path& image, const ImagePlace& place,
                                  std::stop_token stop,
                                  const transfer::OnProgress& on_progress = {},
                                  const OnState& on_state = {});

/// Cancels the jobs of deployments that are under way. Throws kRemote.
void cancel_jobs(const config::Facility& facility, facility::Services& services,
                 std::stop_token stop, const OnState& on_state = {});

}  // namespace xffl::deploy
