// Text of a facility on a terminal or in a log: no control character, valid UTF-8, a bounded size.
#include "fuzz.h"
#include "xffl/base/scrub.h"

using namespace xffl;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Choices choices(data, size);
  const size_t max_bytes = choices.byte();
  const std::string_view text = choices.rest();
  const std::string shown = log::printable(text, max_bytes);
  fuzz::expect(fuzz::is_harmless(shown) && shown.find('\n') == std::string::npos,
               "no control characters", shown);
  // The last character may be four escaped bytes, and "..." follows a cut.
  fuzz::expect(shown.size() <= max_bytes + 4 * 4 + 3, "a bounded size", shown);
  // No text before a line with a secret hides it. Inside a word, the same letters are no secret.
  constexpr std::string_view kSecret = "hf_abcdefghijklmnopqrstuvwx";
  const std::string with_secret = std::string(text) + "\n" + std::string(kSecret) + "\n";
  fuzz::expect(
      ("\n" + scrubbed(with_secret)).find("\n" + std::string(kSecret)) == std::string::npos,
      "a secret is removed", with_secret);
  fuzz::expect(scrubbed_end(text, max_bytes, false).size() <= max_bytes, "an end is short");
  return 0;
}
