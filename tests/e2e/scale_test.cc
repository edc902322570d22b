// Long and wide runs: a whole coordinator in simulated time, with real files of a few kB. The
// memory, the work of a round and the time of `xffl status` must not grow with the number of
// rounds.
//
// ctest runs two small shapes. XFFL_CAMPAIGN=1 runs 100 facilities x 1,000 rounds and 10 facilities
// x 4,320 rounds (scripts/campaign.sh).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>

#include "support/await.h"
#include "support/fake_clock.h"
#include "support/temp_dir.h"
#include "support/tiny_model.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/base/process.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/checkpoint/model_folder.h"
#include "xffl/config/load.h"
#include "xffl/facility/services.h"
#include "xffl/job/job_report.h"
#include "xffl/job/job_spec.h"
#include "xffl/run/federation.h"
#include "xffl/status/status.h"

// A loss of power is not the subject here, and synchronising thousands of files takes minutes.
extern "C" int fsync(int) { return 0; }
extern "C" int fdatasync(int) { return 0; }

namespace xffl::test {
namespace {

namespace fs = std::filesystem;

// Sanitizers need more memory and time.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMeasures = false;
#else
constexpr bool kMeasures = true;
#endif

double seconds_of(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// This process's resident memory in MB; its peak with "VmHWM:".
double resident_mb(const std::string& key = "VmRSS:") {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) return std::stod(line.substr(key.size())) / 1024;
  return 0;
}

void write_tensors(const fs::path& folder, float value) {
  write_tiny_model(folder, kTinyRows, [&](size_t) { return value; });
}

// A scheduler whose jobs end at once, with an update and a report.
class InstantScheduler final : public submit::Scheduler {
 public:
  JobId submit(const submit::JobRequest& request, std::stop_token) override {
    if (on_first_submission && !begun_.exchange(true)) on_first_submission();
    const fs::path folder = request.folder.str();
    const job::JobSpec spec = job::read_job_spec(folder / "job.json");
    const fs::path update = spec.update_path + ".tmp";
    // A submission may have failed halfway, for want of a file descriptor, and left these folders.
    for (const fs::path& part : {update, fs::path(spec.update_path)}) fs::remove_all(part);
    // Every second step goes back, so that the weights stay small.
    write_tensors(update, spec.key.round % 2 == 1 ? 0.125f : -0.125f);
    checkpoint::write_manifest(update);
    fs::rename(update, spec.update_path);
    job::JobReport report;
    report.key = spec.key;
    report.base_model_sha256 = spec.base_model_sha256;
    report.update_sha256 = checkpoint::read_manifest(spec.update_path).root_sha256();
    report.trainer = "instant";
    for (const job::ValidationSet& set : spec.validation)
      report.validation.push_back({set.name, 100, 6.0, 5.75});
    report.steps = spec.training.steps;
    report.samples = report.tokens = report.steps * spec.training.batch_size;
    report.train_loss = report.train_loss_last = 1.0;
    write_file_atomic(spec.report_path, job::format_job_report(report));
    return JobId(std::to_string(++jobs_));
  }
  std::vector<JobId> find(const submit::JobRequest&, std::stop_token) override { return {}; }
  std::map<JobId, submit::JobStatus> query(std::span<const submit::SubmittedJob> jobs,
                                           std::stop_token) override {
    std::map<JobId, submit::JobStatus> states;
    for (const submit::SubmittedJob& job : jobs)
      states[job.id] = {.state = submit::JobState::kEnded, .native = "COMPLETED"};
    return states;
  }
  void cancel(const submit::SubmittedJob&, std::stop_token) override {}
  std::chrono::milliseconds settle_time() const override { return {}; }
  /// The jobs of this process.
  static int trained() { return jobs_ - kFirst; }
  static inline std::function<void()> on_first_submission;

 private:
  static constexpr int kFirst = 1000;
  static inline std::atomic<int> jobs_{kFirst};
  static inline std::atomic<bool> begun_{false};
};

// Real waits, of at most 20 ms.
class ShortSleeps final : public Clock {
 public:
  MonotonicTime monotonic() const override { return real_.monotonic(); }
  UtcTime utc() const override { return real_.utc(); }
  bool sleep(std::chrono::nanoseconds duration, std::stop_token stop) override {
    return real_.sleep(std::min<std::chrono::nanoseconds>(duration, std::chrono::milliseconds(20)),
                       std::move(stop));
  }

