// Test fixture: the events of a run that never was, of any number of rounds and facilities.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/history/events.h"
#include "xffl/job/job_times.h"
#include "xffl/plan/round_plan.h"
#include "xffl/report/run_story.h"

namespace xffl::test {

// A journal in memory. Each add() advances the clock by `gap`.
class SyntheticRun {
 public:
  explicit SyntheticRun(int rounds_planned = 0) : rounds_planned_(rounds_planned) {
    add({}, history::RunCreated{RunName("0001"), "test", kSecret, "0a1b2c3d", hash('c')});
    add({}, history::ModelImported{hash('0'), hash('f'), ""});
  }

  void add(const history::EventScope& scope, const history::Event& event,
           std::chrono::milliseconds gap = std::chrono::seconds(10)) {
    now_ += gap;
    history::StoredEvent stored = history::encode(scope, event);
    stored.seq = static_cast<int64_t>(events_.size()) + 1;
    stored.time_utc = format_utc(now_);
    events_.push_back(stored);
  }

  static FacilityName name(int facility) { return FacilityName("site" + std::to_string(facility)); }
  void plan(int round, int facilities, bool evaluates = false) {
    std::vector<FacilityName> names;
    for (int f = 0; f < facilities; ++f) names.push_back(name(f));
    add({round}, history::RoundPlanned{model(round - 1), hash('d'), names, evaluates});
  }
  void open(int round, int facility, int attempt = 1) {
    const history::EventScope scope{round, name(facility), attempt};
    add(scope, history::AttemptOpened{nonce(round, facility, attempt)});
    add(scope, history::Pushed{1000000, 2.5, 0});
    add(scope, history::SubmitIntended{"job", hash('e')});
    add(scope, history::Submitted{
                   JobId(std::to_string(4000 + round * 100 + facility * 10 + attempt)), false, {}});
  }
  job::JobReport report(int round, int facility, int attempt, std::string set = "it") const {
    job::JobReport report;
    report.key.project = "test";
    report.key.run = "0001";
    report.key.round = round;
    report.key.facility = name(facility).str();
    report.key.attempt = attempt;
    report.key.nonce = nonce(round, facility, attempt);
    report.base_model_sha256 = model(round - 1);
    report.update_sha256 = hash('3');
    report.steps = 10;
    report.samples = 100;
    report.tokens = 1000 * (facility + 1);
    report.train_loss = 3;
    report.train_loss_last = 2.9;
    const double loss = 2 + 2.0 / round + 0.1 * facility;
    report.validation = {{std::move(set), 100, loss, loss - 0.2}};
    report.train_seconds = 60;
    report.total_seconds = 80;
    report.tokens_per_second = 1000;
    report.trainer = "xffl-train 0.1.0";
    return report;
  }
  // The job began 20 s after its submission, its ranks ran from 25 to 95 s.
  job::JobUsage usage() const {
    const int64_t at =
        std::chrono::duration_cast<std::chrono::seconds>(now_.time_since_epoch()).count();
    job::JobStart start;
    start.job = "4711";
    start.start = at + 20;
    start.train = at + 25;
    start.trained = at + 95;
    start.end = at + 97;
    job::JobUsage usage;
    usage.clock_offset = 0;
    usage.clock_error = 0.5;
    usage.starts = {start};
    return usage;
  }
  void accept(int round, int facility, int attempt = 1, std::string set = "it") {
    const job::JobUsage used = usage();
    add({round, name(facility), attempt},
        history::UpdateAccepted{hash('3'), report(round, facility, attempt, std::move(set)),
                                0.01 * (facility + 1), used},
        std::chrono::seconds(110));
  }
  void fail(int round, int facility, int attempt, std::string reason) {
    add({round, name(facility), attempt}, history::AttemptFailed{.reason = std::move(reason)},
        std::chrono::seconds(60));
  }
  void publish(int round, const std::vector<int>& facilities) {
    history::ParticipantsFrozen frozen;
    for (const int f : facilities) {
      frozen.facilities.push_back(name(f));
      frozen.updates.push_back(hash('3'));
      frozen.weights.push_back(1000.0 * (f + 1));
    }
    add({round}, frozen);
    history::Aggregated aggregated{model(round), hash('f'), {}};
    if (facilities.size() > 1)
      for (const int f : facilities) aggregated.cosines.push_back(0.5 - 0.1 * f);
    add({round}, aggregated);
    add({round}, history::Published{model(round)});
  }
  // A whole round.
  void round(int number, int facilities) {
    plan(number, facilities);
    std::vector<int> all;
    for (int f = 0; f < facilities; ++f) {
      open(number, f);
      accept(number, f);
      all.push_back(f);
    }
    publish(number, all);
  }

  const std::vector<history::StoredEvent>& events() const { return events_; }
  report::StoryContext context(std::string coordinator = "") const {
    report::StoryContext context;
    context.run = "0001";
    context.version = "0.0.0";
    context.coordinator = std::move(coordinator);
    context.rounds_planned = rounds_planned_;
    context.now = now_ + std::chrono::seconds(30);
    return context;
  }
  report::RunStory story(std::string coordinator = "") const {
    return report::make_story(events_, context(std::move(coordinator)));
  }

  static std::string hash(char digit) { return std::string(64, digit); }
  static std::string model(int round) {
    std::string hex = std::to_string(round);
    return std::string(64 - hex.size(), '0') + hex;
  }
  std::string nonce(int round, int facility, int attempt) const {
    std::string digits = std::to_string(round * 10000 + facility * 100 + attempt);
    return std::string(32 - digits.size(), 'a') + digits;
  }

 private:
  static constexpr const char* kSecret = "000102030405060708090a0b0c0d0e0f";
  const int rounds_planned_;
  Clock::UtcTime now_ = *parse_utc("2026-03-01T12:00:00.000Z");
  std::vector<history::StoredEvent> events_;
};

}  // namespace xffl::test
