// How it works: fetch() collects the files in "<to>.part", a folder whose manifest.json is the plan
// of the fetch. fetch() renames the folder to `to` when all files are present and verified.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "local_files.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/folder_path.h"
#include "xffl/base/memory_shares.h"
#include "xffl/base/sha256.h"
#include "xffl/base/threads.h"
#include "xffl/transfer/transfer.h"

namespace xffl::transfer {
namespace {

namespace fs = std::filesystem;
using checkpoint::kManifestName;
using checkpoint::Manifest;
using checkpoint::ManifestFile;

constexpr int kMaxFetches = 3;      // per chunk
constexpr size_t kBlocksAhead = 4;  // queue of each stage, between the network and disk or hash
// A pipe holds the blocks of the fuller queue, one in its stage's work and one that fills or waits.
constexpr size_t kBlocksOfAPipe = kBlocksAhead + 2;
constexpr size_t kPipesBytes = 64u << 20;  // the pipes divide it; each has a minimum beside it
constexpr size_t kReadBytes = 1u << 20;
constexpr std::chrono::seconds kFlushInterval{1};

// The error of VerifiedPrefix when the running hash differs from the manifest's hash at the end of
// a chunk.
struct WrongChunk {
  std::string expected, found;
};

// The verified beginning of a file and its running hash.
class VerifiedPrefix {
 public:
  VerifiedPrefix(const ManifestFile& file, uint64_t chunk_bytes)
      : file_(file), chunk_bytes_(file.prefix_sha256.empty() ? file.size_bytes : chunk_bytes) {}

  uint64_t size() const { return size_; }
  uint64_t chunk_begin() const { return chunk_begin_; }
  uint64_t chunk_end() const { return std::min(chunk_begin_ + chunk_bytes_, file_.size_bytes); }
  uint64_t chunk_number() const { return chunk_begin_ / std::max<uint64_t>(1, chunk_bytes_) + 1; }
  uint64_t num_chunks() const { return file_.prefix_sha256.size() + 1; }

  /// Throws WrongChunk and returns to the beginning of that chunk.
  void add(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto piece = bytes.first(std::min<uint64_t>(chunk_end() - size_, bytes.size()));
      hash_.update(piece);
      blocks_.update(piece);
      size_ += piece.size();
      bytes = bytes.subspan(piece.size());
      if (size_ == chunk_end()) check();
    }
  }
  /// The block hashes of the whole file. Call it once, last.
  std::vector<uint64_t> take_blocks() { return blocks_.finish(); }
  void rewind_chunk() {
    hash_ = at_chunk_begin_;
    blocks_.rewind(blocks_at_chunk_begin_);
    size_ = chunk_begin_;
  }

 private:
  void check() {
    const std::string& expected =
        size_ == file_.size_bytes ? file_.sha256 : file_.prefix_sha256.at(chunk_number() - 1);
    const std::string found = Sha256(hash_).hex();
    if (found != expected) {
      rewind_chunk();
      throw WrongChunk{expected, found};
    }
    at_chunk_begin_ = hash_;
    blocks_at_chunk_begin_ = blocks_.mark();
    chunk_begin_ = size_;
  }

  const ManifestFile& file_;
  const uint64_t chunk_bytes_;
  Sha256 hash_, at_chunk_begin_;
  checkpoint::BlockHash blocks_;
  checkpoint::BlockHash::Mark blocks_at_chunk_begin_;
  uint64_t size_ = 0, chunk_begin_ = 0;
};

MemoryShares& memory_of_pipes() {
  static MemoryShares whole(kPipesBytes);
  return whole;
}

// Passes a stream to disk and hash, block by block. With many pipes at once the blocks are smaller,
// so that a coordinator of a hundred facilities does not need gigabytes when its disk is slow. When
// the stream breaks, the destructor still writes the last incomplete block.
class DownloadPipe {
 public:
  DownloadPipe(PartFile& part, VerifiedPrefix& prefix, std::atomic<uint64_t>& on_disk,
               uint64_t offset, SpareMemory& spare)
      : offset_(offset),
        writing_(kBlocksAhead,
                 [&](const Block& block) {
                   spare.release(block.size);
                   part.write(block.offset, block.span());
                   on_disk = std::max(on_disk.load(), block.offset + block.size);
                 }),
        hashing_(kBlocksAhead, [&](const Block& block) { prefix.add(block.span()); }) {}

