// The queue managers: the batch systems that run a facility's jobs.
//
// A row of queue_managers() describes a queue manager. These parts follow from the row: the value
// of `scheduler` in xffl.yaml, the section with the queue manager's keys, their checks and their
// documentation, the number of ranks, the values of the job script's template, the Scheduler, and
// the checks of `xffl doctor` and `xffl plan`.
#pragma once

#include <any>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/clock.h"

namespace xffl::job {
struct FieldTable;
}
namespace xffl::remote {
class Session;
}

namespace xffl::submit {

class QueueSettings;
class Scheduler;
struct AccountedStart;
struct JobRequest;
struct ScriptRequest;
struct ScriptValues;
struct SubmittedJob;
struct TestOnly;

// The maximum number of ranks of a job.
inline constexpr int64_t kMaxRanks = 1'000'000;

// The resources of a job, for code that does not know the queue manager. A section of xffl.yaml
// names them nodes, tasks_per_node, time and keep_allocation.
struct JobShape {
  int nodes = 1;
  int tasks_per_node = 1;            // ranks on a node
  std::chrono::seconds walltime{0};  // 0: no limit
  std::chrono::seconds warning{0};   // before the walltime: the trainer stops
  // The time for which a job that has reported keeps its nodes for the next round; 0: it ends.
  std::chrono::seconds keep_allocation{0};
  int gpus_per_node = 0;  // 0: none, or not known

  double node_seconds(std::chrono::seconds time) const {
    return nodes * static_cast<double>(time.count());
  }
  double node_hours(std::chrono::seconds time) const { return node_seconds(time) / 3600; }
};

// The struct with a queue manager's settings, for code that does not know the struct.
struct SettingsType {
  std::any (*defaults)();
  void* (*object)(std::any& value);  // the struct, for the row's table of keys
  bool (*equal)(const std::any& a, const std::any& b);
};
template <class Settings>
inline constexpr SettingsType settings_type{
    .defaults = [] { return std::any(Settings{}); },
    .object = [](std::any& value) -> void* { return &std::any_cast<Settings&>(value); },
    .equal =
        [](const std::any& a, const std::any& b) {
          return std::any_cast<const Settings&>(a) == std::any_cast<const Settings&>(b);
        }};

// The section of a queue manager in xffl.yaml, for the row's `complete`.
struct SectionKeys {
  std::function<bool(std::string_view key)> is_set;
  // Reports a problem at the key, or at the section when the file does not have the key.
  std::function<void(std::string_view key, const std::string& message)> problem;
};

struct QueueManager {
  std::string_view name;   // the value of `scheduler`, the section's name and the template's kind
  std::string_view title;  // in messages
  bool this_machine = false;  // its jobs run on the coordinator's machine
  SettingsType settings{};
  // The keys of the section; null: the queue manager has no settings.
  const job::FieldTable& (*keys)() = nullptr;
  /// Fills in the settings that follow from others, and reports settings that do not fit together;
  /// may be null.
  void (*complete)(QueueSettings& settings, const SectionKeys& keys) = nullptr;
  /// The resources of a job; `world_size` is the facility's key.
  JobShape (*shape)(const QueueSettings& settings, int world_size) = nullptr;
  /// Changes the settings to a job of one task on one node, with the processors that the tasks of
  /// a node have together; null: the queue manager has no settings.
  void (*one_task)(QueueSettings& settings) = nullptr;
  /// Changes the settings to a short job that checks the facility: at most `nodes` nodes and this
  /// walltime, in the queue for such jobs if the settings name one; null: the queue manager has no
  /// settings.
  void (*shorten)(QueueSettings& settings, int nodes, std::chrono::seconds walltime) = nullptr;
  /// Changes the settings of one small task to the queue for work without GPUs, if the settings
  /// name one; null: the queue manager has no key for such a queue.
  void (*use_cpu_queue)(QueueSettings& settings) = nullptr;
  bool image_and_modules = false;  // the keys `image` and `modules` of a facility apply
  bool plain_workdir = false;      // the work folder stands in directives of the job script
  std::chrono::milliseconds poll_interval{0};  // when xffl.yaml has none; 0: the policy's
  /// The values of the job script's template.
  ScriptValues (*script_values)(const ScriptRequest& request) = nullptr;
  std::shared_ptr<Scheduler> (*make)(const QueueSettings& settings,
                                     std::shared_ptr<remote::Session> session,
                                     Clock& clock) = nullptr;

  // The members below are null with `this_machine`.
  std::string_view program{};  // `doctor` prints its version
  std::string_view version_option = "--version";
  std::string_view submit_by_hand{};  // the program that submits a script's file
  /// Not empty: what nobody has tried yet. `doctor` and `plan` print it.
  std::string_view caution{};
  /// Asks whether the queue manager would accept a job, and submits nothing; null: it cannot say.
  TestOnly (*check)(remote::Session& session, const QueueSettings& settings,
                    const JobRequest& request, std::stop_token stop) = nullptr;
  /// The longest walltime of the requested partition; empty when there is no limit or no answer.
  /// Null: the queue manager does not show it.
  std::optional<std::chrono::seconds> (*longest_walltime)(remote::Session& session,
                                                          const QueueSettings& settings) = nullptr;
  /// The starts of these jobs in the accounting, by job and time. Throws kNotFound without an
  /// accounting, and kRemote when it does not answer; null: the queue manager has none.
  std::vector<AccountedStart> (*accounted_starts)(remote::Session& session,
                                                  const QueueSettings& settings,
                                                  std::span<const SubmittedJob> jobs,
                                                  std::stop_token stop) = nullptr;
};

/// All queue managers; the first one is the default.
std::span<const QueueManager* const> queue_managers();
/// Throws kConfig with the known names.
const QueueManager& queue_manager(std::string_view name);

// A facility's queue manager with the values of its settings.
class QueueSettings {
 public:
  QueueSettings() : QueueSettings(*queue_managers().front()) {}
  explicit QueueSettings(std::string_view name) : QueueSettings(queue_manager(name)) {}
  explicit QueueSettings(const QueueManager& manager)  // the default settings
      : manager_(&manager), value_(manager.settings.defaults()) {}

  const QueueManager& manager() const { return *manager_; }
  bool is(const QueueManager& manager) const { return manager_ == &manager; }
  void* object() { return manager_->settings.object(value_); }
  /// The settings; throws std::bad_any_cast for the struct of another queue manager.
  template <class Settings>
  Settings& as() {
    return std::any_cast<Settings&>(value_);
  }
  template <class Settings>
  const Settings& as() const {
    return std::any_cast<const Settings&>(value_);
  }

  bool operator==(const QueueSettings& other) const {
    return manager_ == other.manager_ && manager_->settings.equal(value_, other.value_);
  }

 private:
  const QueueManager* manager_;
  std::any value_;
};

}  // namespace xffl::submit
