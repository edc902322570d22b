#include "xffl/base/sha256.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

void require(int openssl_result) {
  if (openssl_result != 1) throw Error(ErrorKind::kInternal, "SHA-256 failed in libcrypto");
}

}  // namespace

struct Sha256::Context {
  EVP_MD_CTX* md = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(md); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  require(EVP_DigestInit_ex(context_->md, EVP_sha256(), nullptr));
}
Sha256::Sha256(const Sha256& other) : context_(std::make_unique<Context>()) {
  require(EVP_MD_CTX_copy_ex(context_->md, other.context_->md));
}
Sha256& Sha256::operator=(const Sha256& other) { return *this = Sha256(other); }
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> bytes) {
  require(EVP_DigestUpdate(context_->md, bytes.data(), bytes.size()));
}

void Sha256::update(std::string_view text) {
  require(EVP_DigestUpdate(context_->md, text.data(), text.size()));
}

std::string Sha256::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  require(EVP_DigestFinal_ex(context_->md, digest, &size));
  require(EVP_DigestInit_ex(context_->md, EVP_sha256(), nullptr));
  return to_hex(std::as_bytes(std::span(digest, size)));
}

std::string sha256_hex(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  return hash.hex();
}

std::string sha256_file(const std::filesystem::path& path) {
  UniqueFd fd = open_file(path, O_RDONLY);
  Sha256 hash;
  std::vector<std::byte> block(1 << 20);
  for (;;) {
    const ssize_t n = ::read(fd.get(), block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EIO)
      throw UnreadableFile(system_error("read " + path.string(), EIO).what());
    if (n < 0) throw system_error("read " + path.string(), errno);
    if (n == 0) return hash.hex();
    hash.update(std::span(block.data(), static_cast<size_t>(n)));
  }
}

std::string to_hex(std::span<const std::byte> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<size_t>(byte >> 4)];
    text += kDigits[std::to_integer<size_t>(byte & std::byte{15})];
  }
  return text;
}

std::string random_hex(size_t num_bytes) {
  std::vector<unsigned char> bytes(num_bytes);
  size_t done = 0;
  while (done < num_bytes) {
    const ssize_t n = ::getrandom(bytes.data() + done, num_bytes - done, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw system_error("read random bytes", errno);
    done += static_cast<size_t>(n);
  }
  return to_hex(std::as_bytes(std::span(bytes)));
}

bool is_sha256_hex(std::string_view text) {
  if (text.size() != 64) return false;
  for (char c : text)
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
  return true;
}

}  // namespace xffl
