// xffl-train: runs a facility's job, one process per rank; reads the ranks from environment
// variables.
#include <CLI/CLI.hpp>
#include <exception>

#include "commands.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace {

using namespace xffl::train_app;

struct CommandLine {
  CLI::App app{"Trains and evaluates a LLaMA: the facility's half of xffl.", "xffl-train"};
  CommonOptions common;
  std::string job;
  bool benchmark = false;
  EvaluateOptions evaluate;
  InitOptions init;
  MergeOptions merge;
  GenerateCommandOptions generate;
  bool info_json = false;
};

// Adds an option whose help shows the default.
template <class T>
CLI::Option* add(CLI::App& command, const char* name, T& value, const char* help) {
  return command.add_option(name, value, help)->capture_default_str();
}

void declare_common(CLI::App& app, CommandLine& line) {
  add(app, "--device", line.common.device, "auto, cpu or cuda");
  app.add_option("--threads", line.common.threads,
                 "CPU threads of this rank; 0: OMP_NUM_THREADS, else an equal share of the CPUs")
      ->check(CLI::Range(0, 4096));
}

void declare_merge(CLI::App& app, MergeOptions& options) {
  CLI::App* command = app.add_subcommand("merge", "Merge a LoRA adapter into its model's weights");
  command->add_option("--model", options.model, "HF folder")->required();
  command->add_option("--adapter", options.adapter, "folder of an adapter in PEFT's format")
      ->required();
  command->add_option("--output,--out", options.output, "HF folder to create")->required();
  command->add_option("--dtype", options.dtype, "fp32, bf16 or fp16; default: the model's type");
}

void declare_generate(CLI::App& app, CommandLine& line) {
  GenerateCommandOptions& options = line.generate;
  xffl::train::GenerateOptions& generate = options.generate;
  CLI::App* command = app.add_subcommand(
      "generate", "Continue a prompt of token ids and print JSON lines (for text: xffl generate)");
  declare_common(*command, line);
  command->add_option("--model", options.model, "HF folder")->required();
  command->add_option("--adapter", options.adapter, "folder of a LoRA adapter for the model");
  command->add_option("--ids", options.ids, "the prompt: token ids");
  command->add_option("--ids-file", options.ids_file,
                      "the prompt: a file with token ids; -: standard input");
  add(*command, "--precision", options.precision, "fp32 or bf16");
  add(*command, "--max-new-tokens", generate.max_new_tokens, "maximum number of new tokens");
  add(*command, "--temperature", generate.sampling.temperature, "0: always the most likely token");
  add(*command, "--top-k", generate.sampling.top_k, "draw from the k most likely tokens; 0: all");
  add(*command, "--top-p", generate.sampling.top_p,
      "draw from the most likely tokens up to this total probability");
  add(*command, "--repetition-penalty", generate.sampling.repetition_penalty,
      "above 1: tokens already in the text become less likely");
  add(*command, "--seed", generate.sampling.seed, "seed");
  add(*command, "--sequences", options.num_sequences,
      "number of continuations, the first with this seed, the others with the following ones")
      ->check(CLI::Range(1, 10000));
  command->add_option("--stop-ids", generate.stop_ids, "ids that end the text")->delimiter(',');
  command->add_flag("!--ignore-eos", options.stop_at_eos,
                    "do not stop at the model's end-of-text token");
}

void declare_evaluate(CLI::App& app, CommandLine& line) {
  CLI::App* evaluate =
      app.add_subcommand("evaluate", "Measure loss and perplexity of a model on a token shard");
  declare_common(*evaluate, line);
  evaluate->add_option("--model", line.evaluate.model, "HF folder")->required();
  evaluate->add_option("--adapter", line.evaluate.adapter,
                       "folder of a LoRA adapter for the model");
  evaluate->add_option("--tokens", line.evaluate.tokens, "token shard")->required();
  add(*evaluate, "--precision", line.evaluate.precision, "fp32, bf16 or fp16");
  add(*evaluate, "--sharding", line.evaluate.sharding,
      "full: each rank holds only a shard of the model")
      ->check(CLI::IsMember({"none", "full"}));
  add(*evaluate, "--batch-size", line.evaluate.batch_size, "sequences per forward pass")
      ->check(CLI::Range(1, 1 << 20));
  evaluate->add_flag("--document-mask", line.evaluate.document_mask,
                     "restrict attention to the documents of a packed sequence, as "
                     "training.document_mask does");
  evaluate->add_flag("--json", line.evaluate.json, "print one JSON object");
}

void declare(CommandLine& line) {
  CLI::App& app = line.app;
  app.set_version_flag("--version", version_line());
  declare_common(app, line);
  app.add_option("--job", line.job, "job.json: run this job");
  app.add_flag("--benchmark", line.benchmark,
               "measure the job's steps: the input model is not hashed, no update is written");

  CLI::App* train = app.add_subcommand("train", "Run the job of a job.json");
  declare_common(*train, line);
  train->add_option("--job", line.job, "job.json")->required();

  CLI::App* check = app.add_subcommand(
      "check", "Find out whether a job would train here, and how fast (xffl doctor --job)");
  declare_common(*check, line);
  check->add_option("--job", line.job, "job.json")->required();

  declare_evaluate(app, line);

  CLI::App* init = app.add_subcommand("init", "Make a model with random weights");
  declare_common(*init, line);
  init->add_option("--config", line.init.config, "config.json of a LLaMA")->required();
  add(*init, "--seed", line.init.seed, "seed");
  init->add_option("--output", line.init.output, "HF folder to create")->required();
  add(*init, "--dtype", line.init.dtype, "fp32, bf16 or fp16");
  init->add_option("--tokenizer", line.init.tokenizer,
                   "tokenizer file, or folder with tokenizer files, to copy");

  declare_generate(app, line);
  declare_merge(app, line.merge);

  CLI::App* info =
      app.add_subcommand("info", "Report the environment: LibTorch, CPUs, GPUs, back ends");
  declare_common(*info, line);
  info->add_flag("--json", line.info_json, "print one JSON object");
  app.require_subcommand(0, 1);
}

void run(const CommandLine& line) {
  const CLI::App& app = line.app;
  if (app.got_subcommand("check")) return check_command(line.common, line.job);
  if (app.got_subcommand("evaluate")) return evaluate_command(line.common, line.evaluate);
  if (app.got_subcommand("init")) return init_command(line.common, line.init);
  if (app.got_subcommand("merge")) return merge_command(line.merge);
  if (app.got_subcommand("generate")) return generate_command(line.common, line.generate);
  if (app.got_subcommand("info")) return info_command(line.common, line.info_json);
  if (!line.job.empty()) return train_command(line.common, line.job, line.benchmark);
  throw xffl::Error(xffl::ErrorKind::kUsage,
                    "no command: expected --job job.json or a subcommand, see xffl-train --help");
}

}  // namespace

int main(int argc, char** argv) {
  set_up_process();
  xffl::end_on_unreadable_mapping("xffl-train");
  CommandLine line;
  declare(line);
  try {
    line.app.parse(argc, argv);
    run(line);
    return 0;
  } catch (const CLI::ParseError& error) {
    const int code = line.app.exit(error);
    return code == 0 ? 0 : xffl::exit_code(xffl::ErrorKind::kUsage);
  } catch (const std::exception& error) {
    end_process(error);
  }
}
