// A decorator of a session that injects faults of the link and counts calls.
//
// The test sets the faults: the link drops after a number of bytes (the last block arrives in part)
// and stays down until reconnect(); or an operation takes effect and its reply is lost.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>

#include "xffl/base/error.h"
#include "xffl/remote/session.h"

namespace xffl::test {

class FaultySession final : public remote::Session {
 public:
  explicit FaultySession(remote::Session& inner) : inner_(inner) {}

  std::function<void(const RemotePath&)> after_stat;  // what happens between two calls

  void drop_after(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes_left_ = bytes;
    down_ = false;
  }
  /// Restores the link and clears all pending faults.
  void reconnect() {
    drop_after(std::numeric_limits<uint64_t>::max());
    const std::lock_guard lock(mutex_);
    replies_until_loss_.clear();
  }
  /// Loses the reply of the `nth` call of `operation` from now on (the first is 1) after its
  /// effect. `operation` is "run", "stat", "read", "write", "sync", "rename", "list", "make_dirs",
  /// "remove_tree", "download", "sha256" or "free_bytes".
  void lose_reply(const std::string& operation, int nth = 1) {
    const std::lock_guard lock(mutex_);
    replies_until_loss_[operation] = nth;
  }
  /// The number of file bytes transferred over the link, without lost bytes.
  uint64_t bytes_passed() const {
    const std::lock_guard lock(mutex_);
    return bytes_passed_;
  }
  int calls(const std::string& operation) const {
    const std::lock_guard lock(mutex_);
    const auto found = calls_.find(operation);
    return found == calls_.end() ? 0 : found->second;
  }

  /// The longest time limit of a command.
  std::chrono::milliseconds longest_limit() const {
    const std::lock_guard lock(mutex_);
    return longest_limit_;
  }

  remote::CommandResult run(const std::vector<std::string>& argv, const std::string& stdin_text,
                            std::chrono::milliseconds timeout, std::stop_token stop) override {
    {
      const std::lock_guard lock(mutex_);
      longest_limit_ = std::max(longest_limit_, timeout);
    }
    return call("run", [&] { return inner_.run(argv, stdin_text, timeout, stop); });
  }
  std::optional<remote::FileInfo> stat(const RemotePath& path) override {
    auto info = call("stat", [&] { return inner_.stat(path); });
    if (after_stat) after_stat(path);
    return info;
  }
  size_t read(const RemotePath& path, uint64_t offset, std::span<std::byte> out) override {
    return call("read", [&] {
      const size_t n = inner_.read(path, offset, out);
      if (take(n) < n) lost("read");
      return n;
    });
  }
  void write(const RemotePath& path, uint64_t offset, std::span<const std::byte> bytes) override {
    call("write", [&] {
      const size_t passed = take(bytes.size());
      inner_.write(path, offset, bytes.first(passed));
      if (passed < bytes.size()) lost("write");
    });
  }
  /// Passes the bytes received before the link drops to `sink`.
  void download(const RemotePath& path, uint64_t offset, uint64_t length, const remote::Sink& sink,
                std::stop_token stop) override {
    call("download", [&] {
      inner_.download(
          path, offset, length,
          [&](std::span<const std::byte> bytes) {
            const size_t passed = take(bytes.size());
            if (passed > 0) sink(bytes.first(passed));
            if (passed < bytes.size()) lost("download");
          },
          stop);
    });
  }
  std::optional<std::string> sha256(const RemotePath& path, uint64_t offset,
                                    uint64_t length) override {
    return call("sha256", [&] { return inner_.sha256(path, offset, length); });
  }
  std::optional<uint64_t> free_bytes(const RemotePath& folder) override {
    return call("free_bytes", [&] { return inner_.free_bytes(folder); });
  }
  void sync(const RemotePath& path) override {
    call("sync", [&] { inner_.sync(path); });
  }
  void rename(const RemotePath& from, const RemotePath& to) override {
    call("rename", [&] { inner_.rename(from, to); });
  }
  std::vector<std::string> list(const RemotePath& folder) override {
    return call("list", [&] { return inner_.list(folder); });
  }
  void make_dirs(const RemotePath& folder) override {
    call("make_dirs", [&] { inner_.make_dirs(folder); });
  }
  void remove_tree(const RemotePath& path, std::stop_token stop) override {
    call("remove_tree", [&] { inner_.remove_tree(path, stop); });
  }

 private:
  [[noreturn]] static void lost(const std::string& operation) {
    throw Error(ErrorKind::kRemote, "the link was lost during " + operation);
  }

  template <class Body>
  auto call(const std::string& operation, Body&& body) -> decltype(body()) {
    begin(operation);
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      end(operation);
    } else {
      auto result = body();
      end(operation);
      return result;
    }
  }
  void begin(const std::string& operation) {
    const std::lock_guard lock(mutex_);
    ++calls_[operation];
    if (down_) lost(operation);
  }
  void end(const std::string& operation) {
    const std::lock_guard lock(mutex_);
    const auto loss = replies_until_loss_.find(operation);
    if (loss == replies_until_loss_.end() || --loss->second > 0) return;
    replies_until_loss_.erase(loss);
    lost(operation);
  }
  // The number of `wanted` bytes that pass before the link drops; fewer take the link down.
  size_t take(size_t wanted) {
    const std::lock_guard lock(mutex_);
    const size_t passed = std::min<uint64_t>(wanted, bytes_left_);
    bytes_left_ -= passed;
    bytes_passed_ += passed;
    down_ = passed < wanted;
    return passed;
  }

  remote::Session& inner_;
  mutable std::mutex mutex_;
  uint64_t bytes_left_ = std::numeric_limits<uint64_t>::max();
  uint64_t bytes_passed_ = 0;
  bool down_ = false;
  std::map<std::string, int> replies_until_loss_;
  std::map<std::string, int> calls_;
  std::chrono::milliseconds longest_limit_{0};
};

}  // namespace xffl::test
