#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "site.h"
#include "support/fake_session.h"
#include "xffl/base/scrub.h"

namespace xffl::facility {
namespace {

using testing::HasSubstr;
using testing::Not;

// The end of a job's output file, as messages show it.
std::string tail_of(const std::string& output) {
  test::FakeSession session;
  session.make_dirs(RemotePath("/a1"));
  session.write(RemotePath("/a1/job.out"), 0, std::as_bytes(std::span(output)));
  return printable_tail(session, RemotePath("/a1/job.out"));
}

TEST(PrintableTail, HoldsNoSecret) {
  const std::string token = "hf_" + std::string(30, 'A');
  const std::string tail = tail_of("loading\nHF_TOKEN=" + token + "\nno such model\n");
  EXPECT_THAT(tail, HasSubstr("no such model"));
  EXPECT_THAT(tail, Not(HasSubstr("AAAA")));
}

TEST(PrintableTail, HoldsNoPartOfASecretThatBeginsBeforeIt) {
  std::string key = "-----BEGIN RSA PRIVATE KEY-----\n";
  for (int line = 0; line < 30; ++line) key += std::string(64, 'Q') + "\n";
  EXPECT_THAT(tail_of("begins\n" + key), Not(HasSubstr("QQQQ"))) << "the key has no last line";
  key += "-----END RSA PRIVATE KEY-----\n";
  const std::string tail = tail_of("begins\n" + key + "wrong key\n");
  EXPECT_THAT(tail, HasSubstr("wrong key"));
  EXPECT_THAT(tail, Not(HasSubstr("QQQQ")));
}

// The tail is read from within a token on; the removal of the key leaves room for that text.
TEST(PrintableTail, HoldsNoEndOfASecretThatBeginsBeforeTheReadBytes) {
  constexpr size_t kShown = 600, kOfToken = 20;
  std::string rest = "\n-----BEGIN RSA PRIVATE KEY-----\n";
  const std::string end = "\n-----END RSA PRIVATE KEY-----\nwrong key\n";
  rest += std::string(kShown + kLongestSecret - kOfToken - rest.size() - end.size(), 'Q') + end;
  const std::string tail = tail_of("HF_TOKEN=hf_" + std::string(30, 'A') + rest);
  EXPECT_THAT(tail, HasSubstr("wrong key"));
  EXPECT_THAT(tail, Not(HasSubstr("AAAA")));
}

TEST(PrintableTail, IsTheEndOfALongOutput) {
  std::string output;
  for (int line = 0; line < 1000; ++line) output += "line " + std::to_string(line) + "\n";
  const std::string tail = tail_of(output);
  EXPECT_THAT(tail, HasSubstr("line 999"));
  EXPECT_THAT(tail, Not(HasSubstr("line 899")));
  EXPECT_EQ(tail_of(""), "");
}

}  // namespace
}  // namespace xffl::facility
