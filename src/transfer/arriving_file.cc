// How it works: one running SHA-256 goes over the file front to back, first over what the disk
// holds, then over what arrives, and is compared at each chunk's end. When it differs there, it
// goes back to the chunk's beginning, that chunk alone is fetched, and it goes on with what is on
// disk.
#include "arriving_file.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "names.h"
#include "part_file.h"
#include "xffl/base/block_worker.h"
#include "xffl/base/error.h"
#include "xffl/base/sha256.h"

namespace xffl::transfer {
namespace {

namespace fs = std::filesystem;
using checkpoint::ManifestFile;

constexpr int kMaxFetches = 3;      // of one chunk
constexpr size_t kBlocksAhead = 4;  // in a stage: what disk and hash may lag behind the network
constexpr size_t kReadBytes = 1u << 20;

// The running hash differs from the manifest's at the end of a chunk.
struct WrongChunk {
  std::string expected, found;
};

// The running hash of the file's front.
class Front {
 public:
  Front(const ManifestFile& file, uint64_t chunk_bytes)
      : file_(file), chunk_bytes_(file.prefix_sha256.empty() ? file.size_bytes : chunk_bytes) {}

  uint64_t size() const { return size_; }
  uint64_t chunk_begin() const { return chunk_begin_; }
  uint64_t chunk_end() const { return std::min(chunk_begin_ + chunk_bytes_, file_.size_bytes); }
  uint64_t chunk_number() const { return chunk_begin_ / std::max<uint64_t>(1, chunk_bytes_) + 1; }
  uint64_t num_chunks() const { return file_.prefix_sha256.size() + 1; }

  /// Throws WrongChunk; the front is then at that chunk's beginning.
  void add(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto piece = bytes.first(std::min<uint64_t>(chunk_end() - size_, bytes.size()));
      hash_.update(piece);
      size_ += piece.size();
      bytes = bytes.subspan(piece.size());
      if (size_ == chunk_end()) check();
    }
  }
  void back_to_chunk_begin() {
    hash_ = at_chunk_begin_;
    size_ = chunk_begin_;
  }

 private:
  void check() {
    const std::string& expected =
        size_ == file_.size_bytes ? file_.sha256 : file_.prefix_sha256.at(chunk_number() - 1);
    const std::string found = Sha256(hash_).hex();
    if (found != expected) {
      back_to_chunk_begin();
      throw WrongChunk{expected, found};
    }
    at_chunk_begin_ = hash_;
    chunk_begin_ = size_;
  }

  const ManifestFile& file_;
  const uint64_t chunk_bytes_;
  Sha256 hash_, at_chunk_begin_;
  uint64_t size_ = 0, chunk_begin_ = 0;
};

// Takes a stream's pieces and passes them on to disk and hash, block by block. What has come when
// the stream breaks still goes to the disk.
class Inflow {
 public:
  Inflow(PartFile& part, Front& front, std::atomic<uint64_t>& on_disk, uint64_t offset,
         SpareMemory& spare)
      : offset_(offset),
        writing_(kBlocksAhead,
                 [&](const Block& block) {
                   spare.release(block.size);
                   part.write(block.offset, block.span());
                   on_disk = std::max(on_disk.load(), block.offset + block.size);
                 }),
        hashing_(kBlocksAhead, [&](const Block& block) { front.add(block.span()); }) {}

  ~Inflow() {
    try {
      if (size_ > 0) writing_.put({offset_, size_, room_});
    } catch (const Error&) {  // the disk's refusal is known already, or comes with the next call
    } catch (const WrongChunk&) {
    }
  }

  void take(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      if (!room_) room_ = std::make_shared_for_overwrite<std::byte[]>(kBlockBytes);
      const auto piece = bytes.first(std::min(kBlockBytes - size_, bytes.size()));
      std::copy(piece.begin(), piece.end(), room_.get() + size_);
      size_ += piece.size();
      bytes = bytes.subspan(piece.size());
      if (size_ == kBlockBytes) pass_on();
    }
  }
  void finish() {
    if (size_ > 0) pass_on();
    writing_.finish();
    hashing_.finish();
  }

 private:
  void pass_on() {
    const Block block{offset_, size_, std::move(room_)};
    offset_ += std::exchange(size_, 0);
    room_ = nullptr;
    writing_.put(block);
    hashing_.put(block);
  }

