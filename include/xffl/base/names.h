// Strong types for names and paths.
//
// The constructor checks the alphabet; no other module checks or quotes a name again.
#pragma once

#include <compare>
#include <functional>
#include <string>
#include <string_view>

namespace xffl {

/// A string with one meaning. `Tag::check(text)` throws kConfig for an invalid name.
template <class Tag>
class Name {
 public:
  Name() = default;
  explicit Name(std::string text) : text_(std::move(text)) { Tag::check(text_); }

  const std::string& str() const { return text_; }
  bool empty() const { return text_.empty(); }
  auto operator<=>(const Name&) const = default;

 private:
  std::string text_;
};

/// A facility's name, [a-z0-9][a-z0-9_-]{0,31}: a folder name, a part of a job name and a log
/// field.
struct FacilityTag {
  static void check(std::string_view text);
};
using FacilityName = Name<FacilityTag>;

/// A project's name: the alphabet of FacilityTag, up to 64 characters.
struct ProjectTag {
  static void check(std::string_view text);
};
using ProjectName = Name<ProjectTag>;

/// The name of a run's folder under runs/, such as "0003": 4 to 9 digits.
struct RunTag {
  static void check(std::string_view text);
};
using RunName = Name<RunTag>;

/// A scheduler's job id: [A-Za-z0-9_.+-]{1,100}, not starting with '-'. check() throws kRemote.
struct JobIdTag {
  static void check(std::string_view text);
};
using JobId = Name<JobIdTag>;

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

template <class Tag>
struct std::hash<xffl::Name<Tag>> {
  size_t operator()(const xffl::Name<Tag>& name) const {
    return std::hash<std::string>{}(name.str());
  }
};
