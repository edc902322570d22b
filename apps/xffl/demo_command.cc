#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "commands.h"
#include "demo_steps.h"
#include "project.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;

// A model of the comparison.
struct Contender {
  std::string key, title;
  fs::path model;
};
using Losses = std::map<std::string,
                        std::map<std::string, double>>;  // contender -> language or "mean" -> loss

Losses measure(const demo::Options& options, const std::vector<Contender>& contenders,
               std::stop_token stop) {
  Losses losses;
  for (const Contender& contender : contenders) {
    double sum = 0;
    for (const demo::Site& site : demo::sites()) {
      const double loss = demo::validation_loss(options, contender.model, site.language, stop);
      losses[contender.key][site.language] = loss;
      sum += loss;
    }
    losses[contender.key]["mean"] = sum / static_cast<double>(demo::sites().size());
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
  for (const demo::Site& site : demo::sites()) row(site.title, site.language);
  row("mean", "mean");
  std::printf("\n\n");
}

bool federated_is_best(const Losses& losses) {
  for (const auto& [key, row] : losses)
    if (key != "federated" && row.at("mean") <= losses.at("federated").at("mean")) return false;
  return true;
}

Json to_json(const demo::Options& options, const std::vector<Contender>& contenders,
             const Losses& losses, const run::Outcome& federated, double seconds) {
  Json json;
  for (const demo::Site& site : demo::sites())
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
  for (const demo::Site& site : demo::sites())
    json["validation_tokens"][site.title] =
        fs::absolute(options.folder / "tokens" / (site.language + ".validation.tokens")).string();
  json["seconds"] = seconds;
  return json;
}

// Writes the options into the folder: continuing with other options would mix two demos.
void claim_folder(const demo::Options& options) {
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

void run_demo(const demo::Options& options, const std::string& json_file) {
  const auto began = std::chrono::steady_clock::now();
  claim_folder(options);
  StopOnSignal signals;
  const std::stop_token stop = signals.token();
  demo::prepare_model_and_data(options, demo::prepare_texts(options, stop), stop);

  std::printf("\nfederated: alba (Italian) and brno (Czech), %d rounds of %d steps each\n",
              options.rounds, options.steps);
  const run::Outcome federated =
      demo::train(options, "federated", demo::sites(), options.rounds, options.steps, stop);
  std::vector<Contender> contenders = {{"before", "before", demo::initial_model(options)}};
  for (const demo::Site& site : demo::sites()) {
    std::printf("\n%s alone, with the number of tokens of its part in the federation\n",
                site.facility.c_str());
    const run::Outcome alone = demo::train(options, site.facility + "-alone", {site}, 1,
                                           options.rounds * options.steps, stop);
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
    demo::Options options;
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
  command->add_option("--json", state->json, "write the figures to this file, too");
  command->callback([state] {
    for (const std::string& text : state->texts) state->options.texts.insert(parse_text(text));
    run_demo(state->options, state->json);
  });
}

}  // namespace xffl
