// Strong types for names and paths.
//
// The constructor checks the alphabet; no other module checks or quotes a name again.
#pragma once

#include <compare>
#include <functional>
#include <string>
#include <string_view>

namespace xffl {

/// A string with one meaning. `check(text)` throws for an invalid name.
template <void (*check)(std::string_view)>
class Name {
 public:
  Name() = default;
  explicit Name(std::string text) : text_(std::move(text)) { check(text_); }

  const std::string& str() const { return text_; }
  bool empty() const { return text_.empty(); }
  auto operator<=>(const Name&) const = default;

 private:
  std::string text_;
};

/// [a-z0-9][a-z0-9_-]{0,31}: used as a folder name, a part of a job name and a log field. Throws
/// kConfig, as the functions below.
void check_facility_name(std::string_view text);
using FacilityName = Name<check_facility_name>;

/// The same alphabet, up to 64 characters.
void check_project_name(std::string_view text);
using ProjectName = Name<check_project_name>;

/// "0003": the folder under runs/; digits only.
void check_run_name(std::string_view text);
using RunName = Name<check_run_name>;

/// A scheduler's job id: [A-Za-z0-9_.+-]{1,64}, not starting with '-'. Throws
/// kRemote.
void check_job_id(std::string_view text);
using JobId = Name<check_job_id>;

/// A path at a facility, not of this machine: absolute, no "..", no control characters, at most
/// 4,000 bytes.
class RemotePath {
 public:
  RemotePath() = default;
  explicit RemotePath(std::string text);

  const std::string& str() const { return text_; }
  bool empty() const { return text_.empty(); }
  /// `child` is relative and has no ".." component.
  RemotePath operator/(std::string_view child) const;
  RemotePath parent() const;
  std::string filename() const;
  auto operator<=>(const RemotePath&) const = default;

 private:
  std::string text_;
};

}  // namespace xffl

template <void (*check)(std::string_view)>
struct std::hash<xffl::Name<check>> {
  size_t operator()(const xffl::Name<check>& name) const {
    return std::hash<std::string>{}(name.str());
  }
};
