#include "xffl/config/experiment.h"

#include <algorithm>
#include <charconv>

#include "xffl/base/error.h"

namespace xffl::config {

namespace {

constexpr std::string_view kNameCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-";

bool is_plain_host(std::string_view name) {
  return !name.empty() && name.size() <= 253 && name.front() != '-' && name.front() != '.' &&
         name.find_first_not_of(kNameCharacters) == std::string_view::npos;
}

bool is_address(std::string_view name) {
  return name.find(':') != std::string_view::npos &&
         name.find_first_not_of("0123456789abcdefABCDEF:.") == std::string_view::npos;
}

/// Reads "" or ":1" to ":65535".
bool read_port(std::string_view text, int& port) {
  if (text.empty()) return true;
  const char* const end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data() + 1, end, port);
  return text.front() == ':' && problem == std::errc() && rest == end && text[1] >= '1' &&
         text[1] <= '9' && port <= 65535;
}

}  // namespace

std::optional<remote::SshHost> parse_host(std::string_view text) {
  remote::SshHost host;
  size_t end = 0;  // end of the name
  if (text.starts_with('[')) {
    end = text.find(']');
    if (end == std::string_view::npos || !is_address(text.substr(1, end - 1))) return std::nullopt;
    host.name = text.substr(1, end++ - 1);
  } else {
    end = std::min(text.find(':'), text.size());
    host.name = text.substr(0, end);
    if (!is_plain_host(host.name)) return std::nullopt;
  }
  return read_port(text.substr(end), host.port) ? std::optional(host) : std::nullopt;
}

std::string format_host(const remote::SshHost& host) {
  const bool address = host.name.find(':') != std::string::npos;
  return (address ? "[" + host.name + "]" : host.name) +
         (host.port == 22 ? "" : ":" + std::to_string(host.port));
}

std::optional<RemotePath> Facility::find_on_compute_nodes(const RemotePath& path) const {
  if (compute_mounts.empty()) return path;
  std::string_view deepest, there;
  for (const std::string& mount : compute_mounts) {
    const size_t colon = mount.find(':');
    const std::string_view here = std::string_view(mount).substr(0, colon);
    const std::string_view rest =
        std::string_view(path.str()).substr(std::min(here.size(), path.str().size()));
    if (!path.str().starts_with(here) || (!rest.empty() && rest.front() != '/') ||
        here.size() <= deepest.size())
      continue;
    deepest = here;
    there = colon == std::string::npos ? here : std::string_view(mount).substr(colon + 1);
  }
  if (deepest.empty()) return std::nullopt;
  return RemotePath(std::string(there) + path.str().substr(deepest.size()));
}

const Facility& Experiment::facility(const FacilityName& name) const {
  std::string known;
  for (const Facility& facility : facilities) {
    if (facility.name == name) return facility;
    known += (known.empty() ? "" : ", ") + facility.name.str();
  }
  throw Error(ErrorKind::kNotFound, "the project '" + project.str() + "' has no facility '" +
                                        name.str() + "'; there are: " + known);
}

std::chrono::milliseconds Experiment::poll_interval(const Facility& facility) const {
  return facility.poll_interval.count() > 0 ? facility.poll_interval : policy.poll_interval;
}

}  // namespace xffl::config
