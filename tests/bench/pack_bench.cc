// Measures packing and unpacking of models: CPU seconds per GB of raw bytes, and the packed size.
//
//     xffl-pack-bench [MEGABYTES] [STEP] [THREADS]
//
// The weights are N(0, 0.02) in BF16; the update is N(0, STEP), 3.6e-4 by default, which leaves a
// tenth of the words unchanged, like 50 to 200 steps at a learning rate of 1e-5 (7 to 14 %). The
// time of hashing is included. Files are in TMPDIR: use a folder in memory to exclude the disk.
#include <time.h>

#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "support/temp_dir.h"
#include "xffl/base/sha256.h"
#include "xffl/pack/pack.h"

namespace {

using namespace xffl;
namespace fs = std::filesystem;

double cpu_seconds() {
  timespec now;
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

uint16_t bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Returns the share of words that the update does not change.
double write_models(const fs::path& before, const fs::path& after, size_t words, float step) {
  std::mt19937_64 generator(1);
  std::normal_distribution<float> normal;
  std::ofstream old(before, std::ios::binary), made(after, std::ios::binary);
  size_t unchanged = 0;
  for (size_t done = 0; done < words;) {
    std::vector<uint16_t> olds(std::min<size_t>(1u << 20, words - done)), news(olds.size());
    for (size_t i = 0; i < olds.size(); ++i) {
      const float weight = 0.02f * normal(generator);
      olds[i] = bf16(weight);
      news[i] = bf16(weight + step * normal(generator));
      unchanged += olds[i] == news[i];
    }
    old.write(reinterpret_cast<const char*>(olds.data()), static_cast<long>(2 * olds.size()));
    made.write(reinterpret_cast<const char*>(news.data()), static_cast<long>(2 * news.size()));
    done += olds.size();
  }
  return static_cast<double>(unchanged) / static_cast<double>(words);
}

template <class Body>
void measure(const char* what, double gigabytes, Body body) {
  const auto begin = std::chrono::steady_clock::now();
  const double cpu = cpu_seconds();
  body();
  const double used = cpu_seconds() - cpu;
  const double wall =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%-22s %.2f CPU s a GB (%.2f GB/s a core), %.2f GB/s wall\n", what, used / gigabytes,
              gigabytes / used, gigabytes / wall);
}

}  // namespace

int main(int argc, char** argv) {
  const int megabytes = argc > 1 ? std::atoi(argv[1]) : 500;
  const auto step = static_cast<float>(argc > 2 ? std::atof(argv[2]) : 3.6e-4);
  const int threads = argc > 3 ? std::atoi(argv[3]) : 1;
  const test::TempDir dir;
  const double unchanged =
      write_models(dir / "before", dir / "after", static_cast<size_t>(megabytes) * 500'000, step);
  const double gigabytes = megabytes / 1e3;
  const checkpoint::ManifestFile raw{"after", fs::file_size(dir / "after"),
                                     sha256_file(dir / "after")};
  const pack::Reference before{dir / "before", sha256_file(dir / "before")};
  std::printf("%d MB, step %g: %.1f %% of the words unchanged, %d threads\n", megabytes,
              static_cast<double>(step), 100 * unchanged, threads);
  measure("SHA-256 alone", gigabytes, [&] { sha256_file(dir / "after"); });
  for (const bool against : {true, false}) {
    const auto reference = against ? std::optional(before) : std::nullopt;
    std::optional<checkpoint::ManifestFile> packed;
    measure(against ? "encode" : "encode, no reference", gigabytes, [&] {
      packed = pack::encode(dir / "after", raw, reference, dir / "packed", ~0ull, threads);
    });
    measure(against ? "decode" : "decode, no reference", gigabytes,
            [&] { pack::decode(dir / "packed", raw, reference, dir / "back", threads); });
    std::printf("%.2f times fewer bytes\n",
                static_cast<double>(raw.size_bytes) / static_cast<double>(packed->size_bytes));
  }
}
