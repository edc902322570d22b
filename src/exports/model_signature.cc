#include "xffl/exports/model_signature.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/sha256.h"

namespace xffl::exports {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxKeyBytes = 1u << 20;
constexpr const char* kPayloadType = "application/vnd.in-toto+json";

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Pkey = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Digest = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

void check(bool succeeded, const char* call) {
  if (!succeeded)
    throw Error(ErrorKind::kInternal, std::string("OpenSSL's ") + call + " has failed");
}

// No question on the terminal: a key with a passphrase is not read.
int no_passphrase(char* /*buffer*/, int /*size*/, int /*writes*/, void* /*user*/) { return -1; }

// The digest of the format for a curve; null for another key.
const EVP_MD* digest_of(const EVP_PKEY* key) {
  std::array<char, 40> group{};
  size_t length = 0;
  if (EVP_PKEY_get_base_id(key) != EVP_PKEY_EC ||
      EVP_PKEY_get_group_name(key, group.data(), group.size(), &length) != 1)
    return nullptr;
  const std::string_view name(group.data(), length);
  if (name == "prime256v1" || name == "P-256") return EVP_sha256();
  if (name == "secp384r1" || name == "P-384") return EVP_sha384();
  if (name == "secp521r1" || name == "P-521") return EVP_sha512();
  return nullptr;
}

std::string base64(std::string_view bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                     reinterpret_cast<const unsigned char*>(bytes.data()),
                                     static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(length));
  return text;
}

// The digests by path, with '/' between folders, in the order of the bytes.
std::map<std::string, std::string> digests_of(const fs::path& model) {
  std::map<std::string, std::string> digests;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(model)) {
    const std::string name = entry.path().lexically_relative(model).generic_string();
    if (name == kModelSignatureName) continue;
    const fs::file_type type = entry.symlink_status().type();
    if (type == fs::file_type::directory) continue;
    if (type != fs::file_type::regular)
      throw Error(ErrorKind::kRejected,
                  entry.path().string() + " is neither a file nor a folder: it cannot be signed");
    digests[name] = sha256_file(entry.path());
  }
  return digests;
}

std::string bytes_of_hex(std::string_view hex) {
  std::string bytes;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(digit(hex[i]) << 4 | digit(hex[i + 1]));
  return bytes;
}

std::string statement_of(const std::string& name,
                         const std::map<std::string, std::string>& digests) {
  Sha256 root;
  Json resources = Json::array();
  for (const auto& [path, digest] : digests) {
    root.update(bytes_of_hex(digest));
    resources.push_back({{"name", path}, {"algorithm", "sha256"}, {"digest", digest}});
  }
  const Json statement = {
      {"_type", "https://in-toto.io/Statement/v1"},
      {"subject", Json::array({{{"name", name}, {"digest", {{"sha256", root.hex()}}}}})},
      {"predicateType", "https://model_signing/signature/v1.0"},
      {"predicate",
       {{"serialization",
         {{"method", "files"},
          {"hash_type", "sha256"},
          {"allow_symlinks", false},
          {"ignore_paths", Json::array({kModelSignatureName})}}},
        {"resources", resources}}}};
  return statement.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// DSSE's pre-authentication encoding.
std::string signed_text(const std::string& payload) {
  const std::string type = kPayloadType;
  return "DSSEv1 " + std::to_string(type.size()) + " " + type + " " +
         std::to_string(payload.size()) + " " + payload;
}

}  // namespace

struct SigningKey::Key {
  Pkey pkey{nullptr, EVP_PKEY_free};
  const EVP_MD* digest = nullptr;
};

SigningKey::SigningKey(const fs::path& pem) : key_(std::make_unique<Key>()) {
  std::string text = read_file(pem, kMaxKeyBytes);
  {
    const Bio bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free);
    check(bio != nullptr, "BIO_new_mem_buf");
    key_->pkey.reset(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr));
  }
  OPENSSL_cleanse(text.data(), text.size());
  if (key_->pkey) key_->digest = digest_of(key_->pkey.get());
  if (key_->digest == nullptr)
    throw Error(ErrorKind::kConfig,
                pem.string() +
                    (key_->pkey ? " has a key of another kind"
                                : " holds no private key in PEM, or one with a passphrase") +
                    ": the signature needs a key of the curve prime256v1, secp384r1 or secp521r1 "
                    "without a passphrase. Make one with `openssl ecparam -name prime256v1 -genkey "
                    "-noout -out ec.pem`, and its public key with `openssl ec -in ec.pem -pubout "
                    "-out ec.pub`");
}
SigningKey::SigningKey(SigningKey&&) noexcept = default;
SigningKey::~SigningKey() = default;

std::string SigningKey::sign(std::string_view text) const {
  const Digest context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  size_t length = 0;
  check(context && EVP_DigestSignInit(context.get(), nullptr, key_->digest, nullptr,
                                      key_->pkey.get()) == 1,
        "EVP_DigestSignInit");
  check(EVP_DigestSign(context.get(), nullptr, &length, bytes, text.size()) == 1, "EVP_DigestSign");
  std::string signature(length, '\0');
  check(EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &length,
                       bytes, text.size()) == 1,
        "EVP_DigestSign");
  signature.resize(length);
  return signature;
}

std::string SigningKey::hint() const {
  const Bio bio(BIO_new(BIO_s_mem()), BIO_free);
  check(bio && PEM_write_bio_PUBKEY(bio.get(), key_->pkey.get()) == 1, "PEM_write_bio_PUBKEY");
  char* pem = nullptr;
  const long length = BIO_get_mem_data(bio.get(), &pem);
  check(length > 0, "BIO_get_mem_data");
  return sha256_hex({pem, static_cast<size_t>(length)});
}

std::string sign_model_folder(const fs::path& model, const std::string& name,
                              const SigningKey& key) {
  const std::string payload = statement_of(name, digests_of(model));
  const Json bundle = {
      {"mediaType", "application/vnd.dev.sigstore.bundle.v0.3+json"},
      {"verificationMaterial",
       {{"publicKey", {{"hint", key.hint()}}}, {"tlogEntries", Json::array()}}},
      {"dsseEnvelope",
       {{"payload", base64(payload)},
        {"payloadType", kPayloadType},
        {"signatures",
         Json::array({{{"sig", base64(key.sign(signed_text(payload)))}, {"keyid", ""}}})}}}};
  return bundle.dump() + "\n";
}

}  // namespace xffl::exports
