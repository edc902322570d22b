#include "xffl/exports/tables.h"

#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "numbers.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"

namespace xffl::exports {
namespace {

using report::Phase;

constexpr size_t kMaxText = 2000;

// Source: RFC 4180, section 2; the apostrophe is OWASP's advice on "CSV injection".
std::string csv_field(std::string_view text) {
  std::string value;
  if (!text.empty() && std::string_view("=+-@\t").find(text.front()) != std::string_view::npos)
    value += '\'';
  value += text;
  if (value.find_first_of(",\"\r\n") == std::string::npos) return value;
  std::string field = "\"";
  for (const char c : value) field.append(c == '"' ? 2 : 1, c);
  return field + '"';
}

class Row {
 public:
  Row& text(std::string_view value) { return add(csv_field(log::printable(value, kMaxText))); }
  Row& number(double value) { return add(std::isfinite(value) ? decimal(value) : ""); }
  Row& integer(int64_t value) { return add(std::to_string(value)); }
  template <class Value>
  Row& optional(const std::optional<Value>& value) {
    if (!value) return add("");
    if constexpr (std::is_same_v<Value, report::Time>)
      return add(format_utc(*value));
    else
      return number(*value);
  }
  std::string line() const { return text_ + "\r\n"; }

 private:
  Row& add(const std::string& field) {
    if (!first_) text_ += ',';
    first_ = false;
    text_ += field;
    return *this;
  }

  std::string text_;
  bool first_ = true;
};

std::string rounds_table(const report::RunStory& story) {
  std::map<int, double> means;
  for (const report::MeanLoss& mean : report::mean_losses(story)) means[mean.round] = mean.nll;
  std::string table =
      "round,evaluation,planned_at,frozen_at,published_at,seconds,participants,missing,"
      "last_facility,mean_loss_nats,model_sha256\r\n";
  for (const auto& [number, round] : story.rounds) {
    std::optional<double> seconds, mean;
    if (round.planned && round.published)
      seconds =
          std::max(0.0, std::chrono::duration<double>(*round.published - *round.planned).count());
    if (const auto found = means.find(number); found != means.end()) mean = found->second;
    Row row;
    row.integer(number).text(round.evaluates ? "yes" : "no");
    row.optional(round.planned).optional(round.frozen).optional(round.published).optional(seconds);
    row.integer(static_cast<int64_t>(round.participants.size()));
    row.integer(static_cast<int64_t>(round.missing.size()));
    row.text(round.last ? round.last->str() : "").optional(mean).text(round.model_sha256);
    table += row.line();
  }
  return table;
}

constexpr std::pair<Phase, std::string_view> kPhaseColumns[] = {
    {Phase::kSending, "sending_seconds"},   {Phase::kQueue, "queue_seconds"},
    {Phase::kLoading, "loading_seconds"},   {Phase::kTraining, "training_seconds"},
    {Phase::kFetching, "fetching_seconds"}, {Phase::kJob, "queue_and_job_seconds"},
    {Phase::kLost, "lost_seconds"},         {Phase::kWaiting, "waiting_seconds"}};

std::string attempts_table(const report::RunStory& story) {
  std::string table =
      "round,facility,attempt,outcome,job,opened_at,pushed_at,submitted_at,ended_at,moved_bytes,"
      "push_seconds,";
  for (const auto& [phase, column] : kPhaseColumns) table += std::string(column) + ",";
  table += "steps,samples,tokens,train_loss_nats,tokens_per_second,change,cosine,reason\r\n";
  for (const report::AttemptStory& attempt : story.attempts) {
    Row row;
    row.integer(attempt.round).text(attempt.facility.str()).integer(attempt.number);
    row.text(name_of(attempt.outcome)).text(attempt.job_id);
    row.optional(attempt.opened).optional(attempt.pushed).optional(attempt.submitted);
    row.optional(attempt.ended).integer(attempt.moved_bytes).optional(attempt.push_seconds);
    std::map<Phase, double> seconds;
    for (const report::Span& span : attempt.spans)
      seconds[span.phase] += std::chrono::duration<double>(span.end - span.begin).count();
    for (const auto& [phase, column] : kPhaseColumns)
      row.optional(seconds.contains(phase) ? std::optional(seconds[phase]) : std::nullopt);
    if (attempt.report) {
      row.integer(attempt.report->steps).integer(attempt.report->samples);
      row.integer(attempt.report->tokens);
    } else {
      row.text("").text("").text("");
    }
    const bool trained = attempt.report && attempt.report->steps > 0;
    row.optional(trained ? std::optional(attempt.report->train_loss) : std::nullopt);
    row.optional(trained ? std::optional(attempt.report->tokens_per_second) : std::nullopt);
    row.optional(attempt.change).optional(attempt.cosine).text(attempt.reason);
    table += row.line();
  }
  return table;
}

std::string losses_table(const report::RunStory& story) {
  std::string table = "round,facility,set,tokens,loss_nats,perplexity\r\n";
  for (const status::GlobalLoss& loss : story.losses) {
    Row row;
    row.integer(loss.round).text(loss.facility.str()).text(loss.set).integer(loss.tokens);
    row.number(loss.nll).number(std::exp(loss.nll));
    table += row.line();
  }
  return table;
}

}  // namespace

Tables make_tables(const report::RunStory& story) {
  return {rounds_table(story), attempts_table(story), losses_table(story)};
}

void write_tables(const Tables& tables, const std::filesystem::path& to) {
  make_dirs(to);
  write_file_atomic(to / "rounds.csv", tables.rounds, 0644);
  write_file_atomic(to / "attempts.csv", tables.attempts, 0644);
  write_file_atomic(to / "losses.csv", tables.losses, 0644);
}

}  // namespace xffl::exports
