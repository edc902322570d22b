// Signatures of published models: an in-toto statement (https://in-toto.io/Statement/v1) beside a
// round's model, and its SSH signature by ssh-keygen.
//
//   runs/0001/r0012/statement.json      subjects: the model's root hash and files; predicate: the
//                                       participants, and the journal up to `published`
//   runs/0001/r0012/statement.json.sig  of the namespace kSignatureNamespace
//
// The statement is a function of the run: a verifier makes it again and compares the bytes.
#pragma once

#include <filesystem>
#include <stop_token>
#include <string_view>

#include "xffl/history/run_folder.h"

namespace xffl::verify {

inline constexpr std::string_view kSignatureNamespace = "xffl-statement@xffl";
inline constexpr std::string_view kStatementName = "statement.json";

struct Signed {
  int round = 0;
  std::filesystem::path statement, signature;
};
/// Verifies the run without its data, and then signs the model of `round` (0: the newest published
/// one) with `key`, a private key, or a public key whose private key an agent holds. Replaces an
/// earlier signature. Throws kCorrupt for a run that does not pass, kNotFound without such a round
/// or key, kAuth when ssh-keygen refuses, kIo, kCancelled.
///
/// Source: ssh-keygen(1), -Y sign; OpenSSH 8.0 or newer.
Signed sign_model(const history::RunFolder& folder, const std::filesystem::path& project_folder,
                  int round, const std::filesystem::path& key, const std::stop_token& stop);

}  // namespace xffl::verify
