// How it works: one upload for each run of what has been written by then, so that a session can
// keep its channels full: many small ones would each cost a command's round trips.
#include "xffl/transfer/ahead.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "early_sync.h"
#include "meter.h"
#include "names.h"
#include "xffl/base/error.h"
#include "xffl/base/space.h"

namespace xffl::transfer {
namespace {

using checkpoint::kManifestName;

constexpr uint64_t kLeastRunBytes = checkpoint::kChunkBytes;
// Whoever calls for `enough` waits for a run.
constexpr uint64_t kMostRunBytes = 4 * kLeastRunBytes;

// Of the file from `at` on: whole chunks, which push() goes on behind, or all that there will be.
uint64_t run_bytes(const GrowingFiles::File& file, uint64_t at) {
  const uint64_t bytes = std::min(file.written_bytes - at, kMostRunBytes);
  return at + bytes == file.size_bytes ? bytes : bytes / kLeastRunBytes * kLeastRunBytes;
}

class Ahead {
 public:
  Ahead(const Endpoint& facility, const GrowingFiles& files, const RemotePath& to, Sent& sent,
        Meter& meter)
      : facility_(facility), files_(files), to_(to), sent_(sent), meter_(meter) {}

  void run(const std::stop_token& enough) {
    for (size_t index = 0; send(index, enough); ++index) continue;
  }

 private:
  // False: no more is to be sent.
  bool send(size_t index, const std::stop_token& enough) {
    std::optional<EarlySync> syncing;
    for (uint64_t at = 0;;) {
      const auto file = files_.wait(index, at + kLeastRunBytes, enough);
      if (!file) return false;
      if (file->size_bytes <= kSmallFileBytes) return true;
      const RemotePath part = to_ / part_name(file->name);
      if (!syncing) syncing.emplace(facility_.bulk, part);
      at += upload(index, *file, part, at);
      if (at < file->size_bytes) continue;
      facility_.bulk.sync(part);
      return true;
    }
  }

  uint64_t upload(size_t index, const GrowingFiles::File& file, const RemotePath& part,
                  uint64_t at) {
    const uint64_t bytes = run_bytes(file, at);
    const auto began = std::chrono::steady_clock::now();
    facility_.bulk.upload(
        part, at, bytes,
        [&](uint64_t offset, std::span<std::byte> out) {
          files_.read(index, offset, out);
          meter_.moved(out.size());
        },
        meter_.stop());
    sent_.bytes[file.name] = at + bytes;
    sent_.seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    return bytes;
  }

  const Endpoint& facility_;
  const GrowingFiles& files_;
  const RemotePath& to_;
  Sent& sent_;
  Meter& meter_;
};

}  // namespace

void send_ahead(const Endpoint& facility, const GrowingFiles& files, uint64_t total_bytes,
                const RemotePath& to, Sent& sent, std::stop_token enough, std::stop_token stop,
                const OnProgress& on_progress) {
  facility.control.remove_tree(to, stop);
  facility.control.make_dirs(to);
  const auto free = facility.bulk.free_bytes(to);
  if (free && *free < with_margin(total_bytes)) return;
  Meter meter(total_bytes, std::move(stop), on_progress);
  try {
    Ahead(facility, files, to, sent, meter).run(enough);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo) {  // others may need the room more
      sent = {};
      facility.control.remove_tree(to);
    }
    throw;
  }
}

bool take_ahead(const Endpoint& facility, const RemotePath& from,
                const checkpoint::Manifest& manifest, const RemotePath& to) {
  std::vector<remote::FileQuery> queries;
  for (const checkpoint::ManifestFile& file : manifest.files)
    if (file.size_bytes > kSmallFileBytes) queries.push_back({part_name(file.name), 0});
  const auto views = facility.control.look(from, queries);
  const bool any = std::any_of(views.begin(), views.end(),
                               [](const remote::FileView& view) { return view.info.has_value(); });
  if (!any || facility.control.stat(to)) {
    facility.control.remove_tree(from);
    return false;
  }
  const remote::NewFile plan{part_name(std::string(kManifestName)),
                             checkpoint::format_manifest(manifest)};
  facility.control.put_files(from, std::span(&plan, 1));
  facility.control.make_dirs(to.parent());
  facility.control.rename(from, to);
  return true;
}

}  // namespace xffl::transfer
