// The framed command in real log-in shells, and the reader of its output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "framed_command.h"
#include "xffl/base/error.h"
#include "xffl/base/process.h"
#include "xffl/base/shell.h"

namespace xffl::remote {
namespace {

using testing::HasSubstr;

const std::string kNonce = "0123456789abcdef0123456789abcdef";

struct Read {
  std::string output;
  std::optional<int> exit_code;
};

// Feeds `stream` in pieces of `piece` bytes.
Read read_in_pieces(const std::string& stream, size_t piece, uint64_t expected = 0) {
  Read read;
  FrameReader reader(kNonce, expected);
  const auto keep = [&](std::string_view text) { read.output += text; };
  for (size_t at = 0; at < stream.size(); at += piece) reader.feed(stream.substr(at, piece), keep);
  reader.finish(keep);
  read.exit_code = reader.exit_code();
  return read;
}

class Shells : public testing::TestWithParam<const char*> {
 protected:
  const std::string shell_ = GetParam();
  void SetUp() override {
    if (!std::filesystem::exists(shell_)) GTEST_SKIP() << shell_ << " is not installed";
  }
  ProcessResult in_shell(const std::string& script, const std::string& input = "") {
    return run_process({.argv = {shell_, "-c", framed_command(script, kNonce)},
                        .stdin_text = input,
                        .timeout = std::chrono::seconds(20)});
  }
};

TEST_P(Shells, ArgumentsArriveUnchanged) {
  std::mt19937 random(7);
  const std::string nasty = "'\"\\$`!#&*?[]{}()<>|;~^%= \t\n\r\x01\x7f\xff\xc3\xa4-aZ0";
  for (int round = 0; round < 12; ++round) {
    std::vector<std::string> argv = {"printf", "%s|"};
    std::string expected;
    for (int i = 0; i < 8; ++i) {
      std::string word;
      for (unsigned n = random() % 12; n > 0; --n) word += nasty[random() % nasty.size()];
      argv.push_back(word);
      expected += word + "|";
    }
    const Read read = read_in_pieces(in_shell("exec " + quote_argv_for_shell(argv)).out, 1000);
    EXPECT_EQ(read.output, expected) << shell_;
    EXPECT_EQ(read.exit_code, 0);
  }
}

TEST_P(Shells, StdinStdoutStderrAndExitCodePass) {
  const auto result =
      in_shell("exec " + quote_argv_for_shell({"sh", "-c", "cat; echo no >&2; exit 7"}), "in\nput");
  EXPECT_EQ(read_in_pieces(result.out, 3).output, "in\nput");
  EXPECT_EQ(read_in_pieces(result.out, 3).exit_code, 7);
  EXPECT_EQ(read_in_pieces(result.err, 5).output, "no\n");
  EXPECT_EQ(read_in_pieces(result.err, 5).exit_code, 7);
  EXPECT_EQ(read_in_pieces(in_shell("kill -9 $$; sleep 1").out, 100).exit_code, std::nullopt);
}

TEST_P(Shells, AnUnknownProgramExitsWith127) {
  const auto result = in_shell("exec " + quote_argv_for_shell({"no-such-program-xffl", "x"}));
  EXPECT_EQ(read_in_pieces(result.out, 100).exit_code, 127);
  EXPECT_THAT(read_in_pieces(result.err, 100).output, HasSubstr("no-such-program-xffl"));
}

TEST_P(Shells, AShellKeywordIsAProgramName) {
  for (const char* word : {"if", "exit", "A=b", "{", "!", "-c"}) {
    const Read read =
        read_in_pieces(in_shell("exec " + quote_argv_for_shell({word, "3"})).out, 100);
    EXPECT_TRUE(read.exit_code.has_value()) << word;
    EXPECT_NE(read.exit_code, 0) << word;
    EXPECT_NE(read.exit_code, 3) << word;
  }
}

INSTANTIATE_TEST_SUITE_P(LogIn, Shells,
                         testing::Values("/bin/sh", "/bin/dash", "/bin/bash", "/bin/tcsh",
                                         "/usr/bin/fish"),
                         [](const auto& shell) {
                           return std::filesystem::path(shell.param).filename().string();
                         });

const std::string kBegin = kNonce + " begin\n";
const std::string kEnd = "\n" + kNonce + " end 3\n";

TEST(FrameReader, FindsTheMarksInPiecesOfAnySize) {
  const std::string stream = "motd\r\n\x1b[1mWelcome" + kBegin + "out\nput" + kEnd + "bye";
  for (size_t piece = 1; piece < stream.size(); ++piece) {
    EXPECT_EQ(read_in_pieces(stream, piece).output, "out\nput") << piece;
    EXPECT_EQ(read_in_pieces(stream, piece).exit_code, 3) << piece;
  }
}

TEST(FrameReader, WithoutTheSecondMarkThereIsNoExitCode) {
  const std::string stream = kBegin + "output" + kEnd;
  for (size_t length = 0; length < stream.size(); ++length)
    EXPECT_EQ(read_in_pieces(stream.substr(0, length), 7).exit_code, std::nullopt) << length;
}

TEST(FrameReader, AForgedMarkIsOutput) {
  const std::string forged = "\nfedcba9876543210fedcba9876543210 end 0\n";
  EXPECT_EQ(read_in_pieces(kBegin + forged + kEnd, 11).output, forged);
  const std::string no_number = "\n" + kNonce + " end x\n";
  EXPECT_EQ(read_in_pieces(kBegin + no_number, 11).exit_code, std::nullopt);
}

TEST(FrameReader, OutputOfAKnownLengthMayContainMarks) {
  std::string bytes(100'000, 'x');
  bytes.replace(500, kEnd.size(), kEnd);
  for (const size_t piece : {1u, 63u, 64u, 65u, 4096u, 200'000u}) {
    const Read read = read_in_pieces("noise" + kBegin + bytes + kEnd, piece, bytes.size());
    EXPECT_TRUE(read.output == bytes) << piece;
    EXPECT_EQ(read.exit_code, 3) << piece;
  }
}

TEST(FrameReader, DetectsAnEarlyEndOfOutput) {
  for (const size_t piece : {1u, 63u, 100u, 10'000u}) {
    const Read read = read_in_pieces(kBegin + std::string(500, 'x') + kEnd, piece, 100'000);
    EXPECT_EQ(read.output, std::string(500, 'x')) << piece;
    EXPECT_EQ(read.exit_code, 3) << piece;
  }
}

TEST(FrameReader, RejectsEndlessNoise) {
  FrameReader reader(kNonce);
  const std::string noise(100'000, 'n');
  EXPECT_THROW(for (int i = 0; i < 20; ++i) reader.feed(noise, [](std::string_view) {}), Error);
}

TEST(FramedCommand, RejectsATooLongCommand) {
  EXPECT_THROW(framed_command(std::string(200'000, 'x'), kNonce), Error);
}

}  // namespace
}  // namespace xffl::remote
