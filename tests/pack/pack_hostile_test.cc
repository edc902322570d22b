#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "files.h"
#include "support/temp_dir.h"
#include "support/thrown.h"

namespace xffl::pack {
namespace {

namespace fs = std::filesystem;
using test::TempDir;
using test::Thrown;

// A packed file of two blocks, the second of odd size, with its raw file and reference.
class HostilePack : public ::testing::Test {
 protected:
  HostilePack() {
    Weights made = weights(kBlockBytes / 2 + 5000, 2e-4f);
    write_bytes(dir_ / "before", made.before + "y");
    write_bytes(dir_ / "after", made.after + "x");
    raw_ = described(dir_ / "after");
    reference_ = Reference{dir_ / "before", sha256_file(dir_ / "before")};
    encode(dir_ / "after", raw_, reference_, dir_ / "packed", 1u << 30, 2);
    packed_ = read_bytes(dir_ / "packed");
  }

  Thrown decoding(const std::string& packed) {
    write_bytes(dir_ / "hostile", packed);
    const Thrown thrown =
        test::thrown_by([&] { decode(dir_ / "hostile", raw_, reference_, dir_ / "out", 2); });
    EXPECT_EQ(fs::exists(dir_ / "out"), thrown.message == Thrown{}.message);
    return thrown;
  }
  template <class T>
  std::string with(size_t offset, T number) const {
    std::string changed = packed_;
    std::memcpy(changed.data() + offset, &number, sizeof number);
    return changed;
  }
  uint32_t number_at(size_t offset) const {
    uint32_t number;
    std::memcpy(&number, packed_.data() + offset, sizeof number);
    return number;
  }

  const TempDir dir_;
  checkpoint::ManifestFile raw_;
  std::optional<Reference> reference_;
  std::string packed_;
};

// Limits the address space to the present one and 256 MiB: a larger allocation throws
// std::bad_alloc, which no test expects. Sanitizers need more.
class MemoryLimit {
 public:
  MemoryLimit() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    EXPECT_EQ(::getrlimit(RLIMIT_AS, &before_), 0);
    rlimit limit = before_;
    limit.rlim_cur = pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) + (256u << 20);
    EXPECT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
    is_set_ = true;
    EXPECT_EQ(::mmap(nullptr, 512u << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
              MAP_FAILED);
#endif
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
  ~MemoryLimit() {
    if (is_set_) ::setrlimit(RLIMIT_AS, &before_);
  }

 private:
  rlimit before_{};
  bool is_set_ = false;
};

TEST_F(HostilePack, AcceptsTheUnchangedFile) {
  EXPECT_EQ(decoding(packed_).message, Thrown{}.message);
}

TEST_F(HostilePack, RejectsEveryTruncation) {
  std::vector<size_t> sizes = {0, 1, 87, 88, 89, 95, 96, 97, packed_.size() - 1};
  for (size_t size = 100; size < packed_.size(); size += packed_.size() / 40) sizes.push_back(size);
  for (const size_t size : sizes) {
    const Thrown thrown = decoding(packed_.substr(0, size));
    EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt) << size << ": " << thrown.message;
    EXPECT_NE(thrown.message.find("hostile"), std::string::npos) << thrown.message;
  }
}

TEST_F(HostilePack, RejectsBytesAfterTheLastBlock) {
  for (const std::string& more : {std::string(1, '\0'), packed_}) {
    const Thrown thrown = decoding(packed_ + more);
    EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt);
    EXPECT_NE(thrown.message.find("follow the last block"), std::string::npos) << thrown.message;
  }
}

TEST_F(HostilePack, RejectsEveryFlippedBit) {
  std::mt19937 generator(7);
  std::vector<size_t> bits;
  for (size_t bit = 0; bit < 8 * 96; bit += 5) bits.push_back(bit);
  for (int i = 0; i < 300; ++i) bits.push_back(generator() % (8 * packed_.size()));
  for (const size_t bit : bits) {
    std::string changed = packed_;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    const Thrown thrown = decoding(changed);
    EXPECT_TRUE(thrown.kind == ErrorKind::kCorrupt || thrown.kind == ErrorKind::kRejected)
        << "bit " << bit << ": " << thrown.message;
  }
}

// zstd may accept an edited frame; the SHA-256 then shows the damage.
TEST_F(HostilePack, RejectsRandomEdits) {
  std::mt19937 generator(11);
  for (int i = 0; i < 400; ++i) {
    std::string changed = packed_;
    for (unsigned edits = 1 + generator() % 4; edits > 0; --edits) {
      const size_t from = generator() % changed.size(), to = generator() % changed.size();
      const size_t size =
          std::min({size_t(1 + generator() % 5000), changed.size() - from, changed.size() - to});
      switch (generator() % 4) {
        case 0:
          changed.replace(to, size, std::string(changed, from, size));
          break;
        case 1:
          changed.erase(to, size);
          break;
        case 2:
          changed.insert(to, noise(size, static_cast<unsigned>(i)));
          break;
        default:
          std::memset(changed.data() + to, static_cast<int>(generator() % 256), size);
      }
    }
    if (changed == packed_) continue;
    const Thrown thrown = decoding(changed);
    EXPECT_TRUE(thrown.kind == ErrorKind::kCorrupt || thrown.kind == ErrorKind::kRejected)
        << "case " << i << ": " << thrown.message;
  }
}

