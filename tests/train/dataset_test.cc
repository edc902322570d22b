#include "xffl/train/dataset.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/stat.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "data_hash.h"
#include "support/await.h"
#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/sha256.h"

namespace xffl::train {
namespace {

class DatasetTest : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name,
                              const std::vector<std::vector<int32_t>>& sequences) {
    tokens::TokenShardWriter writer(dir_ / name, 50, 8, false);
    for (const auto& sequence : sequences) writer.add_document(sequence);
    writer.finish();
    return dir_ / name;
  }
  static ModelLimits limits(int64_t vocab_size, int64_t max_positions = 8) {
    checkpoint::LlamaConfig config;
    config.vocab_size = vocab_size;
    config.max_position_embeddings = max_positions;
    return ModelLimits(config);
  }
  test::TempDir dir_;
};

TEST(BatchPositions, AreRoundedUpOnAGpu) {
  const at::Device gpu(at::kCUDA, 0);
  EXPECT_EQ(batch_positions(300, 2048, at::kCPU), 300);
  EXPECT_EQ(batch_positions(300, 2048, gpu), 384);
  EXPECT_EQ(batch_positions(384, 2048, gpu), 384);
  EXPECT_EQ(batch_positions(1, 2048, gpu), 128);
  EXPECT_EQ(batch_positions(2000, 2046, gpu), 2046);
  EXPECT_EQ(batch_positions(1, 0, gpu), 1);
}

TEST_F(DatasetTest, ShiftsAndPads) {
  const Dataset data({write("a.tokens", {{1, 2, 3, 4}, {5}, {6, 7}})}, limits(50), 0);
  const std::vector<uint64_t> indices{0, 1, 2};
  const Batch batch = data.batch(indices, at::kCPU);
  EXPECT_EQ(batch.num_targets, 4);
  const at::Tensor labels =
      at::tensor(std::vector<int64_t>{2, 3, 4, -100, -100, -100, 7, -100, -100}).view({3, 3});
  EXPECT_TRUE(batch.labels_BT.equal(labels));
  const at::Tensor tokens =
      at::tensor(std::vector<int64_t>{1, 2, 3, 5, 0, 0, 6, 7, 0}).view({3, 3});
  EXPECT_TRUE(batch.tokens_BT.equal(tokens));
}

TEST_F(DatasetTest, OnlyTargetsAreLabels) {
  tokens::TokenShardWriter writer(dir_ / "m.tokens", 50, 8, false, true);
  writer.add_document(std::vector<int32_t>{1, 2, 3, 4}, std::vector<uint8_t>{1, 0, 1, 1});
  writer.add_document(std::vector<int32_t>{5, 6}, std::vector<uint8_t>{1, 0});
  writer.finish();
  const Dataset data({dir_ / "m.tokens"}, limits(50), 0);
  EXPECT_EQ(data.num_targets(0), 2);
  EXPECT_EQ(data.num_targets(1), 0);
  const std::vector<uint64_t> indices{0, 1};
  const Batch batch = data.batch(indices, at::kCPU);
  EXPECT_EQ(batch.num_targets, 2);
  const at::Tensor labels =
      at::tensor(std::vector<int64_t>{-100, 3, 4, -100, -100, -100}).view({2, 3});
  EXPECT_TRUE(batch.labels_BT.equal(labels));
}

