// Makes token shards and manifests for the Python tests with the writers of the programs.
//   xffl_test_tool tokens|packed VOCAB LENGTH OUT < lines of ids     xffl_test_tool manifest DIR
//   xffl_test_tool differences MODEL REFERENCE OUT
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "xffl/base/error.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/pack/packed_model.h"
#include "xffl/tokens/token_shard.h"

namespace {

void write_tokens(uint64_t vocab_size, uint64_t sequence_length, const char* path, bool packed) {
  xffl::tokens::TokenShardWriter writer(path, vocab_size, sequence_length, packed);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream numbers(line);
    std::vector<int32_t> ids;
    for (int32_t id = 0; numbers >> id;) ids.push_back(id);
    writer.add_document(ids);
  }
  writer.finish();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  try {
    if ((command == "tokens" || command == "packed") && argc == 5) {
      write_tokens(std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[3], nullptr, 10),
                   argv[4], command == "packed");
    } else if (command == "manifest" && argc == 3) {
      std::puts(xffl::checkpoint::write_manifest(argv[2]).root_sha256().c_str());
    } else if (command == "differences" && argc == 5) {
      const auto packed = xffl::pack::pack_model(argv[2], argv[3], argv[4], 1.0, 1);
      std::puts(packed ? packed->root_sha256().c_str() : "larger");
    } else {
      return 2;
    }
  } catch (const xffl::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
