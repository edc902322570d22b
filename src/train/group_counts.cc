#include "group_counts.h"

#include <torch/types.h>

#include <array>
#include <cmath>
#include <vector>

namespace xffl::train {
namespace {

constexpr int64_t kNumCounts = 4;

}  // namespace

Json gather_counts(const JobGroups& groups, at::Device device, Trainer& trainer,
                   const GroupExchange& exchange) {
  const std::array<double, 2> scale = trainer.loss_scale().state();
  const at::Tensor mine = at::empty({kNumCounts}, at::kDouble);
  double* values = mine.mutable_data_ptr<double>();
  values[0] = static_cast<double>(trainer.optimizer().num_steps());
  values[1] = scale[0];
  values[2] = scale[1];
  values[3] = static_cast<double>(exchange.tokens_since());
  const at::Tensor all = at::empty({groups.count() * kNumCounts},
                                   at::TensorOptions().dtype(at::kDouble).device(device));
  groups.across().all_gather(all, mine.to(device));
  const at::Tensor host = all.to(at::kCPU);
  const double* of_group = host.const_data_ptr<double>();
  Json counts = Json::array();
  for (int g = 0; g < groups.count(); ++g, of_group += kNumCounts)
    counts.push_back(std::vector<double>(of_group, of_group + kNumCounts));
  return counts;
}

void restore_counts(const Json& counts, int64_t steps_since, const JobGroups& groups,
                    Trainer& trainer, GroupExchange& exchange) {
  const auto mine =
      counts.at(static_cast<size_t>(groups.index())).get<std::array<double, kNumCounts>>();
  trainer.optimizer().set_num_steps(std::llround(mine[0]));
  trainer.loss_scale().set_state({mine[1], mine[2]});
  exchange.set_since(std::llround(mine[3]), steps_since);
}

}  // namespace xffl::train
