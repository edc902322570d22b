#include <glob.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <set>

#include "commands.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"
#include "xffl/tokenize/corpus.h"
#include "xffl/tokens/prepared.h"

namespace xffl::app {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;
using tokens::PreparedShard;
using tokens::PrepareJob;

constexpr uint64_t kMaxJobBytes = 1 << 20;
constexpr std::chrono::seconds kProgressInterval{2};

// Slurm's warning before the walltime, and the end of a job.
volatile sig_atomic_t ending = 0;
void end_soon(int) { ending = 1; }

void on_signals() {
  struct sigaction action {};
  action.sa_handler = end_soon;
  for (const int number : {SIGUSR1, SIGTERM, SIGINT}) sigaction(number, &action, nullptr);
}

void stop_when_asked() {
  if (ending != 0)
    throw Error(ErrorKind::kCancelled,
                "stopped by a signal (Slurm sends one before the walltime); no shard was written");
}

// The files of all patterns, each once, in the order of the patterns and by name.
std::vector<fs::path> expand(const std::vector<std::string>& patterns) {
  std::vector<fs::path> files;
  std::set<std::string> seen;
  for (const std::string& pattern : patterns) {
    glob_t found{};
    const int code = ::glob(pattern.c_str(), GLOB_ERR | GLOB_BRACE, nullptr, &found);
    const std::unique_ptr<glob_t, void (*)(glob_t*)> owner(&found, ::globfree);
    if (code == GLOB_NOMATCH)
      throw Error(ErrorKind::kNotFound,
                  pattern + " matches no file on this node: correct data.text");
    if (code != 0) throw Error(ErrorKind::kIo, pattern + ": a folder on the way cannot be read");
    for (size_t i = 0; i < found.gl_pathc; ++i)
      if (seen.insert(found.gl_pathv[i]).second) files.emplace_back(found.gl_pathv[i]);
  }
  return tokenize::data_files(files);
}

PreparedShard describe(const fs::path& path, const tokens::ShardInfo& info) {
  return {.sha256 = sha256_file(path),
          .bytes = fs::file_size(path),
          .tokens = info.num_tokens,
          .sequences = info.num_sequences,
          .documents = info.num_documents};
}

class Preparation {
 public:
  explicit Preparation(const fs::path& job_file)
      : folder_(fs::absolute(job_file).parent_path()),
        out_(folder_ / "out"),
        output_(folder_.parent_path()),
        job_(tokens::parse_prepare_job(read_file(job_file, kMaxJobBytes), job_file.string())) {}

  void run() {
    const auto start = steady_clock::now();
    const fs::path tokenizer_folder = folder_ / tokens::kPrepareTokenizer;
    if (tokens::tokenizer_hash(tokenizer_folder) != job_.tokenizer_sha256)
      throw Error(ErrorKind::kCorrupt,
                  tokenizer_folder.string() + " is damaged: it is not the tokenizer that was sent");
    const std::vector<fs::path> files = expand(job_.files);
    const tokenize::Tokenizer tokenizer(tokenizer_folder);
    const tokenize::EncodeResult result = encode(tokenizer, files);
    tokens::Prepared prepared{
        .tokenizer_sha256 = job_.tokenizer_sha256,
        .text_sha256 = hash_of(files),
        .program = "xffl-tokenize " XFFL_VERSION,
        .files = files.size(),
        .bytes = bytes_of(files),
        .dropped_tokens = dropped(result),
        .cut_documents = result.num_cut,
        .training = describe(out_ / tokens::kPreparedTraining, result.training)};
    if (result.validation)
      prepared.validation = describe(out_ / tokens::kPreparedValidation, *result.validation);
    prepared.seconds = std::chrono::duration<double>(steady_clock::now() - start).count();
    publish(tokens::format_prepared(prepared));
    std::cout << "xffl-tokenize: " << prepared.training.tokens << " tokens of " << prepared.files
              << " files in " << output_.string() << '\n';
  }

 private:
  tokenize::EncodeResult encode(const tokenize::Tokenizer& tokenizer,
                                const std::vector<fs::path>& files) {
    tokenize::EncodeOptions options = this->options();
    options.bos = tokenizer.bos_id() >= 0;  // the configuration has no key for it
    const auto progress = [this](const tokenize::Progress& now) { show(now); };
    if (!tokenize::holds_ids(options.documents.format))
      return tokenize::encode_corpus(tokenizer, files, out_ / tokens::kPreparedTraining, options,
                                     progress);
    options.vocab_size = tokenizer.vocab_size();
    return tokenize::encode_ids(files, out_ / tokens::kPreparedTraining, options, progress);
  }

