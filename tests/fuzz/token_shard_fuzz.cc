// A token shard: sequences and documents lie inside the file, and the writer's copy of an accepted
// shard has the same tokens, documents and targets.
#include <algorithm>
#include <numeric>
#include <vector>

#include "fuzz.h"
#include "xffl/tokens/token_shard.h"

using namespace xffl;
using tokens::ShardInfo;
using tokens::TokenShardReader;

namespace {

struct Content {
  std::vector<int32_t> ids;
  std::vector<uint8_t> targets;
  bool operator==(const Content&) const = default;
};

// All sequences; empty when an id is beyond the vocabulary.
std::optional<Content> read_all(const TokenShardReader& shard, size_t file_bytes) {
  const ShardInfo& info = shard.info();
  fuzz::expect(info.num_tokens <= file_bytes && info.num_sequences <= info.num_tokens,
               "the counts are within the file");
  Content all;
  bool valid = true;
  for (uint64_t i = 0; i < info.num_sequences; ++i) {
    const size_t length = shard.length(i);
    fuzz::expect(length >= 1 && length <= info.sequence_length, "a sequence has a valid length");
    fuzz::expect(length <= info.num_tokens - all.ids.size(), "sequences fit the file");
    std::vector<int32_t> ids(length);
    std::vector<uint8_t> targets(length);
    valid = fuzz::accepted([&] {
              shard.read(i, ids);
              return true;
            }).has_value() &&
            valid;
    shard.read_targets(i, targets);
    fuzz::expect(static_cast<uint64_t>(std::count(targets.begin() + 1, targets.end(), 1)) ==
                     shard.num_targets(i),
                 "the number of targets is their count");
    const std::vector<uint32_t> starts = shard.document_starts(i);
    fuzz::expect(starts.front() == 0 && starts.back() < length &&
                     std::adjacent_find(starts.begin(), starts.end(), std::greater_equal<>()) ==
                         starts.end(),
                 "documents begin inside their sequence, ascending");
    all.ids.insert(all.ids.end(), ids.begin(), ids.end());
    all.targets.insert(all.targets.end(), targets.begin(), targets.end());
  }
  fuzz::expect(all.ids.size() == info.num_tokens, "sequences cover all tokens");
  if (!valid) return std::nullopt;
  fuzz::expect(std::all_of(all.ids.begin(), all.ids.end(),
                           [&](int32_t id) {
                             return id >= 0 && static_cast<uint64_t>(id) < info.vocab_size;
                           }),
               "ids are within the vocabulary");
  return all;
}

void check_copy(const TokenShardReader& shard, const Content& content,
                const std::filesystem::path& path) {
  const ShardInfo& info = shard.info();
  std::vector<uint64_t> offsets = shard.document_offsets();
  fuzz::expect(offsets.size() == info.num_documents && offsets.front() == 0,
               "documents have offsets");
  offsets.push_back(info.num_tokens);
  const bool copied = fuzz::accepted([&] {
                        tokens::TokenShardWriter writer(path, info.vocab_size, info.sequence_length,
                                                        info.packed, info.has_targets);
                        for (size_t i = 0; i + 1 < offsets.size(); ++i) {
                          const size_t begin = offsets[i], count = offsets[i + 1] - begin;
                          const auto targets = std::span(content.targets).subspan(begin, count);
                          writer.add_document(std::span(content.ids).subspan(begin, count),
                                              info.has_targets ? targets : targets.first(0));
                        }
                        writer.finish();
                        return true;
                      }).has_value();
  const bool has_target = std::count(content.targets.begin(), content.targets.end(), 1) > 0;
  fuzz::expect(copied == has_target, "a shard with a target is written");
  if (!copied) return;
  const TokenShardReader copy(path);
  fuzz::expect(copy.info().num_sequences == info.num_sequences &&
                   copy.info().num_documents == info.num_documents,
               "a copy has the same counts");
  const auto again = read_all(copy, std::filesystem::file_size(path));
  fuzz::expect(again && *again == content, "a copy has the same content");
  offsets.pop_back();
  fuzz::expect(copy.document_offsets() == offsets, "a copy has the same documents");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder;
  static const auto path = folder / "a.tokens", copy = folder / "b.tokens";
  fuzz::write_bytes(path, fuzz::text_of(data, size));
  const auto shard = fuzz::accepted([] { return TokenShardReader(path); });
  if (!shard) return 0;
  if (const auto content = read_all(*shard, size)) check_copy(*shard, *content, copy);
  return 0;
}
