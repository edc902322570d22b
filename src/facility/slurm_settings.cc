#include "xffl/facility/slurm_settings.h"

namespace xffl::facility {

submit::SlurmSettings slurm_settings(const config::Slurm& slurm) {
  submit::SlurmRequest request;
  request.account = slurm.account;
  request.partition = slurm.partition;
  request.qos = slurm.qos;
  request.constraint = slurm.constraint;
  request.reservation = slurm.reservation;
  request.nodes = slurm.nodes;
  request.gpus_per_node = slurm.gpus_per_node;
  request.gpu_type = slurm.gpu_type;
  request.gpu_option = slurm.gpu_option == config::GpuOption::kGres ? "gres" : "gpus-per-node";
  request.tasks_per_node = slurm.tasks_per_node;
  request.cpus_per_task = slurm.cpus_per_task;
  request.memory_bytes_per_node = static_cast<uint64_t>(slurm.memory_per_node);
  request.exclusive = slurm.exclusive;
  request.time = slurm.time;
  request.warning = slurm.warning;
  request.cluster = slurm.cluster;
  request.extra = slurm.extra;
  return {std::move(request), slurm.settle_time, slurm.command_timeout};
}

}  // namespace xffl::facility
