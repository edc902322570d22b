#include "xffl/facility/budget.h"

#include <cstdio>

namespace xffl::facility {
namespace {

constexpr double kHour = 3600;

std::string hours_text(double node_seconds) {
  const double hours = node_seconds / kHour;
  char text[64];
  std::snprintf(text, sizeof text, hours < 10 ? "%.2f" : "%.1f", hours);
  return text;
}

std::optional<std::string> compare(const std::string& key, const config::Budget& budget,
                                   double spent, double next) {
  const double limit = budget.node_hours * kHour;
  if (budget.node_hours == 0 || spent + next <= limit) return std::nullopt;
  return key + ".node_hours is " + hours_text(limit) + ": the jobs so far need " +
         hours_text(spent) + " node-hours, and the whole walltime of the next job " +
         hours_text(next);
}

}  // namespace

std::optional<std::string> over_budget(const config::Experiment& experiment,
                                       const config::Facility& facility,
                                       const history::Spending& spending, double reserved) {
  if (spending.may_exceed(facility.name)) return std::nullopt;
  const submit::JobShape shape = facility.shape();
  const double next = shape.node_seconds(shape.walltime) - reserved;
  if (auto reason = compare("facilities." + facility.name.str() + ".budget", facility.budget,
                            spending.node_seconds(facility.name), next))
    return reason;
  return compare("policy.budget", experiment.policy.budget, spending.node_seconds(), next);
}

std::optional<std::string> budget_warning(const config::Budget& budget, double node_seconds) {
  const double limit = budget.node_hours * kHour;
  if (budget.node_hours == 0 || node_seconds < budget.warn_at * limit) return std::nullopt;
  return hours_text(node_seconds) + " of " + hours_text(limit) +
         " node-hours are used or reserved by jobs";
}

}  // namespace xffl::facility
