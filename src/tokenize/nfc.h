// Unicode's normalization form C (UAX #15), as in Hugging Face's tokenizers.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace xffl::tokenize {

/// The bytes [begin, end) of a text became the bytes [new_begin, new_end) of its normal form.
struct NfcChange {
  size_t begin = 0, end = 0;
  size_t new_begin = 0, new_end = 0;
};

/// The normal form of `text`, which is valid UTF-8. Sets `changes` to the changed stretches, in
/// order. Each stretch is a character with its combining marks. Linear in the text, apart from the
/// sorting of a character's marks.
std::string to_nfc(std::string_view text, std::vector<NfcChange>& changes);

/// Whether `text` surely is its own normal form: it has no character at or above U+0300.
bool is_plain_nfc(std::string_view text);

}  // namespace xffl::tokenize
