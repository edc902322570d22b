// How it works: this program encodes the prompt, a child process (xffl-train) generates ids, and
// this program decodes them. A token can be a part of a character, and a leading blank depends on
// the ids before, so each step decodes all ids and prints the new text.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>

#include "commands.h"
#include "trainer_process.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/tokenize/tokenizer.h"

namespace xffl::app {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct GenerateFlags {
  std::string model;
  std::string tokenizer;
  std::string prompt;
  std::string prompt_file;
  std::string trainer;
  bool no_bos = false;
  bool json = false;
  std::vector<std::string> passed;  // to xffl-train as they are
};

// Prints the complete characters; escapes control characters on a terminal.
class Printer {
 public:
  Printer(const tokenize::Tokenizer& tokenizer, std::vector<int32_t> prompt, bool silent)
      : tokenizer_(tokenizer),
        ids_(std::move(prompt)),
        printed_(tokenizer.decode(ids_).size()),
        silent_(silent) {}

  void add(int32_t id) {
    ids_.push_back(id);
    print(false);
  }
  void finish() { print(true); }
  const std::string& text() const { return text_; }

 private:
  void print(bool all) {
    const std::string whole = tokenizer_.decode(ids_);
    size_t end = whole.size();
    // The last character may lack bytes that the next tokens bring.
    while (!all && end >= kReplacement.size() &&
           std::string_view(whole).substr(0, end).ends_with(kReplacement))
      end -= kReplacement.size();
    if (end <= printed_) return;
    std::string fresh = whole.substr(printed_, end - printed_);
    printed_ = end;
    text_ += fresh;
    if (silent_) return;
    if (is_terminal_) {
      const auto is_escape = [](char c) {
        return c != '\n' && c != '\t' && (static_cast<unsigned char>(c) < 0x20 || c == 0x7f);
      };
      std::replace_if(fresh.begin(), fresh.end(), is_escape, '?');
    }
    std::fwrite(fresh.data(), 1, fresh.size(), stdout);
    std::fflush(stdout);
  }

  const tokenize::Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  size_t printed_;
  bool silent_;
  bool is_terminal_ = ::isatty(STDOUT_FILENO) == 1;
  std::string text_;
};

std::string read_prompt(const GenerateFlags& flags) {
  if (flags.prompt.empty() == flags.prompt_file.empty())
    throw Error(ErrorKind::kUsage, "give the text by --prompt or by --prompt-file, one of them");
  return flags.prompt_file.empty() ? flags.prompt
                                   : read_file(flags.prompt_file, uint64_t{64} << 20);
}

std::vector<int32_t> encode(const tokenize::Tokenizer& tokenizer, const GenerateFlags& flags) {
  std::vector<int32_t> ids = tokenizer.encode(read_prompt(flags));
  if (!flags.no_bos && tokenizer.bos_id() >= 0) ids.insert(ids.begin(), tokenizer.bos_id());
  return ids;
}

std::vector<std::string> trainer_command(const GenerateFlags& flags) {
  std::string program = flags.trainer;
  if (program.empty()) program = fs::read_symlink("/proc/self/exe").parent_path() / "xffl-train";
  std::vector<std::string> argv{program, "generate", "--model", flags.model, "--ids-file", "-"};
  argv.insert(argv.end(), flags.passed.begin(), flags.passed.end());
  return argv;
}

int generate(const GenerateFlags& flags) {
  const tokenize::Tokenizer tokenizer(flags.tokenizer.empty() ? flags.model : flags.tokenizer);
  const std::vector<int32_t> prompt = encode(tokenizer, flags);
  std::string input;
  for (const int32_t id : prompt) input += std::to_string(id) + "\n";
  Printer printer(tokenizer, prompt, flags.json);
  Json last;
  const int code = run_lines(trainer_command(flags), input, [&](std::string_view line) {
    const Json json = parse_json(std::string(line), "xffl-train generate");
    if (json.contains("id")) {
      printer.add(static_cast<int32_t>(JsonObject(json, "xffl-train generate").integer("id")));
    } else {
      last = json;
    }
  });
  if (code != 0) return code;  // xffl-train has printed the reason
  printer.finish();
  if (flags.json) {
    last["text"] = printer.text();
    std::printf("%s\n", last.dump().c_str());
  } else {
    std::printf("\n");
  }
  return 0;
}

// Options that xffl-train checks: the word and its value go on unread.
void pass_on(CLI::App& command, GenerateFlags& flags, const std::string& name,
             const std::string& help) {
  command.add_option_function<std::string>(
      name,
      [&flags, name](const std::string& value) {
        flags.passed.push_back(name);
        flags.passed.push_back(value);
      },
      help);
}

}  // namespace

void add_generate_command(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command =
      app.add_subcommand("generate", "Continue a text with a model (runs xffl-train)");
  command->add_option("--model", flags->model, "HF folder, with its tokenizer")->required();
  command->add_option("--tokenizer", flags->tokenizer, "Another tokenizer than the folder's");
  command->add_option("--prompt", flags->prompt, "The text to continue");
  command->add_option("--prompt-file", flags->prompt_file, "Or a file with the prompt");
  command->add_flag("--no-bos", flags->no_bos, "Do not begin with the tokenizer's BOS");
  command->add_flag("--json", flags->json, "One JSON object at the end, with the text");
  command->add_option("--trainer", flags->trainer, "xffl-train; else the one beside this program");
  pass_on(*command, *flags, "--adapter", "Folder of a LoRA adapter beside the model");
  pass_on(*command, *flags, "--max-new-tokens", "At most so many");
  pass_on(*command, *flags, "--temperature", "0, the default: always the likeliest token");
  pass_on(*command, *flags, "--top-k", "Draw from the k likeliest tokens");
  pass_on(*command, *flags, "--top-p", "Draw from the likeliest that have this probability");
  pass_on(*command, *flags, "--repetition-penalty", "Above 1: what was said becomes less likely");
  pass_on(*command, *flags, "--seed", "Seed of the draws");
  pass_on(*command, *flags, "--stop-ids", "Token ids that end the text, apart by commas");
  pass_on(*command, *flags, "--precision", "fp32 or bf16");
  pass_on(*command, *flags, "--device", "auto, cpu or cuda");
  pass_on(*command, *flags, "--threads", "CPU threads");
  command->add_flag_callback(
      "--ignore-eos", [flags] { flags->passed.push_back("--ignore-eos"); },
      "The model's own end does not stop");
  command->callback([flags, &exit_code] { exit_code = generate(*flags); });
}

}  // namespace xffl::app
