// The OpenSSF model signature of a folder, which the public tool model_signing verifies.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace xffl::exports {

// The file's usual name, in the signed folder; the signature does not cover it.
inline constexpr std::string_view kModelSignatureName = "model.sig";

// A private key of elliptic curves.
class SigningKey {
 public:
  /// Reads a PEM file without a passphrase: prime256v1, secp384r1 or secp521r1, the curves of the
  /// format. Throws kConfig, with the command that makes a key, for any other file, and the errors
  /// of read_file().
  explicit SigningKey(const std::filesystem::path& pem);
  SigningKey(SigningKey&&) noexcept;
  ~SigningKey();

  /// The signature of `text`, ECDSA as DER, with SHA-256, -384 or -512 as the curve has bits.
  std::string sign(std::string_view text) const;
  /// SHA-256 of the public key in PEM.
  std::string hint() const;

 private:
  struct Key;
  std::unique_ptr<Key> key_;
};

/// A Sigstore bundle 0.3 with the SHA-256 of each file below `model`, signed. `name`: of the model.
/// Throws kRejected for a link or a special file in the folder, and kIo.
///
/// Sources: github.com/ossf/model-signing-spec (OMS 1.0); in-toto Statement v1; DSSE 1.0.2;
/// Sigstore bundle 0.3.
std::string sign_model_folder(const std::filesystem::path& model, const std::string& name,
                              const SigningKey& key);

}  // namespace xffl::exports
