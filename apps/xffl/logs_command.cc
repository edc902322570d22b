#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>

#include "command_tree.h"
#include "commands.h"
#include "project.h"
#include "stop_on_signal.h"
#include "terminal.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/facility/services.h"
#include "xffl/history/run_history.h"
#include "xffl/plan/facility_layout.h"
#include "xffl/submit/scheduler.h"

namespace xffl {
namespace {

constexpr size_t kMaxLine = 1 << 20;  // a longer line is broken
constexpr std::chrono::milliseconds kLocalPause{300};
// The command polls a login node less often than a local disk.
constexpr std::chrono::milliseconds kRemotePause{3000};

struct Flags {
  ProjectOptions project;
  std::string facility;
  int round = 0;  // 0: the newest
  bool all = false, follow = false;
};

// Formats a JSON line of coordinator.log as text.
std::string readable(const std::string& json_line) try {
  const Json json = parse_json(json_line, "log");
  std::string text;
  for (const auto& [key, value] : json.items()) {
    const std::string shown = value.is_string() ? value.get<std::string>() : value.dump();
    text +=
        (key == "time" || key == "level" || key == "event") ? shown + " " : key + "=" + shown + " ";
  }
  return log::printable(text);
} catch (const Error&) {
  return log::printable(json_line);
}

// Hides the lines of a private key; one line alone does not look like a key.
class KeyLines {
 public:
  bool hides(const std::string& line) {
    const bool begins = line.find("-----BEGIN ") != std::string::npos &&
                        line.find("PRIVATE KEY-----") != std::string::npos;
    const bool hidden = inside_ && !begins;
    inside_ = (inside_ || begins) && line.find("-----END ") == std::string::npos;
    return hidden;
  }

 private:
  bool inside_ = false;
};

// Prints a text that arrives in blocks, line by line and without secrets. Holds one block and one
// unfinished line.
class LinePrinter {
 public:
  // `prefix` begins each line. `is_json`: the lines of coordinator.log.
  explicit LinePrinter(std::string prefix = "", bool is_json = false)
      : prefix_(std::move(prefix)), is_json_(is_json) {}

  void print(std::string_view block) {
    pending_ += block;
    if (pending_.size() > kMaxLine && pending_.find('\n') == std::string::npos) pending_ += '\n';
    size_t begin = 0;
    for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1)
      print_line(pending_.substr(begin, end - begin));
    pending_.erase(0, begin);
    std::fflush(stdout);
  }
  // The end of the text: prints the line without a line feed.
  void finish() {
    if (!pending_.empty()) print_line(std::exchange(pending_, ""));
  }

 private:
  void print_line(const std::string& line) {
    if (key_.hides(line)) return;
    std::printf("%s%s\n", prefix_.c_str(),
                (is_json_ ? readable(line) : log::printable(line, 4000)).c_str());
  }

  std::string prefix_, pending_;
  bool is_json_;
  KeyLines key_;
};

void coordinator_logs(const history::RunFolder& folder, bool follow) {
  std::ifstream file(folder.log());
  if (!file) throw Error(ErrorKind::kNotFound, folder.log().string() + " does not exist");
  StopOnSignal signals("stopped following");
  LinePrinter printer("", true);
  bool more = false;
  do {
    file.clear();
    char block[1 << 14];
    file.read(block, sizeof block);
    more = file.gcount() > 0;
    printer.print({block, static_cast<size_t>(file.gcount())});
    if (follow && !more) SystemClock().sleep(kLocalPause, signals.token());
  } while ((follow || more) && !signals.token().stop_requested());
  printer.finish();
}

// A job's attempt.
struct JobAttempt {
  int round = 0, attempt = 0;
};

// The facility's newest attempt with a job in a round, or in the newest such round (0).
std::optional<JobAttempt> newest_job(const history::RunState& run_state, const FacilityName& name,
                                     int round) {
  for (auto it = run_state.rounds.rbegin(); it != run_state.rounds.rend(); ++it) {
    if (round != 0 && it->first != round) continue;
    const auto state = it->second.facilities.find(name);
    if (state == it->second.facilities.end()) continue;
    const std::vector<history::Attempt>& attempts = state->second.attempts;
    const auto attempt = std::find_if(attempts.rbegin(), attempts.rend(),
                                      [](const history::Attempt& a) { return !a.job_id.empty(); });
    if (attempt != attempts.rend()) return JobAttempt{it->first, attempt->number};
  }
  return std::nullopt;
}

// The output of a facility's job.
class JobOutput {
 public:
  JobOutput(FacilityName facility, RemotePath path, std::string prefix)
      : facility_(std::move(facility)), path_(std::move(path)), printer_(std::move(prefix)) {}

  const FacilityName& facility() const { return facility_; }
  void connect(const facility::Services& services, const config::Experiment& experiment) {
    session_ = services.connect(experiment.facility(facility_));
  }
  // Prints the next block. False without a new block, and, unless `follow`, at the size that the
  // file had at the first call.
  bool print_block(bool follow) {
    const auto info = session_->stat(path_);
    if (!info) return false;
    if (info->type != remote::FileInfo::Type::kRegular)
      throw Error(ErrorKind::kCorrupt, path_.str() + " is not a regular file");
    if (!size_) size_ = info->size_bytes;
    if (!follow && offset_ >= *size_) return false;
    std::vector<std::byte> block(1 << 16);
    const size_t n = session_->read(path_, offset_, block);
    offset_ += n;
    printer_.print({reinterpret_cast<const char*>(block.data()), n});
    return n > 0;
  }
  void finish() {
    printer_.finish();
    std::fflush(stdout);
    if (offset_ == 0)
      std::fprintf(stderr, "no output yet in %s of %s: `xffl status` shows the state of the job\n",
                   path_.str().c_str(), facility_.str().c_str());
  }

