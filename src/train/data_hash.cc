#include "data_hash.h"

#include <chrono>
#include <fstream>
#include <set>
#include <system_error>

#include "xffl/base/log.h"
#include "xffl/base/sha256.h"

namespace xffl::train {
namespace {

std::vector<std::filesystem::path> distinct_shards(const job::JobSpec& spec) {
  std::vector<std::filesystem::path> shards;
  std::set<std::string> seen;
  const auto add = [&](const std::string& path) {
    if (seen.insert(path).second) shards.emplace_back(path);
  };
  for (const std::string& path : spec.train_paths) add(path);
  for (const job::ValidationSet& set : spec.validation) add(set.path);
  return shards;
}

}  // namespace

DataHash::DataHash(const job::JobSpec& spec) : shards_(distinct_shards(spec)) {
  try {
    thread_ = std::jthread([this](const std::stop_token& stop) {
      run(stop);
      const std::lock_guard lock(mutex_);
      has_ended_ = true;
      ended_.notify_all();
    });
  } catch (const std::system_error& error) {  // a limit of the system
    log::warning("no thread for hashing the data: the report does not identify the data",
                 {{"problem", error.what()}});
    has_ended_ = true;
  }
}

DataHash::~DataHash() = default;

void DataHash::run(const std::stop_token& stop) {
  constexpr size_t kBlockBytes = 1 << 20;
  std::string block(kBlockBytes, '\0');
  Result result;
  Sha256 sums;
  for (const std::filesystem::path& shard : shards_) {
    std::ifstream file(shard, std::ios::binary);
    Sha256 sum;
    while (file && !stop.stop_requested()) {
      file.read(block.data(), kBlockBytes);
      sum.update(std::string_view(block.data(), static_cast<size_t>(file.gcount())));
      result.bytes += file.gcount();
    }
    if (stop.stop_requested()) return;
    if (!file.eof()) {
      log::warning("a shard could not be hashed: the report does not identify the data",
                   {{"shard", shard.string()}});
      return;
    }
    sums.update(sum.hex() + "\n");
    ++result.files;
  }
  result.sha256 = sums.hex();
  const std::lock_guard lock(mutex_);
  result_ = std::move(result);
}

std::optional<DataHash::Result> DataHash::wait(const std::function<bool()>& gives_up) {
  constexpr std::chrono::milliseconds kLook(100);
  std::unique_lock lock(mutex_);
  while (!has_ended_ && !(gives_up && gives_up())) ended_.wait_for(lock, kLook);
  return result_;
}

}  // namespace xffl::train
