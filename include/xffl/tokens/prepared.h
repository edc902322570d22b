// The files between `xffl prepare` and the job that tokenizes a facility's text.
//
//   WORKDIR/xffl.data/PROJECT.FACILITY-HASH/        HASH: of the options in xffl.yaml
//     prepared.json                                 describes the shards; written last
//     train.tokens, validation.tokens
//     job1/                                         a job's folder, as of a training's attempt
//       job.json                                    the options
//       tokenizer/                                  the tokenizer's files of the model's folder
//       out/progress.json                           while the job runs
//       out/report.json                             prepared.json again
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/enum_names.h"

namespace xffl::tokens {

using xffl::to_string;

/// The unit of a text file that makes a document. kParagraph: lines up to a blank line.
enum class DocumentUnit { kParagraph, kLine, kFile };
constexpr auto names_of(DocumentUnit) { return enum_names("paragraph", "line", "file"); }
/// The template of documents with prompts of their own, when none is given.
inline constexpr std::string_view kPromptThenText = "{prompt}{text}";

inline constexpr std::string_view kPreparedFile = "prepared.json";
inline constexpr std::string_view kPreparedTraining = "train.tokens";
inline constexpr std::string_view kPreparedValidation = "validation.tokens";
inline constexpr std::string_view kPrepareJobFile = "job.json";
inline constexpr std::string_view kPrepareTokenizer = "tokenizer";
inline constexpr std::string_view kPrepareReport = "out/report.json";
inline constexpr std::string_view kPrepareProgress = "out/progress.json";
inline constexpr uint64_t kMaxPreparedBytes = 64 << 10, kMaxPrepareProgressBytes = 4 << 10;

/// The names of a tokenizer's files in a model's folder.
std::vector<std::string_view> tokenizer_files();
/// Whether the folder holds a tokenizer.model or a tokenizer.json.
bool has_tokenizer(const std::filesystem::path& folder);
/// SHA-256 over the names and contents of the tokenizer's files in `folder`. Throws kNotFound
/// unless has_tokenizer().
std::string tokenizer_hash(const std::filesystem::path& folder);

// The options of a job.
struct PrepareJob {
  std::string tokenizer_sha256;
  std::vector<std::string> files;  // paths and patterns
  std::string prompt, text_field, prompt_field, document;
  bool mask_prompt = false, pack = true;
  double validation_fraction = 0;
  int64_t sequence_length = 0;
  // Since version 2, which a job has only if it needs them.
  std::string format = "auto", chat_template, messages_field = "messages", id_type = "uint16";
  int64_t end_id = -1;  // -1: none
  bool operator==(const PrepareJob&) const = default;
};
std::string format_prepare_job(const PrepareJob& job);
/// Throws kCorrupt, kUnsupported with the field.
PrepareJob parse_prepare_job(const std::string& json, const std::string& where);

struct PreparedShard {
  std::string sha256;
  uint64_t bytes = 0, tokens = 0, sequences = 0, documents = 0;
  bool operator==(const PreparedShard&) const = default;
};

struct Prepared {
  std::string tokenizer_sha256;
  std::string text_sha256;        // of the names and SHA-256 of the text's files
  std::string program;            // "xffl-tokenize 0.1.0"
  uint64_t files = 0, bytes = 0;  // of text
  uint64_t dropped_tokens = 0;    // at the end of a packed shard
  uint64_t cut_documents = 0;     // unpacked: longer than a sequence
  double seconds = 0;
  PreparedShard training;
  std::optional<PreparedShard> validation;
  bool operator==(const Prepared&) const = default;
};
std::string format_prepared(const Prepared& prepared);
/// Throws kCorrupt, kUnsupported with the field.
Prepared parse_prepared(const std::string& json, const std::string& where);

struct PrepareProgress {
  uint64_t bytes_done = 0, bytes_total = 0, tokens = 0;
};
std::string format_prepare_progress(const PrepareProgress& progress);
PrepareProgress parse_prepare_progress(const std::string& json, const std::string& where);

}  // namespace xffl::tokens