  uint64_t offset_;
  size_t size_ = 0;
  std::shared_ptr<std::byte[]> room_;
  BlockWorker writing_, hashing_;
};

class Arrival {
 public:
  Arrival(remote::Session& session, const RemotePath& path, const ManifestFile& file,
          uint64_t chunk_bytes, PartFile& part, Meter& meter, SpareMemory& spare)
      : session_(session),
        path_(path),
        file_(file),
        part_(part),
        meter_(meter),
        spare_(spare),
        front_(file, chunk_bytes),
        on_disk_(part.size_at_opening()) {
    meter_.present(counted_ = on_disk_);
  }

  void run() {
    while (front_.size() < file_.size_bytes) {
      meter_.check("fetching " + path_.str());
      bool fetching = true;
      try {
        if (repaired_to_ > front_.size())
          stream(repaired_to_);
        else if (front_.size() < on_disk_)
          fetching = false, check_disk();
        else
          stream(file_.size_bytes);
      } catch (const WrongChunk& wrong) {
        repair(fetching,
               "expected SHA-256 " + wrong.expected + " up to its end, found " + wrong.found);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kCorrupt) throw;  // the far file ended early
        front_.back_to_chunk_begin();
        repair(true, error.what());
      }
    }
  }

 private:
  void check_disk() {
    std::vector<std::byte> buffer(kReadBytes);
    const uint64_t end = on_disk_;
    while (front_.size() < end) {
      meter_.check("checking what was fetched of " + path_.str());
      const auto room =
          std::span(buffer).first(std::min<uint64_t>(end - front_.size(), kReadBytes));
      const size_t n = part_.read(front_.size(), room);
      if (n < room.size()) throw system_error("read the part file of " + path_.str(), EIO);
      front_.add(room);
    }
  }

  void stream(uint64_t end) {
    const uint64_t begin = front_.size();
    Inflow inflow(part_, front_, on_disk_, begin, spare_);
    uint64_t arrived = begin;
    session_.download(
        path_, begin, end - begin,
        [&](std::span<const std::byte> bytes) {
          bytes = bytes.first(std::min<uint64_t>(bytes.size(), end - arrived));
          arrived += bytes.size();
          meter_.moved(bytes.size());
          counted_ = std::max(counted_, arrived);
          inflow.take(bytes);
        },
        meter_.stop());
    inflow.finish();
    if (arrived < end)
      throw Error(ErrorKind::kCorrupt, path_.str() + " at the facility ends after " +
                                           std::to_string(arrived) + " bytes; " +
                                           std::to_string(end) + " were expected");
  }

  // The chunk at the front is to be fetched by itself.
  void repair(bool was_fetched, const std::string& problem) {
    if (front_.chunk_begin() != wrong_begin_) fetches_ = 0;
    wrong_begin_ = front_.chunk_begin();
    if (was_fetched && ++fetches_ == kMaxFetches)
      throw Error(ErrorKind::kCorrupt,
                  path_.str() + " at the facility is not what its manifest says: chunk " +
                      std::to_string(front_.chunk_number()) + " of " +
                      std::to_string(front_.num_chunks()) + " (" +
                      std::to_string(front_.chunk_end() - front_.chunk_begin()) +
                      " bytes from byte " + std::to_string(front_.chunk_begin()) + "), fetched " +
                      std::to_string(kMaxFetches) + " times: " + problem);
    repaired_to_ = front_.chunk_end();
    meter_.undo(std::min(counted_, repaired_to_) - wrong_begin_);
  }

  remote::Session& session_;
  const RemotePath& path_;
  const ManifestFile& file_;
  PartFile& part_;
  Meter& meter_;
  SpareMemory& spare_;
  Front front_;
  std::atomic<uint64_t> on_disk_;  // bytes from the beginning, right or wrong
  uint64_t counted_ = 0;           // what the meter knows of them
  uint64_t repaired_to_ = 0;
  uint64_t wrong_begin_ = UINT64_MAX;
  int fetches_ = 0;
};

}  // namespace

void fetch_file(remote::Session& session, const RemotePath& from, const ManifestFile& file,
                uint64_t chunk_bytes, const fs::path& work, Meter& meter, SpareMemory& spare) {
  const RemotePath path = from / file.name;
  PartFile part(work / part_name(file.name), file.size_bytes);
  Arrival(session, path, file, chunk_bytes, part, meter, spare).run();
  part.finish(work / file.name);
}

}  // namespace xffl::transfer
