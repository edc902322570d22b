#include "xffl/aggregate/server_optimizer.h"

#include <string>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/kernels/cpu/mean.h"

namespace xffl::aggregate {
namespace {

// McMahan et al., 2017.
void fedavg(const ServerPiece& piece) {
  if (piece.deltas) kernels::add(piece.master, piece.values);
}

constexpr ServerOptimizer kServerOptimizers[] = {
    {.name = "fedavg",
     .help = "adds the mean of the deltas to the master, or takes the mean of the weights",
     .reads_master_for_weights = false,
     .step = fedavg},
};

}  // namespace

std::vector<double> ServerOptimizer::defaults() const {
  std::vector<double> values;
  for (const ServerSetting& setting : settings) values.push_back(setting.default_value);
  return values;
}

std::span<const ServerOptimizer> server_optimizers() { return kServerOptimizers; }

const ServerOptimizer& server_optimizer(std::string_view name) {
  std::string known;
  for (const ServerOptimizer& each : kServerOptimizers) {
    if (each.name == name) return each;
    known += (known.empty() ? "" : ", ") + std::string(each.name);
  }
  throw Error(ErrorKind::kConfig, "no server optimizer is named '" + log::printable(name, 100) +
                                      "'; there are: " + known);
}

}  // namespace xffl::aggregate
