#include "xffl/prepare/prepare.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"
#include "xffl/facility/job_script.h"
#include "xffl/plan/facility_layout.h"

namespace xffl::prepare {
namespace {

using tokens::kMaxPreparedBytes;
using tokens::kPreparedFile;
using tokens::kPrepareJobFile;
using tokens::kPrepareProgress;
using tokens::kPrepareReport;
using tokens::kPrepareTokenizer;

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kDefaultLength = 2048;
constexpr uint64_t kMaxTokenizerBytes = 28 << 20;  // put_files() takes 32 MiB together
constexpr uint64_t kMaxOutput = 256 << 10;
constexpr size_t kShownOutput = 1500;
constexpr std::string_view kJobId = "job.id";  // in a job's folder, after the submission
// A job's last files may appear later than its end, on a shared file system.
constexpr seconds kLateFiles{60};
constexpr milliseconds kLook{2000};

std::string folder_name(int number) { return "job" + std::to_string(number); }

// The highest N of the folders job<N>; 0: none.
int newest_job(remote::Session& session, const RemotePath& folder) {
  std::vector<std::string> names;
  try {
    names = session.list(folder);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kNotFound) throw;
  }
  int newest = 0;
  for (const std::string& name : names) {
    int number = 0;
    const char* end = name.data() + name.size();
    if (!name.starts_with("job") || name.size() > 8) continue;
    const auto read = std::from_chars(name.data() + 3, end, number);
    if (read.ec == std::errc() && read.ptr == end) newest = std::max(newest, number);
  }
  return newest;
}

std::vector<remote::NewFile> tokenizer_of(const std::filesystem::path& model) {
  std::vector<remote::NewFile> files;
  uint64_t bytes = 0;
  for (const std::string_view name : tokens::tokenizer_files()) {
    if (!std::filesystem::exists(model / name)) continue;
    bytes += std::filesystem::file_size(model / name);
    if (bytes > kMaxTokenizerBytes)
      throw Error(ErrorKind::kUnsupported, "the tokenizer in " + model.string() + " has over " +
                                               std::to_string(kMaxTokenizerBytes >> 20) + " MiB");
    files.push_back({std::string(kPrepareTokenizer) + "/" + std::string(name),
                     read_file(model / name, kMaxTokenizerBytes)});
  }
  return files;
}

// The folder above the first component with a wildcard.
std::string fixed_folder(const std::string& pattern) {
  const size_t wildcard = std::min(pattern.find_first_of("*?["), pattern.size());
  const size_t slash = pattern.rfind('/', wildcard);
  return slash == 0 || slash == std::string::npos ? "/" : pattern.substr(0, slash);
}

// The facility as the job needs it: one task that runs xffl-tokenize.
config::Facility for_one_task(const config::Facility& facility,
                              const facility::Programs& programs) {
  config::Facility one = facility;
  const submit::QueueManager& manager = one.scheduler.manager();
  if (manager.one_task != nullptr) manager.one_task(one.scheduler);
  one.world_size = 1;
  one.trainer_command = {tokenize_program(facility, programs), "prepare"};
  one.validation.clear();
  one.train_data.clear();
  for (const std::string& pattern : facility.text.files)  // an image binds the parents
    one.train_data.push_back(fixed_folder(pattern) + "/text");
  return one;
}

class Preparation {
 public:
  Preparation(const config::Experiment& experiment, const config::Facility& facility,
              facility::Services& services, std::stop_token stop, const Callbacks& callbacks)
      : experiment_(experiment),
        facility_(facility),
        services_(services),
        stop_(std::move(stop)),
        callbacks_(callbacks),
        session_(services.connect(facility)),
        scheduler_(services.scheduler(facility, session_)) {}

  Outcome run(bool again) {
    const PrepareJob job = prepare_job(experiment_, facility_);
    if (!again)
      if (const auto found = find_prepared(*session_, facility_))
        if (found->tokenizer_sha256 == job.tokenizer_sha256 && are_there(*found))
          return {*found, true};
    number_ = newest_job(*session_, facility_.prepared);
    if (number_ == 0 || !is_under_way()) submit(job);
    return {follow(job), false};
  }

 private:
  RemotePath folder() const { return facility_.prepared / folder_name(number_); }
  std::string job_name() const {
    const std::string name = facility_.prepared.filename();
    return "xffl-prepare-" + name.substr(name.find('.') + 1) + "-" + std::to_string(number_);
  }
  void state(const std::string& message) {
    if (message == state_) return;
    state_ = message;
    if (callbacks_.on_state) callbacks_.on_state(message);
  }

