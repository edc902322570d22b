// The table that step() dispatches from, as data: tests check it, and the diagram in
// docs/developer/state_machine.md is generated from it.
#pragma once

#include <string_view>
#include <vector>

#include "xffl/facility/machine.h"

namespace xffl::facility {

// Causes of a phase change that are no events.
inline constexpr std::string_view kNextAction = "next action";  // the phase has nothing to wait for
inline constexpr std::string_view kTimeIsUp = "time is up";     // the deadline, or a long outage

struct Target {
  std::string_view phase;
  std::string_view when;  // for the diagram; may be empty
};

struct Transition {
  std::string_view phase;
  std::string_view cause;    // an event, kNextAction or kTimeIsUp
  std::vector<Target> next;  // phases that it may lead to; empty: the phase stays
};

/// All pairs of a phase and an event that mean something. In any other pair the event is ignored.
const std::vector<Transition>& transitions();

std::string_view name_of(const Phase& phase);
std::string_view name_of(const Event& event);
/// In the order of the variants.
std::vector<std::string_view> phase_names();

}  // namespace xffl::facility
