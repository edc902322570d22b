#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "command_tree.h"
#include "commands.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/lora.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/checkpoint/model_folder.h"
#include "xffl/history/store.h"
#include "xffl/job/job_report.h"
#include "xffl/job/job_spec.h"
#include "xffl/tokens/token_shard.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;

// The JSON of `xffl inspect --json`.
struct Description {
  Json json;            // first key: "kind"
  std::string problem;  // a failed verification of a readable file; empty: none
};

constexpr uint64_t kMaxJsonBytes = 8u << 20;

Json json_file(const fs::path& path) {
  return parse_json(read_file(path, kMaxJsonBytes), path.string());
}

void add_tensors(Json& json, const std::vector<checkpoint::TensorSpec>& tensors,
                 bool with_tensors) {
  int64_t num_parameters = 0;
  uint64_t num_bytes = 0;
  std::map<std::string, int64_t> by_type;
  for (const checkpoint::TensorSpec& spec : tensors) {
    num_parameters += spec.num_elements();
    num_bytes += spec.num_bytes();
    by_type[std::string(to_string(spec.dtype))] += spec.num_elements();
  }
  json["num_tensors"] = tensors.size();
  json["num_parameters"] = num_parameters;
  json["parameters_by_dtype"] = by_type;
  json["size_bytes"] = num_bytes;
  if (!with_tensors) return;
  Json& list = json["tensors"] = Json::array();
  for (const checkpoint::TensorSpec& spec : tensors)
    list.push_back({{"name", spec.name}, {"dtype", to_string(spec.dtype)}, {"shape", spec.shape}});
}

Json describe_config(const checkpoint::LlamaConfig& config) {
  return {{"model_type", config.model_type},
          {"vocab_size", config.vocab_size},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"num_layers", config.num_layers},
          {"num_heads", config.num_heads},
          {"num_kv_heads", config.num_kv_heads},
          {"head_dim", config.head_dim},
          {"max_position_embeddings", config.max_position_embeddings},
          {"rope_theta", config.rope.theta},
          {"tie_word_embeddings", config.tie_word_embeddings},
          {"torch_dtype", config.torch_dtype}};
}

Json describe_adapter(const checkpoint::LoraConfig& lora) {
  return {{"adapter", "LoRA"},
          {"rank", lora.rank},
          {"alpha", lora.alpha},
          {"rank_stabilized", lora.rank_stabilized},
          {"weight_decomposed", lora.weight_decomposed},
          {"target_modules", lora.target_modules},
          {"modules_to_save", lora.modules_to_save}};
}

void add_config(Json& json, const fs::path& folder) {
  if (fs::exists(folder / checkpoint::kAdapterConfigName)) {
    json["config"] = describe_adapter(checkpoint::read_lora_config(folder));
    return;
  }
  if (!fs::exists(folder / "config.json")) {
    json["config"] = "no config.json";
    return;
  }
  try {
    json["config"] = describe_config(checkpoint::read_llama_config(folder));
  } catch (const Error& error) {  // a model of another family
    json["config"] = error.what();
  }
}

void add_manifest(Description& description, const fs::path& folder) {
  Json& json = description.json;
  if (!fs::exists(folder / checkpoint::kManifestName)) {
    json["manifest"] = "none";
    return;
  }
  try {
    const checkpoint::Manifest manifest = checkpoint::read_manifest(folder);
    json["sha256"] = manifest.root_sha256();
    verify_folder(folder, manifest);
    json["manifest"] = "verified";
  } catch (const Error& error) {
    json["manifest"] = "not verified";
    description.problem = error.what();
  }
}

Description describe_model(const fs::path& folder, bool with_tensors) {
  Description description;
  description.json = {{"kind", "model folder"}, {"path", folder.string()}};
  add_config(description.json, folder);
  add_tensors(description.json, checkpoint::ModelFolder(folder).tensors(), with_tensors);
  add_manifest(description, folder);
  return description;
}

Description describe_safetensors(const fs::path& path, bool with_tensors) {
  const checkpoint::SafetensorsFile file(path);
  Json json = {{"kind", "safetensors file"}, {"path", path.string()}};
  json["metadata"] = file.metadata();
  add_tensors(json, file.tensors(), with_tensors);
  return {json, ""};
}

Description describe_tokens(const fs::path& path) {
  const tokens::ShardInfo info = tokens::TokenShardReader(path).info();
  return {{{"kind", "token shard"},
           {"path", path.string()},
           {"vocab_size", info.vocab_size},
           {"sequence_length", info.sequence_length},
           {"num_tokens", info.num_tokens},
           {"num_sequences", info.num_sequences},
           {"num_documents", info.num_documents},
           {"packed", info.packed}},
          ""};
}

