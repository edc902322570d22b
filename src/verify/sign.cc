#include "xffl/verify/sign.h"

#include <chrono>

#include "folders.h"
#include "recorded_run.h"
#include "statement.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/base/process.h"

namespace xffl::verify {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMaxStatementBytes = 8u << 20;
constexpr std::chrono::seconds kPatience{120};  // of a key that waits for a touch

ProcessResult ssh_keygen(std::vector<std::string> arguments, const std::string& input,
                         const std::stop_token& stop) {
  arguments.insert(arguments.begin(), "ssh-keygen");
  ProcessResult result;
  try {
    result = run_process({.argv = std::move(arguments), .stdin_text = input, .timeout = kPatience},
                         stop);
  } catch (const Error& error) {  // the program is absent: no finding about the run
    throw Error(ErrorKind::kIo, std::string("ssh-keygen cannot be started: ") + error.what());
  }
  throw_if_stopped(stop);  // a stop ends the program with an error
  return result;
}

std::string last_words(const ProcessResult& result) {
  if (result.timed_out) return "no answer within 120 s";
  return log::printable(result.err.empty() ? result.out : result.err, 600);
}

fs::path signature_path(const fs::path& statement) { return statement.string() + ".sig"; }

// The signer's name in the file of allowed signers; empty with the problem.
std::string signer_of(const fs::path& statement, const Options& options, std::string& problem) {
  const std::string text = read_file(statement, kMaxStatementBytes);
  const std::string signature = signature_path(statement).string();
  const std::string allowed = options.allowed_signers.string();
  const ProcessResult found =
      ssh_keygen({"-Y", "find-principals", "-s", signature, "-f", allowed}, text, options.stop);
  const std::string principal = found.out.substr(0, found.out.find('\n'));
  if (found.exit_code != 0 || principal.empty()) {
    problem = "no allowed signer has made the signature: " + last_words(found);
    return "";
  }
  // find-principals prints all principals of the key in one line.
  const std::string first = principal.substr(0, principal.find(','));
  const ProcessResult verified = ssh_keygen({"-Y", "verify", "-f", allowed, "-I", first, "-n",
                                             std::string(kSignatureNamespace), "-s", signature},
                                            text, options.stop);
  if (verified.exit_code == 0) return first;
  problem = "the signature does not fit: " + last_words(verified);
  return "";
}

}  // namespace

Signed sign_model(const history::RunFolder& folder, const fs::path& project_folder, int round,
                  const fs::path& key, const std::stop_token& stop) {
  const Verification verification = verify_run(folder, project_folder, {.stop = stop});
  if (verification.num("failed") > 0)
    throw Error(ErrorKind::kCorrupt,
                "run " + folder.run().str() + " does not pass `xffl verify`: it is not signed");
  const RecordedRun run = read_run(folder, project_folder);
  if (round == 0) round = run.published();
  const std::string statement = format_statement(run, round);
  open_file(key, 0);  // ssh-keygen's own message does not say that the file is absent
  const ProcessResult made =
      ssh_keygen({"-q", "-Y", "sign", "-f", key.string(), "-n", std::string(kSignatureNamespace)},
                 statement, stop);
  if (made.exit_code != 0 || !made.out.starts_with("-----BEGIN SSH SIGNATURE-----"))
    throw Error(ErrorKind::kAuth, "ssh-keygen does not sign with " + key.string() + ": " +
                                      last_words(made) +
                                      "; add a key with a passphrase to an agent by `ssh-add`, and "
                                      "name its public key");
  const fs::path path = folder.round(round) / kStatementName;
  std::error_code none;
  fs::remove(signature_path(path), none);  // a signature never stands beside another statement
  write_file_atomic(path, statement);
  write_file_atomic(signature_path(path), made.out);
  return {round, path, signature_path(path)};
}

void check_signatures(const RecordedRun& run, const Options& options, std::vector<Check>& checks) {
  Findings statements(checks, "statements", "each statement.json follows from the journal");
  Findings signatures(checks, "signatures",
                      "each statement has the signature of an allowed signer");
  for (const auto& [round, order] : run.rounds) {
    const fs::path path = run.folder.round(round) / kStatementName;
    std::error_code none;
    if (!fs::exists(path, none)) continue;
    const std::string name = run.name_of(path);
    const std::string absence = reason_of_absent_model(run, round);
    statements.guard(name, [&] {
      if (!absence.empty() && !fs::exists(run.folder.global(round), none))
        statements.skip("its model is absent: " + absence, name);
      else if (read_file(path, kMaxStatementBytes) == format_statement(run, round))
        statements.pass();
      else
        statements.fail(name, "the journal and the model give another statement");
    });
    if (options.allowed_signers.empty()) {
      signatures.skip("--allowed-signers names the signers", name);
      continue;
    }
    signatures.guard(name, [&] {
      std::string problem;
      if (signer_of(path, options, problem).empty())
        signatures.fail(name, problem);
      else
        signatures.pass();
    });
  }
}

}  // namespace xffl::verify
