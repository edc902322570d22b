#include "demo_steps.h"

#include <chrono>
#include <cstdio>
#include <thread>

#include "demo_scripts.h"
#include "project.h"
#include "round_display.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/process.h"
#include "xffl/config/load.h"

namespace xffl::demo {

namespace fs = std::filesystem;

namespace {

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

// Small enough for two CPU cores; has every part of a LLaMA: grouped queries, SwiGLU, RoPE, tied
// embeddings.
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
  // The facilities share this machine's cores: threads of two trainers would spin on the same ones.
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

}  // namespace

const std::vector<Site>& sites() {
  static const std::vector<Site> kSites = {{"alba", "it", "Italian"}, {"brno", "cs", "Czech"}};
  return kSites;
}

fs::path initial_model(const Options& options) { return options.folder / "model"; }

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
    for (const DemoScript& script : demo_scripts())
      write_file_atomic(scripts / script.name, std::string(script.text));
    run({"bash", (scripts / "get_corpora.sh").string(), folder.string()}, stop);
  });
  return {{"it", folder / "it.txt"}, {"cs", folder / "cs.txt"}};
}

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

run::Outcome train(const Options& options, const std::string& name,
                   const std::vector<Site>& facilities, int rounds, int steps,
                   std::stop_token stop) {
  const fs::path project = fs::absolute(options.folder / name);
  make_dirs(project);
  write_file_atomic(project / "xffl.yaml", project_yaml(options, name, facilities, rounds, steps));
  const config::Experiment experiment = config::load_experiment(project);
  const fs::path runs = project / "runs";
  const history::RunFolder folder(runs, history::latest_run(runs).value_or(RunName("0001")));
  make_dirs(folder.path());
  log::set_file(folder.log());
  SystemClock clock;
  facility::Services services = facility::make_services(clock, experiment.project_folder);
  RoundDisplay display(rounds);
  return run::run_federation(experiment, folder, services, stop, display.observer());
}

double validation_loss(const Options& options, const fs::path& model, const std::string& language,
                       std::stop_token stop) {
  const std::string out =
      run({program("xffl-train").string(), "evaluate", "--model", model.string(), "--tokens",
           validation_tokens(options, language).string(), "--json"},
          stop);
  const Json json = parse_json(out, "xffl-train evaluate");
  return JsonObject(json, "xffl-train evaluate").number("nll");
}

}  // namespace xffl::demo
