// How it works: a coordinator writes each event to the database first and to the mirror second, so
// the mirror is read first. A line of the mirror that the database lacks then means a lost event.
#include "xffl/history/audit.h"

#include <fstream>
#include <optional>
#include <utility>

#include "store_parts.h"
#include "xffl/base/error.h"

namespace xffl::history {
namespace {

namespace fs = std::filesystem;

struct MirrorLine {
  StoredEvent event;
  std::string chain;    // that the line claims
  std::string problem;  // of a line that is no event
};

// All whole lines up to the first one that is no event. A torn last line belongs to a killed
// writer.
std::vector<MirrorLine> mirror_lines(const fs::path& path) {
  std::vector<MirrorLine> lines;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text) && !file.eof();) {
    try {
      auto [event, chain] = parse_mirror_line(text);
      lines.push_back({std::move(event), std::move(chain), {}});
    } catch (const Error& error) {
      lines.push_back({{}, {}, error.what()});
      return lines;
    }
  }
  return lines;
}

// Compares the mirror's lines with the database's events, one after the other.
class MirrorComparison {
 public:
  MirrorComparison(std::vector<MirrorLine> lines, JournalAudit& audit)
      : lines_(std::move(lines)), audit_(audit) {}

  void compare(const StoredEvent& event, const std::string& chain) {
    const size_t index = static_cast<size_t>(event.seq) - 1;
    if (index >= lines_.size() || !audit_.mirror_damage.empty()) return;
    const MirrorLine& line = lines_[index];
    const std::string number = "line " + std::to_string(event.seq);
    if (!line.problem.empty())
      audit_.mirror_damage = number + ": " + line.problem;
    else if (line.event.seq != event.seq || line.chain != chain ||
             next_chain(audit_.chains.empty() ? genesis_chain() : audit_.chains.back(),
                        line.event) != chain)
      audit_.mirror_damage = number + " differs from the journal's event " +
                             std::to_string(event.seq) + " (" + event.kind + ")";
    else
      audit_.mirrored = event.seq;
  }

  // Without damage of the database.
  void finish() {
    const size_t events = audit_.events.size();
    if (audit_.mirror_damage.empty() && lines_.size() > events)
      audit_.mirror_damage = "it has " + std::to_string(lines_.size()) +
                             " lines, and the journal has " + std::to_string(events) +
                             " events: the journal has lost events";
  }

 private:
  const std::vector<MirrorLine> lines_;
  JournalAudit& audit_;
};

}  // namespace

JournalAudit audit_journal(const fs::path& path) {
  JournalAudit audit;
  MirrorComparison mirror(mirror_lines(fs::path(path).replace_extension(".jsonl")), audit);
  try {
    read_snapshot(path, [&](Database& database) {
      check_structure(database);
      for_each_verified(database, [&](const StoredEvent& event, const std::string& chain) {
        mirror.compare(event, chain);
        audit.events.push_back(event);
        audit.chains.push_back(chain);
      });
      return std::vector<StoredEvent>();
    });
    mirror.finish();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;
    audit.damage = error.what();
  }
  return audit;
}

}  // namespace xffl::history
