#include "xffl/tokens/prepared.h"

#include "xffl/base/error.h"
#include "xffl/base/json.h"
#include "xffl/base/sha256.h"

namespace xffl::tokens {
namespace {

constexpr std::string_view kJobFormat = "xffl-prepare-job", kPreparedFormat = "xffl-prepared";
constexpr int kVersion = 1, kJobVersion = 2;
constexpr int64_t kMost = int64_t{1} << 53;  // exact in every reader of JSON

std::string hash_in(JsonObject& object, std::string_view key) {
  std::string text = object.string(key);
  if (!is_sha256_hex(text)) object.fail(key, "is not a SHA-256");
  return text;
}

uint64_t count_in(JsonObject& object, std::string_view key) {
  return static_cast<uint64_t>(object.integer(key, 0, kMost));
}

Json shard_json(const PreparedShard& shard) {
  return {{"sha256", shard.sha256},
          {"bytes", shard.bytes},
          {"tokens", shard.tokens},
          {"sequences", shard.sequences},
          {"documents", shard.documents}};
}

PreparedShard read_shard(JsonObject object) {
  return {.sha256 = hash_in(object, "sha256"),
          .bytes = count_in(object, "bytes"),
          .tokens = count_in(object, "tokens"),
          .sequences = count_in(object, "sequences"),
          .documents = count_in(object, "documents")};
}

PrepareJob as_of_version_1(PrepareJob job) {
  const PrepareJob plain;
  job.format = plain.format;
  job.chat_template = plain.chat_template;
  job.messages_field = plain.messages_field;
  job.id_type = plain.id_type;
  job.end_id = plain.end_id;
  return job;
}

}  // namespace

std::vector<std::string_view> tokenizer_files() {
  return {"tokenizer.model", "tokenizer.json", "tokenizer_config.json"};
}

bool has_tokenizer(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / "tokenizer.model") ||
         std::filesystem::exists(folder / "tokenizer.json");
}

std::string tokenizer_hash(const std::filesystem::path& folder) {
  std::string lines;
  for (const std::string_view name : tokenizer_files()) {
    if (!std::filesystem::exists(folder / name)) continue;
    lines += sha256_file(folder / name) + "  " + std::string(name) + "\n";
  }
  if (!has_tokenizer(folder))
    throw Error(ErrorKind::kNotFound, folder.string() +
                                          " holds no tokenizer.model and no tokenizer.json: "
                                          "copy the tokenizer of the model there");
  return sha256_hex(lines);
}

std::string format_prepare_job(const PrepareJob& job) {
  const bool is_plain = as_of_version_1(job) == job;
  Json json{{"format", kJobFormat},
            {"version", is_plain ? kVersion : kJobVersion},
            {"tokenizer_sha256", job.tokenizer_sha256},
            {"files", job.files},
            {"template", job.prompt},
            {"text_field", job.text_field},
            {"prompt_field", job.prompt_field},
            {"document", job.document},
            {"mask_prompt", job.mask_prompt},
            {"pack", job.pack},
            {"validation_fraction", job.validation_fraction},
            {"sequence_length", job.sequence_length}};
  if (!is_plain)
    json.update({{"text_format", job.format},
                 {"chat_template", job.chat_template},
                 {"messages_field", job.messages_field},
                 {"id_type", job.id_type},
                 {"end_id", job.end_id}});
  return json.dump(2) + "\n";
}

PrepareJob parse_prepare_job(const std::string& json, const std::string& where) {
  const Json parsed = parse_json(json, where);
  JsonObject object(parsed, where);
  const bool is_plain = object.has("version") && object.at("version") == kVersion;
  object.require_format(kJobFormat, is_plain ? kVersion : kJobVersion);
  PrepareJob job{.tokenizer_sha256 = hash_in(object, "tokenizer_sha256"),
                 .files = object.strings("files"),
                 .prompt = object.string("template"),
                 .text_field = object.string("text_field"),
                 .prompt_field = object.string("prompt_field"),
                 .document = object.string("document"),
                 .mask_prompt = object.boolean("mask_prompt"),
                 .pack = object.boolean("pack"),
                 .validation_fraction = object.number("validation_fraction"),
                 .sequence_length = object.integer("sequence_length", 1, 1 << 24)};
  if (is_plain) return job;
  job.format = object.string("text_format");
  job.chat_template = object.string("chat_template");
  job.messages_field = object.string("messages_field");
  job.id_type = object.string("id_type");
  job.end_id = object.integer("end_id", -1, INT32_MAX);
  return job;
}

std::string format_prepared(const Prepared& prepared) {
  Json json{{"format", kPreparedFormat},
            {"version", kVersion},
            {"tokenizer_sha256", prepared.tokenizer_sha256},
            {"text_sha256", prepared.text_sha256},
            {"program", prepared.program},
            {"files", prepared.files},
            {"bytes", prepared.bytes},
            {"dropped_tokens", prepared.dropped_tokens},
            {"cut_documents", prepared.cut_documents},
            {"seconds", prepared.seconds},
            {"training", shard_json(prepared.training)}};
  if (prepared.validation) json["validation"] = shard_json(*prepared.validation);
  return json.dump(2) + "\n";
}

Prepared parse_prepared(const std::string& json, const std::string& where) {
  const Json parsed = parse_json(json, where);
  JsonObject object(parsed, where);
  object.require_format(kPreparedFormat, kVersion);
  Prepared prepared{.tokenizer_sha256 = hash_in(object, "tokenizer_sha256"),
                    .text_sha256 = hash_in(object, "text_sha256"),
                    .program = object.string("program"),
                    .files = count_in(object, "files"),
                    .bytes = count_in(object, "bytes"),
                    .dropped_tokens = count_in(object, "dropped_tokens"),
                    .cut_documents = count_in(object, "cut_documents"),
                    .seconds = object.number("seconds"),
                    .training = read_shard(object.object("training"))};
  if (prepared.seconds < 0) object.fail("seconds", "is negative");
  if (object.has("validation")) prepared.validation = read_shard(object.object("validation"));
  return prepared;
}

std::string format_prepare_progress(const PrepareProgress& progress) {
  return Json{{"bytes_done", progress.bytes_done},
              {"bytes_total", progress.bytes_total},
              {"tokens", progress.tokens}}
      .dump();
}

PrepareProgress parse_prepare_progress(const std::string& json, const std::string& where) {
  const Json parsed = parse_json(json, where);
  JsonObject object(parsed, where);
  return {count_in(object, "bytes_done"), count_in(object, "bytes_total"),
          count_in(object, "tokens")};
}

}  // namespace xffl::tokens
