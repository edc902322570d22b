#include "journal_follower.h"

#include <vector>

namespace xffl::observe {
namespace {

// A value that changes with the journal: the sizes and times of its files.
std::string trace_of(const std::filesystem::path& journal) {
  std::string trace;
  for (const auto& path : {journal, std::filesystem::path(journal.string() + "-wal")}) {
    std::error_code absent;
    trace += std::to_string(std::filesystem::file_size(path, absent)) + " ";
    trace +=
        std::to_string(std::filesystem::last_write_time(path, absent).time_since_epoch().count()) +
        " ";
  }
  return trace;
}

}  // namespace

void JournalFollower::read(const history::Store::Visitor& each, bool certain) {
  const std::string trace = trace_of(journal_);
  if (trace == trace_ && !certain) return;
  history::visit_events(journal_, {.first_seq = seq_ + 1}, [&](const history::StoredEvent& event) {
    each(event);
    seq_ = event.seq;
  });
  trace_ = trace;
}

}  // namespace xffl::observe
