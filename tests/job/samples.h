// One full job and the report that answers it, and the comparison with tests/golden/job/.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/job/job_report.h"

namespace xffl::job {

inline JobSpec sample_spec() {
  JobSpec spec;
  spec.key = {"llama-it-cs", "0003", 2, "alba", 1, "0123456789abcdef0123456789abcdef"};
  spec.base_model_path = "../../r0001/global";
  spec.base_model_sha256 = std::string(64, 'a');
  spec.base_model_packed = {"packed-bbbbbbbbbbbbbbbb", std::string(64, 'b'), "../../r0000/global",
                            std::string(64, 'd'), "out/packed.failure"};
  spec.train_paths = {"/data/it-0.tokens", "/data/it-1.tokens"};
  spec.validation = {{"it", "/data/it-validation.tokens"}, {"cs", "cs-validation.tokens"}};
  spec.update_path = "out/update";
  spec.report_path = "out/report.json";
  spec.metrics_path = "out/metrics.jsonl";
  spec.state_path = "../state";
  spec.on_stop = OnStop::kCheckpoint;
  spec.training.steps = 40;
  spec.training.first_step = 40;
  spec.training.batch_size = 16;
  spec.training.micro_batch_size = 4;
  spec.training.learning_rate = 0.00025;
  spec.training.schedule = {ScheduleKind::kCosine, 10, 120, 0.1, 0.1};
  spec.training.weight_decay = 0.1;
  spec.training.seed = 18446744073709551615u;
  spec.training.precision = FloatType::kBfloat16;
  spec.training.masters = Masters::kSplit;
  spec.training.moment_dtype = StateDtype::kBfloat16;
  spec.training.sharding = Sharding::kHybrid;
  spec.training.shard_group_size = 4;
  spec.training.recompute = Recompute::kFull;
  spec.training.offload = Offload::kOptimizer;
  spec.training.validation_samples = 64;
  spec.training.checkpoint_interval = 10;
  spec.training.freeze = {"model.embed_tokens.*"};
  spec.training.proximal = 0.01;
  spec.training.keep_optimizer = true;
  spec.optimizer_path = "../../optimizer";
  spec.adapter_path = "../../r0001/adapter";
  spec.adapter_sha256 = std::string(64, 'c');
  spec.training.lora = {16, 32.0, 0.0, {"q_proj", "v_proj"}};
  spec.training.groups = {2,
                          50,
                          Exchange::kWeights,
                          GroupWeighting::kTokens,
                          {OuterOptimizer::kNesterov, 0.7, 0.9, 0.9, 0.99, 1e-8}};
  spec.training.pipeline = {2, PipelineSchedule::kGpipe};
  return spec;
}

inline JobReport sample_report() {
  JobReport report;
  report.key = sample_spec().key;
  report.base_model_sha256 = sample_spec().base_model_sha256;
  report.update_sha256 = std::string(64, 'b');
  report.steps = 40;
  report.samples = 640;
  report.tokens = 163200;
  report.train_loss = 3.25;
  report.train_loss_last = 2.875;
  report.validation = {{"it", 16320, 4.5, 3.125}, {"cs", 16320, 5.5, 5.25}};
  report.train_seconds = 61.5;
  report.total_seconds = 70.25;
  report.tokens_per_second = 2653.658536585366;
  report.peak_memory_bytes = 1'500'000'000;
  report.world_size = 2;
  report.scheduler_job_id = "4711";
  report.trainer = "xffl-train 0.1.0 (torch 2.11.0)";
  report.nodes = 1;
  report.data_files = 3;
  report.data_bytes = 5000000000;
  report.data_sha256 = std::string(64, 'c');
  report.program_sha256 = std::string(64, 'd');
  return report;
}

/// Compares with tests/golden/job/`name`; XFFL_ACCEPT=1 in the environment writes it instead.
inline void expect_golden(const std::string& name, const std::string& text) {
  const std::filesystem::path path =
      std::filesystem::path(XFFL_SOURCE_DIR) / "tests/golden/job" / name;
  const char* accept = std::getenv("XFFL_ACCEPT");
  if (accept != nullptr && std::string_view(accept) == "1") {
    std::ofstream(path, std::ios::binary) << text;
  }
  EXPECT_EQ(read_file(path, 1 << 20), text)
      << path << " differs; run ctest with XFFL_ACCEPT=1 if that is meant";
}

/// A document's text with one value replaced: `pointer` is a JSON pointer ("/training/steps"),
/// `value` JSON text, or empty to erase the key.
inline std::string edited(const std::string& text, const std::string& pointer,
                          const std::string& value) {
  Json document = Json::parse(text);
  const Json::json_pointer at(pointer);
  if (value.empty()) {
    document.at(at.parent_pointer()).erase(at.back());
  } else {
    document[at] = Json::parse(value);
  }
  return document.dump();
}

/// The JSON under a heading of docs/reference/job_json.md.
inline std::string documented(const std::string& heading) {
  const std::string page =
      read_file(std::filesystem::path(XFFL_SOURCE_DIR) / "docs/reference/job_json.md", 1 << 20);
  const std::string open = "```json\n";
  const size_t begin = page.find(open, page.find("\n## " + heading + "\n")) + open.size();
  return page.substr(begin, page.find("```", begin) - begin);
}

using test::message_of;

}  // namespace xffl::job
