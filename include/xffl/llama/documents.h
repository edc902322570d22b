// Where the documents of packed sequences begin: attention stays inside a document, and positions
// count from its first token. The model then computes what it would of each document alone.
#pragma once

#include <ATen/core/Tensor.h>

namespace xffl::llama {

struct Documents {
  /// int64 on the CPU, contiguous: for each of B T positions that of its document's first token, in
  /// the same sequence; rises along T. Undefined: each sequence is one document.
  at::Tensor starts_BT;

  bool defined() const { return starts_BT.defined(); }
};

}  // namespace xffl::llama