  // False for shards that the site has purged.
  bool are_there(const Prepared& prepared) {
    const auto has_size = [&](std::string_view name, uint64_t bytes) {
      const auto info = session_->stat(facility_.prepared / name);
      return info && info->size_bytes == bytes;
    };
    return has_size(config::kPreparedTraining, prepared.training.bytes) &&
           (!prepared.validation ||
            has_size(config::kPreparedValidation, prepared.validation->bytes));
  }

  // True when the newest folder's job is queued or runs. Otherwise a job that still appears may not
  // start.
  bool is_under_way() {
    if (session_->stat(folder() / kPrepareReport)) return false;
    const auto fence = folder() / plan::kFence;
    if (session_->stat(fence)) return false;
    if (session_->stat(folder() / kJobId)) {
      id_ = JobId(read_text(*session_, folder() / kJobId, 200));
    } else {
      const auto found = scheduler_->find({job_name(), "", folder()}, stop_);
      if (found.empty()) {
        session_->make_dirs(fence);
        return false;
      }
      id_ = found.front();
    }
    const submit::JobStatus status = query();
    const bool alive = status.state == submit::JobState::kPending ||
                       status.state == submit::JobState::kHeld ||
                       status.state == submit::JobState::kRunning;
    if (!alive) session_->make_dirs(fence);
    return alive;
  }

  submit::JobStatus query() {
    const std::array jobs{submit::SubmittedJob{id_, job_name()}};
    const auto answers = scheduler_->query(jobs, stop_);
    const auto found = answers.find(id_);
    return found == answers.end() ? submit::JobStatus{} : found->second;
  }

  void submit(const PrepareJob& job) {
    ++number_;
    std::vector<remote::NewFile> files = tokenizer_of(experiment_.model);
    files.push_back({"out/", ""});
    files.push_back({std::string(kPrepareJobFile), tokens::format_prepare_job(job)});
    session_->make_dirs(folder() / kPrepareTokenizer);
    session_->put_files(folder(), files);
    job::JobSpec spec;
    spec.key.nonce = random_hex(16);
    const config::Facility one = for_one_task(facility_, services_.programs);
    const submit::JobRequest request{
        .name = job_name(),
        .script =
            facility::job_script(one, spec, job_name(), folder(), services_.programs, std::nullopt),
        .folder = folder()};
    const auto scheduler = services_.scheduler(one, session_);
    try {
      id_ = scheduler->submit(request, stop_);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kRemote) throw;
      throw Error(ErrorKind::kRemote,
                  std::string(error.what()) + ": the job may exist; the same command looks for it");
    }
    write_text_atomic(*session_, folder() / kJobId, id_.str());
    state("job " + id_.str() + " is submitted");
  }

