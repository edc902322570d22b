#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <map>
#include <thread>

#include "command_tree.h"
#include "commands.h"
#include "project.h"
#include "round_display.h"
#include "stop_on_signal.h"
#include "xffl/base/embedded_file.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/process.h"
#include "xffl/config/load.h"

namespace xffl {
namespace demo {

// get_corpora.sh and the scripts that get_corpora.sh calls in its own folder; generated.
std::span<const EmbeddedFile> demo_scripts();

}  // namespace demo

namespace {

namespace fs = std::filesystem;

struct Options {
  std::filesystem::path folder = "xffl-demo";
  std::map<std::string, std::filesystem::path>
      texts;  // language -> text file; empty: Debian's help pages
  int rounds = 3;
  int steps = 30;  // optimizer steps of each facility and round
  int seed = 1;
};

// A facility of the demo, with the language of its text.
struct Site {
  std::string facility, language, title;
};

const std::vector<Site>& sites() {
  static const std::vector<Site> kSites = {{"alba", "it", "Italian"}, {"brno", "cs", "Czech"}};
  return kSites;
}

fs::path initial_model(const Options& options) { return options.folder / "model"; }

constexpr int kVocabSize = 4096;
constexpr int kSequenceLength = 256;
constexpr int kBatchSize = 8;

fs::path program(const std::string& name) {
  return fs::read_symlink("/proc/self/exe").parent_path() / name;
}

// Runs a program and returns its output; a failure throws with the end of its messages.
std::string run(const std::vector<std::string>& argv, std::stop_token stop) {
  const ProcessResult result = run_process({.argv = argv}, stop);
  if (stop.stop_requested())
    throw Error(ErrorKind::kCancelled, "stopped on request; the same command continues");
  if (result.exit_code != 0)
    throw Error(
        ErrorKind::kFailed,
        fs::path(argv.front()).filename().string() + " ended with exit code " +
            std::to_string(result.exit_code) + ": " +
            log::printable(result.err.size() > 1500 ? result.err.substr(result.err.size() - 1500)
                                                    : result.err));
  return result.out;
}

// Makes `product` and prints the time; skips a product of an earlier call.
template <class Body>
void step(const std::string& title, const fs::path& product, Body&& body) {
  if (fs::exists(product)) return;
  const auto began = std::chrono::steady_clock::now();
  body();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::printf("%-34s %5.1f s\n", title.c_str(), seconds);
  std::fflush(stdout);
}

fs::path train_tokens(const Options& options, const std::string& language) {
  return options.folder / "tokens" / (language + ".tokens");
}

fs::path validation_tokens(const Options& options, const std::string& language) {
  return options.folder / "tokens" / (language + ".validation.tokens");
}

// The model is small enough for two CPU cores and has every part of a LLaMA: grouped queries,
// SwiGLU, RoPE, tied embeddings.
std::string small_config() {
  const Json config = {{"architectures", {"LlamaForCausalLM"}},
                       {"model_type", "llama"},
                       {"hidden_act", "silu"},
                       {"vocab_size", kVocabSize},
                       {"hidden_size", 192},
                       {"intermediate_size", 512},
                       {"num_hidden_layers", 4},
                       {"num_attention_heads", 6},
                       {"num_key_value_heads", 3},
                       {"max_position_embeddings", kSequenceLength},
                       {"rms_norm_eps", 1e-5},
                       {"rope_theta", 10000.0},
                       {"initializer_range", 0.02},
                       {"tie_word_embeddings", true},
                       {"bos_token_id", 1},
                       {"eos_token_id", 2},
                       {"torch_dtype", "float32"}};
  return config.dump(2) + "\n";
}

void encode(const Options& options, const Site& site, const fs::path& text, std::stop_token stop) {
  step("tokens of " + site.title, train_tokens(options, site.language), [&] {
    const std::string prompt =
        site.language == "it" ? "Scrivi un documento: {text}" : "Napište dokument: {text}";
    run({program("xffl-tokenize").string(), "encode", "--tokenizer",
         (options.folder / "tokenizer/tokenizer.model").string(), "--input", text.string(),
         "--template", prompt, "--sequence-length", std::to_string(kSequenceLength),
         "--validation-fraction", "0.05", "--seed", std::to_string(options.seed),
         "--validation-output", validation_tokens(options, site.language).string(), "--output",
         train_tokens(options, site.language).string()},
        stop);
  });
}

std::string project_yaml(const Options& options, const std::string& name,
                         const std::vector<Site>& facilities, int rounds, int steps) {
  const auto quoted = [](const fs::path& path) { return Json(fs::absolute(path).string()).dump(); };
  std::string yaml =
      "# Written by xffl demo.\nproject: " + name + "\nmodel: " + quoted(initial_model(options)) +
      "\nrounds: " + std::to_string(rounds) +
      "\ntraining:\n  steps_per_round: " + std::to_string(steps) +
      "\n  batch_size: " + std::to_string(kBatchSize) +
      "\n  micro_batch_size: " + std::to_string(kBatchSize) +
      "\n  learning_rate: 2e-3\n  schedule: {kind: cosine, warmup_steps: 10, min_ratio: 0.1}"
      "\n  weight_decay: 0.1\n  precision: fp32\n  validation_samples: 64\n  seed: " +
      std::to_string(options.seed) + "\naggregation: {weights: tokens, update: delta}\n" +
      "policy: {on_missing: fail, poll_interval: 200ms, evaluate_last: false}\nfacilities:\n";
  // The facilities share this machine's cores: threads of two trainers would spin on the same
  // cores.
  const size_t threads =
      std::max<size_t>(1, std::thread::hardware_concurrency() / facilities.size());
  for (const Site& site : facilities) {
    yaml += "  " + site.facility + ":\n    workdir: " + quoted(options.folder / "work") +
            "\n    environment: {OMP_NUM_THREADS: \"" + std::to_string(threads) + "\"}" +
            "\n    data:\n      train: " + quoted(train_tokens(options, site.language)) +
            "\n      validation:\n";
    for (const Site& other : sites())
      yaml += "        " + other.language + ": " +
              quoted(validation_tokens(options, other.language)) + "\n";
  }
  return yaml;
}

// Language -> text file: `options.texts`, or Debian's help pages, which a script of this program
// fetches with apt-get.
std::map<std::string, fs::path> prepare_texts(const Options& options, std::stop_token stop) {
  if (!options.texts.empty()) {
    for (const Site& site : sites())
      if (!options.texts.contains(site.language))
        throw Error(ErrorKind::kUsage,
                    "--text is needed for both languages: --text it=FILE --text cs=FILE");
    return options.texts;
  }
  const fs::path folder = options.folder / "text";
  step("Italian and Czech text", folder / "cs.txt", [&] {
    const fs::path scripts = options.folder / "scripts";
    make_dirs(fs::absolute(scripts));
    for (const EmbeddedFile& script : demo::demo_scripts())
      write_file_atomic(scripts / script.name, std::string(script.text));
    run({"bash", (scripts / "get_corpora.sh").string(), folder.string()}, stop);
  });
  return {{"it", folder / "it.txt"}, {"cs", folder / "cs.txt"}};
}

// Makes the tokenizer, token shards and a small random LLaMA under `options.folder`; prints a line
// per step.
void prepare_model_and_data(const Options& options, const std::map<std::string, fs::path>& texts,
                            std::stop_token stop) {
  const fs::path tokenizer = options.folder / "tokenizer";
  step("tokenizer of both languages", tokenizer / "tokenizer.model", [&] {
    std::vector<std::string> argv = {
        program("xffl-tokenize").string(), "train", "--output", tokenizer.string(), "--vocab-size",
        std::to_string(kVocabSize)};
    for (const auto& [language, text] : texts) argv.insert(argv.end(), {"--input", text.string()});
    run(argv, stop);
  });
  make_dirs(fs::absolute(options.folder / "tokens"));
  for (const Site& site : sites()) encode(options, site, texts.at(site.language), stop);
  step("a small LLaMA, random weights", initial_model(options) / "manifest.json", [&] {
    const fs::path config = options.folder / "config.json";
    write_file_atomic(config, small_config());
    run({program("xffl-train").string(), "init", "--config", config.string(), "--seed",
         std::to_string(options.seed), "--dtype", "fp32", "--tokenizer", tokenizer.string(),
         "--output", initial_model(options).string()},
        stop);
  });
}

// Writes the project of these facilities and runs it.
run::Outcome train(const Options& options, const std::string& name,
                   const std::vector<Site>& facilities, int rounds, int steps,
                   std::stop_token stop) {
  const fs::path project = fs::absolute(options.folder / name);
  make_dirs(project);
  write_file_atomic(project / "xffl.yaml", project_yaml(options, name, facilities, rounds, steps));
  const config::Experiment experiment = config::load_experiment(project);
  const fs::path runs = project / "runs";
  const history::RunFolder folder(runs, history::latest_run(runs).value_or(RunName("0001")));
  return run_with_display(experiment, folder, stop);
}

// Mean validation loss (nats per token) of a model on a language, by xffl-train evaluate.
double validation_loss(const Options& options, const fs::path& model, const std::string& language,
                       std::stop_token stop) {
  const std::string out =
      run({program("xffl-train").string(), "evaluate", "--model", model.string(), "--tokens",
           validation_tokens(options, language).string(), "--json"},
          stop);
  const Json json = parse_json(out, "xffl-train evaluate");
  return JsonObject(json, "xffl-train evaluate").number("nll");
}

// A model of the comparison.
struct Contender {
  std::string key, title;
  fs::path model;
};
using Losses = std::map<std::string,
                        std::map<std::string, double>>;  // contender -> language or "mean" -> loss

Losses measure(const Options& options, const std::vector<Contender>& contenders,
               std::stop_token stop) {
  Losses losses;
  for (const Contender& contender : contenders) {
    double sum = 0;
    for (const Site& site : sites()) {
      const double loss = validation_loss(options, contender.model, site.language, stop);
      losses[contender.key][site.language] = loss;
      sum += loss;
    }
    losses[contender.key]["mean"] = sum / static_cast<double>(sites().size());
  }
  return losses;
}

void print_table(const std::vector<Contender>& contenders, const Losses& losses) {
  std::printf("\nvalidation loss (nats per token)\n%-10s", "");
  for (const Contender& contender : contenders) std::printf("%14s", contender.title.c_str());
  const auto row = [&](const std::string& title, const std::string& key) {
    std::printf("\n%-10s", title.c_str());
    for (const Contender& contender : contenders)
      std::printf("%14.4f", losses.at(contender.key).at(key));
  };
  for (const Site& site : sites()) row(site.title, site.language);
  row("mean", "mean");
  std::printf("\n\n");
}

bool federated_is_best(const Losses& losses) {
  for (const auto& [key, row] : losses)
    if (key != "federated" && row.at("mean") <= losses.at("federated").at("mean")) return false;
  return true;
}

Json to_json(const Options& options, const std::vector<Contender>& contenders, const Losses& losses,
             const run::Outcome& federated, double seconds) {
  Json json = {{"schema", 1}};
  for (const Site& site : sites())
    for (const Contender& contender : contenders)
      json["validation_loss"][site.title][contender.key] =
          losses.at(contender.key).at(site.language);
  for (const Contender& contender : contenders)
    json["validation_loss"]["mean"][contender.key] = losses.at(contender.key).at("mean");
  json["federated_is_lowest"] = federated_is_best(losses);
  json["rounds"] = options.rounds;
  json["steps_per_round"] = options.steps;
  json["final_model"] = fs::absolute(federated.model).string();
  json["final_model_sha256"] = federated.model_sha256;
  for (const Site& site : sites())
    json["validation_tokens"][site.title] =
        fs::absolute(options.folder / "tokens" / (site.language + ".validation.tokens")).string();
  json["seconds"] = seconds;
  return json;
}

// Writes the options into the folder: continuing with other options would mix two demos.
void claim_folder(const Options& options) {
  Json json = {{"rounds", options.rounds},
               {"steps", options.steps},
               {"seed", options.seed},
               {"texts", Json::object()}};
  for (const auto& [language, path] : options.texts)
    json["texts"][language] = fs::absolute(path).string();
  const std::string text = json.dump(2) + "\n";
  const fs::path marker = options.folder / "demo.json";
  make_dirs(fs::absolute(options.folder));
  if (!fs::exists(marker)) {
    if (!fs::is_empty(options.folder))
      throw Error(ErrorKind::kUsage,
                  options.folder.string() + " holds other files: choose another folder with --out");
    write_file_atomic(marker, text);
  } else if (read_file(marker, 1 << 20) != text) {
    throw Error(ErrorKind::kUsage, options.folder.string() + " holds a demo with other options (" +
                                       marker.string() +
                                       "): choose another folder with --out, or remove it");
  }
}

void run_demo(const Options& options, const std::string& json_file) {
  const auto began = std::chrono::steady_clock::now();
  claim_folder(options);
  StopOnSignal signals;
  const std::stop_token stop = signals.token();
  prepare_model_and_data(options, prepare_texts(options, stop), stop);

  std::printf("\nfederated: alba (Italian) and brno (Czech), %d rounds of %d steps each\n",
              options.rounds, options.steps);
  const run::Outcome federated =
      train(options, "federated", sites(), options.rounds, options.steps, stop);
  std::vector<Contender> contenders = {{"before", "before", initial_model(options)}};
  for (const Site& site : sites()) {
    std::printf("\n%s alone, with the number of tokens of its part in the federation\n",
                site.facility.c_str());
    const run::Outcome alone =
        train(options, site.facility + "-alone", {site}, 1, options.rounds * options.steps, stop);
    contenders.push_back({site.facility + "_alone", site.facility + " alone", alone.model});
  }
  contenders.push_back({"federated", "federated", federated.model});

  const Losses losses = measure(options, contenders, stop);
  print_table(contenders, losses);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::printf("final model: %s\nsha256:      %s\n%.0f s in all\n", federated.model.c_str(),
              federated.model_sha256.c_str(), seconds);
  if (!json_file.empty())
    write_file_atomic(fs::absolute(json_file),
                      to_json(options, contenders, losses, federated, seconds).dump(2) + "\n",
                      0644);
  if (!federated_is_best(losses))
    throw Error(
        ErrorKind::kFailed,
        "the federated model's mean loss is not the lowest: more steps, or other texts, may "
        "change that");
}

// "it=FILE"
std::pair<std::string, fs::path> parse_text(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos ||
      (text.substr(0, equals) != "it" && text.substr(0, equals) != "cs"))
    throw Error(ErrorKind::kUsage, "--text takes it=FILE or cs=FILE, found '" + text + "'");
  const fs::path path = fs::absolute(text.substr(equals + 1));
  if (!fs::exists(path))
    throw Error(ErrorKind::kNotFound, "text file " + path.string() + " does not exist");
  return {text.substr(0, equals), path};
}

}  // namespace

void add_demo_command(CLI::App& app) {
  struct State {
    Options options;
    std::vector<std::string> texts;
    std::string json;
  };
  auto state = std::make_shared<State>();
  CLI::App* command = app.add_subcommand("demo",
                                         "train a small model on Italian and Czech on this "
                                         "machine: federated, and each facility alone");
  command
      ->add_option("--out", state->options.folder,
                   "folder of the demo; an interrupted demo continues")
      ->type_name(kFolderType)
      ->capture_default_str();
  command->add_option("--text", state->texts,
                      "it=FILE and cs=FILE: texts to use instead of Debian's help pages");
  command->add_option("--rounds", state->options.rounds)
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--steps", state->options.steps, "optimizer steps of a facility in a round")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--seed", state->options.seed)
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command->add_option("--json", state->json, "write the figures to this file, too")
      ->type_name(kFileType);
  command->callback([state] {
    for (const std::string& text : state->texts) state->options.texts.insert(parse_text(text));
    run_demo(state->options, state->json);
  });
}

}  // namespace xffl
