// Puts the file of an Apptainer or Singularity image into place at a facility.
//
//   xffl.sif -> xffl-1a2b3c4d.sif   image.file of xffl.yaml: a link to the newest image
//   xffl-1a2b3c4d.sif               the image, with the first 8 digits of its SHA-256
//   .xffl-staging/                  an image on its way
//
// The image is sent with the resumption of a push, hashed there, started if the log-in node has the
// program of the image, and promoted by the link (by a job: deploy_job.h). A job that runs keeps
// its image. After an interruption at any point the next deployment continues.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "xffl/base/names.h"
#include "xffl/remote/session.h"
#include "xffl/transfer/transfer.h"

namespace xffl::deploy {

struct ImagePlace {
  RemotePath file;      // image.file
  std::string program;  // image.program, such as apptainer
  std::string trainer;  // inside of the image; empty: a trainer of the user's own, not started
  std::string version;  // that the trainer has to print
};

struct DeployedImage {
  RemotePath file;         // of this image
  bool was_there = false;  // whole before this deployment
  std::string started;     // the first line of `xffl-train --version`; empty: not started
  std::string why_not;     // the reason then
  uint64_t moved_bytes = 0;
};

/// Throws kNotFound, kUsage for a local file that cannot be an image; kUnsupported when the folder
/// at the facility lacks space or `place.file` is a file of other origin; kCorrupt when the file
/// there has another hash; kFailed when xffl-train does not start in the image; kRemote, kIo,
/// kCancelled. After an error the link is unchanged.
DeployedImage deploy_image(const transfer::Endpoint& facility, const std::filesystem::path& image,
                           const ImagePlace& place, std::stop_token stop,
                           const transfer::OnProgress& on_progress = {});

/// The images that were deployed for `file`, sorted.
std::vector<std::string> deployed_images(remote::Session& session, const RemotePath& file);
/// Removes these images and the link. Throws kRemote, kIo, kCancelled.
void remove_images(remote::Session& session, const RemotePath& file, std::stop_token stop);

}  // namespace xffl::deploy
