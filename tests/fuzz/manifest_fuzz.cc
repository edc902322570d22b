// manifest.json: names stay inside the folder, and text that the writer makes is a fixed point.
#include "fuzz.h"
#include "xffl/checkpoint/manifest.h"

using namespace xffl;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto manifest = fuzz::accepted(
      [&] { return checkpoint::parse_manifest(fuzz::text_of(data, size), "manifest.json"); });
  if (!manifest) return 0;
  uint64_t total = 0;
  for (const checkpoint::ManifestFile& file : manifest->files) {
    fuzz::expect(!file.name.empty() && file.name.size() <= 200 && file.name.front() != '.' &&
                     file.name.find('/') == std::string::npos && file.name != "manifest.json",
                 "a name is a file of the folder", file.name);
    fuzz::expect(manifest->find(file.name) == &file, "names are unique", file.name);
    total += file.size_bytes;
  }
  fuzz::expect(manifest->total_bytes() == total && total < uint64_t{1} << 62, "sizes have a sum");
  const std::string text = checkpoint::format_manifest(*manifest);
  const checkpoint::Manifest again = checkpoint::parse_manifest(text, "manifest.json");
  fuzz::expect(again == *manifest, "a written manifest is read back", text);
  fuzz::expect(again.root_sha256() == manifest->root_sha256(), "the root hash stays", text);
  fuzz::expect(checkpoint::format_manifest(again) == text, "the text is a fixed point", text);
  return 0;
}
