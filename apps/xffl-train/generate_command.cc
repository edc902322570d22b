#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

#include "setup.h"
#include "xffl/base/error.h"
#include "xffl/base/json.h"
#include "xffl/train/device.h"
#include "xffl/train/generate.h"

namespace xffl::train_app {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Parses ids separated by blanks, newlines or commas.
std::vector<int64_t> parse_ids(std::string text, const std::string& origin) {
  for (char& c : text) c = c == ',' ? ' ' : c;
  std::istringstream stream(text);
  std::vector<int64_t> ids;
  for (std::string word; stream >> word;) {
    size_t used = 0;
    try {
      ids.push_back(std::stoll(word, &used));
    } catch (const std::logic_error&) {
      used = 0;
    }
    if (used != word.size())
      throw Error(ErrorKind::kUsage, origin + ": '" + word + "' is not a token id");
  }
  return ids;
}

std::vector<int64_t> read_prompt(const GenerateCommandOptions& options) {
  if (options.ids.empty() == options.ids_file.empty())
    throw Error(ErrorKind::kUsage,
                "expected exactly one of --ids and --ids-file with the prompt's token ids");
  if (!options.ids.empty()) return parse_ids(options.ids, "--ids");
  if (options.ids_file == "-")
    return parse_ids({std::istreambuf_iterator<char>(std::cin), {}}, "standard input");
  std::ifstream file(options.ids_file);
  if (!file) throw Error(ErrorKind::kNotFound, options.ids_file + ": file not readable");
  return parse_ids({std::istreambuf_iterator<char>(file), {}}, options.ids_file);
}

// Prints and flushes a line. Returns false if stdout is closed.
bool print_line(const Json& json) {
  const std::string line = json.dump() + "\n";
  return std::fputs(line.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
}

// Prints a line for each new token, and one at the end.
train::FinishReason continue_prompt(llama::Model& model, const std::vector<int64_t>& prompt,
                                    const train::GenerateOptions& options) {
  int64_t count = 0;
  const auto start = SteadyClock::now();
  const train::FinishReason reason = train::generate(model, prompt, options, [&](int64_t id) {
    count += 1;
    return print_line(Json{{"id", id}});
  });
  print_line(Json{{"finish", train::to_string(reason)},
                  {"prompt_tokens", prompt.size()},
                  {"new_tokens", count},
                  {"seconds", std::chrono::duration<double>(SteadyClock::now() - start).count()}});
  return reason;
}

}  // namespace

void generate_command(const CommonOptions& common, const GenerateCommandOptions& options) {
  const job::FloatType precision = parse_float_type("--precision", options.precision);
  train::check(options.generate.sampling);
  if (options.num_sequences > 1 && options.generate.sampling.temperature == 0)
    throw Error(ErrorKind::kUsage, "--sequences " + std::to_string(options.num_sequences) +
                                       " with --temperature 0 would give the same text each time: "
                                       "set a --temperature above 0");
  const std::vector<int64_t> prompt = read_prompt(options);
  const Rank rank = set_up_rank(common);
  if (rank.group->size() > 1)
    throw Error(ErrorKind::kUnsupported, "generate runs in one process, found a world of " +
                                             std::to_string(rank.group->size()));
  train::use_attention_of_any_length(rank.device);
  const train::LoadedModel loaded =
      train::load_model(options.model, load_options(rank, precision, options.adapter));
  train::GenerateOptions generate = options.generate;
  if (options.stop_at_eos) {
    const auto ends = checkpoint::end_of_text_ids(options.model, loaded.config);
    generate.stop_ids.insert(generate.stop_ids.end(), ends.begin(), ends.end());
  }
  for (int64_t i = 0; i < options.num_sequences; ++i, ++generate.sampling.seed) {
    if (continue_prompt(*loaded.model, prompt, generate) == train::FinishReason::kCancelled) return;
  }
}

}  // namespace xffl::train_app
