// How it works: this program encodes the prompt, a child process (xffl-train) generates ids, and
// this program decodes the ids. A token can be a part of a character, and a leading blank depends
// on the previous ids. Each step therefore decodes all ids and prints the new text.
#include <spawn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>

#include "commands.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/process.h"
#include "xffl/tokenize/tokenizer.h"

extern char** environ;

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
  std::vector<std::string> passed;  // options for xffl-train
};

pid_t spawn(const std::vector<std::string>& argv, int stdio) {
  std::vector<std::string> strings = argv;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, stdio, 0);
  posix_spawn_file_actions_adddup2(&actions, stdio, 1);
  pid_t pid = 0;
  const int problem = ::posix_spawnp(&pid, strings[0].c_str(), &actions, nullptr,
                                     exec_pointers(strings).data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (problem != 0)
    throw Error(ErrorKind::kNotFound, "cannot start " + argv[0] + ": " + std::strerror(problem));
  return pid;
}

// Ignores errors: a child that has ended or does not read reports the failure by its exit code.
void send_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) break;
    text.remove_prefix(static_cast<size_t>(sent));
  }
  ::shutdown(fd, SHUT_WR);
}

void read_lines(int fd, const std::function<void(std::string_view line)>& on_line) {
  std::string pending;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    pending.append(buffer.data(), static_cast<size_t>(count));
    for (size_t end = 0; (end = pending.find('\n')) != std::string::npos;) {
      const std::string line = pending.substr(0, end);
      pending.erase(0, end + 1);
      on_line(line);
    }
  }
}

// Runs `argv` (argv[0] is a path or a name in PATH), writes `input` to the child's stdin, and calls
// `on_line` with each complete line of the child's stdout. The child inherits stderr. Returns the
// child's exit code, or 128 + signal number. Throws kNotFound when the program cannot be started.
int run_lines(const std::vector<std::string>& argv, const std::string& input,
              const std::function<void(std::string_view line)>& on_line) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    throw system_error("make a socket pair", errno);
  UniqueFd socket(pair[0]), childs_end(pair[1]);
  const pid_t pid = spawn(argv, childs_end.get());
  childs_end = UniqueFd();
  try {
    send_all(socket.get(), input);
    read_lines(socket.get(), on_line);
  } catch (...) {
    socket = UniqueFd();  // the child ends when it writes its next line
    wait_for_exit(pid);
    throw;
  }
  return wait_for_exit(pid);
}

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
    // The bytes of the last character may be incomplete until the next tokens.
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
    throw Error(ErrorKind::kUsage, "use either --prompt or --prompt-file");
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
  std::optional<Printer> printer;
  bool is_first = true;
  const int code = run_lines(trainer_command(flags), input, [&](std::string_view line) {
    Json json = parse_json(std::string(line), "xffl-train generate");
    if (!printer) {  // a sequence begins
      if (!is_first && !flags.json) std::printf("---\n");
      printer.emplace(tokenizer, prompt, flags.json);
    }
    if (json.contains("id")) {
      printer->add(static_cast<int32_t>(JsonObject(json, "xffl-train generate").integer("id")));
      return;
    }
    printer->finish();
    if (flags.json) json["text"] = printer->text();
    std::printf("%s\n", flags.json ? json.dump().c_str() : "");
    std::fflush(stdout);
    printer.reset();
    is_first = false;
  });
  return code;  // xffl-train has printed the reason of an error
}

// Declares an option for xffl-train, which checks the value.
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
      app.add_subcommand("generate", "Generate text with a model (runs xffl-train)");
  command->add_option("--model", flags->model, "HF model folder with its tokenizer")->required();
  command->add_option("--tokenizer", flags->tokenizer, "Tokenizer; default: the model folder's");
  command->add_option("--prompt", flags->prompt, "Text to continue");
  command->add_option("--prompt-file", flags->prompt_file, "File with the text to continue");
  command->add_flag("--no-bos", flags->no_bos, "Omit the tokenizer's BOS token");
  command->add_flag("--json", flags->json, "Print one JSON object with the text per sequence");
  command->add_option("--trainer", flags->trainer,
                      "Path of xffl-train; default: beside this program");
  pass_on(*command, *flags, "--adapter", "Folder of a LoRA adapter for the model");
  pass_on(*command, *flags, "--max-new-tokens", "Maximum number of new tokens");
  pass_on(*command, *flags, "--temperature", "0 (default): always the most likely token");
  pass_on(*command, *flags, "--top-k", "Sample from the k most likely tokens");
  pass_on(*command, *flags, "--top-p",
          "Sample from the most likely tokens with this total probability");
  pass_on(*command, *flags, "--repetition-penalty", "Above 1: earlier tokens become less likely");
  pass_on(*command, *flags, "--seed", "Seed of the sampling");
  pass_on(*command, *flags, "--sequences",
          "Number of continuations, with the seeds from --seed on; 1 by default");
  pass_on(*command, *flags, "--stop-ids", "Token ids that end the text, separated by commas");
  pass_on(*command, *flags, "--precision", "fp32 or bf16");
  pass_on(*command, *flags, "--device", "auto, cpu or cuda");
  pass_on(*command, *flags, "--threads", "CPU threads");
  command->add_flag_callback(
      "--ignore-eos", [flags] { flags->passed.push_back("--ignore-eos"); },
      "Continue after the model's end-of-text token");
  command->callback([flags, &exit_code] { exit_code = generate(*flags); });
}

}  // namespace xffl::app