  Prepared follow(const PrepareJob& job) {
    const milliseconds pause = std::max<milliseconds>(facility_.poll_interval, milliseconds(500));
    auto next_query = services_.clock.monotonic();
    Clock::MonotonicTime alive_until = next_query;
    bool is_there = true;
    for (;;) {
      try {
        if (const auto prepared = look(job)) return *prepared;
        const auto now = services_.clock.monotonic();
        if (now >= next_query) {
          next_query = now + pause;
          is_there = !is_gone(query());
          if (is_there) alive_until = now;
        }
        if (!is_there && now - alive_until > gone_for_good()) fail();
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kRemote) throw;
        log::warning("the facility does not answer; the job goes on",
                     {{"facility", facility_.name.str()}, {"error", std::string(error.what())}});
      }
      if (!services_.clock.sleep(std::min(kLook, pause), stop_))
        throw Error(ErrorKind::kCancelled,
                    "stopped; job " + id_.str() + " goes on, and the same command follows it");
    }
  }

  // A job that ended shows its files at once on this machine; on a shared file system later.
  seconds gone_for_good() const {
    return facility_.scheduler.manager().this_machine ? seconds(3) : kLateFiles;
  }

  bool is_gone(const submit::JobStatus& status) {
    using submit::JobState;
    switch (status.state) {
      case JobState::kPending:
      case JobState::kHeld:
        state("job " + id_.str() + " waits in the queue" +
              (status.reason.empty() ? "" : ": " + log::printable(status.reason, 100)));
        return false;
      case JobState::kRunning:
        state("job " + id_.str() + " runs");
        return false;
      default:
        return true;
    }
  }

  std::optional<Prepared> look(const PrepareJob& job) {
    const std::array queries{
        remote::FileQuery{std::string(kPrepareReport), kMaxPreparedBytes},
        remote::FileQuery{std::string(kPrepareProgress), tokens::kMaxPrepareProgressBytes}};
    const std::vector<remote::FileView> views = session_->look(folder(), queries);
    if (!views.at(0).bytes.empty()) {
      const Prepared prepared =
          tokens::parse_prepared(views[0].bytes, (folder() / kPrepareReport).str());
      if (prepared.tokenizer_sha256 != job.tokenizer_sha256)
        throw Error(ErrorKind::kCorrupt, "job " + id_.str() +
                                             " has used another tokenizer than the model's: repeat "
                                             "the command");
      return prepared;
    }
    if (!views.at(1).bytes.empty()) show_progress(views[1].bytes);
    return std::nullopt;
  }

  // The shards do not depend on this file: damage in it costs one warning.
  void show_progress(const std::string& json) {
    if (!callbacks_.on_progress) return;
    try {
      callbacks_.on_progress(
          tokens::parse_prepare_progress(json, (folder() / kPrepareProgress).str()));
    } catch (const Error& error) {
      if (!has_unreadable_progress_)
        log::warning("the job's progress is not readable; the job goes on",
                     {{"facility", facility_.name.str()}, {"error", std::string(error.what())}});
      has_unreadable_progress_ = true;
    }
  }

  [[noreturn]] void fail() {
    std::string output;
    try {
      output = read_text(*session_, folder() / submit::kJobOutput, kMaxOutput);
    } catch (const Error& error) {
      output = error.what();
    }
    if (output.size() > kShownOutput) output = "..." + output.substr(output.size() - kShownOutput);
    std::istringstream lines(output);
    output.clear();
    for (std::string line; std::getline(lines, line);) output += "\n  " + log::printable(line, 400);
    throw Error(ErrorKind::kFailed, "job " + id_.str() + " has ended without shards; " +
                                        (folder() / submit::kJobOutput).str() +
                                        " ends with:" + output);
  }

  const config::Experiment& experiment_;
  const config::Facility& facility_;
  facility::Services& services_;
  std::stop_token stop_;
  const Callbacks& callbacks_;
  std::shared_ptr<remote::Session> session_;
  std::shared_ptr<submit::Scheduler> scheduler_;
  int number_ = 0;
  bool has_unreadable_progress_ = false;
  JobId id_;
  std::string state_;
};

}  // namespace

PrepareJob prepare_job(const config::Experiment& experiment, const config::Facility& facility) {
  const config::TextData& text = facility.text;
  if (text.files.empty())
    throw Error(ErrorKind::kConfig, "facility " + facility.name.str() +
                                        " has shards of its own (data.train): only data.text is "
                                        "tokenized");
  return {
      .tokenizer_sha256 = tokens::tokenizer_hash(experiment.model),
      .files = text.files,
      .prompt = text.prompt,
      .text_field = text.text_field,
      .prompt_field = text.prompt_field,
      .document = std::string(to_string(text.document)),
      .mask_prompt = text.mask_prompt,
      .pack = text.pack,
      .validation_fraction = text.validation_fraction,
      .sequence_length = facility.sequence_length > 0 ? facility.sequence_length : kDefaultLength};
}

std::string tokenize_program(const config::Facility& facility, const facility::Programs& programs) {
  if (!facility.trainer_program.empty())
    return (RemotePath(facility.trainer_program).parent() / "xffl-tokenize").str();
  const bool elsewhere =
      facility.access != config::AccessKind::kLocal || !facility.image.file.empty();
  return elsewhere ? "xffl-tokenize" : (programs.xffl.parent_path() / "xffl-tokenize").string();
}

std::optional<Prepared> find_prepared(remote::Session& session, const config::Facility& facility) {
  const RemotePath file = facility.prepared / kPreparedFile;
  if (!session.stat(file)) return std::nullopt;
  return tokens::parse_prepared(read_text(session, file, kMaxPreparedBytes), file.str());
}

Outcome prepare(const config::Experiment& experiment, const config::Facility& facility,
                facility::Services& services, bool again, std::stop_token stop,
                const Callbacks& callbacks) {
  prepare_job(experiment, facility);  // throws before it connects
  return Preparation(experiment, facility, services, std::move(stop), callbacks).run(again);
}

}  // namespace xffl::prepare
