// The first tokens of the documents in packed sequences: attention stays inside a document, and
// positions count from its first token. The model then gives the results of separate documents.
#pragma once

#include <ATen/core/Tensor.h>

namespace xffl::llama {

struct Documents {
  /// int64 on the CPU, contiguous: for each of B T positions the position of its document's first
  /// token, in the same sequence; ascending along T. Undefined: each sequence is one document.
  at::Tensor starts_BT;

  bool defined() const { return starts_BT.defined(); }
};

}  // namespace xffl::llama