  ~DownloadPipe() {
    try {
      if (size_ > 0) writing_.put({offset_, size_, block_});
    } catch (const Error&) {  // another call reports the disk error
    } catch (const WrongChunk&) {
    }
  }

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      if (!block_) start_block();
      const auto piece = bytes.first(std::min(capacity_ - size_, bytes.size()));
      std::copy(piece.begin(), piece.end(), block_.get() + size_);
      size_ += piece.size();
      bytes = bytes.subspan(piece.size());
      if (size_ == capacity_ || (size_ >= kResumeBytes && is_slow())) flush_block();
    }
  }
  void finish() {
    if (size_ > 0) flush_block();
    writing_.finish();
    hashing_.finish();
  }

 private:
  // A slow link fills a block in a minute; a kill of this process loses the unwritten block.
  bool is_slow() const { return std::chrono::steady_clock::now() - flushed_ > kFlushInterval; }

  void start_block() {
    const size_t share = share_.bytes(kBlocksOfAPipe * kResumeBytes, kBlocksOfAPipe * kBlockBytes);
    capacity_ = share / kBlocksOfAPipe / kResumeBytes * kResumeBytes;
    block_ = std::make_shared_for_overwrite<std::byte[]>(capacity_);
  }

  void flush_block() {
    flushed_ = std::chrono::steady_clock::now();
    const Block block{offset_, size_, std::move(block_)};
    offset_ += std::exchange(size_, 0);
    block_ = nullptr;
    writing_.put(block);
    hashing_.put(block);
  }

  const MemoryShares::Share share_{memory_of_pipes()};
  uint64_t offset_;
  size_t size_ = 0, capacity_ = 0;  // of block_
  std::shared_ptr<std::byte[]> block_;
  BlockWorker writing_, hashing_;
  std::chrono::steady_clock::time_point flushed_ = std::chrono::steady_clock::now();
};

// Downloads one file. One running SHA-256 covers the file from its beginning: first the bytes on
// disk, then the bytes that arrive. At the end of each chunk VerifiedPrefix compares the hash.
// After a difference the hash returns to the beginning of the chunk, and Download fetches that
// chunk alone. The check then continues with the bytes on disk. From a byte on that the disk cannot
// read, Download fetches the rest of the file.
class Download {
 public:
  Download(remote::Session& session, const RemotePath& path, const ManifestFile& file,
           uint64_t chunk_bytes, PartFile& part, Meter& meter, SpareMemory& spare)
      : session_(session),
        path_(path),
        file_(file),
        part_(part),
        meter_(meter),
        spare_(spare),
        prefix_(file, chunk_bytes),
        on_disk_(part.size_at_opening()) {
    meter_.present(counted_ = on_disk_);
  }

