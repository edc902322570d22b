#include "xffl/base/scrub.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "xffl/base/log.h"

namespace xffl {
namespace {

TEST(Scrub, RemovesTokensWithKnownPrefixes) {
  const std::string forty(40, 'a');
  for (const std::string secret :
       {"hf_abcdefghijklmnopqrstuvwx", "ghp_0123456789abcdefghij0123", "AKIAIOSFODNN7EXAMPLE1",
        "glpat-0123456789abcdefghij", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"}) {
    EXPECT_EQ(scrubbed("got " + secret + " there"), "got [removed] there");
    EXPECT_EQ(scrubbed(secret), "[removed]");
  }
  EXPECT_EQ(scrubbed("sk-" + forty), "[removed]");
  EXPECT_EQ(scrubbed("sk-proj-" + forty), "[removed]");
  EXPECT_EQ(scrubbed("github_pat_" + std::string(22, 'b') + "_" + forty), "[removed]");
  const std::map<std::string, size_t> shortest = {
      {"hf_", 20},    {"ghp_", 20},        {"gho_", 20},   {"ghu_", 20},  {"ghs_", 20},
      {"ghr_", 20},   {"github_pat_", 20}, {"glpat-", 16}, {"sk-", 20},   {"npm_", 20},
      {"nvapi-", 20}, {"pypi-", 20},       {"xoxb-", 16},  {"xoxp-", 16}, {"xoxa-", 16},
      {"AKIA", 16},   {"ASIA", 16},        {"AIza", 30},   {"eyJ", 30}};
  for (const auto& [prefix, length] : shortest)
    EXPECT_EQ(scrubbed(prefix + std::string(length, 'a')), "[removed]");
  EXPECT_EQ(scrubbed("task-" + forty), "task-" + forty) << "a word that ends in sk";
}

TEST(Scrub, RemovesWholePrivateKeys) {
  const std::string key =
      "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmU\nAAAA\n"
      "-----END OPENSSH PRIVATE KEY-----";
  EXPECT_EQ(scrubbed("a\n" + key + "\nb"), "a\n[removed]\nb");
  EXPECT_EQ(scrubbed("a " + key.substr(0, 60)), "a [removed]") << "cut off";
  const std::string certificate = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----";
  EXPECT_EQ(scrubbed(certificate), certificate);
}

TEST(Scrub, RemovesTheFirstLineOfAKeyAlone) {
  EXPECT_EQ(scrubbed("line 2: b3BlbnNzaC1rZXktdjEAAAAABG5vbmU there"), "line 2: [removed] there");
}

TEST(Scrub, RemovesTheEndOfAPrivateKeyWithoutABeginning) {
  EXPECT_EQ(scrubbed("MIIEvQIBADANBg\nkqhkiG9w0\n-----END RSA PRIVATE KEY-----\nb"),
            "[removed]\nb");
  EXPECT_EQ(scrubbed("kqhkiG9w0\n-----END PRIVATE KEY-----"), "[removed]");
  const std::string certificate = "MIIB\n-----END CERTIFICATE-----";
  EXPECT_EQ(scrubbed(certificate), certificate);
}

TEST(ScrubbedEnd, ScrubsBeforeItCuts) {
  const std::string token = "hf_abcdefghijklmnopqrstuvwx", rest = " and more text";
  EXPECT_EQ(scrubbed_end("HF: " + token + rest, rest.size() + 9, true), "[removed]" + rest);
  EXPECT_EQ(scrubbed_end(token + rest, 12 + rest.size(), true), "[removed]" + rest);
}

TEST(ScrubbedEnd, DropsAFirstLineThatMayBeginInsideASecret) {
  EXPECT_EQ(scrubbed_end("klmnopqrstuvwx\nthen\n", 100, false), "then\n");
  EXPECT_EQ(scrubbed_end("hunter2 was the password\nthen\n", 100, false), "then\n");
  EXPECT_EQ(scrubbed_end("klmnopqrstuvwx then", 100, false), "then");
  EXPECT_EQ(scrubbed_end("klmnopqrstuvwx", 100, false), "");
  EXPECT_EQ(scrubbed_end("first\nlast", 100, true), "first\nlast");
}

TEST(Scrub, RemovesValuesOfSecretNames) {
  EXPECT_EQ(scrubbed("password=hunter22 x"), "password=[removed] x");
  EXPECT_EQ(scrubbed("export HF_TOKEN='abcdef12'"), "export HF_TOKEN='[removed]'");
  EXPECT_EQ(scrubbed("{\"api_key\": \"abcdef12\", \"n\": 1}"),
            "{\"api_key\": \"[removed]\", \"n\": 1}");
  EXPECT_EQ(scrubbed("AWS_SECRET_ACCESS_KEY = wJalrXUtnFEMI/K7MDENG"),
            "AWS_SECRET_ACCESS_KEY = [removed]");
  EXPECT_EQ(scrubbed("Authorization: Bearer abcdefghijklmnop1"), "Authorization: Bearer [removed]");
  EXPECT_EQ(scrubbed("Authorization: Bearer abc/def+ghi~jklmnop1/qrs= x"),
            "Authorization: Bearer [removed] x");
  EXPECT_EQ(scrubbed("authorization: basic YWxhZGRpbjpvcGVu/2FtZQ=="),
            "authorization: basic [removed]");
  EXPECT_EQ(scrubbed("clone https://me:hunter2@example.org/x"),
            "clone https://me:[removed]@example.org/x");
  for (const std::string name :
       {"password", "passwd", "passphrase", "passcode", "secret", "token", "api_key", "apikey",
        "api-key", "access_key", "secret_key", "private_key", "credential", "credentials"})
    EXPECT_EQ(scrubbed(name + "=abcdef"), name + "=[removed]");
  EXPECT_EQ(scrubbed("one-time code: 123456"), "one-time code: [removed]") << "the shortest value";
}

TEST(Scrub, KeepsDiagnosticText) {
  for (const char* text :
       {"Permission denied (publickey,password).",
        "Enter passphrase for key '/home/me/.ssh/id':", "max_tokens=1000000", "tokens: 123456789",
        "an unknown token: 5", "the host also asks the user",
        "job 12 ended without a report (FAILED)", "https://example.org:8080/path?x=1",
        "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "tokenizer.json: expected BPE", "the profile basic /scratch/models/tiny is used",
        "no token", "password:", "hf_short"})
    EXPECT_EQ(scrubbed(text), text);
}

TEST(Scrub, IsQuickOnHostileText) {
  for (const std::string piece :
       {"token=", "-----BEGIN ", "://a:", "eyJ", "password\"' ", "-----END "}) {
    std::string text;
    while (text.size() < 200'000) text += piece;
    EXPECT_FALSE(scrubbed(text).empty());
  }
}

TEST(Scrub, IsAppliedByPrintable) {
  EXPECT_EQ(log::printable("x\nHF_TOKEN=hf_abcdefghijklmnopqrstuvwx"), "x\\x0AHF_TOKEN=[removed]");
  const std::string long_token = "token=" + std::string(3000, 'a');
  EXPECT_EQ(log::printable(long_token, 20), "token=[removed]");
  EXPECT_EQ(log::printable("got hf_abcdefghijklmnopqrstuvwx", 14), "got [removed]");
}

}  // namespace
}  // namespace xffl
