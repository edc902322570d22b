// Removal of secrets from external text.
//
// xffl itself stores no secrets. But xffl shows, logs and journals facility output (job output,
// login messages), which may hold a user's token. log::printable() scrubs its text.
#pragma once

#include <string>
#include <string_view>

namespace xffl {

/// `text` with recognized secrets replaced by "[removed]": private keys in PEM, tokens of
/// well-known services (hf_..., ghp_..., AKIA..., JSON web tokens), values of names that end in
/// password, token, secret, api_key and similar, "Bearer ..." and passwords in URLs. The function
/// does not recognize a password without a name. If the text holds only the end of a private key,
/// the function removes all text up to the key's last line.
std::string scrubbed(std::string_view text);

/// The length of the longest recognized secret. Callers of scrubbed_end() pass this many bytes more
/// than they want back, so that a secret at the cut is complete.
inline constexpr size_t kLongestSecret = 4096;

/// The last `max_bytes` of the scrubbed `text`. Unless `is_whole`, `text` is the end of a longer
/// text; the function then drops the first line, which may begin inside a secret.
std::string scrubbed_end(std::string_view text, size_t max_bytes, bool is_whole);

}  // namespace xffl
