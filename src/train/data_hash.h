// Hashes a job's token shards beside the training, for report.json.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "xffl/job/job_spec.h"

namespace xffl::train {

/// The hash of `data_sha256` in report.json (job/job_report.h).
class DataHash {
 public:
  struct Result {
    int64_t files = 0, bytes = 0;
    std::string sha256;
  };

  /// Starts a thread that reads the distinct shards of `spec`, each once.
  explicit DataHash(const job::JobSpec& spec);
  ~DataHash();  // ends the thread within a block

  /// Waits for the thread, until `gives_up` returns true: it may be called in each tenth of a
  /// second. None then, when a shard could not be read, which is logged, or when the system refused
  /// the thread.
  std::optional<Result> wait(const std::function<bool()>& gives_up = {});

 private:
  void run(const std::stop_token& stop);

  std::vector<std::filesystem::path> shards_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::optional<Result> result_;
  std::jthread thread_;
};

}  // namespace xffl::train
