// A line of the journal's mirror: a written line gives the same event and chain.
#include "fuzz.h"
#include "store_parts.h"

using namespace xffl;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto line =
      fuzz::accepted([&] { return history::parse_mirror_line(fuzz::text_of(data, size)); });
  if (!line) return 0;
  const auto& [event, chain] = *line;
  fuzz::expect(event.seq >= 1 && event.round >= 0 && event.attempt >= 0, "numbers are in range");
  const std::string text = history::format_mirror_line(event, chain);
  fuzz::expect(text.find('\n') == text.size() - 1, "an event is one line", text);
  const auto [again, same_chain] = history::parse_mirror_line(text);
  fuzz::expect(same_chain == chain, "the chain stays", text);
  // The chain covers every field of an event.
  fuzz::expect(history::next_chain(chain, again) == history::next_chain(chain, event),
               "a written event is read back", text);
  fuzz::expect(history::format_mirror_line(again, same_chain) == text, "a fixed point", text);
  return 0;
}