  /// Returns the file's block hashes.
  std::vector<uint64_t> run() {
    while (prefix_.size() < file_.size_bytes) {
      meter_.check("fetching " + path_.str());
      bool fetching = true;
      try {
        if (repaired_to_ > prefix_.size())
          stream(repaired_to_);
        else if (prefix_.size() < on_disk_)
          fetching = false, check_disk();
        else
          stream(file_.size_bytes);
      } catch (const WrongChunk& wrong) {
        repair(fetching,
               "expected SHA-256 " + wrong.expected + " up to its end, found " + wrong.found);
      } catch (const UnreadableFile&) {
        if (fetching) throw;  // a file of a facility on this machine
        meter_.undo(counted_ - prefix_.size());
        on_disk_ = prefix_.size();
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kCorrupt) throw;  // kCorrupt: the remote file ended early
        prefix_.rewind_chunk();
        repair(true, error.what());
      }
    }
    return prefix_.take_blocks();
  }

 private:
  void check_disk() {
    std::vector<std::byte> buffer(kReadBytes);
    const uint64_t end = on_disk_;
    while (prefix_.size() < end) {
      meter_.check("checking the fetched part of " + path_.str());
      const auto piece =
          std::span(buffer).first(std::min<uint64_t>(end - prefix_.size(), kReadBytes));
      const size_t n = part_.read(prefix_.size(), piece);
      if (n < piece.size()) throw system_error("read the part file of " + path_.str(), EIO);
      prefix_.add(piece);
    }
  }

  void stream(uint64_t end) {
    const uint64_t begin = prefix_.size();
    DownloadPipe pipe(part_, prefix_, on_disk_, begin, spare_);
    uint64_t arrived = begin;
    session_.download(
        path_, begin, end - begin,
        [&](std::span<const std::byte> bytes) {
          bytes = bytes.first(std::min<uint64_t>(bytes.size(), end - arrived));
          arrived += bytes.size();
          meter_.moved(bytes.size());
          counted_ = std::max(counted_, arrived);
          pipe.write(bytes);
        },
        meter_.stop());
    pipe.finish();
    if (arrived < end) remote::fail_too_short(path_, arrived, end);
  }

  // Makes run() fetch the current chunk alone.
  void repair(bool was_fetched, const std::string& problem) {
    if (prefix_.chunk_begin() != wrong_begin_) fetches_ = 0;
    wrong_begin_ = prefix_.chunk_begin();
    if (was_fetched && ++fetches_ == kMaxFetches)
      throw Error(ErrorKind::kCorrupt,
                  path_.str() + " at the facility differs from its manifest: chunk " +
                      std::to_string(prefix_.chunk_number()) + " of " +
                      std::to_string(prefix_.num_chunks()) + " (" +
                      std::to_string(prefix_.chunk_end() - prefix_.chunk_begin()) +
                      " bytes from byte " + std::to_string(prefix_.chunk_begin()) + "), fetched " +
                      std::to_string(kMaxFetches) + " times: " + problem);
    repaired_to_ = prefix_.chunk_end();
    meter_.undo(std::min(counted_, repaired_to_) - wrong_begin_);
  }

  remote::Session& session_;
  const RemotePath& path_;
  const ManifestFile& file_;
  PartFile& part_;
  Meter& meter_;
  SpareMemory& spare_;
  VerifiedPrefix prefix_;
  std::atomic<uint64_t> on_disk_;  // bytes from the beginning, verified or not
  uint64_t counted_ = 0;           // bytes reported to the meter
  uint64_t repaired_to_ = 0;
  uint64_t wrong_begin_ = UINT64_MAX;
  int fetches_ = 0;
};

// Downloads `file` of the facility's folder `from` into the local folder `work`; the file gets its
// final name after the check of its last chunk. Keeps the verified chunks of an existing part file.
// Fetches a wrong chunk up to twice more, then throws kCorrupt.
// Returns the file's block hashes.
std::vector<uint64_t> fetch_file(remote::Session& session, const RemotePath& from,
                                 const ManifestFile& file, uint64_t chunk_bytes,
                                 const fs::path& work, Meter& meter, SpareMemory& spare) {
  const RemotePath path = from / file.name;
  PartFile part(work / part_name(file.name), file.size_bytes);
  std::vector<uint64_t> blocks =
      Download(session, path, file, chunk_bytes, part, meter, spare).run();
  part.finish(work / file.name);
  return blocks;
}

// The root hash of a local folder's manifest.json; empty when the manifest is absent, damaged or
// unreadable.
std::string local_root(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder / kManifestName, ignored)) return {};
  try {
    return checkpoint::read_manifest(folder).root_sha256();
  } catch (const UnreadableFile&) {  // a bad sector
    return {};
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt && error.kind() != ErrorKind::kNotFound) throw;
    return {};
  }
}

// The manifest of a folder that an earlier fetch has brought; empty when the folder is incomplete
// or damaged.
std::optional<Manifest> complete_folder(const fs::path& to, const std::string& root_sha256) {
  if (local_root(to) != root_sha256) return std::nullopt;
  try {
    Manifest manifest = checkpoint::make_manifest(to);
    if (manifest.root_sha256() != root_sha256) return std::nullopt;
    return manifest;
  } catch (const UnreadableFile&) {  // a bad sector
    return std::nullopt;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kRejected) throw;
    return std::nullopt;
  }
}

