#include "chain.h"

#include "xffl/base/sha256.h"

namespace xffl::history {

std::string genesis_chain() { return sha256_hex("xffl journal"); }

std::string next_chain(std::string_view previous, const StoredEvent& event) {
  Sha256 hash;
  const auto add = [&hash](std::string_view field) {
    hash.update(std::to_string(field.size()) + ":");
    hash.update(field);
  };
  add(previous);
  add(std::to_string(event.seq));
  add(event.time_utc);
  add(event.kind);
  add(std::to_string(event.round));
  add(event.facility);
  add(std::to_string(event.attempt));
  add(event.payload);
  return hash.hex();
}

}  // namespace xffl::history
