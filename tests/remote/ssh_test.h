// Fixtures of the SSH tests.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>

#include "support/await.h"
#include "support/sshd.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"
#include "xffl/remote/ssh.h"

namespace xffl::remote {

using test::error_of;

class SshTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::Sshd::missing().empty()) GTEST_SKIP() << test::Sshd::missing();
  }

  static CommandResult run(Session& session, const std::vector<std::string>& argv,
                           std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    return session.run(argv, "", timeout, {});
  }
  static void expect_works(Session& session) {
    EXPECT_EQ(run(session, {"printf", "%s", "works"}).out, "works");
  }
  // A local file whose bytes depend on their offset.
  static std::string numbered_file(const std::filesystem::path& path, size_t num_bytes) {
    std::vector<uint32_t> words(num_bytes / 4);
    std::iota(words.begin(), words.end(), 12345u);
    std::ofstream(path).write(reinterpret_cast<const char*>(words.data()),
                              static_cast<std::streamsize>(num_bytes));
    return sha256_file(path);
  }
  static std::string download_hash(Session& session, const std::filesystem::path& path) {
    Sha256 hash;
    session.download(RemotePath(path.string()), 0, std::filesystem::file_size(path),
                     [&](std::span<const std::byte> bytes) { hash.update(bytes); }, {});
    return hash.hex();
  }
  static void upload(Session& session, const std::filesystem::path& from,
                     const std::filesystem::path& to) {
    const MappedFile file(from);
    session.upload(RemotePath(to.string()), 0, file.bytes().size(),
                   [&](uint64_t offset, std::span<std::byte> out) {
                     const auto part = file.bytes().subspan(offset, out.size());
                     std::copy(part.begin(), part.end(), out.begin());
                   },
                   {});
  }
};

}  // namespace xffl::remote
