#include "xffl/remote/session.h"

#include <algorithm>

#include "xffl/base/error.h"

namespace xffl::remote {
namespace {

constexpr uint64_t kStreamBlockBytes = 8u << 20;

void check(const std::stop_token& stop, const RemotePath& path) {
  if (stop.stop_requested())
    throw Error(ErrorKind::kCancelled, "stopped in the transfer of " + path.str());
}

}  // namespace

void Session::download(const RemotePath& path, uint64_t offset, uint64_t length, const Sink& sink,
                       std::stop_token stop) {
  std::vector<std::byte> block(std::min(length, kStreamBlockBytes));
  for (uint64_t done = 0; done < length;) {
    check(stop, path);
    const auto wanted = std::span(block).first(std::min<uint64_t>(length - done, block.size()));
    const size_t n = read(path, offset + done, wanted);
    if (n < wanted.size()) fail_too_short(path, offset + done + n, offset + length);
    sink(wanted);
    done += n;
  }
}

void Session::upload(const RemotePath& path, uint64_t offset, uint64_t length, const Source& source,
                     std::stop_token stop) {
  std::vector<std::byte> block(std::min(length, kStreamBlockBytes));
  for (uint64_t done = 0; done < length;) {
    check(stop, path);
    const auto part = std::span(block).first(std::min<uint64_t>(length - done, block.size()));
    source(offset + done, part);
    write(path, offset + done, part);
    done += part.size();
  }
}

std::optional<std::vector<std::string>> Session::block_hashes(const RemotePath& path,
                                                              uint64_t offset, uint64_t length,
                                                              uint64_t block_bytes) {
  std::vector<std::string> hashes;
  for (uint64_t done = 0; done < length; done += block_bytes) {
    const auto hash = sha256(path, offset + done, std::min(block_bytes, length - done));
    if (!hash) return std::nullopt;
    hashes.push_back(*hash);
  }
  return hashes;
}

std::vector<FileView> Session::look(const RemotePath& folder, std::span<const FileQuery> files) {
  std::vector<FileView> views;
  for (const FileQuery& file : files) {
    FileView& view = views.emplace_back(FileView{stat(folder / file.name), {}});
    if (!view.info || view.info->type != FileInfo::Type::kRegular ||
        view.info->size_bytes > file.max_bytes || view.info->size_bytes == 0)
      continue;
    // Reads one byte more, because the size from the facility is untrusted.
    view.bytes.resize(view.info->size_bytes + 1);
    view.bytes.resize(read(folder / file.name, 0, std::as_writable_bytes(std::span(view.bytes))));
    view.info->size_bytes = view.bytes.size();
    if (view.bytes.size() > file.max_bytes) view.bytes.clear();
  }
  return views;
}

void Session::put_files(const RemotePath& folder, std::span<const NewFile> files) {
  make_dirs(folder);
  for (const NewFile& file : files) {
    if (file.name.ends_with('/'))
      make_dirs(folder / file.name.substr(0, file.name.size() - 1));
    else
      write_text_atomic(*this, folder / file.name, file.bytes);
  }
}

void fail_too_short(const RemotePath& path, uint64_t present, uint64_t expected) {
  throw Error(ErrorKind::kCorrupt, path.str() + " at the facility ends after " +
                                       std::to_string(present) + " bytes, expected " +
                                       std::to_string(expected));
}

std::string read_text(Session& session, const RemotePath& path, uint64_t max_bytes) {
  const auto info = session.stat(path);
  if (!info) throw Error(ErrorKind::kNotFound, path.str() + " does not exist at the facility");
  if (info->type != FileInfo::Type::kRegular)
    throw Error(ErrorKind::kCorrupt, path.str() + " at the facility is not a regular file");
  // The size from the facility is untrusted: the number of bytes read decides.
  std::string text;
  while (text.size() <= max_bytes) {
    const size_t wanted = std::min<uint64_t>(max_bytes + 1 - text.size(), 1u << 20);
    const size_t present = text.size();
    text.resize(present + wanted);
    const size_t n = session.read(path, present,
                                  std::as_writable_bytes(std::span(text.data() + present, wanted)));
    text.resize(present + n);
    if (n < wanted) return text;
  }
  throw Error(ErrorKind::kCorrupt, path.str() + " at the facility is larger than the " +
                                       std::to_string(max_bytes) + " bytes allowed");
}

void write_text_atomic(Session& session, const RemotePath& path, std::string_view text) {
  const RemotePath temp(path.str() + ".tmp");
  session.remove_tree(temp);  // an interrupted call may have left a longer file
  session.write(temp, 0, std::as_bytes(std::span(text.data(), text.size())));
  session.sync(temp);
  session.rename(temp, path);
}

}  // namespace xffl::remote