  tokenize::EncodeOptions options() const {
    tokenize::EncodeOptions options;
    const auto unit = parse_enum<tokens::DocumentUnit>(job_.document);
    if (!unit)
      throw Error(ErrorKind::kUnsupported, "document is '" + log::printable(job_.document, 40) +
                                               "': this xffl-tokenize has line, paragraph, file");
    options.documents.unit = *unit;
    options.documents.format = tokenize::format_named(job_.format);
    options.documents.messages_field = job_.messages_field;
    options.documents.id_type = tokenize::id_type_named(job_.id_type);
    if (job_.end_id >= 0) options.documents.end_id = static_cast<int32_t>(job_.end_id);
    options.documents.row_ids = static_cast<uint64_t>(job_.sequence_length);
    options.chat_template = job_.chat_template;
    options.documents.text_field = job_.text_field;
    options.documents.prompt_field = job_.prompt_field;
    if (!job_.prompt.empty())
      options.prompt = tokenize::PromptTemplate(job_.prompt);
    else if (!job_.prompt_field.empty())
      options.prompt = tokenize::PromptTemplate(tokens::kPromptThenText);
    options.mask_prompt = job_.mask_prompt;
    options.packed = job_.pack;
    options.sequence_length = static_cast<uint64_t>(job_.sequence_length);
    if (job_.validation_fraction > 0) {
      tokenize::ValidationSplit split;
      split.output = out_ / tokens::kPreparedValidation;
      split.fraction = job_.validation_fraction;
      options.validation = split;
    }
    return options;
  }

  // The next query of the coordinator reads the file; a failed write costs nothing.
  void show(const tokenize::Progress& now) {
    stop_when_asked();
    const auto time = steady_clock::now();
    if (time - shown_ < kProgressInterval) return;
    shown_ = time;
    try {
      write_file_atomic(
          folder_ / tokens::kPrepareProgress,
          tokens::format_prepare_progress({now.bytes_done, now.bytes_total, now.tokens}));
    } catch (const Error& error) {
      std::cerr << "xffl-tokenize: " << log::printable(error.what()) << '\n';
    }
  }

  static uint64_t bytes_of(const std::vector<fs::path>& files) {
    uint64_t bytes = 0;
    for (const fs::path& file : files) bytes += fs::file_size(file);
    return bytes;
  }
  static std::string hash_of(const std::vector<fs::path>& files) {
    Sha256 hash;
    for (const fs::path& file : files) {
      stop_when_asked();
      hash.update(sha256_file(file) + "  " + file.string() + "\n");
    }
    return hash.hex();
  }
  static uint64_t dropped(const tokenize::EncodeResult& result) {
    const uint64_t written =
        result.training.num_tokens + (result.validation ? result.validation->num_tokens : 0);
    return result.num_tokens > written ? result.num_tokens - written : 0;
  }

  // prepared.json describes the shards beside it, also after a kill at any point. The report is
  // last: with it the job counts as done.
  void publish(const std::string& prepared) const {
    fs::remove(output_ / tokens::kPreparedFile);
    fsync_dir(output_);
    fs::rename(out_ / tokens::kPreparedTraining, output_ / tokens::kPreparedTraining);
    fs::remove(output_ / tokens::kPreparedValidation);
    if (job_.validation_fraction > 0)
      fs::rename(out_ / tokens::kPreparedValidation, output_ / tokens::kPreparedValidation);
    fsync_dir(output_);
    write_file_atomic(output_ / tokens::kPreparedFile, prepared);
    write_file_atomic(folder_ / tokens::kPrepareReport, prepared);
  }

  fs::path folder_, out_, output_;
  PrepareJob job_;
  steady_clock::time_point shown_ = steady_clock::now() - kProgressInterval;
};

}  // namespace

void add_prepare_command(CLI::App& app) {
  auto file = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "prepare", "Encode a facility's text as a job of `xffl prepare` describes it");
  command->add_option("--job", *file, "The job.json that `xffl prepare` has sent")->required();
  command->callback([file] {
    on_signals();
    Preparation(*file).run();
  });
}

}  // namespace xffl::app
