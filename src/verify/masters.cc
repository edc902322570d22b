#include "masters.h"

#include "xffl/aggregate/aggregate.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"
#include "xffl/run/first_models.h"

namespace xffl::verify {

namespace fs = std::filesystem;

ScratchFolder::ScratchFolder(const fs::path& parent)
    : path_(parent / ("xffl-verify-" + random_hex(8))) {
  make_dirs(path_);
}

ScratchFolder::~ScratchFolder() {
  std::error_code none;
  fs::remove_all(path_, none);
}

bool ends_the_check(ErrorKind kind) {
  return kind == ErrorKind::kIo || kind == ErrorKind::kCancelled;
}

std::optional<Master> Masters::at(int round) {
  reason_ = "no float32 master of the round before";
  if (auto stored = take(round, run_.folder.master(round))) return stored;
  if (round != 0) return std::nullopt;
  auto master = make([&] {
    aggregate::convert(run_.folder.global(0), checkpoint::Dtype::kF32, made() / "master");
  });
  if (!master) master = make([&] { run::make_first_models(*run_.experiment, made()); });
  return master;
}

template <class Make>
std::optional<Master> Masters::make(const Make& make) {
  try {
    fs::remove_all(made());
    make_dirs(made());
    make();
    return take(0, made() / "master");
  } catch (const Error& error) {
    if (ends_the_check(error.kind())) throw;
    reason_ += std::string("; ") + error.what();
    return std::nullopt;
  }
}

std::optional<Master> Masters::take(int round, const fs::path& folder) {
  std::error_code none;
  if (!fs::exists(folder, none)) return std::nullopt;
  try {
    return Master{round, folder, hash_folder(folder, run_.master_sha256(round), options_.stop)};
  } catch (const Error& error) {
    if (ends_the_check(error.kind())) throw;
    reason_ += std::string("; ") + error.what();
    return std::nullopt;
  }
}

}  // namespace xffl::verify
