// The float32 masters that a replay begins with.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "folders.h"
#include "recorded_run.h"

namespace xffl::verify {

// A new folder that is removed at the end.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::filesystem::path& parent);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  const std::filesystem::path path_;
};

// A master with the root hash of the journal.
struct Master {
  int round = 0;
  std::filesystem::path folder;
  checkpoint::Hashes hashes;
};

class Masters {
 public:
  /// Makes the master of round 0 below `scratch` when the run's folder has lost it.
  Masters(const RecordedRun& run, const Options& options, std::filesystem::path scratch)
      : run_(run), options_(options), scratch_(std::move(scratch)) {}

  /// The stored master of the round; for round 0 also from the model that it was made from. None
  /// when it is absent or damaged. Throws kIo, kCancelled.
  std::optional<Master> at(int round);
  /// The reason why the last at() returned none.
  const std::string& reason() const { return reason_; }
  /// The folder of a master that at() has made.
  std::filesystem::path made() const { return scratch_ / "first"; }

 private:
  std::optional<Master> take(int round, const std::filesystem::path& folder);
  template <class Make>
  std::optional<Master> make(const Make& make);

  const RecordedRun& run_;
  const Options& options_;
  const std::filesystem::path scratch_;
  std::string reason_;
};

/// True for an error of the operating system or a stop request, which ends the whole check.
bool ends_the_check(ErrorKind kind);

}  // namespace xffl::verify
