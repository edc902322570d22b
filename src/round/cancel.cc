#include "open_run.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/round/federation.h"

namespace xffl::round {
namespace {

// True when this process cancelled; false when a coordinator holds the journal.
bool try_cancel_here(const config::Experiment& experiment, const RunFolder& folder,
                     World& world) try {
  Ledger ledger(folder.journal());
  const History history = ledger.history();
  if (!history.identity || history.completed || history.cancelled) return true;
  const Observer nobody;
  Context context{experiment, folder, world, nobody, ledger, *history.identity, {}};
  cancel_now(context);
  return true;
} catch (const Error& error) {
  if (error.kind() != ErrorKind::kBusy) throw;
  return false;
}

}  // namespace

void cancel_run(const config::Experiment& experiment, const RunFolder& folder, World& world,
                std::chrono::seconds patience) {
  if (!std::filesystem::exists(folder.journal()))
    throw Error(ErrorKind::kNotFound, "there is no run in " + folder.path().string());
  write_file_atomic(folder.cancel_request(), "");
  const auto until = world.clock.monotonic() + patience;
  while (!try_cancel_here(experiment, folder, world)) {
    if (world.clock.monotonic() > until)
      throw Error(ErrorKind::kBusy,
                  "the coordinator of run " + folder.run().str() + " (" +
                      journal::lock_holder(folder.journal()) +
                      ") has not cancelled yet; the request stays: see `xffl status`");
    world.clock.sleep(std::chrono::milliseconds(200), {});
  }
  std::error_code none;
  std::filesystem::remove(folder.cancel_request(), none);
}

}  // namespace xffl::round