 private:
  FacilityName facility_;
  RemotePath path_;
  LinePrinter printer_;
  std::shared_ptr<remote::Session> session_;
  std::optional<uint64_t> size_;
  uint64_t offset_ = 0;
};

// Prints the outputs, one facility after the other; with `follow` new lines as they arrive.
class OutputReader {
 public:
  OutputReader(const config::Experiment& experiment, std::vector<JobOutput> outputs)
      : experiment_(experiment), outputs_(std::move(outputs)) {}

  // Continues with the other facilities after a facility's error, and throws the first one at the
  // end.
  void print(bool follow) {
    SystemClock clock;
    const facility::Services services =
        facility::make_services(clock, experiment_.project_folder, login_prompt());
    for_each([&](JobOutput& output) { output.connect(services, experiment_); });
    StopOnSignal signals("stopped following");
    const std::stop_token stop = signals.token();
    bool more = false;
    do {
      more = false;
      for_each([&](JobOutput& output) {
        if (follow) {  // a block of each: none waits for another
          more = output.print_block(follow) || more;
        } else {
          while (!stop.stop_requested() && output.print_block(follow)) continue;
          output.finish();
        }
      });
      if (follow && !more) clock.sleep(pause(), stop);
    } while (follow && !outputs_.empty() && !stop.stop_requested());
    if (follow) for_each([](JobOutput& output) { output.finish(); });
    if (problem_) throw *problem_;
  }

 private:
  // Drops an output at its first error, with a warning if other outputs remain.
  void for_each(const std::function<void(JobOutput&)>& action) {
    for (size_t i = 0; i < outputs_.size();) try {
        action(outputs_[i]);
        ++i;
      } catch (const Error& error) {
        const Error problem(error.kind(), outputs_[i].facility().str() + ": " + error.what());
        outputs_.erase(outputs_.begin() + static_cast<std::ptrdiff_t>(i));
        if (problem_ || !outputs_.empty())
          log::warning("a facility's output is left out", {{"problem", problem.what()}});
        if (!problem_) problem_ = problem;
      }
  }
  std::chrono::milliseconds pause() const {
    const bool remote = std::any_of(outputs_.begin(), outputs_.end(), [&](const JobOutput& output) {
      return experiment_.facility(output.facility()).access == config::AccessKind::kSsh;
    });
    return remote ? kRemotePause : kLocalPause;
  }

  const config::Experiment& experiment_;
  std::vector<JobOutput> outputs_;
  std::optional<Error> problem_;
};

void require_round(const history::RunState& run_state, const history::RunFolder& folder,
                   int round) {
  if (round == 0 || run_state.rounds.contains(round)) return;
  throw Error(ErrorKind::kNotFound,
              "run " + folder.run().str() + " has no round " + std::to_string(round) + " yet" +
                  (run_state.rounds.empty()
                       ? ""
                       : ": its newest is " + std::to_string(run_state.rounds.rbegin()->first)));
}

void facility_logs(const Flags& flags) {
  const history::RunFolder folder = flags.project.existing_run();
  const config::Experiment experiment = experiment_of(flags.project, folder);
  const history::RunState run_state = history::replay(history::read_events(folder.journal()));
  require_round(run_state, folder, flags.round);
  std::vector<FacilityName> names;
  if (!flags.facility.empty())
    names.push_back(experiment.facility(FacilityName(flags.facility)).name);
  int round = flags.round;
  size_t width = 0;
  if (names.empty())
    for (const config::Facility& facility : experiment.facilities) {
      names.push_back(facility.name);
      width = std::max(width, facility.name.str().size());
      const auto job = newest_job(run_state, facility.name, flags.round);
      if (job) round = std::max(round, job->round);
    }
  std::vector<JobOutput> outputs;
  std::string absent;
  for (const FacilityName& name : names) {
    const auto job = newest_job(run_state, name, round);
    if (!job) {
      absent += "facility " + name.str() + " has no job in " +
                (round == 0 ? "this run" : "round " + std::to_string(round)) + " yet\n";
      continue;
    }
    const RemotePath at =
        plan::facility_folder(experiment, *run_state.identity, experiment.facility(name));
    const std::string padding(width - std::min(width, name.str().size()), ' ');
    outputs.emplace_back(name,
                         plan::attempt_folder(at, job->round, job->attempt) / submit::kJobOutput,
                         flags.facility.empty() ? name.str() + padding + " | " : "");
  }
  if (outputs.empty()) throw Error(ErrorKind::kNotFound, absent.substr(0, absent.size() - 1));
  std::fputs(absent.c_str(), stderr);
  OutputReader(experiment, std::move(outputs)).print(flags.follow);
}

}  // namespace

void add_logs_command(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "logs", "print the coordinator's log, or the output of the facilities' newest jobs");
  add_project_options(command, flags->project);
  CLI::Option* facility = command->add_option("facility", flags->facility, "a facility's name")
                              ->type_name(kFacilityType);
  command
      ->add_option("--round", flags->round,
                   "the output of this round's jobs (default: the newest); of all facilities, "
                   "unless one is named")
      ->check(CLI::Range(1, 1000000));
  command
      ->add_flag("-a,--all", flags->all,
                 "the outputs of all facilities in one round, one after the other; each line "
                 "begins with the facility's name")
      ->excludes(facility);
  command->add_flag("-f,--follow", flags->follow, "follow: print new lines as they arrive");
  command->callback([flags] {
    if (flags->facility.empty() && flags->round == 0 && !flags->all)
      coordinator_logs(flags->project.existing_run(), flags->follow);
    else
      facility_logs(*flags);
  });
}

}  // namespace xffl
