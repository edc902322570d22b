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
/// wide meshes: a password without its name cannot be known.
std::string scrubbed(std::string_view text);

}  // namespace xffl