// fetch() replaces only folders that an earlier fetch made.
void reject_foreign(const fs::path& to) {
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(to, ignored)) || fs::exists(to / kManifestName, ignored))
    return;
  if (fs::is_directory(to, ignored) && fs::is_empty(to, ignored)) return;
  throw Error(ErrorKind::kIo,
              to.string() + " exists and is not a fetched folder; move it elsewhere");
}

const remote::FileInfo& require_regular(const remote::FileView& view, const RemotePath& path,
                                        const std::string& named_by) {
  if (!view.info)
    throw Error(ErrorKind::kNotFound, path.str() + named_by + " does not exist at the facility");
  if (view.info->type != remote::FileInfo::Type::kRegular)
    throw Error(ErrorKind::kRejected, path.str() +
                                          " at the facility is rejected: expected a "
                                          "regular file, found a folder, link or device");
  return *view.info;
}

Manifest remote_manifest(remote::Session& session, const RemotePath& from,
                         const std::string& root_sha256, uint64_t max_bytes) {
  const RemotePath path = from / kManifestName;
  const remote::FileQuery query{std::string(kManifestName), checkpoint::kMaxManifestBytes};
  const remote::FileView view = session.look(from, {&query, 1}).at(0);
  if (require_regular(view, path, "").size_bytes > checkpoint::kMaxManifestBytes)
    throw Error(ErrorKind::kCorrupt, path.str() + " at the facility is larger than the " +
                                         std::to_string(checkpoint::kMaxManifestBytes) +
                                         " bytes allowed");
  const Manifest manifest = checkpoint::parse_manifest(view.bytes, path.str());
  if (manifest.root_sha256() != root_sha256)
    throw Error(ErrorKind::kRejected, path.str() + " at the facility differs from the report: " +
                                          "expected root SHA-256 " + root_sha256 + ", found " +
                                          manifest.root_sha256());
  if (manifest.total_bytes() > max_bytes)
    throw Error(ErrorKind::kRejected,
                path.str() + " lists " + std::to_string(manifest.total_bytes()) +
                    " bytes of files; the limit is " + std::to_string(max_bytes));
  return manifest;
}

// Creates the work folder with the plan, or keeps the folder of an earlier call with the same plan.
void prepare(const fs::path& work, const Manifest& manifest) {
  std::error_code problem;
  const bool continues = fs::is_directory(fs::symlink_status(work, problem)) &&
                         local_root(work) == manifest.root_sha256();
  if (continues) return;
  fs::remove_all(work, problem);
  if (problem) throw system_error("remove " + work.string(), problem.value());
  make_dirs(work);
  write_file_atomic(work / kManifestName, checkpoint::format_manifest(manifest));
}

void check_space(const fs::path& work, const Manifest& manifest) {
  uint64_t missing = 0;
  std::error_code problem;
  for (const checkpoint::ManifestFile& file : manifest.files) {
    uint64_t there = 0;
    for (const std::string& name : {file.name, part_name(file.name)}) {
      const uint64_t size = fs::file_size(work / name, problem);
      if (!problem) there = std::max(there, size);
    }
    if (there < file.size_bytes) missing += file.size_bytes - there;
  }
  xffl::require_space(work, missing);
}

// True when an earlier call has finished the file, whose block hashes it then gives to `file`;
// removes a file with other content or a bad sector.
bool is_present(const fs::path& path, ManifestFile& file) try {
  std::error_code problem;
  if (!fs::is_regular_file(fs::symlink_status(path, problem))) return false;
  if (fs::file_size(path, problem) == file.size_bytes) {
    ManifestFile found = checkpoint::hash_file(path);
    if (found == file) {
      file.block_xxh3 = std::move(found.block_xxh3);
      return true;
    }
  }
  fs::remove(path, problem);
  return false;
} catch (const UnreadableFile&) {
  fs::remove(path);
  return false;
}

// Fetches the files into the work folder: small files in batches, large files as streams.
struct Fetch {
  const Endpoint& facility;
  const RemotePath& from;
  Manifest& manifest;  // gets the block hashes
  const fs::path& work;
  Meter& meter;
  SpareMemory& spare;
  std::vector<ManifestFile*> by_stream = {};

