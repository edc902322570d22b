// How it works: one upload for each run of missing chunks, so that the session can keep its
// channels full; the whole local file is hashed by a second thread meanwhile. A broken upload may
// leave holes anywhere, so nothing is concluded from a part file's size: each chunk that may be
// there is compared, by the SHA-256 that the log-in node computes; where it cannot, by reading it
// back.
#include "departing_file.h"

#include <algorithm>
#include <future>
#include <string>
#include <vector>

#include "local_file.h"
#include "names.h"
#include "xffl/base/error.h"
#include "xffl/base/sha256.h"

namespace xffl::transfer {
namespace {

using checkpoint::ManifestFile;

struct Range {
  uint64_t begin = 0, end = 0;
};

class Departure {
 public:
  Departure(const Endpoint& facility, const LocalFile& local, const ManifestFile& file,
            uint64_t chunk_bytes, const RemotePath& part, Meter& meter)
      : facility_(facility),
        local_(local),
        file_(file),
        chunk_bytes_(chunk_bytes),
        part_(part),
        meter_(meter) {}

  void run(uint64_t bytes_there) {
    for (const Range& range : missing(bytes_there)) {
      meter_.check("pushing " + part_.str());
      facility_.bulk.upload(
          part_, range.begin, range.end - range.begin,
          [&](uint64_t offset, std::span<std::byte> out) {
            local_.read(offset, out);
            meter_.moved(out.size());
          },
          meter_.stop());
    }
  }

 private:
  std::vector<Range> missing(uint64_t bytes_there) {
    std::vector<Range> ranges;
    for (uint64_t begin = 0; begin < file_.size_bytes; begin += chunk_bytes_) {
      const uint64_t end = std::min(begin + chunk_bytes_, file_.size_bytes);
      if (end <= bytes_there && is_there(begin, end - begin)) {
        meter_.present(end - begin);
      } else if (!ranges.empty() && ranges.back().end == begin) {
        ranges.back().end = end;
      } else {
        ranges.push_back({begin, end});
      }
    }
    return ranges;
  }

  bool is_there(uint64_t offset, uint64_t length) {
    meter_.check("checking what was sent of " + part_.str());
    auto theirs = facility_.control.sha256(part_, offset, length);
    if (!theirs) theirs = read_back(offset, length);
    return theirs == local_.sha256(offset, length);
  }

  std::optional<std::string> read_back(uint64_t offset, uint64_t length) {
    Sha256 hash;
    try {
      facility_.bulk.download(
          part_, offset, length, [&](std::span<const std::byte> bytes) { hash.update(bytes); },
          meter_.stop());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCorrupt) throw;
      return std::nullopt;  // it ends before
    }
    return hash.hex();
  }

  const Endpoint& facility_;
  const LocalFile& local_;
  const ManifestFile& file_;
  const uint64_t chunk_bytes_;
  const RemotePath& part_;
  Meter& meter_;
};

}  // namespace

void send_file(const Endpoint& facility, const std::filesystem::path& from,
               const ManifestFile& file, uint64_t chunk_bytes, const RemotePath& to,
               const std::optional<remote::FileInfo>& there, Meter& meter, CheckedFiles& checked) {
  const RemotePath part = to / part_name(file.name);
  const LocalFile local(from / file.name, file);
  const bool usable = there && there->type == remote::FileInfo::Type::kRegular &&
                      there->size_bytes <= file.size_bytes;
  if (there && !usable) facility.bulk.remove_tree(part);
  std::stop_source abandoned;
  auto hashed = std::async(std::launch::async, [&, stop = abandoned.get_token()] {
    checked.once(local.content(), [&] { return local.check(stop); });
  });
  // Before the future is destroyed, which waits for the thread.
  const struct Abandon {
    std::stop_source& source;
    ~Abandon() { source.request_stop(); }
  } abandon{abandoned};
  try {
    Departure(facility, local, file, chunk_bytes, part, meter).run(usable ? there->size_bytes : 0);
    hashed.get();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kRejected) facility.bulk.remove_tree(part);
    throw;
  }
  facility.bulk.sync(part);
  facility.bulk.rename(part, to / file.name);
}

}  // namespace xffl::transfer
