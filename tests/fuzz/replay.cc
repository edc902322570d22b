// Runs every file of the named folders, and 64 prefixes of each file, through the target: the
// corpus as a regression test in builds without libFuzzer.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz.h"

namespace {

// The exact size of the allocation lets AddressSanitizer see an access beyond the input.
void run(std::string_view bytes) {
  const auto copy = std::make_unique<uint8_t[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), copy.get());
  LLVMFuzzerTestOneInput(copy.get(), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  constexpr uint64_t kMaxInputBytes = 1u << 20;
  constexpr size_t kPrefixes = 64;
  size_t num_files = 0, num_inputs = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      const std::string bytes = xffl::read_file(entry.path(), kMaxInputBytes);
      std::printf("%s\n", entry.path().c_str());
      std::fflush(stdout);  // the last line names the file that ends the program
      run(bytes);
      // Truncated files are the most common damage.
      for (size_t k = 0; k < kPrefixes; ++k) run(bytes.substr(0, bytes.size() * k / kPrefixes));
      ++num_files;
      num_inputs += 1 + kPrefixes;
    }
  }
  std::printf("%zu files, %zu inputs\n", num_files, num_inputs);
  return num_files == 0 ? 1 : 0;  // a corpus without files would check nothing
}
