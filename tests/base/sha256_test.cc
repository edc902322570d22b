#include "xffl/base/sha256.h"

#include <gtest/gtest.h>

#include "support/temp_dir.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

TEST(Sha256, MatchesTheExamplesOfFips180) {
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Sha256, IsTheSameForWholeTextPiecesAndFile) {
  test::TempDir dir;
  const std::string text(3000000, 'x');
  write_file_atomic(dir.path() / "f", text);
  Sha256 hash;
  for (size_t i = 0; i < text.size(); i += 1000)
    hash.update(std::string_view(text).substr(i, 1000));
  const std::string digest = hash.hex();
  EXPECT_EQ(digest, sha256_hex(text));
  EXPECT_EQ(digest, sha256_file(dir.path() / "f"));
  hash.update(std::string_view("abc"));  // reset by hex()
  EXPECT_EQ(hash.hex(), sha256_hex("abc"));
}

TEST(Sha256, ACopyHasItsOwnState) {
  Sha256 hash;
  hash.update(std::string_view("ab"));
  Sha256 copy(hash);
  EXPECT_EQ(copy.hex(), sha256_hex("ab"));
  hash.update(std::string_view("c"));
  EXPECT_EQ(hash.hex(), sha256_hex("abc"));
  copy.update(std::string_view("abc"));
  hash = copy;
  EXPECT_EQ(hash.hex(), sha256_hex("abc"));
}

TEST(RandomHex, DiffersBetweenCallsAndHasTheRequestedLength) {
  EXPECT_EQ(random_hex(16).size(), 32u);
  EXPECT_NE(random_hex(16), random_hex(16));
}

TEST(IsSha256Hex, AcceptsOnly64LowerCaseHexDigits) {
  EXPECT_TRUE(is_sha256_hex(sha256_hex("a")));
  EXPECT_FALSE(is_sha256_hex(std::string(64, 'A')));
  EXPECT_FALSE(is_sha256_hex(std::string(63, 'a')));
  EXPECT_FALSE(is_sha256_hex(std::string(65, 'a')));
  for (const char other : {'/', ':', '`', 'g'})  // the neighbours of the digits
    EXPECT_FALSE(is_sha256_hex(std::string(63, 'a') + other)) << other;
}

}  // namespace
}  // namespace xffl
