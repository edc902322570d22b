// Names and paths: an accepted one is a safe part of a path and of a command.
#include "fuzz.h"
#include "xffl/base/names.h"
#include "xffl/config/experiment.h"

using namespace xffl;

namespace {

template <class Name>
void check_name(std::string_view text, size_t max_length) {
  const auto name = fuzz::accepted([&] { return Name(std::string(text)); });
  if (!name) return;
  fuzz::expect(name->str() == text && !text.empty() && text.size() <= max_length,
               "a name is unchanged and short", text);
  fuzz::expect(
      text.front() != '-' && text.find_first_of("/ \t\n'\"\\$`;&|<>*?") == std::string_view::npos,
      "a name is one word", text);
}

void check_path(std::string_view text) {
  const auto path = fuzz::accepted([&] { return RemotePath(std::string(text)); });
  if (!path) return;
  const std::string slashed = path->str() + "/";
  fuzz::expect(slashed.front() == '/' && slashed.find("/../") == std::string::npos,
               "a path is absolute", slashed);
  fuzz::expect(RemotePath(path->str()) == *path, "a path is read back", slashed);
  fuzz::expect(path->parent().str().size() <= path->str().size(), "a parent is shorter", slashed);
  const auto child = fuzz::accepted([&] { return *path / "job.json"; });
  fuzz::expect(!child || child->parent() == *path, "a child's parent is its folder", slashed);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  check_name<FacilityName>(text, 32);
  check_name<ProjectName>(text, 64);
  check_name<RunName>(text, 9);
  check_name<JobId>(text, 100);
  check_path(text);
  if (const auto host = config::parse_host(text)) {
    const auto again = config::parse_host(config::format_host(*host));
    fuzz::expect(again && *again == *host, "a written host is read back", text);
    fuzz::expect(host->port >= 1 && host->port <= 65535, "a port is valid", text);
  }
  return 0;
}
