// What a course looks like to people.
#include "xffl/base/log.h"
#include "xffl/facility/machine.h"

namespace xffl::facility {
namespace {

std::string duration_words(std::chrono::seconds duration) {
  const auto count = duration.count();
  if (count < 120) return std::to_string(count) + " s";
  if (count < 7200) return std::to_string(count / 60) + " min";
  return std::to_string(count / 3600) + " h";
}

std::string job_words(const Course::Volatile& now) {
  if (!now.status) return "submitted";
  const submit::JobStatus& status = *now.status;
  std::string text(submit::to_string(status.state));
  const std::string& why = status.reason.empty() ? status.native : status.reason;
  if (!why.empty() && why != text) text += " (" + log::printable(why, 100) + ")";
  if (status.state == submit::JobState::kPending && status.starts_in)
    text += ", starts in " + duration_words(*status.starts_in);
  if (status.state == submit::JobState::kRunning && status.ends_in)
    text += ", time limit in " + duration_words(*status.ends_in);
  return text;
}

std::string step_words(const Course& course) {
  if (course.known.accepted) return "accepted";
  if (course.known.missing) return "missing";
  const history::Attempt* attempt = course.known.current();
  if (attempt == nullptr || attempt->failure) return "not started";
  if (!attempt->pushed) return "pushing";
  if (attempt->job_id.empty()) return course.now.submitting ? "submitting" : "submission in doubt";
  return course.now.reported ? "fetching" : job_words(course.now);
}

}  // namespace

std::string describe(const Course& course) {
  std::string text = step_words(course);
  if (course.now.needs_person)
    return "PAUSED(auth), " + text + ": " + log::printable(course.now.trouble, 300);
  if (!course.now.trouble.empty())
    text += ", tried again: " + log::printable(course.now.trouble, 300);
  return text;
}

}  // namespace xffl::facility
