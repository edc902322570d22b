#include "hostile/federation.h"

#include <glob.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/sha256.h"

namespace xffl::test {
namespace {

namespace fs = std::filesystem;
using SteadyClock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// Slurm's programs, as far as the coordinator and a job use them. A job is a process of this
// machine; its files are $SLURM_JOBS/ID.{job,script,exit,pid}.
constexpr const char* kSbatch = R"sh(#!/bin/bash
# A session of its own: the server kills the processes of a closed channel.
[ -n "$FAKE_SBATCH" ] || FAKE_SBATCH=1 exec setsid --wait "$0" "$@"
for each; do case $each in --job-name=*) name=${each#*=} ;; --chdir=*) folder=${each#*=} ;; esac; done
cd "$SLURM_JOBS" || exit 1
id=$$
cat >"$id.script"
echo "$name|$folder" >"$id.job"
XFFL_CLAIM_BEAT=1 SLURM_JOB_ID=$id setsid bash -c '
  echo $$ >"$1/$2.pid"
  cd "$3" && bash "$1/$2.script" >>job.out 2>&1
  echo $? >"$1/$2.exit"' sh "$SLURM_JOBS" "$id" "$folder" >/dev/null 2>&1 </dev/null &
until [ -s "$id.pid" ]; do sleep 0.02; done
echo "$id"
)sh";
constexpr const char* kQueue = R"sh(#!/bin/bash
for each; do case $each in --name=*) names=,${each#*=}, ;; --format=%e) exit 1 ;; esac; done
cd "$SLURM_JOBS" || exit 1
for job in *.job; do
  [ -e "$job" ] || continue
  id=${job%.job}
  IFS='|' read -r name folder <"$job"
  case $names in *,"$name",*) ;; *) continue ;; esac
  state=RUNNING
  if [ -e "$id.exit" ]; then
    state=FAILED
    [ "$(cat "$id.exit")" != 0 ] || state=COMPLETED
  elif ! kill -0 "$(cat "$id.pid")" 2>/dev/null && [ ! -e "$id.exit" ]; then
    state="CANCELLED by 0"
  fi
  case ${0##*/} in
    squeue) echo "$id|$name|$state|0|1:00:00|$folder|node1|None" ;;
    *) echo "$id|$name|$state|node1|$folder" ;;
  esac
done
)sh";
constexpr const char* kScancel = R"sh(#!/bin/bash
for id; do :; done
cd "$SLURM_JOBS" || exit 1
[ ! -e "$id.pid" ] || kill -TERM -- "-$(cat "$id.pid")" 2>/dev/null
exit 0
)sh";
constexpr int kRounds = 2;
constexpr int kMovedRows = 300'000;  // 4.8 MB: a stream of its own

constexpr const char* kSrun = R"sh(#!/bin/bash
while [[ $1 == -* ]]; do shift; done
SLURM_PROCID=0 exec "$@"
)sh";

// framed_command() writes a character with a meaning to a shell as \0 and three octal digits.
std::string decoded(const std::string& command) {
  std::string text;
  for (size_t i = 0; i < command.size(); ++i) {
    if (command[i] == '\\' && i + 4 < command.size() && command[i + 1] == '0' &&
        command.find_first_not_of("01234567", i + 2) > i + 4) {
      text += static_cast<char>(std::stoi(command.substr(i + 2, 3), nullptr, 8));
      i += 4;
    } else {
      text += command[i];
    }
  }
  return text;
}