TEST_F(DatasetTest, MasksDocumentsOfPackedSequences) {
  for (const bool chosen : {false, true}) {
    tokens::TokenShardWriter writer(dir_ / "p.tokens", 50, 5, true, chosen);
    // Sequences 1 2 3 | 4 5, then the rest of 5's document: 6 7 8 9 | 10.
    std::vector<uint8_t> is_target;
    if (chosen) is_target = {1, 1, 0};
    writer.add_document(std::vector<int32_t>{1, 2, 3}, is_target);
    writer.add_document(std::vector<int32_t>{4, 5, 6, 7, 8, 9});
    writer.add_document(std::vector<int32_t>{10});
    writer.finish();
    const std::vector<uint64_t> indices{0, 1};
    const Dataset data({dir_ / "p.tokens"}, limits(50), 0, true);
    const Batch batch = data.batch(indices, at::kCPU);
    const int64_t third = chosen ? -100 : 3;
    EXPECT_TRUE(batch.labels_BT.equal(
        at::tensor(std::vector<int64_t>{2, third, -100, 5, 7, 8, 9, -100}).view({2, 4})));
    EXPECT_TRUE(batch.documents.starts_BT.equal(
        at::tensor(std::vector<int64_t>{0, 0, 0, 3, 0, 0, 0, 0}).view({2, 4})));
    EXPECT_EQ(data.num_targets(0), chosen ? 2 : 3);
    EXPECT_EQ(data.num_targets(1), 3);
    EXPECT_EQ(batch.num_targets, data.num_targets(0) + data.num_targets(1));
    const std::vector<uint64_t> last{1};
    EXPECT_FALSE(data.batch(last, at::kCPU).documents.defined()) << "one document: nothing to mask";
    tokens::TokenShardWriter earlier(dir_ / "q.tokens", 50, 5, true, chosen);
    earlier.add_document(std::vector<int32_t>{11, 12, 13, 14, 15});
    earlier.finish();
    const std::vector<uint64_t> later{1, 2};
    const Dataset joined({dir_ / "q.tokens", dir_ / "p.tokens"}, limits(50), 0, true);
    const Batch of_second = joined.batch(later, at::kCPU);
    EXPECT_TRUE(of_second.labels_BT.equal(batch.labels_BT));
    EXPECT_TRUE(of_second.documents.starts_BT.equal(batch.documents.starts_BT));
    EXPECT_EQ(joined.num_targets(1), data.num_targets(0));
    const Dataset plain({dir_ / "p.tokens"}, limits(50), 0);
    EXPECT_FALSE(plain.batch(indices, at::kCPU).documents.defined());
    EXPECT_EQ(plain.num_targets(1), 4);
  }
}

TEST_F(DatasetTest, JoinsShardsAndStopsAtTheLimit) {
  const auto a = write("a.tokens", {{1, 2}, {3, 4, 5}});
  const auto b = write("b.tokens", {{6, 7, 8, 9}, {10, 11}});
  const Dataset all({a, b}, limits(50), 0);
  EXPECT_EQ(all.size(), 4u);
  EXPECT_EQ(all.length(2), 4);
  EXPECT_EQ(all.longest(), 4);
  EXPECT_EQ(Dataset({b, a}, limits(50), 0).longest(), 4);
  const std::vector<uint64_t> third{2};
  EXPECT_EQ(all.batch(third, at::kCPU).tokens_BT[0][0].item<int64_t>(), 6);
  const Dataset some({a, b}, limits(50), 3);
  EXPECT_EQ(some.size(), 3u);
  EXPECT_THROW(some.length(3), Error);
}

TEST_F(DatasetTest, GroupsTakeTurnsInACommonPath) {
  job::JobSpec spec;
  spec.train_paths = {write("a.tokens", {{1, 2}, {3, 4}, {5, 6}, {7, 8}, {9, 10}})};
  spec.training.groups.count = 2;
  const TrainingData first(spec, limits(50), 0), second(spec, limits(50), 1);
  EXPECT_EQ(first.size(), 3u);
  EXPECT_EQ(first.in_dataset({0, 1, 2}), (std::vector<uint64_t>{0, 2, 4}));
  EXPECT_EQ(second.size(), 2u);
  EXPECT_EQ(second.in_dataset({0, 1}), (std::vector<uint64_t>{1, 3}));
}

TEST_F(DatasetTest, GroupsDealTheirPaths) {
  job::JobSpec spec;
  spec.train_paths = {write("a.tokens", {{1, 2}}), write("b.tokens", {{3, 4}, {3, 5}}),
                      write("c.tokens", {{6, 7}, {6, 8}, {6, 9}}), write("d.tokens", {{10, 11}}),
                      write("e.tokens", {{12, 13}})};
  spec.training.groups.count = 2;
  const auto first_tokens = [&](int group) {
    const TrainingData data(spec, limits(50), group);
    std::vector<uint64_t> indices(data.size());
    for (size_t i = 0; i < indices.size(); ++i) indices[i] = i;
    const at::Tensor tokens_BT =
        data.dataset().batch(data.in_dataset(indices), at::kCPU).tokens_BT.contiguous();
    const auto* begin = tokens_BT.const_data_ptr<int64_t>();
    return std::vector<int64_t>(begin, begin + tokens_BT.numel());  // a position each
  };
  EXPECT_EQ(first_tokens(0), (std::vector<int64_t>{1, 6, 6, 6, 12}));
  EXPECT_EQ(first_tokens(1), (std::vector<int64_t>{3, 3, 10}));
}

