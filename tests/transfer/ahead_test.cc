#include "xffl/transfer/ahead.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>

#include "folders.h"

namespace xffl::transfer {
namespace {

using testing::ElementsAre;
using testing::Pair;

constexpr uint64_t kChunk = checkpoint::kChunkBytes;

// A model of a large file and small ones, which a thread of the test writes.
class Ahead : public testing::Test {
 protected:
  Ahead() {
    far_.hashes = true;
    fs::create_directories(dir_ / "model.tmp");
  }

  void begin(const std::string& name) {
    const fs::path path = dir_ / "model.tmp" / (name + ".tmp");
    std::ofstream(path, std::ios::binary).flush();
    growing_.begin(name, path, files_.at(name).size());
    at_ = name;
  }
  void write_up_to(uint64_t end) {
    const fs::path path = dir_ / "model.tmp" / (at_ + ".tmp");
    const uint64_t begin = fs::file_size(path);
    std::ofstream(path, std::ios::binary | std::ios::app)
        .write(files_.at(at_).data() + begin, static_cast<std::streamsize>(end - begin));
    growing_.written(end);
  }
  /// The model has its name.
  void publish() {
    fs::remove_all(dir_ / "model.tmp");
    put_here(dir_ / "model", files_);
  }
  void send(std::stop_token stop = {}) {
    send_ahead(link_, growing_, total(files_), ahead_, sent_, enough_.get_token(), stop);
  }
  bool take() { return take_ahead(link_, ahead_, manifest_of(files_), to_); }
  uint64_t push_rest() {
    return push(link_, dir_ / "model", manifest_of(files_), to_, {}, {}, nullptr, sent_)
        .moved_bytes;
  }
  uint64_t small_bytes() const { return total(files_) - files_.at("model.safetensors").size(); }
  void expect_complete() {
    EXPECT_TRUE(files_far(far_, to_.str()) == with_manifest(files_));
    EXPECT_FALSE(far_.stat(ahead_));
  }

