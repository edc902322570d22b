// SHA-256 (FIPS 180-4), by OpenSSL's libcrypto.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace xffl {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&);  // copies the running state
  Sha256& operator=(const Sha256&);
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);
  /// Returns 64 lower-case hexadecimal digits and resets the object for the next message.
  std::string hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string sha256_hex(std::string_view text);

/// Streams the file with bounded memory.
std::string sha256_file(const std::filesystem::path& path);

/// Lower-case hexadecimal digits, two per byte.
std::string to_hex(std::span<const std::byte> bytes);

/// `num_bytes` from the kernel's random source, as hexadecimal: nonces and run identifiers.
std::string random_hex(size_t num_bytes);

/// True for exactly 64 lower-case hexadecimal digits.
bool is_sha256_hex(std::string_view text);

}  // namespace xffl