TEST_F(HostilePack, ChecksSizesBeforeItAllocates) {
  const MemoryLimit limit;
  EXPECT_EQ(decoding(packed_).message, Thrown{}.message) << "the limit is enough for the real file";
  fs::remove(dir_ / "out");
  for (const uint32_t block_bytes : {0u, 1u, 4095u, 4097u, 0xffffffffu, 1u << 23})
    EXPECT_EQ(decoding(with(12, block_bytes)).kind, ErrorKind::kCorrupt) << block_bytes;
  for (const uint64_t raw_bytes :
       {uint64_t(0), uint64_t(1), ~uint64_t(0), uint64_t(1) << 49, raw_.size_bytes + 1}) {
    const Thrown thrown = decoding(with(16, raw_bytes));
    EXPECT_TRUE(thrown.kind == ErrorKind::kCorrupt || thrown.kind == ErrorKind::kRejected)
        << raw_bytes;
  }
  for (const uint32_t plane : {0u, 1u, 0x40000000u, 0x7fffffffu, 0x80000000u, 0x80000002u,
                               0xc0000001u, 0xffffffffu, 0x40000000u | kBlockBytes}) {
    const Thrown thrown = decoding(with(88, plane));
    EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt) << plane;
    EXPECT_NE(thrown.message.find("block 0 at offset 88"), std::string::npos) << thrown.message;
  }
}

// A zstd frame of 33 kB that stands for 1 GiB of zeros, in the place of the low plane.
TEST_F(HostilePack, AFrameThatExpandsToAGigabyteIsRejectedWithinTheBlocksMemory) {
  const MemoryLimit limit;
  std::string bomb("\x28\xb5\x2f\xfd\x00\x58", 6);  // magic, no content size, a window of 2 MiB
  constexpr uint32_t kRunBytes = 128u << 10, kRuns = 8192;
  for (uint32_t run = 0; run < kRuns; ++run) {
    const uint32_t header = kRunBytes << 3 | 1u << 1 | (run + 1 == kRuns ? 1u : 0u);
    for (int shift = 0; shift < 24; shift += 8) bomb += static_cast<char>(header >> shift);
    bomb += '\0';
  }
  const uint32_t low = number_at(88) & 0x3fffffff;
  std::string changed = with(88, 0x40000000u | static_cast<uint32_t>(bomb.size()));
  changed.replace(96, low, bomb);
  const Thrown thrown = decoding(changed);
  EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt);
  EXPECT_NE(thrown.message.find("Destination buffer is too small"), std::string::npos)
      << thrown.message;
}

TEST_F(HostilePack, RejectsSwappedPlanes) {
  // Swaps the frames of the low and the high plane: both are valid, in the wrong place.
  const uint32_t low = number_at(88) & 0x3fffffff, high = number_at(92) & 0x3fffffff;
  std::string changed = packed_.substr(0, 88);
  const uint32_t words[2] = {0x40000000u | high, 0x40000000u | low};
  changed.append(reinterpret_cast<const char*>(words), 8);
  changed +=
      packed_.substr(96 + low, high) + packed_.substr(96, low) + packed_.substr(96 + low + high);
  const Thrown thrown = decoding(changed);
  EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt);
  EXPECT_NE(thrown.message.find("SHA-256"), std::string::npos) << thrown.message;
}

TEST_F(HostilePack, RejectsAnotherReference) {
  reference_->sha256 = std::string(64, 'c');
  EXPECT_EQ(decoding(packed_).kind, ErrorKind::kRejected);
  reference_.reset();
  EXPECT_EQ(decoding(packed_).kind, ErrorKind::kRejected);
}

TEST_F(HostilePack, DetectsADamagedReference) {
  std::string damaged = read_bytes(dir_ / "before");
  damaged[12345] = static_cast<char>(damaged[12345] ^ 1);
  write_bytes(dir_ / "before", damaged);
  const Thrown thrown = decoding(packed_);
  EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt);
  EXPECT_NE(thrown.message.find("before"), std::string::npos) << thrown.message;
  write_bytes(dir_ / "before", damaged.substr(1));
  EXPECT_EQ(decoding(packed_).kind, ErrorKind::kCorrupt);
  fs::remove(dir_ / "before");
  EXPECT_EQ(decoding(packed_).kind, ErrorKind::kNotFound);
}

TEST_F(HostilePack, RejectsLinksAndDevices) {
  fs::create_symlink(dir_ / "packed", dir_ / "link");
  EXPECT_EQ(test::kind_of([&] { decode(dir_ / "link", raw_, reference_, dir_ / "out", 1); }),
            ErrorKind::kRejected);
  EXPECT_EQ(test::kind_of([&] { decode("/dev/zero", raw_, reference_, dir_ / "out", 1); }),
            ErrorKind::kRejected);
}

}  // namespace
}  // namespace xffl::pack
