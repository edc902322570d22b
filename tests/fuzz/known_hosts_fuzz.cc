// The project's known_hosts: pinning a key of one host changes no other host's keys.
#include "fuzz.h"
#include "known_hosts.h"

using namespace xffl;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder;
  static const auto file = folder / "known_hosts";
  static const remote::SshHost alba{"alba", 22}, brno{"brno", 2222};
  static const remote::PublicKey key{
      "ssh-ed25519",
      remote::WireWriter().string("ssh-ed25519").string(std::string(32, 'k')).bytes()};
  fuzz::write_bytes(file, fuzz::text_of(data, size));
  fuzz::accepted([] { return remote::pinned_keys(file, alba); });
  const auto others = fuzz::accepted([] { return remote::pinned_keys(file, brno); });
  const bool pinned = fuzz::accepted([] {
                        remote::pin_key(file, alba, key);
                        return true;
                      }).has_value();
  if (!pinned) return 0;
  fuzz::expect(remote::pinned_keys(file, alba) == std::vector{key}, "the pinned key is the key");
  const auto after = fuzz::accepted([] { return remote::pinned_keys(file, brno); });
  fuzz::expect(others == after, "another host keeps its keys");
  return 0;
}
