#include "identities.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace xffl::report {
namespace {

auto values_of(const Identity& one) {
  return std::tie(one.trainer, one.program_sha256, one.data_sha256, one.data_files, one.data_bytes);
}

}  // namespace

std::vector<Identity> identities(const RunStory& story) {
  std::map<FacilityName, std::map<int, Identity>> all;  // the accepted training of each round
  for (const AttemptStory& attempt : story.attempts) {
    if (attempt.outcome != Outcome::kAccepted || !attempt.report || attempt.report->steps == 0)
      continue;
    const job::JobReport& report = *attempt.report;
    all[attempt.facility].insert_or_assign(
        attempt.round,
        Identity{attempt.facility, attempt.round, attempt.round, report.trainer,
                 report.program_sha256, report.data_sha256, report.data_files, report.data_bytes});
  }
  std::vector<Identity> rows;
  for (const auto& [name, rounds] : all) {
    for (const auto& [round, identity] : rounds) {
      if (!rows.empty() && rows.back().facility == name &&
          values_of(rows.back()) == values_of(identity))
        rows.back().last_round = round;
      else
        rows.push_back(identity);
    }
  }
  return rows;
}

}  // namespace xffl::report
