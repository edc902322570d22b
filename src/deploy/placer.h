// The step of a deployment that hashes and unpacks at the facility and starts the programs, without
// the promotion: place_bundle.sh or place_image.sh, on the log-in node or in a job.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "xffl/checkpoint/manifest.h"
#include "xffl/deploy/deploy.h"
#include "xffl/deploy/deploy_image.h"
#include "xffl/remote/session.h"
#include "xffl/transfer/transfer.h"

namespace xffl::deploy {

inline constexpr uint64_t kMaxReportBytes = 64 << 10;

// The report of a script; its texts are printable.
struct Report {
  std::string host, machine, glibc;  // of the node that ran the script; empty: it did not say
  std::string missing;               // programs that the script needs, by spaces
  // "intact": in place before; "unpacked" or "placed"; "absent": nothing was sent, and nothing
  // whole is in place; "broken": the archive or image that was sent is not whole. Empty with
  // `missing`.
  std::string state;
  std::string damage;      // of a bundle or image that was there
  std::string problem;     // of the archive or image that was sent
  std::string archive;     // its SHA-256
  std::string no_program;  // not in the PATH: the program that starts an image
  int exit_code = 0;       // of `xffl-train --version`
  std::string started;     // its output
  std::string step;        // the last one
  bool whole = false;      // false: the script runs on
};
/// Ignores unknown lines.
Report parse_report(std::string_view text);

class Placer {
 public:
  virtual ~Placer() = default;
  /// False: the log-in node hashes, unpacks and starts nothing.
  virtual bool on_login_node() const = 0;
  /// The end of a run that an interrupted deployment began, and whose report no deployment has
  /// used; empty: there is none.
  virtual std::optional<Report> earlier() = 0;
  /// Runs the script to its end.
  virtual Report run() = 0;
  /// The last report has been used.
  virtual void close() = 0;
};

// A script with its arguments. Paths are the log-in node's.
struct PlaceScript {
  std::string_view text;
  std::vector<std::string> arguments;
};
PlaceScript bundle_script(const RemotePath& workdir, const Bundle& bundle);

class LoginNodePlacer final : public Placer {
 public:
  LoginNodePlacer(remote::Session& session, PlaceScript script, std::stop_token stop)
      : session_(session), script_(std::move(script)), stop_(std::move(stop)) {}

  bool on_login_node() const override { return true; }
  std::optional<Report> earlier() override { return std::nullopt; }
  Report run() override;
  void close() override {}

 private:
  remote::Session& session_;
  const PlaceScript script_;
  std::stop_token stop_;
};

/// "node n12 (aarch64, glibc 2.31)"
std::string describe_node(const Report& report);
/// True when `xffl-train --version` printed this version.
bool has_started(const Report& report, const std::string& version);

/// WORKDIR/xffl.programs.
RemotePath programs_folder(const RemotePath& workdir);

Deployed deploy_with(Placer& placer, const transfer::Endpoint& facility, const Bundle& bundle,
                     const RemotePath& workdir, const std::stop_token& stop,
                     const transfer::OnProgress& on_progress);

// An image on this machine and its place.
struct ImageToDeploy {
  ImagePlace place;
  std::filesystem::path folder;   // of the file on this machine
  checkpoint::Manifest manifest;  // of the file alone
  RemotePath file, staging;       // the image's own name there; the folder on its way

  const checkpoint::ManifestFile& content() const { return manifest.files.front(); }
};
/// Hashes the file. Throws kNotFound, kUsage.
ImageToDeploy read_image(const std::filesystem::path& image, const ImagePlace& place);
PlaceScript image_script(const ImageToDeploy& image);
DeployedImage deploy_image_with(Placer& placer, const transfer::Endpoint& facility,
                                const ImageToDeploy& image, const std::stop_token& stop,
                                const transfer::OnProgress& on_progress);

}  // namespace xffl::deploy
