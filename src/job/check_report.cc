#include "xffl/job/check_report.h"

#include "xffl/base/error.h"
#include "xffl/base/json.h"

namespace xffl::job {
namespace {

constexpr std::string_view kRankFormat = "xffl-check-rank", kCheckFormat = "xffl-check";
constexpr int kCheckVersion = 1;
constexpr int64_t kMostChecked = int64_t{1} << 53;  // exact in every reader of JSON
constexpr int64_t kMostCheckRanks = 1'000'000;
constexpr size_t kLongestCheckText = 2000, kMostCheckShards = 200;

JsonObject open_check(const Json& json, std::string_view origin, std::string_view format) {
  JsonObject object(json, std::string(origin));
  if (const std::string found = object.string("format"); found != format)
    object.fail_unsupported("format", found, format);
  if (const int64_t found = object.integer("version"); found != kCheckVersion)
    object.fail_unsupported("version", std::to_string(found), std::to_string(kCheckVersion));
  return object;
}

std::string text_in(JsonObject& object, std::string_view key) {
  std::string text = object.string(key);
  if (text.size() > kLongestCheckText) object.fail(key, "is longer than 2000 bytes");
  return text;
}

int64_t count_in(JsonObject& object, std::string_view key) {
  return object.integer(key, 0, kMostChecked);
}

int int_in(JsonObject& object, std::string_view key, int64_t min = 0) {
  return static_cast<int>(object.integer(key, min, kMostCheckRanks));
}

double amount_in(JsonObject& object, std::string_view key) {
  const double value = object.number(key);
  if (value < 0 || value > 1e15) object.fail(key, "is not between 0 and 1e15");
  return value;
}

CheckedShard read_checked_shard(const Json& json, const std::string& where) {
  JsonObject object(json, where);
  CheckedShard shard{.path = text_in(object, "path"),
                     .vocab_size = count_in(object, "vocab_size"),
                     .sequence_length = count_in(object, "sequence_length"),
                     .sequences = count_in(object, "sequences"),
                     .problem = text_in(object, "problem")};
  object.reject_unknown_keys();
  return shard;
}

std::string shortened(const std::string& text) { return text.substr(0, kLongestCheckText); }

}  // namespace

std::string rank_check_file(int rank) { return "out/rank-" + std::to_string(rank) + ".json"; }
std::string nccl_log_file(int rank) { return "out/nccl-" + std::to_string(rank) + ".log"; }

std::string format_rank_check(const RankCheck& check) {
  Json json{{"format", kRankFormat},
            {"version", kCheckVersion},
            {"rank", check.rank},
            {"host", check.host},
            {"trainer", check.trainer},
            {"cuda", check.cuda},
            {"visible_gpus", check.visible_gpus},
            {"device", check.device},
            {"gpu", check.gpu},
            {"memory_bytes", check.memory_bytes},
            {"threads", check.threads},
            {"product_tflops", check.product_tflops},
            {"problem", shortened(check.problem)},
            {"data", Json::array()}};
  for (const CheckedShard& shard : check.data)
    json["data"].push_back({{"path", shard.path},
                            {"vocab_size", shard.vocab_size},
                            {"sequence_length", shard.sequence_length},
                            {"sequences", shard.sequences},
                            {"problem", shortened(shard.problem)}});
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string format_check_report(const CheckReport& report) {
  const Json json{{"format", kCheckFormat},
                  {"version", kCheckVersion},
                  {"backend", report.backend},
                  {"ranks", report.ranks},
                  {"nodes", report.nodes},
                  {"all_reduce_bytes", report.all_reduce_bytes},
                  {"all_reduce_seconds", report.all_reduce_seconds},
                  {"signalled_ranks", report.signalled_ranks},
                  {"model_seconds", report.model_seconds},
                  {"step_seconds", report.step_seconds},
                  {"step_tokens", report.step_tokens},
                  {"peak_memory_bytes", report.peak_memory_bytes},
                  {"part", report.part},
                  {"problem", shortened(report.problem)},
                  {"complete", report.complete}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

RankCheck parse_rank_check(std::string_view json, std::string_view origin) {
  const Json parsed = parse_json(json, origin, {.max_bytes = kMaxCheckBytes, .max_depth = 4});
  JsonObject object = open_check(parsed, origin, kRankFormat);
  RankCheck check{.rank = int_in(object, "rank"),
                  .host = text_in(object, "host"),
                  .trainer = text_in(object, "trainer"),
                  .cuda = text_in(object, "cuda"),
                  .visible_gpus = int_in(object, "visible_gpus"),
                  .device = text_in(object, "device"),
                  .gpu = text_in(object, "gpu"),
                  .memory_bytes = count_in(object, "memory_bytes"),
                  .threads = int_in(object, "threads"),
                  .product_tflops = amount_in(object, "product_tflops"),
                  .problem = text_in(object, "problem"),
                  .data = {}};
  const Json& data = object.at("data");
  if (!data.is_array() || data.size() > kMostCheckShards)
    object.fail("data", "is not a list of at most 200 shards");
  for (const Json& shard : data)
    check.data.push_back(read_checked_shard(shard, std::string(origin) + ": data"));
  object.reject_unknown_keys();
  return check;
}

CheckReport parse_check_report(std::string_view json, std::string_view origin) {
  const Json parsed = parse_json(json, origin, {.max_bytes = kMaxCheckBytes, .max_depth = 2});
  JsonObject object = open_check(parsed, origin, kCheckFormat);
  CheckReport report{.backend = text_in(object, "backend"),
                     .ranks = int_in(object, "ranks"),
                     .nodes = int_in(object, "nodes"),
                     .all_reduce_bytes = count_in(object, "all_reduce_bytes"),
                     .all_reduce_seconds = amount_in(object, "all_reduce_seconds"),
                     .signalled_ranks = int_in(object, "signalled_ranks", -1),
                     .model_seconds = amount_in(object, "model_seconds"),
                     .step_seconds = amount_in(object, "step_seconds"),
                     .step_tokens = amount_in(object, "step_tokens"),
                     .peak_memory_bytes = count_in(object, "peak_memory_bytes"),
                     .part = text_in(object, "part"),
                     .problem = text_in(object, "problem"),
                     .complete = object.boolean("complete")};
  object.reject_unknown_keys();
  return report;
}

}  // namespace xffl::job