 private:
  SystemClock real_;
};

struct Shape {
  int facilities, rounds;
};
std::string name_of(const testing::TestParamInfo<Shape>& shape) {
  return std::to_string(shape.param.facilities) + "Facilities" +
         std::to_string(shape.param.rounds) + "Rounds";
}

class Scale : public testing::TestWithParam<Shape> {
 protected:
  static std::string facility(int index) {
    std::string digits = std::to_string(index);
    return "f" + std::string(4 - digits.size(), '0') + digits;
  }
  void write_project() const {
    write_tensors(dir_ / "model", 0.5f);
    std::ostringstream yaml;
    yaml << "project: scale\nmodel: model\nrounds: " << GetParam().rounds
         << "\ntraining: {steps_per_round: 4, batch_size: 2, micro_batch_size: 2}\n"
            "policy: {on_missing: wait, poll_interval: 10ms}\nfacilities:\n";
    for (int i = 1; i <= GetParam().facilities; ++i)
      yaml << "  " << facility(i) << ":\n    workdir: work\n    trainer: {command: [/bin/true]}\n"
           << "    data: {train: [/data/unused.tokens], validation: {en: /data/unused.tokens}}\n";
    write_file_atomic(dir_ / "xffl.yaml", yaml.str());
  }
  static double cpu_seconds_of_children() {
    rusage usage{};
    ::getrusage(RUSAGE_CHILDREN, &usage);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  // The CPU time of this process and its children, since other programs use the machine, too: the
  // least of a few calls.
  template <class Call>
  static double cpu_time(const Call& call) {
    const auto now = [] {
      return seconds_of(CLOCK_PROCESS_CPUTIME_ID) + cpu_seconds_of_children();
    };
    double least = 1e9;
    for (int i = 0; i < 5; ++i) {
      const double began = now();
      call();
      least = std::min(least, now() - began);
    }
    return least;
  }
  facility::Services services_with(Clock& clock) const {
    facility::Services services = facility::make_services(clock, dir_.path());
    services.connect = services.connect_transfer = [](const config::Facility&) {
      return std::shared_ptr<remote::Session>(remote::make_local_session());
    };
    services.scheduler = [](const config::Facility&, const std::shared_ptr<remote::Session>&) {
      return std::make_shared<InstantScheduler>();
    };
    services.credential_expiry = {};
    return services;
  }
  fs::path run_folder() const { return dir_ / "runs/0001"; }

  const TempDir dir_;
};

TEST_P(Scale, MemoryWorkAndStatusDoNotGrowWithTheRounds) {
  const auto [facilities, rounds] = GetParam();
  log::set_console_level(log::Level::kOff);
  write_project();
  FakeClock clock;
  facility::Services services = services_with(clock);
  std::vector<double> cpu, memory;  // at each round's end
  facility::Observer observer;
  observer.on_round = [&](int round, const std::vector<history::Accepted>& accepted, double) {
    ASSERT_EQ(accepted.size(), static_cast<size_t>(facilities)) << round;
    cpu.push_back(seconds_of(CLOCK_PROCESS_CPUTIME_ID));
    memory.push_back(resident_mb());
    // The disk of this machine holds the newest rounds.
    if (round > 3)
      fs::remove_all(history::RunFolder(dir_ / "runs", RunName("0001")).round(round - 3));
    if (round % 100 == 0)
      std::printf("round %d: %.1f MB, %.2f s of CPU time\n", round, memory.back(), cpu.back());
    std::fflush(stdout);
  };
  const config::Experiment experiment = config::load_experiment(dir_.path());
  const auto outcome =
      run::run_federation(experiment, {dir_ / "runs", RunName("0001")}, services, {}, observer);
  EXPECT_EQ(outcome.rounds_published, rounds);

  const auto tenth = static_cast<size_t>(rounds / 10);
  const size_t last = cpu.size() - 1;
  // The first rounds are warm-up.
  const double first_work = cpu[2 * tenth] - cpu[tenth];
  const double last_work = cpu[last] - cpu[last - tenth];
  const double peak = resident_mb("VmHWM:");
  const fs::path folder = run_folder();
  const double look = cpu_time([&] {
    const auto status = status::read_status(folder, rounds, status::Rounds::kNewest);
    ASSERT_EQ(status.run_state.done().rounds_published, rounds);
    ASSERT_NE(status::format_status(status).find("of " + std::to_string(rounds)),
              std::string::npos);
  });
  const double command = cpu_time([&] {
    const ProcessResult result =
        run_process({.argv = {XFFL_BINARY_DIR "/bin/xffl", "status", "-p", dir_.path().string()}});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    ASSERT_NE(result.out.find(std::to_string(rounds) + " of " + std::to_string(rounds)),
              std::string::npos)
        << result.out;
  });
  std::printf(
      "scale: %d facilities x %d rounds: peak %.1f MB, %.1f -> %.1f MB; CPU per round %.2f -> %.2f "
      "ms; a look %.3f s, `xffl status` %.3f s; journal %.1f MB\n",
      facilities, rounds, peak, memory[tenth], memory[last],
      1e3 * first_work / static_cast<double>(tenth), 1e3 * last_work / static_cast<double>(tenth),
      look, command, static_cast<double>(fs::file_size(folder / "journal.db")) / 1e6);
  if (!kMeasures) return;
  EXPECT_LE(peak, 50 + facilities);
  // Work in proportion to the rounds would be 6 times as much.
  EXPECT_LE(last_work, 3 * first_work);
  EXPECT_LT(look, 0.2);
  EXPECT_LT(command, 0.2);
}

INSTANTIATE_TEST_SUITE_P(Small, Scale, testing::Values(Shape{20, 50}, Shape{3, 200}), name_of);

// 100 facilities at once with 256 file descriptors, and for a while without a free one: its lack is
// a trouble that passes. Nothing is trained twice.
class FileDescriptors : public Scale {
 protected:
  // Takes all file descriptors until the log has an error for their lack.
  static void take_all(int log) {
    std::vector<UniqueFd> taken;
    for (int fd = 0; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) taken.emplace_back(fd);
    ASSERT_EQ(errno, EMFILE);
    await([&] {
      std::string text(1 << 20, '\0');
      text.resize(
          static_cast<size_t>(std::max<ssize_t>(0, ::pread(log, text.data(), text.size(), 0))));
      return text.find("Too many open files") != std::string::npos;
    });
  }
};

TEST_P(FileDescriptors, TheLackOfThemDelaysFacilitiesAndEndsNoRun) {
  const auto [facilities, rounds] = GetParam();
  log::set_console_level(log::Level::kOff);
  log::set_file(dir_ / "log");
  log::info("begins", {});
  const UniqueFd log(::open((dir_ / "log").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_GE(log.get(), 0);
  write_project();
  ShortSleeps clock;
  facility::Services services = services_with(clock);
  const config::Experiment experiment = config::load_experiment(dir_.path());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = 256, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  InstantScheduler::on_first_submission = [&] { take_all(log.get()); };
  const int earlier = InstantScheduler::trained();
  const auto outcome =
      run::run_federation(experiment, {dir_ / "runs", RunName("0001")}, services, {});
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  log::set_file({});
  EXPECT_EQ(outcome.rounds_published, rounds);
  EXPECT_EQ(InstantScheduler::trained() - earlier, (rounds + 1) * facilities)
      << "the last is an evaluation";
  EXPECT_NE(read_file(dir_ / "log", 64 << 20).find("Too many open files"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Small, FileDescriptors, testing::Values(Shape{100, 1}), name_of);

std::vector<Shape> large() {
  if (std::getenv("XFFL_CAMPAIGN") == nullptr) return {};
  return {{100, 1000}, {10, 4320}};
}
INSTANTIATE_TEST_SUITE_P(Campaign, Scale, testing::ValuesIn(large()), name_of);

}  // namespace
}  // namespace xffl::test
