#include "xffl/base/growing_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "support/temp_dir.h"
#include "support/thrown.h"

namespace xffl {
namespace {

class Growing : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& bytes) {
    const std::filesystem::path path = dir_ / name;
    std::ofstream(path, std::ios::binary | std::ios::app) << bytes;
    return path;
  }
  std::string read(size_t index, uint64_t offset, size_t count) {
    std::string bytes(count, '\0');
    files_.read(index, offset, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  test::TempDir dir_;
  GrowingFiles files_;
  std::stop_source stop_;
};

TEST_F(Growing, WhoWaitsGetsWhatIsWrittenAndNotMore) {
  files_.begin("a", write("a.tmp", "0123"), 10);
  std::optional<GrowingFiles::File> seen;
  std::thread reader([&] { seen = files_.wait(0, 6, stop_.get_token()); });
  files_.written(4);
  write("a.tmp", "45678");
  files_.written(9);
  reader.join();
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->name, "a");
  EXPECT_EQ(seen->size_bytes, 10u);
  EXPECT_EQ(seen->written_bytes, 9u);
  EXPECT_EQ(read(0, 2, 7), "2345678");
  EXPECT_THROW(read(0, 2, 9), Error) << "not written yet";
}

TEST_F(Growing, AFileIsWholeWhenTheNextOneBegins) {
  files_.begin("a", write("a.tmp", "0123"), 4);
  files_.begin("b", write("b.tmp", ""), 5);
  std::filesystem::rename(dir_ / "a.tmp", dir_ / "a");
  EXPECT_EQ(files_.wait(0, 100, stop_.get_token())->written_bytes, 4u);
  EXPECT_EQ(read(0, 0, 4), "0123") << "by whatever name";
  files_.end();
  EXPECT_FALSE(files_.wait(1, 1, stop_.get_token())) << "nobody writes it any more";
  EXPECT_FALSE(files_.wait(2, 0, stop_.get_token()));
}

TEST_F(Growing, TheEndAndAStopWakeWhoWaits) {
  std::optional<GrowingFiles::File> seen = GrowingFiles::File{};
  std::thread stopped([&] { seen = files_.wait(0, 1, stop_.get_token()); });
  stop_.request_stop();
  stopped.join();
  EXPECT_FALSE(seen);
  seen = GrowingFiles::File{};
  std::thread ended([&] { seen = files_.wait(0, 1, {}); });
  files_.end();
  ended.join();
  EXPECT_FALSE(seen);
}

TEST_F(Growing, AFileThatIsNotThereIsSaid) {
  EXPECT_EQ(test::kind_of([&] { files_.begin("a", dir_ / "absent", 1); }), ErrorKind::kNotFound);
  files_.end();
  EXPECT_FALSE(files_.wait(0, 0, {}));
}

}  // namespace
}  // namespace xffl
