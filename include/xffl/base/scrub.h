// Secrets that somebody else's text may hold.
//
// xffl itself keeps none. But what a facility prints (a job's output, a log-in's messages) is
// shown, logged and journalled, and may hold somebody's token. log::printable() goes through here.
#pragma once

#include <string>
#include <string_view>

namespace xffl {

/// `text` with what looks like a secret replaced by "[removed]": private keys in PEM, tokens of
/// well-known services (hf_..., ghp_..., AKIA..., JSON web tokens), values of names that end in
/// password, token, secret, api_key and the like, "Bearer ..." and passwords in URLs. A net with
/// wide meshes: a password without its name cannot be known. Before the end of a private key that
/// has no beginning here, all is removed.
std::string scrubbed(std::string_view text);

/// So much more text than it is to return goes to scrubbed_end(): a secret that ends in what is
/// returned has to be seen whole.
inline constexpr size_t kLongestSecret = 4096;

/// The last `max_bytes` of the scrubbed `text`, which is the end of a longer one unless `is_whole`:
/// its first line is left out then, as it may begin in the middle of a secret.
std::string scrubbed_end(std::string_view text, size_t max_bytes, bool is_whole);

}  // namespace xffl
