#include "xffl/trial/facts.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "xffl/base/log.h"

namespace xffl::trial {
namespace {

constexpr size_t kMostFacts = 256, kLongestFact = 200;
constexpr int64_t kMostPaths = 10'000;  // more than fit into kMaxNodeFacts

std::string trial_text(std::string_view text) {
  const size_t end = text.find_last_not_of(" \r\t");
  return log::printable(text.substr(0, end == std::string_view::npos ? 0 : end + 1), kLongestFact);
}

// A number between 0 and 2^53; `otherwise` for any other text.
int64_t trial_number(const std::string& text, int64_t otherwise) {
  int64_t value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool good = read.ec == std::errc() && read.ptr == text.data() + text.size() && value >= 0 &&
                    value < (int64_t{1} << 53);
  return good ? value : otherwise;
}

int64_t kilobytes(const std::string& text, int64_t otherwise) {
  const int64_t value = trial_number(text, -1);
  return value < 0 || value >= (int64_t{1} << 43) ? otherwise : value * 1024;
}

int small_number(const std::string& text) {
  return static_cast<int>(std::min<int64_t>(trial_number(text, 0), 1'000'000));
}

void read_path_state(NodeFacts& facts, const std::string& rest) {
  const size_t blank = rest.find(' ');
  const int64_t number = trial_number(rest.substr(0, blank), -1);
  if (blank == std::string::npos || number < 0 || number >= kMostPaths) return;
  const std::string state = rest.substr(blank + 1);
  facts.paths[static_cast<int>(number)] = state == "ok"        ? PathState::kOk
                                          : state == "missing" ? PathState::kMissing
                                                               : PathState::kUnreadable;
}

void read_fabric(NodeFacts& facts, const std::string& rest) {
  const size_t blank = rest.find(' ');
  if (facts.fabrics.size() >= kMostFacts) return;
  facts.fabrics.push_back(trial_text(rest.substr(0, blank)));
  if (blank != std::string::npos)
    facts.fabric_gbits +=
        static_cast<double>(std::min<int64_t>(trial_number(rest.substr(blank + 1), 0), 100'000));
}

void read_hung(NodeFacts& facts, const std::string& rest) {
  if (rest.starts_with("path-")) {
    const int64_t number = trial_number(rest.substr(5), -1);
    if (number >= 0 && number < kMostPaths)
      facts.paths[static_cast<int>(number)] = PathState::kHung;
  } else if (facts.hung.size() < kMostFacts) {
    facts.hung.push_back(trial_text(rest));
  }
}

// The text of `line` after `word` up to the end; empty when the word is not there.
std::string_view text_after(std::string_view line, std::string_view word) {
  const size_t found = line.find(word);
  return found == std::string_view::npos ? std::string_view() : line.substr(found + word.size());
}

}  // namespace

NodeFacts parse_node_facts(std::string_view text) {
  NodeFacts facts;
  std::istringstream lines{std::string(text.substr(0, kMaxNodeFacts))};
  for (std::string line; std::getline(lines, line);) {
    const size_t blank = std::min(line.find(' '), line.size());
    const std::string word = line.substr(0, blank);
    const std::string rest = blank < line.size() ? line.substr(blank + 1) : "";
    if (word == "host") facts.host = trial_text(rest);
    if (word == "arch") facts.arch = trial_text(rest);
    if (word == "glibc") facts.glibc = trial_text(rest);
    if (word == "driver") facts.driver = trial_text(rest);
    if (word == "amd_driver") facts.amd_driver = trial_text(rest);
    if (word == "gpus") facts.gpus = small_number(rest);
    if (word == "cpus") facts.cpus = small_number(rest);
    if (word == "memory") facts.memory = kilobytes(rest, 0);
    if (word == "available") facts.available = kilobytes(rest, 0);
    if (word == "free") facts.free = kilobytes(rest, -1);
    if (word == "fabric") read_fabric(facts, rest);
    if (word == "path") read_path_state(facts, rest);
    if (word == "hung") read_hung(facts, rest);
    if (word == "end") facts.complete = true;
  }
  return facts;
}

NcclLog parse_nccl_log(std::string_view text) {
  NcclLog log;
  std::istringstream lines{std::string(text.substr(0, kMaxNcclLog))};
  for (std::string line; std::getline(lines, line);) {
    if (const auto name = text_after(line, "Using network "); !name.empty())
      log.network = trial_text(name);
    // Without the line above (another NCCL_DEBUG_SUBSYS): the connections name the network.
    const auto route = text_after(line, " via NET/");
    if (log.network.empty() && !route.empty())
      log.network = trial_text(route.substr(0, route.find_first_of("/ ")));
    if (const auto version = text_after(line, "NCCL version "); !version.empty())
      log.version = trial_text(version);
    if (line.find("NET/Plugin") != std::string::npos &&
        (line.find("Could not find") != std::string::npos ||
         line.find("Failed to") != std::string::npos ||
         line.find("cannot open shared object") != std::string::npos))
      log.plugin_problem = trial_text(text_after(line, "NET/Plugin"));
  }
  return log;
}

}  // namespace xffl::trial