Description describe_journal(const fs::path& path) {
  const std::vector<history::StoredEvent> events = history::read_events(path);
  Json json = {{"kind", "journal"},
               {"path", path.string()},
               {"num_events", events.size()},
               {"chain", "verified"},
               {"writer", history::lock_holder(path)}};
  Json& list = json["events"] = Json::array();
  for (const history::StoredEvent& event : events)
    list.push_back({{"seq", event.seq},
                    {"time", event.time_utc},
                    {"kind", event.kind},
                    {"round", event.round},
                    {"facility", event.facility},
                    {"attempt", event.attempt},
                    {"payload", parse_json(event.payload, path.string())}});
  return {json, ""};
}

// The strict reader of the format comes first: xffl accepts each file that `inspect` shows.
Description describe_json(const fs::path& path) {
  const std::string name = path.filename().string();
  std::string kind = "JSON file";
  if (name == "job.json") {
    job::read_job_spec(path);
    kind = "job";
  } else if (name == "report.json") {
    job::read_job_report(path);
    kind = "report";
  } else if (name == checkpoint::kManifestName) {
    checkpoint::read_manifest(path.parent_path());
    kind = "manifest";
  }
  return {{{"kind", kind}, {"path", path.string()}, {"content", json_file(path)}}, ""};
}

Description describe_folder(const fs::path& folder, bool with_tensors) {
  if (fs::exists(folder / "journal.db")) return describe_journal(folder / "journal.db");
  for (const char* name : {"model.safetensors", "model.safetensors.index.json", "config.json",
                           "adapter_model.safetensors"})
    if (fs::exists(folder / name)) return describe_model(folder, with_tensors);
  throw Error(ErrorKind::kUsage, folder.string() +
                                     " is neither a model folder (no model.safetensors) nor a "
                                     "run's folder (no journal.db)");
}

Description describe(const fs::path& path, bool with_tensors) {
  if (!fs::exists(path)) throw Error(ErrorKind::kNotFound, path.string() + " does not exist");
  if (fs::is_directory(path)) return describe_folder(path, with_tensors);
  const std::string extension = path.extension().string();
  if (extension == ".safetensors") return describe_safetensors(path, with_tensors);
  if (extension == ".tokens") return describe_tokens(path);
  if (extension == ".db") return describe_journal(path);
  if (extension == ".json") return describe_json(path);
  throw Error(ErrorKind::kUsage,
              path.string() +
                  " has an unknown kind; expected a model folder, *.safetensors, *.tokens, "
                  "job.json, report.json, manifest.json or a run's journal.db");
}

std::string dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

Json with_schema(const Json& content) {
  Json json = {{"schema", 1}};
  json.update(content);
  return json;
}

// A string itself, other values as JSON, with escaped control characters.
std::string shown(const Json& value) {
  return log::printable(value.is_string() ? value.get<std::string>() : dump(value));
}

void print_tensor(const Json& tensor) {
  std::printf("  %-60s %-5s %s\n", shown(tensor["name"]).c_str(), shown(tensor["dtype"]).c_str(),
              shown(tensor["shape"]).c_str());
}

void print_event(const Json& event) {
  std::printf("%5s  %-24s  %5s  %-16s %2s  %-24s %s\n", shown(event["seq"]).c_str(),
              shown(event["time"]).c_str(), shown(event["round"]).c_str(),
              shown(event["facility"]).c_str(), shown(event["attempt"]).c_str(),
              shown(event["kind"]).c_str(), shown(event["payload"]).c_str());
}

void print_text(const Json& json, int indent) {
  for (const auto& [key, value] : json.items()) {
    if (key == "tensors" || key == "events") continue;
    std::printf("%*s%s:", indent, "", log::printable(key, 200).c_str());
    if (value.is_object()) {
      std::printf("\n");
      print_text(value, indent + 2);
    } else {
      std::printf(" %s\n", shown(value).c_str());
    }
  }
}

void inspect(const std::string& path, bool json, bool with_tensors) {
  const Description description = describe(path, with_tensors);
  const Json& content = description.json;
  if (json && content.contains("events")) {
    for (const Json& event : content["events"])
      std::printf("%s\n", dump(with_schema(event)).c_str());
  } else if (json) {
    std::printf("%s\n", dump(with_schema(content), 2).c_str());
  } else {
    print_text(content, 0);
    if (content.contains("tensors"))
      for (const Json& tensor : content["tensors"]) print_tensor(tensor);
    if (content.contains("events"))
      for (const Json& event : content["events"]) print_event(event);
  }
  if (!description.problem.empty())
    throw Error(ErrorKind::kRejected, log::printable(description.problem));
}

}  // namespace

void add_inspect_command(CLI::App& app) {
  struct Flags {
    std::string path;
    bool json = false, tensors = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "inspect", "describe a model, token shard, job, report or run, and verify its hashes");
  command->add_option("path", flags->path, "a file or folder")->type_name(kPathType)->required();
  command->add_flag("--json", flags->json, "print JSON; a journal's events one per line");
  command->add_flag("--tensors", flags->tensors, "list every tensor's dtype and shape");
  command->callback([flags] { inspect(flags->path, flags->json, flags->tensors); });
}

}  // namespace xffl