  Files files_{{"config.json", "{}\n"}, {"model.safetensors", noise(kChunk + 5'000'001, 7)}};
  GrowingFiles growing_;
  std::string at_;
  std::stop_source enough_;
  test::FakeSession far_;
  test::FaultySession link_{far_};
  test::TempDir dir_;
  const RemotePath ahead_{"/scratch/alba/ahead"}, to_{"/scratch/alba/models/0123456789abcdef"};
  Sent sent_;
};

TEST_F(Ahead, ThePushFindsAllLargeFilesThere) {
  std::jthread sending([&] { send(); });
  begin("model.safetensors");
  for (uint64_t end : {1ul << 20, kChunk + 1, files_["model.safetensors"].size()}) write_up_to(end);
  growing_.end();
  sending.join();
  EXPECT_THAT(sent_.bytes, ElementsAre(Pair("model.safetensors", kChunk + 5'000'001)));
  EXPECT_FALSE(far_.stat(to_)) << "nothing has a name yet";
  publish();
  EXPECT_TRUE(take());
  EXPECT_EQ(push_rest(), small_bytes());
  EXPECT_EQ(far_.ranges_hashed, 0) << "we know what we have sent";
  expect_complete();
}

TEST_F(Ahead, ThePushGoesOnWhereItEnded) {
  std::jthread sending([&] { send(); });
  begin("model.safetensors");
  write_up_to(kChunk + 4'000'000);
  while (!far_.stat(ahead_ / ".model.safetensors.part")) std::this_thread::yield();
  enough_.request_stop();
  sending.join();
  EXPECT_THAT(sent_.bytes, ElementsAre(Pair("model.safetensors", kChunk))) << "whole chunks";
  publish();
  EXPECT_TRUE(take());
  EXPECT_EQ(push_rest(), small_bytes() + 5'000'001);
  EXPECT_EQ(far_.ranges_hashed, 0);
  expect_complete();
}

TEST_F(Ahead, WhatHasArrivedGoesToTheDiskMeanwhile) {
  std::atomic<int> syncs = 0;
  far_.on_run = [&](const std::vector<std::string>& argv, const std::string&) {
    EXPECT_THAT(argv, ElementsAre("sync", "--", ahead_.str() + "/.model.safetensors.part"));
    ++syncs;
    return remote::CommandResult{};
  };
  std::jthread sending([&] { send(); });
  begin("model.safetensors");
  write_up_to(kChunk);
  for (int i = 0; i < 2000 && syncs == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_GT(syncs, 0);
  write_up_to(files_["model.safetensors"].size());
  growing_.end();
}

// Of a coordinator that is no more: nothing is known of it.
TEST_F(Ahead, WhatAnotherHasSentIsComparedAtItsChunks) {
  std::string part = files_["model.safetensors"];
  part.back() ^= 1;
  far_.put(ahead_.str() + "/.model.safetensors.part", part);
  publish();
  EXPECT_TRUE(take());
  EXPECT_EQ(push_rest(), small_bytes() + 5'000'001);
  EXPECT_EQ(far_.ranges_hashed, 2);
  expect_complete();
}

TEST_F(Ahead, AFailedModelLeavesNothingToTake) {
  std::jthread sending([&] { send(); });
  begin("model.safetensors");
  write_up_to(1000);
  growing_.end();
  sending.join();
  EXPECT_THAT(sent_.bytes, testing::IsEmpty());
  publish();
  EXPECT_FALSE(take());
  EXPECT_EQ(push_rest(), total(files_));
  expect_complete();
}

TEST_F(Ahead, WhatThePushHasAlreadyIsNotReplaced) {
  publish();
  push_rest();
  far_.put(ahead_.str() + "/.model.safetensors.part", "of whatever");
  EXPECT_FALSE(take());
  EXPECT_EQ(push_rest(), 0u);
  expect_complete();
}

TEST_F(Ahead, AnEarlierOneIsRemovedFirst) {
  far_.put(ahead_.str() + "/.model-00002-of-00002.safetensors.part", noise(5'000'000, 3));
  growing_.end();
  send();
  EXPECT_THAT(far_.list(ahead_), testing::IsEmpty());
}

TEST_F(Ahead, NothingGoesWhereThereIsNoRoom) {
  far_.free = total(files_);  // folders need some as well
  begin("model.safetensors");
  write_up_to(files_["model.safetensors"].size());
  growing_.end();
  send();
  EXPECT_THAT(sent_.bytes, testing::IsEmpty());
  EXPECT_EQ(far_.bytes_written, 0u);
}

TEST_F(Ahead, ALinkThatDropsLeavesWhatHasArrived) {
  begin("model.safetensors");
  write_up_to(files_["model.safetensors"].size());
  growing_.end();
  link_.drop_after(kChunk / 2);
  EXPECT_EQ(test::kind_of([&] { send(); }), ErrorKind::kRemote);
  EXPECT_THAT(sent_.bytes, testing::IsEmpty()) << "no whole run";
  link_.reconnect();
  publish();
  EXPECT_TRUE(take());
  EXPECT_LE(push_rest(), total(files_));
  expect_complete();
}

TEST_F(Ahead, AStopIsObeyedAtOnce) {
  std::stop_source stop;
  begin("model.safetensors");
  write_up_to(files_["model.safetensors"].size());
  stop.request_stop();
  EXPECT_EQ(test::kind_of([&] { send(stop.get_token()); }), ErrorKind::kCancelled);
}

TEST_F(Ahead, SmallFilesAreLeftToThePush) {
  files_["part-1.safetensors"] = "tiny";
  begin("part-1.safetensors");
  write_up_to(4);
  begin("model.safetensors");
  write_up_to(files_["model.safetensors"].size());
  growing_.end();
  send();
  EXPECT_THAT(sent_.bytes, ElementsAre(Pair("model.safetensors", kChunk + 5'000'001)));
  publish();
  EXPECT_TRUE(take());
  EXPECT_EQ(push_rest(), small_bytes());
  expect_complete();
}

TEST_F(Ahead, EveryLostReplyOfTheTakingIsSurvived) {
  publish();
  for (const char* operation : {"stat", "write", "rename", "make_dirs", "remove_tree"})
    for (int nth = 1; nth <= 3; ++nth) {
      far_.remove_tree(RemotePath("/scratch"));
      far_.put(ahead_.str() + "/.model.safetensors.part", files_["model.safetensors"]);
      link_.lose_reply(operation, nth);
      try {
        take();
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kRemote);
        link_.reconnect();
        take();
      }
      link_.reconnect();
      EXPECT_LE(push_rest(), total(files_));
      expect_complete();
    }
}

}  // namespace
}  // namespace xffl::transfer
