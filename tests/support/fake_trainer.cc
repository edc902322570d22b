// A trainer without LibTorch that implements the job contract, for tests of the coordinator.
//
// It "trains" by adding to every weight a small number that depends on facility, round and tensor
// alone: the same jobs give the same models. SIGUSR1 during the training, or the fault "early",
// makes it report half of its steps. Environment variables:
//   XFFL_FAKE_TRAINER       "<fault>[@<round>]", several separated by commas: injects a fault, on
//                           the first attempt of a round only unless it ends in "!": silent (exits
//                           with 0 and writes nothing), failing (exits with 9 after its report),
//                           killed (by SIGKILL after its report), crash, leak (prints a private key
//                           and exits), hang, nan, shape, truncate, unchanged, huge, negated,
//                           nonce, forged, forgets (the optimizer's state), lingers (after its
//                           report), early, stopped (before its walltime: see on_stop in job.json)
//   XFFL_FAKE_TRAININGS     a file that gets a line for each training or evaluation with a report;
//                           "<file>.started" gets one for each that begins
//   XFFL_FAKE_MILLISECONDS  the duration of a training
//   XFFL_FAKE_HOLD          the training waits while this file, or "<file>-<round>", exists, and
//                           creates "<file>.waits" when it begins to wait
//   XFFL_FAKE_STEP          for benches: the standard deviation of a random update of each weight
//   XFFL_FAKE_UNPACKED      for benches: a file that gets the time when the base model was unpacked
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <sstream>
#include <thread>
#include <vector>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/checkpoint/model_folder.h"
#include "xffl/job/job_report.h"
#include "xffl/job/job_spec.h"
#include "xffl/pack/packed_model.h"

namespace xffl::test {
namespace {

namespace fs = std::filesystem;

struct Fault {
  std::string name;
  int round = 0;  // 0: every round
  bool always = false;
};

using Faults = std::vector<Fault>;

Fault read_fault(std::string text) {
  Fault fault;
  if (text.ends_with("!")) {
    fault.always = true;
    text.pop_back();
  }
  if (const size_t at = text.find('@'); at != std::string::npos) {
    fault.round = std::stoi(text.substr(at + 1));
    text.resize(at);
  }
  fault.name = text;
  return fault;
}

Faults faults_from_environment() {
  const char* text = std::getenv("XFFL_FAKE_TRAINER");
  std::istringstream list(text == nullptr ? "" : text);
  Faults faults;
  for (std::string each; std::getline(list, each, ',');) faults.push_back(read_fault(each));
  return faults;
}

bool happens(const Faults& faults, std::string_view name, const job::JobKey& key) {
  return std::any_of(faults.begin(), faults.end(), [&](const Fault& fault) {
    return fault.name == name && (fault.round == 0 || fault.round == key.round) &&
           (fault.always || key.attempt == 1);
  });
}

volatile sig_atomic_t stop_requested = 0;

// The update of a tensor: depends on facility, round and tensor alone. A multiple of 2^-12, so sums
// stay exact.
float update_value(const job::JobKey& key, const std::string& tensor) {
  const std::string digest =
      sha256_hex(key.facility + "/" + std::to_string(key.round) + "/" + tensor);
  return static_cast<float>(std::stoi(digest.substr(0, 2), nullptr, 16) + 1) / 4096.0f;
}

// Approximately normal: the sum of four uniform numbers.
class Noise {
 public:
  Noise(const job::JobKey& key, const std::string& tensor, float deviation)
      : state_(std::stoull(sha256_hex(key.facility + "/" + std::to_string(key.round) + "/" + tensor)
                               .substr(0, 15),
                           nullptr, 16) |
               1),
        scale_(deviation / 37837.0f) {}

  float next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    const uint64_t mixed = state_ * 0x2545f4914f6cdd1dull;
    const auto sum = static_cast<float>((mixed & 0xffff) + (mixed >> 16 & 0xffff) +
                                        (mixed >> 32 & 0xffff) + (mixed >> 48));
    return (sum - 131070.0f) * scale_;
  }

 private:
  uint64_t state_;
  const float scale_;
};

void record_unpacked() {
  const char* path = std::getenv("XFFL_FAKE_UNPACKED");
  if (path == nullptr) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  write_file_atomic(path, std::to_string(std::chrono::duration<double>(now).count()) + "\n");
}

void write_update(const job::JobSpec& spec, const Faults& faults) {
  const checkpoint::ModelFolder base(spec.base_model_path);
  std::vector<checkpoint::TensorSpec> tensors = base.tensors();
  for (checkpoint::TensorSpec& tensor : tensors) tensor.dtype = checkpoint::Dtype::kBF16;
  if (happens(faults, "shape", spec.key)) tensors.front().shape.back() += 1;
  const fs::path folder = spec.update_path + ".tmp";
  fs::remove_all(folder);
  checkpoint::ModelWriter writer(folder, tensors);
  for (const checkpoint::TensorSpec& tensor : tensors) {
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()),
                              update_value(spec.key, tensor.name));
    if (const char* step = std::getenv("XFFL_FAKE_STEP")) {
      Noise noise(spec.key, tensor.name, std::stof(step));
      for (float& value : values) value = noise.next();
    }
    if (happens(faults, "unchanged", spec.key)) std::fill(values.begin(), values.end(), 0.0f);
    if (happens(faults, "negated", spec.key)) {
      checkpoint::to_float(base.data(tensor.name), base.spec(tensor.name).dtype, values);
      for (float& value : values) value = -value;
    }
    if (happens(faults, "huge", spec.key)) std::fill(values.begin(), values.end(), 1e30f);
    if (happens(faults, "nan", spec.key) && &tensor == &tensors.back())
      values[1] = std::numeric_limits<float>::quiet_NaN();
    std::vector<std::byte> bytes(values.size() * 2);
    checkpoint::from_float(values, checkpoint::Dtype::kBF16, bytes);
    writer.write(bytes);
  }
  writer.finish();
  fs::copy_file(fs::path(spec.base_model_path) / "config.json", folder / "config.json");
  checkpoint::write_manifest(folder);
  if (happens(faults, "truncate", spec.key))
    fs::resize_file(folder / "model.safetensors", fs::file_size(folder / "model.safetensors") - 3);
  fs::rename(folder, spec.update_path);
}

