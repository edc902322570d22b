// How it works: ".manifest.json.part" at the facility is the plan of the push under way. As long as
// a plan (or the manifest.json that it becomes) is there, a file with its final name is what the
// plan says or absent, whenever a push was interrupted: files get their names only when complete,
// and before one plan takes the place of another, whatever is not the same in both is removed.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "meter.h"
#include "names.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"
#include "xffl/transfer/transfer.h"

namespace xffl::transfer {
namespace {

namespace fs = std::filesystem;
using checkpoint::kManifestName;
using checkpoint::Manifest;
using checkpoint::ManifestFile;

Error not_as_manifest(const fs::path& path, const std::string& problem) {
  return Error(ErrorKind::kRejected, path.string() + " is not what its manifest says: " + problem +
                                         "; it was changed or damaged after it was made");
}

// A local file that is read front to back, hashed on the way.
class Source {
 public:
  Source(fs::path path, const ManifestFile& file)
      : path_(std::move(path)), file_(file), fd_(open_file(path_, O_RDONLY | O_NONBLOCK)) {}

  bool done() const { return offset_ == file_.size_bytes; }
  uint64_t offset() const { return offset_; }

  /// The next block, at most up to `end`. The view is valid until the next call.
  std::span<const std::byte> next(uint64_t end) {
    const size_t wanted =
        std::min<uint64_t>(std::min(end, file_.size_bytes) - offset_, kBlockBytes);
    buffer_.resize(wanted);
    size_t done = 0;
    while (done < wanted) {
      const ssize_t n = ::pread(fd_.get(), buffer_.data() + done, wanted - done,
                                static_cast<off_t>(offset_ + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw system_error("read " + path_.string(), errno);
      if (n == 0)
        throw not_as_manifest(path_, "expected " + std::to_string(file_.size_bytes) +
                                         " bytes, found " + std::to_string(offset_ + done));
      done += static_cast<size_t>(n);
    }
    hash_.update(std::span<const std::byte>(buffer_));
    offset_ += wanted;
    return buffer_;
  }
  void rewind() {
    offset_ = 0;
    hash_ = Sha256();
  }
  /// After the last block. Throws kRejected.
  void check_hash() {
    const std::string found = hash_.hex();
    if (found != file_.sha256)
      throw not_as_manifest(path_, "expected SHA-256 " + file_.sha256 + ", found " + found);
  }

 private:
  fs::path path_;
  const ManifestFile& file_;
  UniqueFd fd_;
  std::vector<std::byte> buffer_;
  Sha256 hash_;
  uint64_t offset_ = 0;
};

void check_sizes(const fs::path& from, const Manifest& manifest) {
  for (const ManifestFile& file : manifest.files) {
    std::error_code problem;
    const fs::path path = from / file.name;
    const bool regular = fs::is_regular_file(path, problem);
    if (problem && problem != std::errc::no_such_file_or_directory)
      throw system_error("stat " + path.string(), problem.value());
    if (!regular) throw not_as_manifest(path, "there is no such file");
    const uint64_t size = fs::file_size(path, problem);
    if (problem) throw system_error("stat " + path.string(), problem.value());
    if (size != file.size_bytes)
      throw not_as_manifest(path, "expected " + std::to_string(file.size_bytes) + " bytes, found " +
                                      std::to_string(size));
  }
}

class Push {
 public:
  Push(remote::Session& session, const fs::path& from, const Manifest& manifest,
       const RemotePath& to, Meter& meter)
      : session_(session),
        from_(from),
        manifest_(manifest),
        to_(to),
        complete_(to / kManifestName),
        plan_(to / part_name(std::string(kManifestName))),
        meter_(meter) {}

  void run() {
    meter_.check("pushing to " + to_.str());
    session_.make_dirs(to_);
    if (is_complete()) return meter_.present(manifest_.total_bytes());
    make_plan_ours();
    for (const ManifestFile& file : manifest_.files) send_unless_present(file);
    session_.rename(plan_, complete_);
  }

 private:
  std::optional<Manifest> manifest_at(const RemotePath& path) {
    if (!session_.stat(path)) return std::nullopt;
    try {
      return checkpoint::parse_manifest(remote::read_text(session_, path, checkpoint::kMaxManifestBytes),
                                        path.str());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCorrupt) throw;
      return std::nullopt;
    }
  }

  bool is_there(const ManifestFile& file) {
    const auto info = session_.stat(to_ / file.name);
    return info && info->type == remote::FileInfo::Type::kRegular &&
           info->size_bytes == file.size_bytes;
  }

  bool is_complete() {
    return manifest_at(complete_) == manifest_ &&
           std::all_of(manifest_.files.begin(), manifest_.files.end(),
                       [&](const ManifestFile& file) { return is_there(file); });
  }

  void make_plan_ours() {
    std::optional<Manifest> earlier = manifest_at(complete_);
    if (earlier)
      session_.rename(complete_, plan_);  // not complete while anything in it may change
    else
      earlier = manifest_at(plan_);
    if (earlier && *earlier == manifest_) return;
    session_.remove_tree(complete_);
    remove_what_differs(earlier.value_or(Manifest{}));
    remote::write_text_atomic(session_, plan_, checkpoint::format_manifest(manifest_));
  }

  void remove_what_differs(const Manifest& earlier) {
    std::set<std::string> doubtful;
    for (const Manifest* manifest : {&earlier, &manifest_})
      for (const ManifestFile& file : manifest->files) doubtful.insert(file.name);
    for (const ManifestFile& file : manifest_.files)
      if (std::find(earlier.files.begin(), earlier.files.end(), file) != earlier.files.end())
        doubtful.erase(file.name);
    for (const std::string& name : session_.list(to_))
      for (const std::string& other : doubtful)
        if (name == other || name == part_name(other)) session_.remove_tree(to_ / name);
  }

  void send_unless_present(const ManifestFile& file) {
    if (is_there(file)) return meter_.present(file.size_bytes);
    session_.remove_tree(to_ / file.name);
    send(file);
  }

  void send(const ManifestFile& file) {
    const RemotePath part = to_ / part_name(file.name);
    Source source(from_ / file.name, file);
    try {
      continue_part(part, file, source);
      do {
        meter_.check("pushing " + file.name + " to " + to_.str());
        const uint64_t offset = source.offset();
        const auto block = source.next(file.size_bytes);
        session_.write(part, offset, block);
        meter_.moved(block.size());
      } while (!source.done());
      source.check_hash();
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kRejected) session_.remove_tree(part);
      throw;
    }
    session_.sync(part);
    session_.rename(part, to_ / file.name);
  }

