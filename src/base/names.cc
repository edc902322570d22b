#include "xffl/base/names.h"

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl {
namespace {

bool is_lower_alnum(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

void check_identifier(std::string_view text, std::string_view role, size_t max_length) {
  bool good = !text.empty() && text.size() <= max_length && is_lower_alnum(text.front());
  for (char c : text) good = good && (is_lower_alnum(c) || c == '_' || c == '-');
  if (good) return;
  throw Error(ErrorKind::kConfig, "'" + log::printable(text, 80) + "' cannot be a " +
                                      std::string(role) + " name: expected 1 to " +
                                      std::to_string(max_length) +
                                      " of a-z, 0-9, '_' and '-', starting with a letter or digit");
}

}  // namespace

void FacilityTag::check(std::string_view text) { check_identifier(text, "facility", 32); }

void ProjectTag::check(std::string_view text) { check_identifier(text, "project", 64); }

void RunTag::check(std::string_view text) {
  bool good = text.size() >= 4 && text.size() <= 9;
  for (char c : text) good = good && c >= '0' && c <= '9';
  if (!good)
    throw Error(ErrorKind::kConfig,
                "'" + log::printable(text, 80) +
                    "' is not a run: expected digits such as 0003, a folder under runs/");
}

void JobIdTag::check(std::string_view text) {
  // The ids of PBS end with the name of its server.
  bool good = !text.empty() && text.size() <= 100 && text.front() != '-';
  for (char c : text)
    good = good && (is_lower_alnum(c) || (c >= 'A' && c <= 'Z') || c == '_' || c == '.' ||
                    c == '+' || c == '-');
  if (!good)
    throw Error(ErrorKind::kRemote,
                "the scheduler's answer '" + log::printable(text, 80) + "' is not a job id");
}

RemotePath::RemotePath(std::string text) : text_(std::move(text)) {
  auto fail = [&](std::string_view problem) {
    throw Error(ErrorKind::kConfig,
                "'" + log::printable(text_, 200) +
                    "' cannot be a path at a facility: " + std::string(problem));
  };
  if (text_.empty() || text_.front() != '/') fail("expected an absolute path");
  if (text_.size() > 4000) fail("longer than 4,000 bytes");
  for (unsigned char c : text_)
    if (c < 0x20 || c == 0x7f) fail("it holds a control character");
  if ((text_ + "/").find("/../") != std::string::npos) fail("it holds '..'");
  while (text_.size() > 1 && text_.back() == '/') text_.pop_back();
}

RemotePath RemotePath::operator/(std::string_view child) const {
  if (child.empty() || child.front() == '/')
    throw Error(ErrorKind::kInternal, "not a relative path: '" + log::printable(child, 200) + "'");
  return RemotePath(text_ == "/" ? text_ + std::string(child) : text_ + "/" + std::string(child));
}

RemotePath RemotePath::parent() const {
  const size_t slash = text_.rfind('/');
  return RemotePath(slash == 0 ? "/" : text_.substr(0, slash));
}

std::string RemotePath::filename() const { return text_.substr(text_.rfind('/') + 1); }

}  // namespace xffl