// Appends a line to XFFL_FAKE_TRAININGS with `suffix`.
void record_training(const job::JobKey& key, const std::string& suffix) {
  const char* trainings = std::getenv("XFFL_FAKE_TRAININGS");
  if (trainings == nullptr) return;
  const std::string path = trainings + suffix;
  const std::string line =
      key.facility + " " + std::to_string(key.round) + " " + std::to_string(key.attempt) + "\n";
  UniqueFd fd = open_file(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  write_all(fd.get(), std::as_bytes(std::span(line.data(), line.size())), path);
}

job::JobReport report_of(const job::JobSpec& spec, const Faults& faults) {
  job::JobReport report;
  report.key = spec.key;
  if (happens(faults, "nonce", spec.key)) report.key.nonce = std::string(32, '0');
  report.base_model_sha256 = spec.base_model_sha256;
  report.trainer = "fake";
  // The loss of the global model falls by 0.5 per round, and by 0.25 in each training.
  for (const job::ValidationSet& set : spec.validation) {
    const double nll = 6.0 - 0.5 * spec.key.round;
    report.validation.push_back({set.name, 100, nll, spec.training.steps == 0 ? nll : nll - 0.25});
  }
  if (spec.training.steps == 0) return report;
  report.update_sha256 = checkpoint::read_manifest(spec.update_path).root_sha256();
  report.stopped_early = stop_requested != 0;
  report.steps = report.stopped_early ? spec.training.steps / 2 : spec.training.steps;
  report.samples = report.steps * spec.training.batch_size;
  // alba has three times brno's tokens: the weights of the mean differ.
  report.tokens = report.samples * (spec.key.facility == "alba" ? 3 : 1);
  if (happens(faults, "forgets", spec.key)) report.optimizer_lost = "state.json is gone";
  if (happens(faults, "forged", spec.key)) report.tokens = int64_t(1) << 50;
  report.train_loss = report.train_loss_last = 1.0 / spec.key.round;
  if (happens(faults, "stopped", spec.key)) {
    report.steps = 1;
    report.stopped_early = true;
    report.update_sha256.clear();
  }
  return report;
}

// Only rank 0 of a job works.
bool is_idle_rank() {
  const char* rank = std::getenv("SLURM_PROCID");
  if (rank == nullptr) rank = std::getenv("RANK");
  return rank != nullptr && std::strcmp(rank, "0") != 0;
}

// Waits at most five minutes: the test that created the file may have died.
void wait_until_gone(const fs::path& path) {
  for (int i = 0; i < 15000 && fs::exists(path) && stop_requested == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

void work(int milliseconds) {
  for (int past = 0; past < milliseconds && stop_requested == 0; past += 10)
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min(10, milliseconds - past)));
}

int train(const fs::path& path) {
  if (is_idle_rank()) return 0;
  ::signal(SIGUSR1, [](int) { stop_requested = 1; });
  const job::JobSpec spec = job::read_job_spec(path);
  pack::provide_base_model(spec);
  record_training(spec.key, ".started");
  record_unpacked();
  const Faults faults = faults_from_environment();
  if (const char* hold = std::getenv("XFFL_FAKE_HOLD")) {
    std::ofstream(hold + std::string(".waits"));
    wait_until_gone(hold);
    wait_until_gone(hold + ("-" + std::to_string(spec.key.round)));
  }
  if (const char* milliseconds = std::getenv("XFFL_FAKE_MILLISECONDS"))
    work(std::stoi(milliseconds));
  if (happens(faults, "early", spec.key)) stop_requested = 1;
  std::ofstream(spec.metrics_path, std::ios::app)
      << "{\"step\": 1, \"loss\": " << spec.key.attempt << "}\n";
  if (happens(faults, "leak", spec.key)) {
    std::puts("-----BEGIN RSA PRIVATE KEY-----");
    for (int line = 0; line < 40; ++line) std::puts(std::string(64, 'Q').c_str());
    std::puts("-----END RSA PRIVATE KEY-----\nno such key");
    return 1;
  }
  if (happens(faults, "crash", spec.key)) {
    std::cerr << "fake trainer: out of luck\n";
    return 7;
  }
  if (happens(faults, "silent", spec.key)) return 0;
  if (happens(faults, "hang", spec.key)) std::this_thread::sleep_for(std::chrono::hours(1));
  if (spec.training.steps > 0) write_update(spec, faults);
  record_training(spec.key, "");
  write_file_atomic(spec.report_path, job::format_job_report(report_of(spec, faults)));
  if (happens(faults, "lingers", spec.key))
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
  if (happens(faults, "failing", spec.key)) return 9;
  if (happens(faults, "killed", spec.key)) ::raise(SIGKILL);
  return 0;
}

}  // namespace
}  // namespace xffl::test

int main(int argc, char** argv) {
  try {
    if (argc != 3 || std::strcmp(argv[1], "--job") != 0) {
      std::cerr << "expected: --job job.json\n";
      return 2;
    }
    return xffl::test::train(argv[2]);
  } catch (const xffl::Error& error) {
    std::cerr << "fake trainer: " << error.what() << "\n";
    return xffl::exit_code(error.kind());
  }
}
