// The validation losses of the global models, by round and facility.
//
// A job evaluates its input model before it trains: the reports of round k + 1 have the losses of
// the model of round k, and the evaluation (policy.evaluate_last) has those of the last model. A
// facility that was missing in a round has no figure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "xffl/history/run_state.h"

namespace xffl::status {

struct GlobalLoss {
  int round = 0;  // of the global model; 0: the initial model
  FacilityName facility;
  std::string set;
  int64_t tokens = 0;  // predicted tokens
  double nll = 0;      // mean per token, in nats
};

/// By round, then by facility, then in the order of the report.
std::vector<GlobalLoss> global_losses(const history::RunState& run_state);

/// A table: a row for each published model, a column for each facility's set, cells "loss
/// (perplexity)" or "-" without a figure. Empty without any figure.
std::string format_global_losses(const history::RunState& run_state);

}  // namespace xffl::status
