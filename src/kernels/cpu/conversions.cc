#include "xffl/kernels/cpu/conversions.h"

#include "cpu/conversion_loops.h"
#include "cpu/x86.h"

namespace xffl::kernels {
namespace {

std::vector<Conversions> supported_conversions() {
  std::vector<Conversions> sets{XFFL_CONVERSIONS("portable")};
  x86::add_conversions(sets);
  return sets;
}

}  // namespace

const std::vector<Conversions>& all_conversions() {
  static const std::vector<Conversions> sets = supported_conversions();
  return sets;
}

}  // namespace xffl::kernels
