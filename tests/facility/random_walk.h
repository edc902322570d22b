// A facility machine whose actions get random answers.
//
// A walk answers each action with any event that may follow it, lets any time pass, pauses the
// facility and restarts the machine now and then. It reaches states that no simulated federation is
// in.
#pragma once

#include <cstdint>
#include <functional>

#include "xffl/facility/machine.h"

namespace xffl::test {

using OnStep = std::function<void(const facility::Phase& before, const facility::Event& event,
                                  const facility::Step& step)>;

/// The same steps for the same seed.
void walk(uint64_t seed, const OnStep& on_step);

}  // namespace xffl::test