std::string string_at(std::string_view body, size_t at = 0) {
  if (body.size() < at + 4) return {};
  uint32_t size = 0;
  for (size_t i = 0; i < 4; ++i) size = size << 8 | static_cast<uint8_t>(body[at + i]);
  return std::string(body.substr(at + 4, size));
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Name, type, mode, size, time and content of everything below `folder` without `skipped` folders.
std::map<std::string, std::string> snapshot(const fs::path& folder,
                                            const std::vector<fs::path>& skipped) {
  std::map<std::string, std::string> files;
  for (auto it = fs::recursive_directory_iterator(folder); it != fs::end(it); ++it) {
    if (std::find(skipped.begin(), skipped.end(), it->path()) != skipped.end()) {
      it.disable_recursion_pending();
      continue;
    }
    struct stat info {};
    if (::lstat(it->path().c_str(), &info) != 0) continue;
    std::string text = std::to_string(info.st_mode) + " " + std::to_string(info.st_uid);
    if (S_ISREG(info.st_mode))
      text += " " + std::to_string(info.st_size) + " " + std::to_string(info.st_mtim.tv_sec) + "." +
              std::to_string(info.st_mtim.tv_nsec) + " " +
              sha256_hex(read_file(it->path(), 64u << 20));
    if (S_ISLNK(info.st_mode)) text += fs::read_symlink(it->path());
    files[it->path()] = text;
  }
  return files;
}

int64_t peak_resident_bytes(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

// The terminal's text so far; a flooded log is cut.
std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text(4u << 20, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

std::string journal_text(const Project& project) {
  std::string text;
  for (const history::StoredEvent& event : project.events())
    text += event.kind + " " + std::to_string(event.round) + " " + event.facility + " " +
            event.payload + "\n";
  return text;
}

}  // namespace

void Front::on_command(const std::vector<std::string>& parts, Behaviour behaviour) {
  commands_.emplace_back(parts, std::move(behaviour));
}

void Front::on_sftp(uint8_t type, const std::string& part, SftpAnswer answer) {
  rules_.push_back({type, part, std::move(answer), {}});
}

void Front::on_sftp_answer(uint8_t type, const std::string& part, SftpChange change) {
  rules_.push_back({type, part, {}, std::move(change)});
}

void Front::on_report(std::function<void(const fs::path&)> tamper) { tamper_ = std::move(tamper); }

void Front::on_output_of_failure(std::function<void(const fs::path&)> tamper) {
  tamper_ = std::move(tamper);
  tampered_name_ = "job.out";
}

void Front::look_for_reports() {
  if (!tamper_) return;
  const bool is_report = tampered_name_ == "report.json";
  const fs::path pattern = work_ / "*/*/*/r*/a*" / (is_report ? "out" : "") / tampered_name_;
  glob_t found{};
  ::glob(pattern.c_str(), 0, nullptr, &found);
  for (size_t i = 0; i < found.gl_pathc; ++i) {
    const fs::path file = found.gl_pathv[i];
    const fs::path attempt = is_report ? file.parent_path().parent_path() : file.parent_path();
    if (tampered_.contains(attempt)) continue;
    // A job's output is complete when its last line is there.
    if (!is_report && !contains(text_of(file), "the trainer ended")) continue;
    tampered_.insert(attempt);
    tamper_(attempt);
    ++hits_;
  }
  ::globfree(&found);
}

// Which path each request and each handle of an SFTP channel concerns.
struct Front::SftpState {
  std::map<uint32_t, std::pair<uint8_t, std::string>> requests;  // by id
  std::map<std::string, std::string> handles;
};

Front::Behaviour Front::behaviour_of(const std::string& raw) {
  const std::lock_guard lock(mutex_);
  const std::string command = raw == "sftp" ? raw : decoded(raw);
  if (trace_) std::cout << "command " << command << "\n" << std::flush;
  look_for_reports();
  for (const auto& [parts, behaviour] : commands_)
    if (std::all_of(parts.begin(), parts.end(),
                    [&](const std::string& part) { return contains(command, part); })) {
      ++hits_;
      return behaviour;
    }
  if (raw != "sftp" || (rules_.empty() && !tamper_ && !trace_)) return {};
  Behaviour behaviour;
  const auto state = std::make_shared<SftpState>();
  const auto rule_for = [this](uint8_t type, const std::string& path, bool answers) -> Rule* {
    for (Rule& rule : rules_)
      if (rule.type == type && contains(path, rule.part) && bool(rule.answer) == answers)
        return &rule;
    return nullptr;
  };
  behaviour.on_request = [this, state,
                          rule_for](const SftpPacket& request) -> std::optional<std::string> {
    const std::lock_guard requests_lock(mutex_);
    look_for_reports();
    std::string path = string_at(request.body);
    if (const auto handle = state->handles.find(path); handle != state->handles.end())
      path = handle->second;
    if (request.type == kSftpExtended) path += " " + string_at(request.body, 4 + path.size());
    if (trace_) std::cout << "sftp " << int(request.type) << " " << path << "\n" << std::flush;
    state->requests[request.id] = {request.type, path};
    Rule* rule = rule_for(request.type, path, true);
    if (rule == nullptr) return std::nullopt;
    ++hits_;
    return rule->answer(request);
  };
  behaviour.on_answer = [this, state, rule_for](const SftpPacket& answer) {
    const std::lock_guard answers_lock(mutex_);
    const auto [type, path] = state->requests[answer.id];
    if (answer.type == kSftpHandle) state->handles[string_at(answer.body)] = path;
    Rule* rule = rule_for(type, path, false);
    if (rule == nullptr) return answer.bytes();
    ++hits_;
    return rule->change(answer);
  };
  return behaviour;
}

Observed run_federation(const RunRequest& request) {
  Observed seen;
  Front front;
  if (request.arrange) request.arrange(front);
  HostileServer server, mover;
  Project project;
  const fs::path site = server.dir() / "site", jobs = server.dir() / "jobs",
                 programs = server.dir() / "bin";
  for (const fs::path& folder : {site, jobs, programs}) fs::create_directories(folder);
  const auto add_program = [&](const char* name, std::string text) {
    text.insert(text.find('\n') + 1, "export SLURM_JOBS='" + jobs.string() + "'\n");
    write_file_atomic(programs / name, text);
    fs::permissions(programs / name, fs::perms::owner_all);
  };
  add_program("sbatch", kSbatch);
  add_program("squeue", kQueue);
  add_program("sacct", kQueue);
  add_program("scancel", kScancel);
  add_program("srun", kSrun);
  front.set_work_folder(site / "work");
  front.set_trace(std::getenv("XFFL_HOSTILE_TRACE") != nullptr);
  if (request.access == Access::kNoSftp) front.on_command({"sftp"}, {.refuses = true});
  for (HostileServer* each : {&server, &mover}) {
    each->set_programs(programs);
    each->set([&](const std::string& command) { return front.behaviour_of(command); });
    if (front.greeting) each->set_greeting(*front.greeting);
  }

  const auto host = [](const HostileServer& each) {
    return "hosts: ['127.0.0.1:" + std::to_string(each.port()) + "']";
  };
  const auto settings = server.settings();
  std::ostringstream yaml;
  yaml << "    access: ssh\n    scheduler: slurm\n    ssh: {" << host(server)
       << ", user: " << settings.user << ", keys: ['" << settings.keys[0].string()
       << "'], agent: false}\n";
  if (request.access == Access::kMover)
    yaml << "    transfer: {" << host(mover) << ", shell: false}\n";
  yaml << "    slurm: {settle_time: 1s, command_timeout: 10s" << front.slurm_keys
       << "}\n    poll_interval: 100ms\n    workdir: " << (site / "work").string() << "\n";
  const fs::path log = site / "trainings.log";
  project.place("brno", {yaml.str(), log, log});
  const bool holds_alba = request.outcome == Outcome::kTrouble && !front.holds_job;
  const auto limit = [](const char* key, std::chrono::seconds time) {
    return std::string(key) + ": " + std::to_string(time.count()) + "s";
  };
  project.set_policy(
      "{on_missing: skip, max_attempts: 1, rerun_budget: 0, keep_rounds: 1, poll_interval: 50ms, " +
      (request.outcome == Outcome::kTrouble  ? "quorum: 1, " + limit("quorum_grace", kQuorumGrace)
       : request.outcome == Outcome::kEither ? limit("deadline", kShortDeadline)
                                             : limit("deadline", kLongDeadline)) +
      front.policy_keys + "}");
  project.set_rounds(kRounds);
  if (request.access == Access::kMover) project.set_model_rows(kMovedRows);
  if (!front.trainer_fault.empty()) project.set_fault("brno", front.trainer_fault);
  project.set_hold();
  project.write_config();
  project.release("alba");
  if (!front.holds_job) project.release("brno");
  if (holds_alba) project.hold("alba", 1);
  if (front.holds_job_until_fault) project.hold("brno", 1);
  std::string known = read_file(server.dir() / "known_hosts", 10'000);
  if (front.forgets_host_key)
    known = known.substr(0, known.find(' ') + 1) + read_file(server.dir() / "id.pub", 10'000);
  if (request.access == Access::kMover) {
    known += read_file(mover.dir() / "known_hosts", 10'000);
  }
  write_file_atomic(project.path() / "known_hosts", known);

  const fs::path home = project.path().parent_path() / "home";
  fs::create_directories(home / ".ssh");
  write_file_atomic(home / ".ssh/config", "Host *\n");
  write_file_atomic(project.path().parent_path() / "victim", "precious");
  const auto look = [&] {
    return snapshot(project.path().parent_path(),
                    {project.path() / "runs", project.path() / "work", project.log(),
                     project.path() / "trainings.log", project.path() / "trainings.log.started",
                     project.path() / "hold-alba.waits", project.path() / "hold-alba-1",
                     project.path() / "hold-brno.waits", project.path() / "hold-brno-1"});
  };
  const auto before = look();
  const auto began = SteadyClock::now();
  StartedRun run = project.start_run({{"HOME", home}});
  const bool counts_connections = front.greeting || front.forgets_host_key;
  const auto hits = [&] { return front.hits() + (counts_connections ? server.connections() : 0); };
  const auto text = [&] { return text_of(project.log()) + journal_text(project); };
  // The peak is read while the process lives.
  SteadyClock::time_point looked = began, published = began, stopped = began;
  bool is_released = !holds_alba, holds_brno = front.holds_job_until_fault, is_published = false,
       is_stopped = false, ends = true;
  for (;;) {
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(run.pid()), &info, WEXITED | WNOWAIT | WNOHANG);
    if (info.si_pid == run.pid()) break;
    seen.peak_bytes = std::max(seen.peak_bytes, peak_resident_bytes(run.pid()));
    const auto now = SteadyClock::now();
    if (now - looked > 100ms) {
      looked = now;
      if (!is_released && ((hits() > 0 && contains(text(), request.shown)) || now - began > 40s)) {
        project.release("alba", 1);
        is_released = true;
      }
      if (holds_brno && (hits() > 0 || now - began > 40s)) {
        project.release("brno", 1);
        holds_brno = false;
      }
      if (is_released && !is_published && project.count_events("published") == kRounds) {
        published = now;
        is_published = true;
      }
      // The last removals of old rounds may take minutes: a stop request ends them.
      const auto since = now - published;
      if (is_published && !is_stopped && since > (hits() > 0 ? 4s : 20s)) {
        run.signal(SIGTERM);
        stopped = now;
        is_stopped = true;
      }
    }
    ends = now - began < 300s;
    if (!ends) break;
    std::this_thread::sleep_for(10ms);
  }
  const auto ended = SteadyClock::now();
  const auto seconds = [](auto time) { return std::chrono::duration<double>(time).count(); };
  if (ends) seen.exit_code = run.finish(5s);
  if (!ends) seen.terminal = "the run did not end\n";
  run.kill();
  seen.was_stopped = is_stopped;
  seen.seconds = seconds(ended - began);
  seen.seconds_to_stop = is_stopped ? seconds(ended - stopped) : 0;
  seen.hits = hits();
  seen.terminal += text_of(project.log());
  seen.journal = journal_text(project);
  for (const history::StoredEvent& event : project.events()) {
    RoundTimes& times = seen.times[event.round];
    const auto time = parse_utc(event.time_utc);
    if (event.kind == "submitted" && !times.submitted) times.submitted = time;
    if (event.kind == "update_accepted" && event.facility == "alba") times.quorum = time;
    if (event.kind == "update_accepted" || event.kind == "facility_missing") times.settled = time;
    if (event.kind == "published") {
      times.published = time;
      seen.published.push_back(event.round);
      seen.models[event.round] = parse_json(event.payload, "published").value("model_sha256", "");
    }
    if (event.kind == "facility_missing")
      seen.missing[event.facility + " " + std::to_string(event.round)] =
          parse_json(event.payload, "facility_missing").value("reason", "");
    if (event.kind == "update_accepted")
      seen.accepted[event.facility + " " + std::to_string(event.round)] =
          parse_json(event.payload, "update_accepted").value("update_sha256", "");
  }
  seen.trainings = project.trainings();
  const ProcessResult status = project.xffl({"status", "-p", project.path().string()});
  seen.status = status.out + status.err;
  const auto after = look();
  for (const auto& [file, state] : before)
    if (!after.contains(file) || after.at(file) != state) seen.outside.push_back(file);
  for (const auto& [file, state] : after)
    if (!before.contains(file)) seen.outside.push_back(file);
  if (fs::exists(project.path() / "runs"))
    for (const auto& entry : fs::recursive_directory_iterator(project.path() / "runs")) {
      const bool own =
          entry.path().filename() == "CURRENT" || entry.path().filename() == "login.sock";
      if (!own && !entry.is_directory() && (entry.is_symlink() || !entry.is_regular_file()))
        seen.special.push_back(entry.path());
    }
  // Jobs that still run belong to this case.
  for (const auto& entry : fs::directory_iterator(jobs)) {
    const pid_t pid =
        entry.path().extension() == ".pid" ? std::atoi(text_of(entry.path()).c_str()) : 0;
    if (pid > 1) ::kill(-pid, SIGKILL);
  }
  if (std::getenv("XFFL_HOSTILE_SHOW") != nullptr)
    std::cout << seen.terminal << seen.journal << "status: " << seen.status << "\n";
  return seen;
}

const Observed& undisturbed(Access access) {
  static std::map<Access, Observed> runs;
  const auto [run, is_new] = runs.try_emplace(access);
  if (is_new) run->second = run_federation({access, Outcome::kAccepted, "", {}});
  return run->second;
}

std::string unprintable(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<uint8_t>(text[i]);
    const size_t length = byte < 0x80 ? 1 : byte < 0xc2 ? 0 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    uint32_t code = length == 1 ? byte : length == 0 ? 0 : byte & (0x7fu >> length);
    bool good = length > 0 && i + length <= text.size();
    for (size_t k = 1; good && k < length; ++k) {
      const auto next = static_cast<uint8_t>(text[i + k]);
      good = (next & 0xc0) == 0x80;
      code = code << 6 | (next & 0x3fu);
    }
    const bool control = code < 0x20 ? code != '\n' : code == 0x7f || (code >= 0x80 && code < 0xa0);
    const bool bidirectional = (code >= 0x202a && code <= 0x202e) ||
                               (code >= 0x2066 && code <= 0x2069) || code == 0x200e ||
                               code == 0x200f;
    if (!good || control || bidirectional)
      return "byte " + std::to_string(byte) + " after '" +
             std::string(text.substr(i < 80 ? 0 : i - 80, i < 80 ? i : 80)) + "'";
    i += length;
  }
  return {};
}

}  // namespace xffl::test
