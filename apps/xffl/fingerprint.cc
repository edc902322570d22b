#include "fingerprint.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"

namespace xffl {

namespace fs = std::filesystem;

namespace {

constexpr size_t kSampleBytes = 64 << 10;
constexpr size_t kNumSamples = 32;

// What the mean and its config.json depend on.
std::vector<fs::path> content_files(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string extension = entry.path().extension().string();
    if (entry.is_regular_file(error) && entry.path().filename() != "manifest.json" &&
        (extension == ".safetensors" || extension == ".json" || extension == ".model"))
      files.push_back(entry.path());
  }
  if (error) throw system_error("list " + folder.string(), error.value());
  std::sort(files.begin(), files.end());
  return files;
}

void add_samples(Sha256& hash, const fs::path& path) {
  const MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  hash.update(std::to_string(bytes.size()) + ":");
  if (bytes.size() <= kNumSamples * kSampleBytes) return hash.update(bytes);
  const size_t last = bytes.size() - kSampleBytes;
  for (size_t i = 0; i < kNumSamples; ++i)
    hash.update(bytes.subspan(last / (kNumSamples - 1) * i, kSampleBytes));
}

std::string key(const fs::path& folder, double weight, bool whole) {
  Sha256 hash;
  for (const fs::path& path : content_files(folder)) {
    hash.update(path.filename().string() + ":");
    if (whole)
      hash.update(sha256_file(path));
    else
      add_samples(hash, path);
  }
  hash.update(std::to_string(std::bit_cast<uint64_t>(weight)));
  return hash.hex();
}

std::map<std::string, std::vector<size_t>> groups(const std::vector<std::string>& keys) {
  std::map<std::string, std::vector<size_t>> result;
  for (size_t i = 0; i < keys.size(); ++i) result[keys[i]].push_back(i);
  return result;
}

}  // namespace

std::vector<std::string> content_order_keys(const std::vector<fs::path>& folders,
                                            const std::vector<double>& weights) {
  std::vector<std::string> keys;
  for (size_t i = 0; i < folders.size(); ++i)
    keys.push_back(key(folders[i], weights[i], /*whole=*/false));
  for (const auto& [sampled, members] : groups(keys))
    if (members.size() > 1)
      for (const size_t i : members)
        keys[i] = sampled + "-" + key(folders[i], weights[i], /*whole=*/true);
  for (const auto& [whole, members] : groups(keys))
    for (size_t n = 1; n < members.size(); ++n) {
      std::string number = std::to_string(n);
      number.insert(0, 10 - number.size(), '0');
      keys[members[n]] = whole + "-" + number;
    }
  return keys;
}

}  // namespace xffl
