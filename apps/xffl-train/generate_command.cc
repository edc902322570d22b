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

}  // namespace

void generate_command(const CommonOptions& common, const GenerateCommandOptions& options) {
  const job::FloatType precision = parse_float_type("--precision", options.precision);
  train::check(options.generate.sampling);
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
  int64_t count = 0;
  const auto start = SteadyClock::now();
  const train::FinishReason reason =
      train::generate(*loaded.model, prompt, generate, [&](int64_t id) {
        count += 1;
        return print_line(Json{{"id", id}});
      });
  print_line(Json{{"finish", train::to_string(reason)},
                  {"prompt_tokens", prompt.size()},
                  {"new_tokens", count},
                  {"seconds", std::chrono::duration<double>(SteadyClock::now() - start).count()}});
}

}  // namespace xffl::train_app
