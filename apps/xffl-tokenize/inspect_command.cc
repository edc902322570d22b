#include <iostream>
#include <memory>

#include "commands.h"
#include "xffl/base/json.h"
#include "xffl/tokens/token_shard.h"

namespace xffl::app {
namespace {

struct InspectFlags {
  std::vector<std::string> files;
  bool json = false;
};

Json describe(const std::string& file) {
  const tokens::TokenShardReader reader(file);
  const tokens::ShardInfo& info = reader.info();
  uint64_t num_targets = 0;
  for (uint64_t i = 0; i < info.num_sequences; ++i) num_targets += reader.num_targets(i);
  Json shard;
  shard["file"] = file;
  shard["vocab_size"] = info.vocab_size;
  shard["sequence_length"] = info.sequence_length;
  shard["num_tokens"] = info.num_tokens;
  shard["num_sequences"] = info.num_sequences;
  shard["num_documents"] = info.num_documents;
  shard["packed"] = info.packed;
  shard["masked"] = info.has_targets;
  shard["num_targets"] = num_targets;  // predicted tokens that the loss counts
  return shard;
}

void inspect(const InspectFlags& flags) {
  Json shards = Json::array();
  for (const std::string& file : flags.files) shards.push_back(describe(file));
  if (flags.json) {
    std::cout << (shards.size() == 1 ? shards[0] : shards).dump() << '\n';
    return;
  }
  for (const Json& shard : shards) {
    for (const auto& [key, value] : shard.items()) {
      std::cout << key << ": " << (value.is_string() ? value.get<std::string>() : value.dump())
                << '\n';
    }
  }
}

}  // namespace

void add_inspect_command(CLI::App& app) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = app.add_subcommand("inspect", "Print the sizes of shards");
  command->add_option("files", flags->files, "Shards")->required();
  command->add_flag("--json", flags->json, "Print JSON: an object, or an array for several shards");
  command->callback([flags] { inspect(*flags); });
}

}  // namespace xffl::app