  void run() {
    std::vector<ManifestFile*> batch;
    uint64_t bytes = 0;
    for (ManifestFile& file : manifest.files) {
      if (is_present(work / file.name, file)) {
        meter.present(file.size_bytes);
        continue;
      }
      const uint64_t size = wanted_bytes(file);
      if (batch.size() == kBatchFiles || bytes + size > kBatchBytes) {
        fetch_batch(std::exchange(batch, {}));
        bytes = 0;
      }
      batch.push_back(&file);
      bytes += size;
    }
    if (!batch.empty()) fetch_batch(batch);
    for (ManifestFile* file : by_stream)
      file->block_xxh3 =
          fetch_file(facility.bulk, from, *file, manifest.chunk_bytes, work, meter, spare);
  }

  uint64_t wanted_bytes(const ManifestFile& file) const {
    const bool begun = fs::exists(fs::symlink_status(work / part_name(file.name)));
    return file.size_bytes <= kSmallFileBytes && !begun ? file.size_bytes : 0;
  }

  void fetch_batch(const std::vector<ManifestFile*>& batch) {
    meter.check("fetching " + from.str());
    std::vector<remote::FileQuery> queries;
    for (const ManifestFile* file : batch) queries.push_back({file->name, wanted_bytes(*file)});
    const std::vector<remote::FileView> views = facility.control.look(from, queries);
    for (size_t i = 0; i < batch.size(); ++i) store(*batch[i], views.at(i), queries[i].max_bytes);
  }

  void store(ManifestFile& file, const remote::FileView& view, uint64_t wanted) {
    const RemotePath path = from / file.name;
    const auto& info = require_regular(view, path, ", listed in the facility's manifest.json,");
    if (info.size_bytes != file.size_bytes)
      throw Error(ErrorKind::kRejected,
                  path.str() + " at the facility differs from its manifest: expected " +
                      std::to_string(file.size_bytes) + " bytes, found " +
                      std::to_string(info.size_bytes) + " bytes");
    if (view.bytes.size() != file.size_bytes || (wanted == 0 && file.size_bytes > 0)) {
      by_stream.push_back(&file);
      return;
    }
    if (const std::string found = sha256_hex(view.bytes); found != file.sha256) {
      if (file.size_bytes == 0)
        throw Error(ErrorKind::kCorrupt, path.str() + " is empty: expected SHA-256 " + file.sha256);
      by_stream.push_back(&file);  // the stream fetches the file again
      return;
    }
    PartFile part(work / part_name(file.name), file.size_bytes);
    spare.release(file.size_bytes);
    checkpoint::BlockHash blocks;
    blocks.update(std::as_bytes(std::span(view.bytes)));
    file.block_xxh3 = blocks.finish();
    part.write(0, std::as_bytes(std::span(view.bytes)));
    part.finish(work / file.name);
    meter.moved(file.size_bytes);
  }
};

void publish(const fs::path& work, const fs::path& to) {
  std::error_code problem;
  fs::remove_all(to, problem);  // an earlier fetch that no longer matches its manifest
  if (problem) throw system_error("remove " + to.string(), problem.value());
  fsync_dir(work);
  rename_durable(work, to);
}

}  // namespace

Fetched fetch(const Endpoint& facility, const RemotePath& from, const std::string& root_sha256,
              uint64_t max_bytes, const fs::path& to, std::stop_token stop,
              const OnProgress& on_progress, SpareMemory* spare) {
  const fs::path target = folder_path(to);
  if (auto complete = complete_folder(target, root_sha256)) return {{0}, *std::move(complete)};
  reject_foreign(target);
  Manifest manifest = remote_manifest(facility.control, from, root_sha256, max_bytes);

  const fs::path work = target.string() + ".part";
  prepare(work, manifest);
  check_space(work, manifest);
  Meter meter(manifest.total_bytes(), std::move(stop), on_progress);
  SpareMemory none;
  Fetch{facility, from, manifest, work, meter, spare != nullptr ? *spare : none}.run();
  publish(work, target);
  return {meter.result(), std::move(manifest)};
}

}  // namespace xffl::transfer
