// What no round needs any more leaves the facilities' scratch space and this machine.
#pragma once

#include <map>
#include <set>

#include "xffl/base/names.h"
#include "xffl/plan/round_plan.h"

namespace xffl::round {

struct Context;

// Facilities at which something of more rounds than the last may lie: their folders are listed. At
// the beginning that is all of them, since the coordinator before may have been interrupted.
class Tidiness {
 public:
  bool is_tidy(const FacilityName& name) const { return tidy_.contains(name); }
  void set_tidy(const FacilityName& name, bool tidy) {
    if (tidy)
      tidy_.insert(name);
    else
      tidy_.erase(name);
  }

 private:
  std::set<FacilityName> tidy_;
};

/// Removes the rounds up to plan.round - policy.keep_rounds from every facility, with the models that
/// only they used, and their masters here. Failing harms nothing: it is logged, and done again after
/// the next round.
void clean_up(Context& context, const plan::RoundPlan& plan);

}  // namespace xffl::round
