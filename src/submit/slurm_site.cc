#include "xffl/submit/slurm_site.h"

#include <algorithm>
#include <set>
#include <utility>

#include "queue_answers.h"
#include "slurm_commands.h"
#include "xffl/base/error.h"
#include "xffl/base/utf8.h"

namespace xffl::submit {
namespace {

constexpr std::chrono::seconds kAnswerTime{20};
constexpr std::chrono::hours kProposedWalltime{12};
constexpr size_t kMaxNames = 200;
constexpr int kMaxGpus = 64;  // as of the key gpus_per_node
constexpr int kMaxNodes = 1'000'000;
constexpr int64_t kMegabyte = 1 << 20, kGigabyte = 1 << 30;
constexpr double kStateShare = 0.7;  // of a rank's memory; activations and buffers take the rest

// The smallest memory that GPUs of a type have: an A100 has 40 or 80 GB, the H100 of
// MareNostrum 64.
struct GpuMemory {
  std::string_view type;  // a part of Slurm's name; the first one in this order counts
  int gigabytes = 0;
};
constexpr GpuMemory kGpuMemories[] = {
    {"gh200", 96}, {"gb200", 180}, {"h200", 141},   {"h100", 64},    {"b200", 180},
    {"a100", 40},  {"a40", 48},    {"a30", 24},     {"a10", 24},     {"l40", 48},
    {"v100", 16},  {"mi250", 64},  {"mi300a", 128}, {"mi300x", 192},
};

// The same characters as in the keys account, partition and qos of xffl.yaml.
bool is_slurm_name(std::string_view name) {
  constexpr std::string_view kCharacters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.@+-";
  return !name.empty() && name.size() <= 128 &&
         name.find_first_not_of(kCharacters) == std::string_view::npos &&
         std::string_view("_.@+-").find(name.front()) == std::string_view::npos;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// "gpu:a100:4(S:0-1)", "gpu:4": the type, and the number.
std::pair<std::string, int> read_gpus(std::string_view gres) {
  for (const std::string_view each : split(gres, ',')) {
    const auto words = split(each.substr(0, each.find('(')), ':');
    if (words.front() != "gpu" || words.size() < 2 || words.size() > 3) continue;
    const auto count = read_integer(words.back());
    if (!count || *count < 1 || *count > kMaxGpus) continue;
    const bool typed = words.size() == 3 && is_slurm_name(words[1]);
    return {typed ? std::string(words[1]) : "", static_cast<int>(*count)};
  }
  return {};
}

// "1-4" and "4": 4; "1-infinite": 0.
int read_max_nodes(std::string_view sizes) {
  const auto most = read_integer(without_blanks(sizes.substr(sizes.find('-') + 1)));
  return most && *most <= kMaxNodes ? static_cast<int>(*most) : 0;
}

// "cpu=64,node=2": 2; 0 without nodes.
int read_tres_nodes(std::string_view tres) {
  constexpr std::string_view kNode = "node=";
  for (const std::string_view each : split(tres, ','))
    if (each.starts_with(kNode)) return read_max_nodes(each.substr(kNode.size()));
  return 0;
}

// "257000", or "257000+" where the nodes differ.
int64_t read_node_memory(std::string_view megabytes) {
  megabytes = without_blanks(megabytes);
  if (megabytes.ends_with('+')) megabytes.remove_suffix(1);
  const auto count = read_integer(megabytes);
  return count && *count < 1'000'000'000 ? *count * kMegabyte : 0;
}

std::string gigabytes(int64_t bytes) {
  const int64_t tenths = (bytes * 10 + kGigabyte / 2) / kGigabyte;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " GB";
}

std::string count_of(int64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

// A shell that runs `command` and then prints the end mark.
std::vector<std::string> marked(const std::string& command) {
  return {"sh", "-c", "LC_ALL=C " + command + " && echo " + std::string(kEndMark)};
}

template <class Read>
auto ask(remote::Session& session, const std::string& program, const std::string& arguments,
         const Read& read, std::vector<std::string>& problems, std::stop_token stop) {
  const remote::CommandResult answer =
      session.run(marked(program + " " + arguments), "", kAnswerTime, std::move(stop));
  auto rows = answer.exit_code == 0 ? read(answer.out) : decltype(read(answer.out))();
  if (!rows)
    problems.push_back(
        program + " has no answer: " +
        (answer.exit_code == 0 ? "'" + one_line(answer.out) + "'" : failure_of(answer)));
  return rows;
}

}  // namespace

std::optional<std::vector<SlurmPartition>> read_partitions(std::string_view text) {
  const auto lines = lines_of(text);
  if (!lines) return std::nullopt;
  std::vector<SlurmPartition> all;
  for (const std::string_view line : *lines) {
    const auto fields = split(line, '|');
    if (fields.size() != 8 || !is_slurm_name(fields[0]) || all.size() == kMaxNames) continue;
    const auto nodes = read_integer(without_blanks(fields[3]));
    const auto longest = read_time_left(fields[2]);
    if (!nodes || *nodes > kMaxNodes || (!longest && fields[2] != "infinite")) continue;
    const auto [type, gpus] = read_gpus(fields[4]);
    const auto known =
        std::ranges::find_if(all, [&](const auto& each) { return each.name == fields[0]; });
    if (known == all.end()) {
      all.push_back({.name = std::string(fields[0]),
                     .is_default = fields[5].ends_with('*'),
                     .is_up = fields[1] == "up",
                     .nodes = static_cast<int>(*nodes),
                     .gpus_per_node = gpus,
                     .gpu_type = type,
                     .longest = longest,
                     .node_memory = read_node_memory(fields[6]),
                     .max_nodes = read_max_nodes(fields[7])});
      continue;
    }
    // sinfo has a row for each kind of nodes.
    known->nodes += static_cast<int>(*nodes);
    known->node_memory = std::min(known->node_memory, read_node_memory(fields[6]));
    if (known->gpus_per_node == 0) {
      known->gpus_per_node = gpus;
      known->gpu_type = type;
    }
  }
  return all;
}

std::optional<std::vector<SlurmAssociation>> read_associations(std::string_view text) {
  const auto lines = lines_of(text);
  if (!lines) return std::nullopt;
  std::vector<SlurmAssociation> all;
  for (const std::string_view line : *lines) {
    const auto fields = split(line, '|');
    if (fields.size() != 2 || !is_slurm_name(fields[0]) || all.size() == kMaxNames) continue;
    SlurmAssociation association{std::string(fields[0]), {}};
    for (const std::string_view qos : split(fields[1], ','))
      if (is_slurm_name(qos) && association.qos.size() < kMaxNames)
        association.qos.emplace_back(qos);
    all.push_back(std::move(association));
  }
  return all;
}

std::optional<std::vector<SlurmQos>> read_qos_limits(std::string_view text) {
  const auto lines = lines_of(text);
  if (!lines) return std::nullopt;
  std::vector<SlurmQos> all;
  for (const std::string_view line : *lines) {
    const auto fields = split(line, '|');
    if (fields.size() == 3 && is_slurm_name(fields[0]) && all.size() < kMaxNames)
      all.push_back(
          {std::string(fields[0]), read_time_left(fields[1]), read_tres_nodes(fields[2])});
  }
  return all;
}

const SlurmPartition* SlurmSite::partition(std::string_view name) const {
  const auto found =
      std::ranges::find_if(partitions, [&](const auto& p) { return p.name == name; });
  return found == partitions.end() ? nullptr : &*found;
}

const SlurmQos* SlurmSite::find_qos(std::string_view name) const {
  const auto found = std::ranges::find_if(qos, [&](const auto& q) { return q.name == name; });
  return found == qos.end() ? nullptr : &*found;
}

const SlurmPartition* SlurmSite::proposed() const {
  const auto rank = [](const SlurmPartition& p) {
    return (p.is_up ? 4 : 0) + (p.gpus_per_node > 0 ? 2 : 0) + (p.is_default ? 1 : 0);
  };
  const auto best = std::ranges::max_element(partitions, {}, rank);
  return best == partitions.end() ? nullptr : &*best;
}

std::chrono::seconds proposed_walltime(const SlurmPartition* partition, const SlurmQos* qos) {
  std::chrono::seconds time = kProposedWalltime;
  if (partition != nullptr && partition->longest) time = std::min(time, *partition->longest);
  if (qos != nullptr && qos->longest) time = std::min(time, *qos->longest);
  return std::max<std::chrono::seconds>(time, std::chrono::minutes(1));
}

int64_t gpu_memory(std::string_view type) {
  const std::string name = ascii_lower_case(std::string(type));
  if (const size_t unit = name.find("gb"); unit != std::string::npos && unit > 0) {
    const size_t before = name.find_last_not_of("0123456789", unit - 1);
    const size_t first = before == std::string::npos ? 0 : before + 1;
    const auto size = read_integer(std::string_view(name).substr(first, unit - first));
    if (size && *size > 0 && *size < 10'000) return *size * kGigabyte;
  }
  for (const GpuMemory& known : kGpuMemories)
    if (name.find(known.type) != std::string::npos) return known.gigabytes * kGigabyte;
  return 0;
}

NodeProposal proposed_nodes(const SlurmPartition& partition, const SlurmQos* qos,
                            int64_t state_bytes, int64_t batch_size) {
  const bool has_gpus = partition.gpus_per_node > 0;
  const int64_t ranks = has_gpus ? partition.gpus_per_node : 1;  // of a node
  const int64_t memory = has_gpus ? gpu_memory(partition.gpu_type) : partition.node_memory;
  if (state_bytes == 0) return {1, false, "1 node: the size of the model is not known yet"};
  const std::string need = "parameters, gradients and optimizer need " + gigabytes(state_bytes);
  if (memory == 0)
    return {
        1, false,
        "1 node: " + need + "; Slurm does not tell the memory of a " + (has_gpus ? "GPU" : "node")};
  const auto usable = static_cast<int64_t>(static_cast<double>(memory) * kStateShare);
  const std::string place = (has_gpus ? "GPU" : "node");
  if (state_bytes <= usable)
    return {1, false, "1 node: " + need + " of a " + place + "'s " + gigabytes(memory)};
  const int64_t needed = (state_bytes + usable * ranks - 1) / (usable * ranks);
  int64_t limit = partition.nodes;
  for (const int most : {partition.max_nodes, qos == nullptr ? 0 : qos->max_nodes})
    if (most > 0) limit = std::min<int64_t>(limit, most);
  limit = std::max<int64_t>(limit, 1);
  const auto divides = [&](int64_t nodes) { return batch_size % (nodes * ranks) == 0; };
  int64_t nodes = needed;
  while (nodes <= limit && !divides(nodes)) ++nodes;
  if (nodes > limit)  // the most that are possible
    for (nodes = std::min(needed, limit); nodes > 1 && !divides(nodes);) --nodes;
  std::string reason = count_of(nodes, "node") + ": " + need + ", sharded over " +
                       count_of(nodes * ranks, place) + " of " + gigabytes(memory);
  if (nodes < needed)
    reason += "; " + count_of(needed, "node") + " would hold them, but " +
              (needed > limit
                   ? "a job has at most " + std::to_string(limit) + " here"
                   : "their ranks do not divide the batch size of " + std::to_string(batch_size));
  return {static_cast<int>(nodes), nodes * ranks > 1, std::move(reason)};
}

SlurmSite ask_slurm_site(remote::Session& session, std::stop_token stop) {
  SlurmSite site;
  if (auto rows = ask(session, "sinfo", "--noheader --format='%R|%a|%l|%D|%G|%P|%m|%s'",
                      read_partitions, site.problems, stop))
    site.partitions = std::move(*rows);
  const std::string user = "user=\"$(id -un)\"";
  const auto associations =
      ask(session, "sacctmgr", "--noheader --parsable2 show assoc " + user + " format=Account,QOS",
          read_associations, site.problems, stop);
  if (!associations) return site;
  // One row, with the default account; it has no QOS.
  const auto preferred =
      ask(session, "sacctmgr",
          "--noheader --parsable2 show user " + user + " format=DefaultAccount,Admin",
          read_associations, site.problems, stop);
  std::set<std::string> allowed;
  const auto add = [&](const std::string& account) {
    if (std::ranges::find(site.accounts, account) == site.accounts.end())
      site.accounts.push_back(account);
  };
  if (preferred)
    for (const SlurmAssociation& row : *preferred) add(row.account);
  for (const SlurmAssociation& row : *associations) {
    add(row.account);
    allowed.insert(row.qos.begin(), row.qos.end());
  }
  const auto limits =
      ask(session, "sacctmgr", "--noheader --parsable2 show qos format=Name,MaxWall,MaxTRES",
          read_qos_limits, site.problems, stop);
  for (const std::string& name : allowed) site.qos.push_back({name});
  if (limits)
    for (SlurmQos& qos : site.qos)
      for (const SlurmQos& limit : *limits)
        if (limit.name == qos.name) qos = limit;
  return site;
}

}  // namespace xffl::submit
