#include "xffl/comm/rendezvous.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "xffl/base/error.h"

namespace xffl::comm {
namespace {

// Derived ports lie below Linux's ephemeral ports (32768) and above the usual ports of services.
constexpr int kFirstPort = 15000;
constexpr int kNumPorts = 17000;
constexpr int kMaxRanks = 1 << 20;

class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  bool has(const std::string& name) const { return get(name).has_value(); }

  std::optional<std::string> get(const std::string& name) const {
    std::optional<std::string> value = environment_(name);
    if (value && value->empty()) return std::nullopt;
    return value;
  }

  std::string text(const std::string& name, std::string_view reader) const {
    std::optional<std::string> value = get(name);
    if (!value) {
      throw Error(ErrorKind::kConfig,
                  name + " is not set, and " + std::string(reader) +
                      " needs it: start the ranks by srun or by 'xffl simulate', or set it");
    }
    return *value;
  }

  int64_t integer(const std::string& name, int64_t min, int64_t max,
                  std::string_view reader) const {
    const std::string value = text(name, reader);
    int64_t number = 0;
    const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (code != std::errc() || end != value.data() + value.size() || number < min || number > max) {
      throw Error(ErrorKind::kConfig, name + " is '" + value.substr(0, 100) +
                                          "', expected an integer from " + std::to_string(min) +
                                          " to " + std::to_string(max));
    }
    return number;
  }

  int number(const std::string& name, int min, int max, std::string_view reader) const {
    return static_cast<int>(integer(name, min, max, reader));
  }

  int number_or(const std::string& name, int otherwise, int min, int max) const {
    return has(name) ? number(name, min, max, "") : otherwise;
  }

 private:
  const Environment& environment_;
};

void read_plain(const Variables& variables, Rendezvous& result) {
  constexpr std::string_view kReader = "a rank described by RANK and WORLD_SIZE";
  result.world_size = variables.number("WORLD_SIZE", 1, kMaxRanks, kReader);
  if (result.world_size > 1 || variables.has("RANK")) {
    result.rank = variables.number("RANK", 0, result.world_size - 1, kReader);
  }
  result.local_world_size =
      variables.number_or("LOCAL_WORLD_SIZE", result.world_size, 1, result.world_size);
  // Without LOCAL_RANK all ranks count as ranks of one machine.
  result.local_rank = variables.number_or("LOCAL_RANK", result.rank, 0, kMaxRanks);
  if (result.world_size == 1) return;
  result.master_address = variables.text("MASTER_ADDR", "a world of several ranks");
  result.master_port = variables.number("MASTER_PORT", 1, 65535, "a world of several ranks");
}

// Parses a list of tasks per node such as "4(x2),3"; the first number is the result.
int slurm_local_world_size(const Variables& variables, int world_size) {
  const std::string list = variables.get("SLURM_STEP_TASKS_PER_NODE")
                               .value_or(variables.get("SLURM_TASKS_PER_NODE").value_or(""));
  int count = 0;
  std::from_chars(list.data(), list.data() + list.size(), count);
  return count >= 1 ? std::min(count, world_size) : world_size;
}

void read_slurm(const Variables& variables, Rendezvous& result) {
  constexpr std::string_view kReader = "a rank started by Slurm";
  result.world_size = variables.number("SLURM_NTASKS", 1, kMaxRanks, kReader);
  result.rank = variables.number("SLURM_PROCID", 0, result.world_size - 1, kReader);
  if (result.world_size == 1) return;
  result.local_rank = variables.number("SLURM_LOCALID", 0, kMaxRanks, kReader);
  result.local_world_size = slurm_local_world_size(variables, result.world_size);
  if (const auto address = variables.get("MASTER_ADDR")) {
    result.master_address = *address;
  } else if (const auto nodes = variables.get("SLURM_STEP_NODELIST")) {
    result.master_address = first_host(*nodes);
  } else {
    result.master_address = first_host(variables.text("SLURM_JOB_NODELIST", kReader));
  }
  if (variables.has("MASTER_PORT")) {
    result.master_port = variables.number_or("MASTER_PORT", 0, 1, 65535);
  } else {
    const int64_t job = variables.integer("SLURM_JOB_ID", 0, INT64_MAX / 64, kReader);
    const int64_t step = variables.number_or("SLURM_STEP_ID", 0, 0, UINT16_MAX);
    result.master_port = static_cast<int>(kFirstPort + (job * 16 + step) % kNumPorts);
  }
}

}  // namespace

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  };
}

std::string first_host(std::string_view node_list) {
  std::string host;
  for (size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] != '[') {
      host += node_list[i];
      continue;
    }
    const size_t close = node_list.find(']', i);
    const size_t end = node_list.find_first_of(",-]", i + 1);
    if (close == std::string_view::npos || end == i + 1) {
      host.clear();
      break;
    }
    host += node_list.substr(i + 1, end - i - 1);
    i = close;
  }
  const bool plain = std::all_of(host.begin(), host.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
  if (host.empty() || !plain) {
    throw Error(ErrorKind::kConfig, "no host can be read from Slurm's node list '" +
                                        std::string(node_list.substr(0, 200)) +
                                        "': set MASTER_ADDR");
  }
  return host;
}

Rendezvous read_rendezvous(const Environment& environment) {
  const Variables variables(environment);
  Rendezvous result;
  if (variables.has("RANK") || variables.has("WORLD_SIZE")) {
    read_plain(variables, result);
  } else if (variables.has("SLURM_PROCID")) {
    read_slurm(variables, result);
  }
  result.timeout =
      std::chrono::seconds(variables.number_or("XFFL_COMM_TIMEOUT", 600, 1, 30 * 24 * 3600));
  return result;
}

}  // namespace xffl::comm
