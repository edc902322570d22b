// SSH's encodings: base64, lines of public keys, and the wire's strings.
#include "fuzz.h"
#include "wire.h"

using namespace xffl;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  for (const bool padding : {false, true}) {
    const auto back = remote::base64_decode(remote::base64_encode(input, padding));
    fuzz::expect(back && *back == input, "base64 is lossless");
  }
  if (const auto bytes = remote::base64_decode(input))
    fuzz::expect(bytes->size() <= size, "a decoded text is shorter");
  if (const auto key = remote::parse_public_key(input)) {
    const auto again = remote::parse_public_key(key->line());
    fuzz::expect(again && *again == *key, "a written key is read back", key->line());
    fuzz::expect(remote::key_fingerprint(key->blob).size() == 50,
                 "a fingerprint has 50 characters");
  }
  // A list of strings, as in a key's blob; the writer makes the same bytes.
  remote::WireWriter copy;
  const bool whole = fuzz::accepted([&] {
                       remote::WireReader in(input, "list");
                       while (!in.done()) copy.string(in.string());
                       return true;
                     }).has_value();
  fuzz::expect(!whole || copy.bytes() == input, "a written list has the same bytes");
  fuzz::expect(input.starts_with(copy.bytes()), "a reader takes no byte twice");
  return 0;
}
