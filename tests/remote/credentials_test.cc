// Credential files that change while a coordinator runs for weeks: no file content ends the
// process.
#include "credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "support/failing_call.h"
#include "support/temp_dir.h"
#include "wire.h"
#include "xffl/base/file.h"

namespace xffl::remote {
namespace {

using testing::HasSubstr;

class CredentialFiles : public testing::Test {
 protected:
  CredentialFiles() {
    settings_.keys = {dir_ / "id"};
    settings_.agent = false;
    write_file_atomic(dir_ / "id", "a private key\n");
  }
  test::TempDir dir_;
  SshSettings settings_;
  const Clock::UtcTime now_ = SystemClock().utc();
};

// `ssh-keygen -s` and the sites' own tools truncate the file before they write it.
TEST_F(CredentialFiles, AnIncompleteCertificateIsReadAgainLater) {
  for (const char* content : {"", "ssh-ed25519-cert-v01@openssh.com AAAA", "\xff\xfe"}) {
    write_file_atomic(dir_ / "id-cert.pub", content);
    const Credentials found = find_credentials(settings_);
    EXPECT_FALSE(found.usable(now_));
    EXPECT_THAT(found.unusable(now_), HasSubstr("id-cert.pub"));
    EXPECT_FALSE(credential_expiry(settings_));
  }
  const std::string stamp = find_credentials(settings_).stamp;
  std::filesystem::remove(dir_ / "id-cert.pub");
  EXPECT_NE(find_credentials(settings_).stamp, stamp);
  EXPECT_TRUE(find_credentials(settings_).usable(now_));
}

std::string certificate_until(std::chrono::seconds valid_before) {
  const std::string type = "ssh-ed25519-cert-v01@openssh.com";
  WireWriter blob;
  blob.string(type).string("nonce").string("key").u64(1).u32(1).string("id").string("").u64(0);
  blob.u64(static_cast<uint64_t>(valid_before.count()));
  return PublicKey{type, blob.bytes()}.line() + "\n";
}

TEST_F(CredentialFiles, EachOfSeveralKeysCounts) {
  settings_.keys = {dir_ / "first", dir_ / "id"};
  write_file_atomic(dir_ / "first", "a private key\n");
  std::filesystem::permissions(dir_ / "first", std::filesystem::perms(0640));
  const std::chrono::seconds expiry(4'000'000'000);
  write_file_atomic(dir_ / "id-cert.pub", certificate_until(expiry));
  const Credentials found = find_credentials(settings_);
  EXPECT_THAT(found.unusable(now_), HasSubstr("chmod 600"));
  EXPECT_TRUE(found.usable(now_)) << "by the second key";
  EXPECT_EQ(credential_expiry(settings_), Clock::UtcTime(expiry)) << "no log-in offers the first";
  std::filesystem::permissions(dir_ / "first", std::filesystem::perms(0600));
  EXPECT_NE(find_credentials(settings_).stamp, found.stamp) << "the first key is tried again";
  EXPECT_FALSE(credential_expiry(settings_)) << "a key without a certificate";
  const std::chrono::seconds later = expiry + std::chrono::hours(1);
  write_file_atomic(dir_ / "first-cert.pub", certificate_until(later));
  EXPECT_EQ(credential_expiry(settings_), Clock::UtcTime(later)) << "the latest one";
}

TEST_F(CredentialFiles, WithoutANamedKeyTheUsualOnesServe) {
  settings_.keys = {};
  make_dirs(dir_ / ".ssh");
  const std::vector<std::string> names = {"id_ed25519", "id_ecdsa", "id_rsa"};
  for (const std::string& name : names) write_file_atomic(dir_ / ".ssh" / name, "a private key\n");
  ::setenv("HOME", dir_.path().c_str(), 1);
  const Credentials found = find_credentials(settings_);
  ASSERT_EQ(found.files.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(found.files[i].key, dir_ / ".ssh" / names[i]);
}

TEST_F(CredentialFiles, AKeyReadableByOthersIsNotOffered) {
  const std::string stamp = find_credentials(settings_).stamp;
  for (const auto mode : {0640, 0604, 0660}) {
    std::filesystem::permissions(dir_ / "id", std::filesystem::perms(mode));
    const Credentials found = find_credentials(settings_);
    EXPECT_FALSE(found.usable(now_));
    EXPECT_THAT(found.unusable(now_), HasSubstr("chmod 600"));
    EXPECT_NE(found.stamp, stamp) << "a corrected key is tried again";
  }
}

// Some tools write into the file that is there, and the new certificate is as long as the old one.
TEST_F(CredentialFiles, ACertificateThatIsRenewedInPlaceIsANewCredential) {
  const auto file = dir_ / "id-cert.pub";
  write_file_atomic(file, certificate_until(std::chrono::seconds(4'000'000'000)));
  const auto size = std::filesystem::file_size(file);
  const std::string stamp = find_credentials(settings_).stamp;
  std::ofstream(file) << certificate_until(std::chrono::seconds(4'000'003'600));
  std::filesystem::last_write_time(
      file, std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  EXPECT_EQ(std::filesystem::file_size(file), size);
  EXPECT_NE(find_credentials(settings_).stamp, stamp);
}

// A forwarded agent stays as a socket when its user has left.
TEST_F(CredentialFiles, AnAgentWithoutAnAnswerHasNoKeys) {
  settings_.agent = true;
  const std::string path = dir_ / "agent";
  const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(path.size(), sizeof address.sun_path);
  path.copy(address.sun_path, path.size());
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener.get(), 8), 0);
  ::setenv("SSH_AUTH_SOCK", path.c_str(), 1);
  const auto look_for_keys = [&](bool hangs_up) {
    return test::in_child([&] {
      ::alarm(60);
      std::jthread agent;
      if (hangs_up)
        agent = std::jthread([&] {
          const UniqueFd client(::accept(listener.get(), nullptr, nullptr));
          char request[5];
          ::recv(client.get(), request, sizeof request, MSG_WAITALL);
        });
      return find_credentials(settings_).identities.empty() ? 0 : 1;
    });
  };
  EXPECT_EQ(look_for_keys(/*hangs_up=*/true), 0);
  EXPECT_EQ(look_for_keys(/*hangs_up=*/false), 0) << "an agent that is silent";
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  std::vector<UniqueFd> clients;
  do clients.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  while (::connect(clients.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof address) ==
             0 &&
         clients.size() < 20);
  EXPECT_EQ(look_for_keys(/*hangs_up=*/false), 0) << "an agent that takes no more connections";
  ::unsetenv("SSH_AUTH_SOCK");
}

// The coordinator keeps the agent of its start, and the user's next shell has another one.
TEST_F(CredentialFiles, AMessageNamesTheAgentOfThisProcess) {
  EXPECT_EQ(agent_advice(settings_), "") << "agent: false";
  settings_.agent = true;
  ::unsetenv("SSH_AUTH_SOCK");
  EXPECT_THAT(agent_advice(settings_), HasSubstr("this process has no SSH agent"));
  ::setenv("SSH_AUTH_SOCK", "/tmp/ssh-1/agent\033[2J", 1);
  EXPECT_THAT(agent_advice(settings_), HasSubstr("the SSH agent at /tmp/ssh-1/agent"));
  EXPECT_THAT(agent_advice(settings_), testing::Not(HasSubstr("\033")));
  ::unsetenv("SSH_AUTH_SOCK");
}

TEST_F(CredentialFiles, AnInaccessibleFolderHasNoKeys) {
  std::filesystem::create_symlink("loop", dir_ / "loop");  // like a home folder that is offline
  settings_.keys = {dir_ / "loop" / "id"};
  EXPECT_FALSE(credential_expiry(settings_));
  EXPECT_FALSE(find_credentials(settings_).usable(now_));
}

}  // namespace
}  // namespace xffl::remote
