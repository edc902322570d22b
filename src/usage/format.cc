#include "xffl/usage/format.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace xffl::usage {
namespace {

constexpr std::array kOutcomes{Outcome::kUsed, Outcome::kLost, Outcome::kIdle, Outcome::kEvaluation,
                               Outcome::kOpen};
constexpr std::array kSources{Source::kAccounting, Source::kJob, Source::kBounded};

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::vector<std::string> cells_of(const Total& total) {
  std::vector<std::string> cells{std::to_string(total.starts), hours_text(total.node_seconds),
                                 hours_text(total.gpu_seconds)};
  for (const Outcome outcome : kOutcomes) {
    if (outcome == Outcome::kOpen) continue;
    const auto found = total.node_seconds_by_outcome.find(outcome);
    cells.push_back(found == total.node_seconds_by_outcome.end() ? "-" : hours_text(found->second));
  }
  std::string sources;
  for (const Source source : kSources)
    if (const auto found = total.starts_by_source.find(source);
        found != total.starts_by_source.end())
      sources += (sources.empty() ? "" : ", ") + std::to_string(found->second) + " " +
                 std::string(name_of(source));
  cells.push_back(sources.empty() ? "-" : sources);
  return cells;
}

Json optional_time(const std::optional<Clock::UtcTime>& time) {
  return time ? Json(format_utc(*time)) : Json(nullptr);
}
template <class Number>
Json optional_number(const std::optional<Number>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json json_of(const Amount& amount) {
  return {{"seconds", amount.seconds}, {"unknown_rows", amount.unknown}};
}

Json json_of(const Total& total) {
  Json json{{"starts", total.starts},
            {"node_seconds", json_of(total.node_seconds)},
            {"gpu_seconds", json_of(total.gpu_seconds)}};
  json["node_seconds_by_outcome"] = Json::object();
  for (const auto& [outcome, amount] : total.node_seconds_by_outcome)
    json["node_seconds_by_outcome"][std::string(name_of(outcome))] = json_of(amount);
  json["rows_by_source"] = Json::object();
  for (const auto& [source, count] : total.starts_by_source)
    json["rows_by_source"][std::string(name_of(source))] = count;
  json["energy_joules"] = optional_number(total.energy_joules);
  json["gpu_energy_joules"] = optional_number(total.gpu_energy_joules);
  json["billing_hours"] = optional_number(total.billing_hours);
  return json;
}

Json json_of(const Row& row) {
  return {{"facility", row.facility.str()},
          {"round", row.round},
          {"attempt", row.attempt},
          {"job", row.job.str()},
          {"restart", row.restart},
          {"submit", optional_time(row.submit)},
          {"start", optional_time(row.start)},
          {"end", optional_time(row.end)},
          {"nodes", optional_number(row.nodes)},
          {"gpus", optional_number(row.gpus)},
          {"elapsed", optional_number(row.elapsed)},
          {"outcome", name_of(row.outcome)},
          {"source", row.source ? Json(name_of(*row.source)) : Json(nullptr)},
          {"clock_offset", optional_number(row.clock_offset)},
          {"clock_error", optional_number(row.clock_error)},
          {"energy_joules", optional_number(row.energy_joules)},
          {"gpu_energy_joules", optional_number(row.gpu_energy_joules)},
          {"billing_hours", optional_number(row.billing_hours)}};
}

// RFC 4180: a field with a separator, a quote or a line break stands in quotes.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

std::string hours_text(double seconds) {
  const double hours = seconds / 3600;
  return fixed(hours, hours < 10 ? 2 : 1);
}

std::string hours_text(const Amount& amount) {
  if (amount.unknown > 0 && amount.seconds == 0) return "not known";
  return hours_text(amount.seconds) + (amount.unknown > 0 ? "+" : "");
}

const std::vector<std::string>& table_heads() {
  static const std::vector<std::string> heads{"starts", "node-hours", "GPU-hours",  "used",
                                              "lost",   "idle",       "evaluation", "sources"};
  return heads;
}

std::vector<TableRow> table_rows(const Ledger& ledger) {
  std::vector<TableRow> rows;
  if (ledger.rows.empty()) return rows;
  for (const auto& [name, total] : ledger.by_facility())
    rows.push_back({name.str(), cells_of(total)});
  rows.push_back({"total", cells_of(ledger.total())});
  return rows;
}

std::vector<std::string> remarks(const Ledger& ledger) {
  std::vector<std::string> all;
  int open = 0, unknown = 0, bounded = 0, without_gpus = 0;
  for (const Row& row : ledger.rows) {
    if (row.outcome == Outcome::kOpen)
      ++open;
    else if (!row.node_seconds())
      ++unknown;
    if (row.source == Source::kBounded) ++bounded;
    if (row.node_seconds() && !row.gpus) ++without_gpus;
  }
  const auto say = [&](int count, const std::string& one, const std::string& many) {
    if (count > 0) all.push_back(std::to_string(count) + (count == 1 ? one : many));
  };
  say(open, " job has not ended: its hours are not in the sums",
      " jobs have not ended: their hours are not in the sums");
  say(unknown, " start left no times: its hours are not in the sums (marked +)",
      " starts left no times: their hours are not in the sums (marked +)");
  say(bounded, " start was killed: it ended up to 15 s after its last heartbeat, which counts",
      " starts were killed: they ended up to 15 s after their last heartbeats, which count");
  say(without_gpus, " row has no GPU-hours: the facility's slurm.gpus_per_node is not set",
      " rows have no GPU-hours: slurm.gpus_per_node of their facilities is not set");
  const Total total = ledger.total();
  if (total.energy_joules)
    all.push_back("energy by the accounting: " + fixed(*total.energy_joules / 3.6e6, 2) + " kWh");
  if (total.gpu_energy_joules)
    all.push_back("energy of the GPUs alone, measured by the trainers of " +
                  std::to_string(total.gpu_energy_rows) + " of " +
                  std::to_string(ledger.rows.size()) +
                  " rows: " + fixed(*total.gpu_energy_joules / 3.6e6, 2) + " kWh");
  if (total.billing_hours)
    all.push_back("billing by the accounting: " + fixed(*total.billing_hours, 2) +
                  " hours (TRES billing x hours)");
  say(ledger.clock_anomalies, " duration was negative by the facility's clock and counts as 0",
      " durations were negative by the facilities' clocks and count as 0");
  return all;
}

std::string format_text(const Ledger& ledger) {
  const std::vector<TableRow> rows = table_rows(ledger);
  if (rows.empty()) return "No job has been submitted: nothing was used.\n";
  std::vector<std::vector<std::string>> lines{{"facility"}};
  lines.front().insert(lines.front().end(), table_heads().begin(), table_heads().end());
  for (const TableRow& row : rows) {
    lines.push_back({row.name});
    lines.back().insert(lines.back().end(), row.cells.begin(), row.cells.end());
  }
  std::vector<size_t> widths(lines.front().size(), 0);
  for (const auto& line : lines)
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  std::string text;
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) {
      const std::string pad(widths[i] - line[i].size(), ' ');
      const bool is_left = i == 0 || i + 1 == line.size();
      text += (i > 0 ? "  " : "") + (is_left ? line[i] + pad : pad + line[i]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  text +=
      "node-hours: nodes x hours from the begin of a job's script to its end, by the facility's "
      "own "
      "clock\n";
  for (const std::string& remark : remarks(ledger)) text += remark + "\n";
  return text;
}

Json to_json(const Ledger& ledger) {
  Json json;
  json["total"] = json_of(ledger.total());
  json["facilities"] = Json::object();
  for (const auto& [name, total] : ledger.by_facility())
    json["facilities"][name.str()] = json_of(total);
  json["clock_anomalies"] = ledger.clock_anomalies;
  json["rows"] = Json::array();
  for (const Row& row : ledger.rows) json["rows"].push_back(json_of(row));
  return json;
}

std::string format_json(const Ledger& ledger, const std::string& run) {
  Json json{{"schema", 1}, {"run", run}};
  json.update(to_json(ledger));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string format_csv(const Ledger& ledger) {
  const auto line_of = [](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t i = 0; i < cells.size(); ++i) line += (i > 0 ? "," : "") + csv_field(cells[i]);
    return line + "\r\n";
  };
  std::vector<std::string> cells;
  const Json heads = json_of(Row{});
  for (const auto& [key, value] : heads.items()) cells.push_back(key);
  std::string text = line_of(cells);
  for (const Row& row : ledger.rows) {
    cells.clear();
    const Json json = json_of(row);
    for (const auto& [key, value] : json.items())
      cells.push_back(value.is_null()     ? ""
                      : value.is_string() ? value.get<std::string>()
                                          : value.dump());
    text += line_of(cells);
  }
  return text;
}

}  // namespace xffl::usage
