#include "e2e/project.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "support/tiny_model.h"
#include "xffl/base/file.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/history/work_files.h"

namespace xffl::test {

namespace fs = std::filesystem;

namespace {

std::string hold_name(const std::string& facility) { return "hold-" + facility; }

}  // namespace

void StartedRun::signal(int number) const {
  if (pid_ > 0) ::kill(pid_, number);
}

bool StartedRun::await_stop(std::chrono::seconds timeout) const {
  const auto ends = std::chrono::steady_clock::now() + timeout;
  while (pid_ > 0 && std::chrono::steady_clock::now() < ends) {
    siginfo_t state{};  // WNOWAIT: a later call can query the state again
    if (::waitid(P_PID, static_cast<id_t>(pid_), &state, WSTOPPED | WEXITED | WNOWAIT | WNOHANG) !=
        0)
      return false;
    if (state.si_pid == pid_) return state.si_code == CLD_STOPPED;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

void StartedRun::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(std::exchange(pid_, -1), nullptr, 0);
}

int StartedRun::finish(std::chrono::seconds timeout) {
  const auto ends = std::chrono::steady_clock::now() + timeout;
  while (pid_ > 0 && std::chrono::steady_clock::now() < ends) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ADD_FAILURE() << "`xffl run` did not end within " << timeout.count() << " s";
  kill();
  return -1;
}

Project::Project() {
  make_dirs(path());
  const fs::path log = path() / "trainings.log";
  for (const char* name : {"alba", "brno"}) place(name, {"    workdir: work\n", log, log});
  write_model(kTinyRows);
  write_config();
}

void Project::write_model(int rows) const {
  write_tiny_model(path() / "model", rows,
                   [](size_t i) { return static_cast<float>(i % 7) / 8.0f; });
}

void Project::write_config() const {
  std::ostringstream yaml;
  yaml << "project: test\nmodel: model\nrounds: " << rounds_
       << "\ntraining: {steps_per_round: 4, batch_size: 2, micro_batch_size: 2}\npolicy: "
       << policy_;
  if (!aggregation_.empty()) yaml << "\naggregation: " << aggregation_;
  yaml << "\nfacilities:\n";
  for (const char* name : {"alba", "brno"}) {
    const Placement& place = placements_.at(name);
    yaml << "  " << name << ":\n"
         << place.yaml << "    trainer: {command: ['" << XFFL_BINARY_DIR
         << "/bin/xffl-fake-trainer']}\n    environment:\n      - export XFFL_FAKE_TRAININGS='"
         << place.trainings << "'\n      - export XFFL_FAKE_MILLISECONDS=" << training_milliseconds_
         << "\n";
    if (held_)
      yaml << "      - export XFFL_FAKE_HOLD='"
           << (fs::path(place.trainings).parent_path() / hold_name(name)).string() << "'\n";
    if (environment_.contains(name)) yaml << "      - " << environment_.at(name) << "\n";
    if (faults_.contains(name))
      yaml << "      - export XFFL_FAKE_TRAINER='" << faults_.at(name) << "'\n";
    if (keys_.contains(name)) yaml << "    " << keys_.at(name) << "\n";
    yaml << "    data: {train: [/data/unused.tokens]";
    if (validation_.contains(name))
      yaml << ", validation: {" << validation_.at(name) << ": /data/unused.tokens}";
    yaml << "}\n";
  }
  write_file_atomic(path() / "xffl.yaml", yaml.str());
  if (!held_) return;
  for (const auto& [name, place] : placements_) hold(name);
}

fs::path Project::hold_file(const std::string& facility, int round) const {
  return placements_.at(facility).trainings_here.parent_path() /
         (hold_name(facility) + (round == 0 ? "" : "-" + std::to_string(round)));
}

void Project::hold(const std::string& facility, int round) const {
  fs::remove(held_training(facility));
  write_file_atomic(hold_file(facility, round), "");
}

fs::path Project::held_training(const std::string& facility) const {
  return hold_file(facility, 0).string() + ".waits";
}

bool Project::await_held_training(const std::string& facility) const {
  return await([&] { return fs::exists(held_training(facility)); });
}

void Project::release(const std::string& facility, int round) const {
  fs::remove(hold_file(facility, round));
}

ProcessResult Project::xffl(std::vector<std::string> args, std::map<std::string, std::string> env,
                            std::chrono::seconds timeout) const {
  args.insert(args.begin(), XFFL_BINARY_DIR "/bin/xffl");
  return run_process({.argv = std::move(args), .env = std::move(env), .timeout = timeout});
}

StartedRun Project::start_run(std::map<std::string, std::string> env) const {
  return StartedRun(start_detached(
      {.argv = {XFFL_BINARY_DIR "/bin/xffl", "run", "-p", path().string()}, .env = std::move(env)},
      log()));
}

StartedRun Project::start_held_run() {
  set_hold();
  write_config();
  StartedRun run = start_run();
  EXPECT_TRUE(await_events("submitted", 2)) << read_file(log(), 1 << 20);
  return run;
}

std::vector<history::StoredEvent> Project::events(const std::string& run) const {
  const fs::path journal = run_folder(run) / "journal.db";
  return fs::exists(journal) ? history::read_events(journal) : std::vector<history::StoredEvent>();
}

int Project::count_events(const std::string& kind) const {
  const auto all = events();
  return static_cast<int>(
      std::count_if(all.begin(), all.end(), [&](const auto& e) { return e.kind == kind; }));
}

bool Project::await_events(const std::string& kind, int count, std::chrono::seconds timeout) const {
  return await([&] { return count_events(kind) >= count; }, timeout);
}

std::vector<std::string> Project::jobs(const std::string& facility) const {
  std::vector<std::string> ids;
  for (const history::StoredEvent& event : events())
    if (event.kind == "submitted" && event.facility == facility)
      ids.push_back(parse_json(event.payload, "submitted").at("job_id").get<std::string>());
  return ids;
}

history::RunState Project::history(const std::string& run) const {
  return history::replay(events(run));
}

std::string Project::current_sha256() const {
  return checkpoint::make_manifest(fs::canonical(run_folder() / "CURRENT")).root_sha256();
}

std::vector<std::string> Project::lines_of_trainings(const std::string& suffix) const {
  std::vector<std::string> lines;
  std::set<fs::path> logs;
  for (const auto& [name, place] : placements_) logs.insert(place.trainings_here.string() + suffix);
  for (const fs::path& log : logs) {
    std::ifstream text(log);
    for (std::string line; std::getline(text, line);) lines.push_back(line);
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

void Project::forget_runs() const {
  for (const char* name : {"runs", "work"}) fs::remove_all(path() / name);
  for (const auto& [name, place] : placements_)
    for (const char* suffix : {"", ".started"}) fs::remove(place.trainings_here.string() + suffix);
}

bool job_ends(const std::string& job_id) {
  return await([pid = std::stoi(job_id)] { return !process_start_ticks(pid); });
}

void flip_byte(const fs::path& file, std::streamoff offset) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(offset);
  const auto byte = static_cast<char>(stream.get() ^ 0x10);
  stream.seekp(offset);
  stream.put(byte);
  ASSERT_TRUE(stream.flush().good()) << file;
}

std::string undisturbed_sha256(const Project& project) {
  EXPECT_EQ(project.run().exit_code, 0);
  const std::string sha256 = project.current_sha256();
  project.forget_runs();
  return sha256;
}

void expect_undisturbed_result(const Project& project, const std::string& sha256,
                               const std::string& context) {
  EXPECT_EQ(project.current_sha256(), sha256) << context;
  EXPECT_EQ(project.trainings(), kOnceEach) << context;
  EXPECT_EQ(project.started_trainings(), kOnceEach) << context;
  std::map<int, int> published;
  for (const history::StoredEvent& event : project.events())
    if (event.kind == "published") ++published[event.round];
  EXPECT_EQ(published, (std::map<int, int>{{1, 1}, {2, 1}, {3, 1}})) << context;
  for (const auto& entry : fs::recursive_directory_iterator(project.path())) {
    const std::string name = entry.path().filename().string();
    EXPECT_EQ(name.find(".tmp"), std::string::npos) << context << ": left behind " << entry.path();
    EXPECT_EQ(name.find(".part"), std::string::npos) << context << ": left behind " << entry.path();
    EXPECT_EQ(history::epoch_of(name), std::nullopt) << context << ": left behind " << entry.path();
  }
}

}  // namespace xffl::test
