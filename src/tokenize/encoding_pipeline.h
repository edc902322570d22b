// Documents -> (in parallel) ids -> shards, in the documents' order.
#pragma once

#include <functional>
#include <span>

#include "xffl/tokenize/corpus.h"

namespace xffl::tokenize {

struct EncodedDocument {
  std::vector<int32_t> ids;
  std::vector<uint8_t> is_target;  // 0 or 1 for each id where they differ; else empty
};

/// Called from several threads.
using DocumentEncoder = std::function<EncodedDocument(const Document&)>;

/// The pipeline behind encode_corpus() and encode_ids(); `options.vocab_size` is set.
EncodeResult run_pipeline(const std::vector<std::filesystem::path>& inputs,
                          const std::filesystem::path& output, const EncodeOptions& options,
                          const DocumentEncoder& encode, const ProgressCallback& progress);

/// The ids of a line such as "[1, 20, 300]"; each below `vocab_size`. Throws kCorrupt with
/// file:line.
std::vector<int32_t> parse_ids(const Document& line, uint64_t vocab_size);

}  // namespace xffl::tokenize
