// An event of the journal: a decoded event is encoded to a payload that gives the same event.
#include <algorithm>

#include "fuzz.h"
#include "xffl/history/events.h"

using namespace xffl;
using history::StoredEvent;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The input: a line with the kind, a line with the facility, and the payload.
  std::string_view rest = fuzz::text_of(data, size);
  const auto take_line = [&] {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    return std::string(line);
  };
  StoredEvent stored{.seq = 7, .time_utc = "2026-11-21T21:22:39.449Z", .round = 2, .attempt = 1};
  stored.kind = take_line();
  stored.facility = take_line();
  stored.payload = rest;
  const auto event = fuzz::accepted([&] { return history::decode(stored); });
  if (!event) return 0;
  fuzz::expect(history::kind_of(event->event) == stored.kind, "the kind stays", stored.kind);
  StoredEvent written = history::encode(event->scope, event->event);
  fuzz::expect(written.facility == stored.facility && written.round == 2 && written.attempt == 1,
               "the scope stays");
  const history::RecordedEvent again = history::decode(written);
  const StoredEvent rewritten = history::encode(again.scope, again.event);
  fuzz::expect(rewritten.payload == written.payload && rewritten.kind == written.kind,
               "a written event is a fixed point", written.payload);
  return 0;
}
