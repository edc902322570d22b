// An event of the journal: a decoded event is encoded to a payload that gives the same event.
#include "fuzz.h"
#include "xffl/history/events.h"

using namespace xffl;
using history::StoredEvent;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<history::EventFields> kinds = history::event_fields();
  fuzz::Choices choices(data, size);
  const size_t kind = choices.byte();
  StoredEvent stored{.seq = 7, .time_utc = "2026-11-21T21:22:39.449Z", .round = 2, .attempt = 1};
  // A kind of the table, or one that the input names.
  stored.kind =
      kind < kinds.size() ? std::string(kinds[kind].kind) : std::string(choices.take(kind % 32));
  stored.facility = choices.byte() % 2 == 0 ? "alba" : std::string(choices.take(4));
  stored.payload = choices.rest();
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
