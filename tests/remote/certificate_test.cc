// The parser of certificates and keys, compared with ssh-keygen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "credentials.h"
#include "support/sshd.h"
#include "wire.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::remote {
namespace {

using test::must_run;
using testing::ElementsAre;
using testing::HasSubstr;

class CertificateOf : public testing::TestWithParam<const char*> {
 protected:
  test::TempDir dir_;
  void SetUp() override {
    if (!test::Sshd::missing().empty()) GTEST_SKIP() << test::Sshd::missing();
    const auto key = [&](const std::string& name) {
      must_run({"ssh-keygen", "-q", "-t", GetParam(), "-N", "", "-f", (dir_ / name).string()});
    };
    key("ca");
    key("id");
  }
  Certificate signed_for(const std::vector<std::string>& options) {
    std::vector<std::string> argv = {"ssh-keygen", "-q", "-s", (dir_ / "ca").string()};
    argv.insert(argv.end(), options.begin(), options.end());
    argv.push_back((dir_ / "id.pub").string());
    must_run(argv);
    return read_certificate(dir_ / "id-cert.pub");
  }
};

TEST_P(CertificateOf, ReadsPrincipalsAndValidity) {
  // ssh-keygen reads local time.
  ::setenv("TZ", "UTC", 1);
  const Certificate certificate =
      signed_for({"-I", "key of ann", "-n", "ann,u1", "-V", "20260101000000:20260102030405"});
  EXPECT_EQ(certificate.key_id, "key of ann");
  EXPECT_THAT(certificate.principals, ElementsAre("ann", "u1"));
  EXPECT_EQ(format_utc(certificate.valid_before.value()), "2026-01-02T03:04:05.000Z");
  EXPECT_THAT(must_run({"ssh-keygen", "-L", "-f", (dir_ / "id-cert.pub").string()}),
              HasSubstr("to 2026-01-02T03:04:05"));
}

TEST_P(CertificateOf, MayHaveNoExpiry) {
  const Certificate certificate = signed_for({"-I", "x"});
  EXPECT_FALSE(certificate.valid_before);
  EXPECT_TRUE(certificate.principals.empty());
}

TEST_P(CertificateOf, RejectsAHostCertificate) {
  EXPECT_THROW(signed_for({"-I", "x", "-h"}), Error);
}

TEST_P(CertificateOf, RejectsTruncatedBytes) {
  signed_for({"-I", "x", "-n", "ann"});
  const auto key = parse_public_key(read_file(dir_ / "id-cert.pub", 100'000));
  ASSERT_TRUE(key);
  ASSERT_TRUE(parse_certificate(key->blob, "test"));
  int refused = 0;
  for (size_t size = 0; size < key->blob.size(); ++size) try {
      parse_certificate(std::string_view(key->blob).substr(0, size), "test");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
      ++refused;
    }
  EXPECT_GT(refused, 100);
}

TEST_P(CertificateOf, APlainKeyHasAFingerprintAndNoCertificate) {
  const auto key = parse_public_key(read_file(dir_ / "id.pub", 100'000));
  ASSERT_TRUE(key);
  EXPECT_FALSE(parse_certificate(key->blob, "test"));
  EXPECT_THAT(must_run({"ssh-keygen", "-l", "-f", (dir_ / "id.pub").string()}),
              HasSubstr(" " + key_fingerprint(key->blob) + " "));
  EXPECT_THAT(read_file(dir_ / "id.pub", 100'000), HasSubstr(key->line()));
}

INSTANTIATE_TEST_SUITE_P(Types, CertificateOf, testing::Values("ed25519", "rsa", "ecdsa"),
                         [](const auto& type) { return std::string(type.param); });

TEST(PublicKey, OtherTextIsEmpty) {
  EXPECT_FALSE(parse_public_key(""));
  EXPECT_FALSE(parse_public_key("ssh-ed25519"));
  EXPECT_FALSE(parse_public_key("ssh-ed25519 !!!"));
  EXPECT_FALSE(parse_public_key("ssh-ed25519 AAAA"));
  // The type before the blob differs from the blob's type.
  EXPECT_FALSE(
      parse_public_key("ssh-rsa " + base64_encode(WireWriter().string("ssh-dss").bytes())));
}

TEST(Base64, RoundTripsAndRejectsOtherText) {
  for (const std::string bytes : {"", "f", "fo", "foo", "foob", "\xff\xfe"})
    EXPECT_EQ(base64_decode(base64_encode(bytes)), bytes);
  EXPECT_EQ(base64_encode("foob"), "Zm9vYg==");
  EXPECT_EQ(base64_encode("foob", false), "Zm9vYg");
  EXPECT_FALSE(base64_decode("A"));
  EXPECT_FALSE(base64_decode("Zm9 vYg"));
}

}  // namespace
}  // namespace xffl::remote
