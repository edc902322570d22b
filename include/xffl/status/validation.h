// What the facilities measured of the global models, round by round.
//
// A round's job measures the model that it is given before it trains, so that the model of round k
// has its figures in the reports of round k + 1, and the last one in those of the evaluation after
// it (policy.evaluate_last). A facility that was missing there leaves a gap.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "xffl/history/run_state.h"

namespace xffl::status {

struct GlobalLoss {
  int round = 0;  // whose global model; 0: the model that the run began with
  FacilityName facility;
  std::string set;
  int64_t tokens = 0;  // predicted ones
  double nll = 0;      // mean over them, in nats
};

/// By round, then by facility, then in the order of the report.
std::vector<GlobalLoss> global_losses(const history::RunState& run_state);

/// A table for people: a row for each published model, a column for each facility's set, "loss
/// (perplexity)"; "-": not measured. Empty when nothing was measured.
std::string format_global_losses(const history::RunState& run_state);

}  // namespace xffl::status
