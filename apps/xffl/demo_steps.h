// The steps of the demo. A step skips the products that an interrupted demo had finished.
#pragma once

#include <filesystem>
#include <map>
#include <stop_token>
#include <string>
#include <vector>

#include "xffl/run/federation.h"

namespace xffl::demo {

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
const std::vector<Site>& sites();

/// Language -> text file: `options.texts`, or Debian's help pages, which a script of this program
/// fetches with apt-get.
std::map<std::string, std::filesystem::path> prepare_texts(const Options& options,
                                                           std::stop_token stop);

/// Tokenizer, token shards and a small random LLaMA under `options.folder`; prints a line per step.
void prepare_model_and_data(const Options& options,
                            const std::map<std::string, std::filesystem::path>& texts,
                            std::stop_token stop);

/// Writes the project of these facilities and runs it.
run::Outcome train(const Options& options, const std::string& name,
                   const std::vector<Site>& facilities, int rounds, int steps,
                   std::stop_token stop);

/// Mean validation loss (nats per token) of a model on a language, by xffl-train evaluate.
double validation_loss(const Options& options, const std::filesystem::path& model,
                       const std::string& language, std::stop_token stop);

std::filesystem::path initial_model(const Options& options);

}  // namespace xffl::demo