TEST_F(DatasetTest, RejectsALargerVocabulary) {
  const auto a = write("a.tokens", {{1, 2}});
  try {
    Dataset({a}, limits(49), 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRejected);
    EXPECT_NE(std::string(error.what()).find("vocabulary of 50 tokens, but the model has 49"),
              std::string::npos);
  }
}

TEST_F(DatasetTest, RejectsSequencesLongerThanTheModel) {
  const auto a = write("a.tokens", {{1, 2}, {1, 2, 3, 4, 5}});  // sequence length 8
  EXPECT_NO_THROW(Dataset({a}, limits(50, 5), 0));
  try {
    Dataset({a}, limits(50, 4), 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRejected);
    EXPECT_NE(
        std::string(error.what())
            .find("sequences of up to 5 tokens, but the model's config.json has "
                  "max_position_embeddings 4: encode with --sequence-length 4, or with data.text "
                  "set data.sequence_length to 4 and repeat `xffl prepare`"),
        std::string::npos);
  }
}

TEST_F(DatasetTest, MeasuresEachSequence) {
  for (const size_t longest : {0u, 1u, 2u}) {
    std::vector<std::vector<int32_t>> sequences(3, std::vector<int32_t>{1, 2});
    sequences[longest] = {1, 2, 3, 4, 5};
    const auto shard = write(std::to_string(longest) + ".tokens", sequences);
    EXPECT_EQ(Dataset({shard}, limits(50), 0).longest(), 5) << longest;
    EXPECT_THROW(Dataset({shard}, limits(50, 4), 0), Error) << longest;
  }
}

// A shard is read in blocks of 1 MiB. The shards differ in their first block only.
TEST_F(DatasetTest, TheHashOfTheDataIsOfAllBlocks) {
  job::JobSpec spec;
  std::string sums;
  for (const char first : {'a', 'b'}) {
    const std::filesystem::path path = dir_ / std::string(1, first);
    const std::string content = std::string(1 << 20, first) + std::string((1 << 20) + 5, 'x');
    std::ofstream(path, std::ios::binary) << content;
    spec.train_paths.push_back(path.string());
    sums += sha256_hex(content) + "\n";
  }
  DataHash hash(spec);
  const std::optional<DataHash::Result> found = hash.wait();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->files, 2);
  EXPECT_EQ(found->bytes, 2 * ((2 << 20) + 5));
  EXPECT_EQ(found->sha256, sha256_hex(sums));
}

// A pipe without an end stands for a shard that takes hours. Its writer gives up after a minute.
TEST_F(DatasetTest, TheHashOfTheDataEndsWithAWarningOrTheJob) {
  const std::filesystem::path pipe = dir_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  job::JobSpec spec;
  spec.train_paths = {pipe.string()};
  std::atomic<int64_t> written = 0;
  bool reader_left = false;
  std::thread writer([&] {
    sigset_t broken_pipe;
    sigemptyset(&broken_pipe);
    sigaddset(&broken_pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
    const int fd = ::open(pipe.c_str(), O_WRONLY | O_CLOEXEC);  // waits for the reader
    const std::string block(1 << 16, 'x');
    const auto ends = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!reader_left && std::chrono::steady_clock::now() < ends) {
      const ssize_t size = ::write(fd, block.data(), block.size());
      reader_left = size < 0;
      written += std::max<ssize_t>(size, 0);
    }
    ::close(fd);
  });
  {
    DataHash hash(spec);
    EXPECT_TRUE(test::await([&] { return written > 4 << 20; }));
    int looks = 0;
    EXPECT_FALSE(hash.wait([&] { return ++looks == 3; })) << "a warning ahead of the walltime";
  }
  writer.join();
  EXPECT_TRUE(reader_left);
}

TEST_F(DatasetTest, AnUnreadableShardLeavesTheDataUnidentified) {
  job::JobSpec spec;
  spec.train_paths = {write("a.tokens", {{1, 2}}).string(), (dir_ / "absent.tokens").string()};
  EXPECT_FALSE(DataHash(spec).wait().has_value());
}

}  // namespace
}  // namespace xffl::train