  // Leaves `source` where the part ends. Of what is there the last block is read back and compared:
  // a torn write shows there, and the trainer checks the whole before it uses it.
  void continue_part(const RemotePath& part, const ManifestFile& file, Source& source) {
    const auto info = session_.stat(part);
    if (!info) return;
    const bool usable = info->type == remote::FileInfo::Type::kRegular && info->size_bytes > 0 &&
                        info->size_bytes <= file.size_bytes;
    if (usable) {
      uint64_t begin = 0;
      std::span<const std::byte> ours;
      while (source.offset() < info->size_bytes) {
        begin = source.offset();
        ours = source.next(info->size_bytes);
      }
      std::vector<std::byte> theirs(ours.size());
      if (session_.read(part, begin, theirs) == theirs.size() &&
          std::equal(ours.begin(), ours.end(), theirs.begin()))
        return meter_.present(info->size_bytes);
      source.rewind();
    }
    session_.remove_tree(part);
  }

  remote::Session& session_;
  const fs::path& from_;
  const Manifest& manifest_;
  const RemotePath to_, complete_, plan_;
  Meter& meter_;
};

}  // namespace

Result push(remote::Session& session, const fs::path& from, const Manifest& manifest,
            const RemotePath& to, std::stop_token stop, const OnProgress& on_progress) {
  check_sizes(from, manifest);
  Meter meter(manifest.total_bytes(), std::move(stop), on_progress);
  Push(session, from, manifest, to, meter).run();
  return meter.result();
}

}  // namespace xffl::transfer
