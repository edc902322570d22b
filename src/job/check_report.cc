#include "xffl/job/check_report.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <variant>

#include "xffl/base/error.h"
#include "xffl/base/json.h"
#include "xffl/base/utf8.h"

namespace xffl::job {
namespace {

constexpr std::string_view kRankFormat = "xffl-check-rank", kCheckFormat = "xffl-check";
constexpr int kCheckVersion = 1;
constexpr int64_t kMostChecked = int64_t{1} << 53;  // exact in every reader of JSON
constexpr int64_t kMostCheckRanks = 1'000'000;
constexpr size_t kLongestCheckText = 2000, kMostCheckShards = 200;
constexpr size_t kMostDataBytes = 48 << 10;  // of kMaxCheckBytes

// A key of a file and the member that holds its value.
template <class T>
struct CheckKey {
  std::string_view name;
  std::variant<std::string T::*, int T::*, int64_t T::*, double T::*, bool T::*> member;
  int64_t min = 0;
};

using Shard = CheckedShard;
constexpr CheckKey<Shard> kShardKeys[] = {{"path", &Shard::path},
                                          {"vocab_size", &Shard::vocab_size},
                                          {"sequence_length", &Shard::sequence_length},
                                          {"sequences", &Shard::sequences},
                                          {"problem", &Shard::problem}};

using Rank = RankCheck;
constexpr CheckKey<Rank> kRankKeys[] = {{"rank", &Rank::rank},
                                        {"host", &Rank::host},
                                        {"trainer", &Rank::trainer},
                                        {"cuda", &Rank::cuda},
                                        {"visible_gpus", &Rank::visible_gpus},
                                        {"device", &Rank::device},
                                        {"gpu", &Rank::gpu},
                                        {"memory_bytes", &Rank::memory_bytes},
                                        {"threads", &Rank::threads},
                                        {"product_tflops", &Rank::product_tflops},
                                        {"problem", &Rank::problem}};

using Found = CheckReport;
constexpr CheckKey<Found> kReportKeys[] = {{"backend", &Found::backend},
                                           {"ranks", &Found::ranks},
                                           {"nodes", &Found::nodes},
                                           {"all_reduce_bytes", &Found::all_reduce_bytes},
                                           {"all_reduce_seconds", &Found::all_reduce_seconds},
                                           {"signalled_ranks", &Found::signalled_ranks, -1},
                                           {"model_seconds", &Found::model_seconds},
                                           {"step_seconds", &Found::step_seconds},
                                           {"step_tokens", &Found::step_tokens},
                                           {"peak_memory_bytes", &Found::peak_memory_bytes},
                                           {"part", &Found::part},
                                           {"problem", &Found::problem},
                                           {"complete", &Found::complete}};

// The reader's limit holds for the text in the file, where U+FFFD replaces an invalid byte.
void write_value(Json& json, const std::string& text) {
  std::string valid;
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    const std::string_view character =
        length > 0 ? std::string_view(text).substr(i, length) : std::string_view("\uFFFD");
    if (valid.size() + character.size() > kLongestCheckText) break;
    valid += character;
    i += std::max<size_t>(1, length);
  }
  json = valid;
}
template <class V>
void write_value(Json& json, const V& value) {
  json = value;
}

void read_value(JsonObject& object, std::string_view key, int64_t, std::string& text) {
  text = object.string(key);
  if (text.size() > kLongestCheckText) object.fail(key, "is longer than 2000 bytes");
}
void read_value(JsonObject& object, std::string_view key, int64_t min, int& value) {
  value = static_cast<int>(object.integer(key, min, kMostCheckRanks));
}
void read_value(JsonObject& object, std::string_view key, int64_t min, int64_t& value) {
  value = object.integer(key, min, kMostChecked);
}
void read_value(JsonObject& object, std::string_view key, int64_t, double& value) {
  value = object.number(key);
  if (value < 0 || value > 1e15) object.fail(key, "is not between 0 and 1e15");
}
void read_value(JsonObject& object, std::string_view key, int64_t, bool& value) {
  value = object.boolean(key);
}

template <class T, size_t N>
void write_keys(Json& json, const CheckKey<T> (&keys)[N], const T& from) {
  for (const CheckKey<T>& key : keys)
    std::visit([&](auto member) { write_value(json[std::string(key.name)], from.*member); },
               key.member);
}

template <class T, size_t N>
void read_keys(JsonObject& object, const CheckKey<T> (&keys)[N], T& to) {
  for (const CheckKey<T>& key : keys)
    std::visit([&](auto member) { read_value(object, key.name, key.min, to.*member); }, key.member);
}

std::string dump_check(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<const CheckedShard*> one_of_each_kind_first(const std::vector<CheckedShard>& shards) {
  std::set<std::tuple<int64_t, int64_t, std::string>> kinds;
  std::vector<const CheckedShard*> sorted, others;
  for (const CheckedShard& shard : shards) {
    const bool is_new =
        kinds.emplace(shard.vocab_size, shard.sequence_length, shard.problem).second;
    (is_new ? sorted : others).push_back(&shard);
  }
  sorted.insert(sorted.end(), others.begin(), others.end());
  return sorted;
}

}  // namespace

std::string rank_check_file(int rank) { return "out/rank-" + std::to_string(rank) + ".json"; }
std::string nccl_log_file(int rank) { return "out/nccl-" + std::to_string(rank) + ".log"; }

std::string format_rank_check(const RankCheck& check) {
  Json json{{"format", kRankFormat}, {"version", kCheckVersion}};
  write_keys(json, kRankKeys, check);
  Json& data = json["data"] = Json::array();
  size_t data_bytes = 0;
  for (const CheckedShard* shard : one_of_each_kind_first(check.data)) {
    Json entry = Json::object();
    write_keys(entry, kShardKeys, *shard);
    data_bytes += dump_check(entry).size();
    if (data.size() == kMostCheckShards || data_bytes > kMostDataBytes) break;
    data.push_back(std::move(entry));
  }
  return dump_check(json);
}

std::string format_check_report(const CheckReport& report) {
  Json json{{"format", kCheckFormat}, {"version", kCheckVersion}};
  write_keys(json, kReportKeys, report);
  return dump_check(json);
}

RankCheck parse_rank_check(std::string_view json, std::string_view origin) {
  const Json parsed = parse_json(json, origin, {.max_bytes = kMaxCheckBytes, .max_depth = 4});
  JsonObject object(parsed, std::string(origin));
  object.require_format(kRankFormat, kCheckVersion);
  RankCheck check;
  read_keys(object, kRankKeys, check);
  const Json& data = object.at("data");
  if (!data.is_array() || data.size() > kMostCheckShards)
    object.fail("data", "is not a list of at most 200 shards");
  for (const Json& shard : data) {
    JsonObject entry(shard, std::string(origin) + ": data");
    read_keys(entry, kShardKeys, check.data.emplace_back());
  }
  return check;
}

CheckReport parse_check_report(std::string_view json, std::string_view origin) {
  const Json parsed = parse_json(json, origin, {.max_bytes = kMaxCheckBytes, .max_depth = 4});
  JsonObject object(parsed, std::string(origin));
  object.require_format(kCheckFormat, kCheckVersion);
  CheckReport report;
  read_keys(object, kReportKeys, report);
  return report;
}

}  // namespace xffl::job
