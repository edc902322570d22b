// The fault injector: a test that relies on it proves nothing if no fault is injected.
#include "support/faulty_session.h"

#include <gtest/gtest.h>

#include "support/fake_session.h"

namespace xffl::test {
namespace {

const RemotePath kFile("/f");

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(FaultySession, TruncatesTheWriteDuringALinkDrop) {
  FakeSession far;
  FaultySession link(far);
  link.drop_after(7);
  link.write(kFile, 0, bytes("12345"));
  EXPECT_THROW(link.write(kFile, 5, bytes("67890")), Error);
  EXPECT_EQ(far.content("/f"), "1234567");
  EXPECT_THROW(link.stat(kFile), Error);
  link.reconnect();
  EXPECT_EQ(link.stat(kFile)->size_bytes, 7u);
}

TEST(FaultySession, DropsTheLinkInTheMiddleOfARead) {
  FakeSession far;
  far.put("/f", "1234567890");
  FaultySession link(far);
  link.drop_after(4);
  std::vector<std::byte> buffer(5);
  EXPECT_THROW(link.read(kFile, 0, buffer), Error);
  link.reconnect();
  EXPECT_EQ(link.read(kFile, 0, buffer), 5u);
}

TEST(FaultySession, LosesTheReplyAfterTheEffect) {
  FakeSession far;
  far.put("/f", "x");
  FaultySession link(far);
  link.lose_reply("rename", 2);
  link.rename(kFile, RemotePath("/g"));
  EXPECT_THROW(link.rename(RemotePath("/g"), kFile), Error);
  EXPECT_EQ(far.content("/f"), "x");
  link.rename(kFile, RemotePath("/h"));
  EXPECT_EQ(link.calls("rename"), 3);
}

}  // namespace
}  // namespace xffl::test
