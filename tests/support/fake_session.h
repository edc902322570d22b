// An in-memory file system of a facility.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>

#include "xffl/base/error.h"
#include "xffl/base/sha256.h"
#include "xffl/remote/session.h"

namespace xffl::test {

class FakeSession : public remote::Session {
 public:
  using FileInfo = remote::FileInfo;

  FakeSession() { nodes_["/"] = {FileInfo::Type::kFolder, {}}; }

  /// Implements run(); if empty, every command is "not found".
  std::function<remote::CommandResult(const std::vector<std::string>&, const std::string&)> on_run;

  remote::CommandResult run(const std::vector<std::string>& argv, const std::string& stdin_text,
                            std::chrono::milliseconds, std::stop_token) override {
    if (on_run) return on_run(argv, stdin_text);
    return {.exit_code = 127, .out = {}, .err = argv.at(0) + ": not found"};
  }

  std::optional<FileInfo> stat(const RemotePath& path) override {
    const std::lock_guard lock(mutex_);
    const auto node = nodes_.find(path.str());
    if (node == nodes_.end()) return std::nullopt;
    return FileInfo{node->second.type, node->second.bytes.size()};
  }

  size_t read(const RemotePath& path, uint64_t offset, std::span<std::byte> out) override {
    const std::lock_guard lock(mutex_);
    const std::string& bytes = regular(path).bytes;
    if (offset >= bytes.size()) return 0;
    const size_t count = std::min<uint64_t>(out.size(), bytes.size() - offset);
    const auto source = std::as_bytes(std::span(bytes)).subspan(offset, count);
    std::copy(source.begin(), source.end(), out.begin());
    bytes_read += count;
    return count;
  }

  void write(const RemotePath& path, uint64_t offset, std::span<const std::byte> bytes) override {
    const std::lock_guard lock(mutex_);
    folder(path.parent());
    nodes_.try_emplace(path.str());
    std::string& present = regular(path).bytes;
    present.resize(std::max<uint64_t>(present.size(), offset + bytes.size()));
    std::transform(bytes.begin(), bytes.end(), present.begin() + static_cast<long>(offset),
                   [](std::byte b) { return static_cast<char>(b); });
    bytes_written += bytes.size();
  }

  std::optional<std::string> sha256(const RemotePath& path, uint64_t offset,
                                    uint64_t length) override {
    const std::lock_guard lock(mutex_);
    if (!hashes) return std::nullopt;
    const std::string& bytes = regular(path).bytes;
    if (offset + length > bytes.size()) return std::nullopt;
    ++ranges_hashed;
    return sha256_hex(std::string_view(bytes).substr(offset, length));
  }
  std::optional<uint64_t> free_bytes(const RemotePath& path) override {
    const std::lock_guard lock(mutex_);
    folder(path);
    return free;
  }

  void sync(const RemotePath& path) override {
    const std::lock_guard lock(mutex_);
    regular(path);
  }

  void rename(const RemotePath& from, const RemotePath& to) override {
    const std::lock_guard lock(mutex_);
    node(from);
    folder(to.parent());
    std::map<std::string, Node> moved;
    for (auto it = nodes_.begin(); it != nodes_.end();)
      if (inside(it->first, from.str())) {
        moved[to.str() + it->first.substr(from.str().size())] = std::move(it->second);
        it = nodes_.erase(it);
      } else {
        ++it;
      }
    std::erase_if(nodes_, [&](const auto& entry) { return inside(entry.first, to.str()); });
    nodes_.merge(moved);
  }

  std::vector<std::string> list(const RemotePath& path) override {
    const std::lock_guard lock(mutex_);
    folder(path);
    std::vector<std::string> names;
    for (const auto& entry : nodes_)
      if (entry.first != "/" && RemotePath(entry.first).parent() == path)
        names.push_back(RemotePath(entry.first).filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  void make_dirs(const RemotePath& path) override {
    const std::lock_guard lock(mutex_);
    for (RemotePath at = path; at.str() != "/"; at = at.parent()) {
      const auto [node, made] = nodes_.try_emplace(at.str(), Node{FileInfo::Type::kFolder, {}});
      if (!made && node->second.type != FileInfo::Type::kFolder)
        throw Error(ErrorKind::kIo, at.str() + " is not a folder");
    }
  }

  using Session::remove_tree;
  void remove_tree(const RemotePath& path, std::stop_token) override {
    const std::lock_guard lock(mutex_);
    std::erase_if(nodes_, [&](const auto& entry) { return inside(entry.first, path.str()); });
  }

  // For tests: direct access to the file system.

  void put(const std::string& path, std::string bytes) {
    make_dirs(RemotePath(path).parent());
    const std::lock_guard lock(mutex_);
    nodes_[path] = {FileInfo::Type::kRegular, std::move(bytes)};
  }
  /// A link, FIFO or device.
  void put_other(const std::string& path) {
    make_dirs(RemotePath(path).parent());
    const std::lock_guard lock(mutex_);
    nodes_[path] = {FileInfo::Type::kOther, {}};
  }
  std::string content(const std::string& path) {
    const std::lock_guard lock(mutex_);
    return regular(RemotePath(path)).bytes;
  }

  bool hashes = false;           // false: sha256() returns nothing
  std::optional<uint64_t> free;  // the result of free_bytes()
  int ranges_hashed = 0;
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;

 private:
  struct Node {
    FileInfo::Type type = FileInfo::Type::kRegular;
    std::string bytes;
  };

  static bool inside(const std::string& path, const std::string& top) {
    return path == top || path.starts_with(top == "/" ? top : top + "/");
  }
  Node& node(const RemotePath& path) {
    const auto found = nodes_.find(path.str());
    if (found == nodes_.end())
      throw Error(ErrorKind::kNotFound, "no file " + path.str() + " at the fake facility");
    return found->second;
  }
  Node& regular(const RemotePath& path) {
    Node& found = node(path);
    if (found.type != FileInfo::Type::kRegular)
      throw Error(ErrorKind::kIo, path.str() + " is not a regular file");
    return found;
  }
  Node& folder(const RemotePath& path) {
    Node& found = node(path);
    if (found.type != FileInfo::Type::kFolder)
      throw Error(ErrorKind::kIo, path.str() + " is not a folder");
    return found;
  }

  std::mutex mutex_;
  std::map<std::string, Node> nodes_;
};

}  // namespace xffl::test
