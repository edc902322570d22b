// The partitions, accounts and QOS that a site's Slurm offers to the user, for `xffl config`.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/remote/session.h"

namespace xffl::submit {

struct SlurmPartition {
  std::string name;
  bool is_default = false;
  bool is_up = false;
  int nodes = 0;
  int gpus_per_node = 0;                          // of its first kind of nodes with GPUs
  std::string gpu_type;                           // empty: Slurm names none
  std::optional<std::chrono::seconds> longest{};  // walltime; none: unlimited
  int64_t node_memory = 0;                        // bytes, of its smallest node; 0: not known
  int max_nodes = 0;                              // of a job; 0: no limit of its own
  bool operator==(const SlurmPartition&) const = default;
};

struct SlurmQos {
  std::string name;
  std::optional<std::chrono::seconds> longest{};  // walltime; none: no limit of its own
  int max_nodes = 0;                              // of a job; 0: no limit of its own
  bool operator==(const SlurmQos&) const = default;
};

struct SlurmSite {
  std::vector<SlurmPartition> partitions;  // in the order of sinfo
  std::vector<std::string> accounts;       // the default account first; empty without accounting
  std::vector<SlurmQos> qos;               // that the user may request
  std::vector<std::string> problems;       // the questions without an answer, for the user

  const SlurmPartition* partition(std::string_view name) const;  // null: unknown
  const SlurmQos* find_qos(std::string_view name) const;
  /// The partition to propose: with GPUs if any has, then the default one; null without partitions.
  const SlurmPartition* proposed() const;
};

/// A walltime to propose: at most 12 h, and within the limits of the partition and the QOS, which
/// may be null.
std::chrono::seconds proposed_walltime(const SlurmPartition* partition, const SlurmQos* qos);

// The nodes to propose for a job, and the reason, for the user.
struct NodeProposal {
  int nodes = 1;
  bool sharded = false;  // one rank cannot hold the model's state: the ranks have to shard it
  std::string reason;
};
/// The least nodes whose ranks (one on each GPU, or one on a node without GPUs) hold `state_bytes`,
/// the parameters, gradients and optimizer, in 70 % of their memory; activations take the rest. 0:
/// not known. The ranks divide `batch_size`, unless it is 0. One node where Slurm does not tell the
/// memory, and at most the nodes that the partition and the QOS, which may be null, give a job.
NodeProposal proposed_nodes(const SlurmPartition& partition, const SlurmQos* qos,
                            int64_t state_bytes, int64_t batch_size);

/// The bytes of a GPU from the name of its type in Slurm, such as "a100" or
/// "nvidia_a100_80gb_pcie"; where a type has several sizes, the smallest one. 0: not known.
int64_t gpu_memory(std::string_view type);

/// Asks sinfo and sacctmgr. A command that is absent, fails or answers in another way leaves its
/// part empty and adds a problem. Names that no directive of a job script can hold are left out.
/// Throws kRemote and kAuth for a lost link, kCancelled on `stop`.
SlurmSite ask_slurm_site(remote::Session& session, std::stop_token stop);

/// The parsers: rows of "name|up|walltime|nodes|gres|default name|MB of a node|nodes of a job"
/// (read_partitions), of "account|qos,qos" (read_associations) and
/// "name|walltime|tres=count,..." (read_qos_limits), each with an end mark. Empty for an answer
/// without the mark or with too many lines; they skip malformed rows.
std::optional<std::vector<SlurmPartition>> read_partitions(std::string_view text);
struct SlurmAssociation {
  std::string account;
  std::vector<std::string> qos;
};
std::optional<std::vector<SlurmAssociation>> read_associations(std::string_view text);
std::optional<std::vector<SlurmQos>> read_qos_limits(std::string_view text);

}  // namespace xffl::submit
