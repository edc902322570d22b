// The step of a deployment that hashes and unpacks a bundle at the facility and starts its
// programs, without the promotion: place_bundle.sh on the log-in node or in a job.
#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/deploy/deploy.h"
#include "xffl/remote/session.h"
#include "xffl/transfer/transfer.h"

namespace xffl::deploy {

inline constexpr uint64_t kMaxReportBytes = 64 << 10;

// The report of place_bundle.sh; its texts are printable.
struct Report {
  std::string host, machine, glibc;  // of the node that ran the script; empty: it did not say
  std::string missing;               // programs that the script needs, by spaces
  // "intact": unpacked before; "unpacked"; "absent": there is no archive, and no whole bundle;
  // "broken": the archive cannot be unpacked whole. Empty with `missing`.
  std::string state;
  std::string damage;   // of a bundle that was there
  std::string problem;  // of the archive
  std::string archive;  // the SHA-256 of a broken archive
  int exit_code = 0;    // of `xffl-train --version`
  std::string started;  // its output
  std::string step;     // the last one
  bool whole = false;   // false: the script runs on
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

std::string_view place_script();
std::vector<std::string> script_arguments(const RemotePath& workdir, const Bundle& bundle);
/// WORKDIR/xffl.programs.
RemotePath programs_folder(const RemotePath& workdir);

Deployed deploy_with(Placer& placer, const transfer::Endpoint& facility, const Bundle& bundle,
                     const RemotePath& workdir, const std::stop_token& stop,
                     const transfer::OnProgress& on_progress);

}  // namespace xffl::deploy
