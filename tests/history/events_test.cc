#include "xffl/history/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/file.h"

namespace xffl::history {
namespace {

using testing::HasSubstr;

const EventScope kScope{.round = 3, .facility = FacilityName("alba"), .attempt = 2};

StoredEvent stored(std::string kind, std::string payload) {
  return {7, "2026-01-01T00:00:00Z", std::move(kind), 3, "alba", 2, std::move(payload)};
}

std::string refusal(const std::string& kind, const std::string& payload) {
  const Error error = test::error_of([&] { decode(stored(kind, payload)); });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt) << error.what();
  return error.what();
}

// Journals on disk are continued by later releases: the bytes of a row are part of the format.
TEST(Events, PayloadsKeepTheirBytes) {
  const auto payload = [](const Event& event) { return encode(kScope, event).payload; };
  EXPECT_EQ(payload(RunResumed{}), "{}");
  EXPECT_EQ(payload(RunResumed{.keeps_budgets = true}), R"({"keeps_budgets":true})");
  EXPECT_EQ(payload(FacilityResumed{.new_budget = true}), R"({"new_budget":true})");
  EXPECT_EQ(
      payload(RunPlaced{{"h", "/runs/0001", 1, 2, 3}, /*adopted=*/true}),
      R"({"host":"h","folder":"/runs/0001","device":1,"inode":2,"born_ns":3,"adopted":true})");
  EXPECT_EQ(payload(ModelImported{"m", "f", ""}), R"({"model_sha256":"m","master_sha256":"f"})");
  EXPECT_EQ(payload(ModelImported{"m", "f", "a"}),
            R"({"model_sha256":"m","master_sha256":"f","adapted_sha256":"a"})");
  EXPECT_EQ(payload(RoundPlanned{"b", "p", {FacilityName("alba")}, true}),
            R"({"base_sha256":"b","plan_sha256":"p","facilities":["alba"],"evaluates":true})");
  EXPECT_EQ(payload(ParticipantsFrozen{{FacilityName("alba")}, {"u"}, {24}}),
            R"({"facilities":["alba"],"updates":["u"],"weights":[24.0]})");
  EXPECT_EQ(payload(FacilityLeft{"r"}), R"({"reason":"r"})");
  EXPECT_EQ(payload(FacilityLeft{"r", true}), R"({"reason":"r","now":true})");
  EXPECT_EQ(payload(FacilityJoined{}), "{}");
  EXPECT_EQ(payload(Pushed{.moved_bytes = 5, .seconds = 0.5, .whole_bytes = 9}),
            R"({"moved_bytes":5,"seconds":0.5,"whole_bytes":9})");
  EXPECT_EQ(payload(SubmitIntended{
                .job_name = "j", .script_sha256 = "s", .nodes = 2, .walltime_s = 60, .keep_s = 30}),
            R"({"job_name":"j","script_sha256":"s","nodes":2,"walltime_s":60,"keep_s":30})");
  EXPECT_EQ(payload(Submitted{JobId("42"), false, {}}), R"({"job_id":"42","adopted":false})");
  EXPECT_EQ(payload(Submitted{JobId("42"), true, {JobId("43")}}),
            R"({"job_id":"42","adopted":true,"twins":["43"]})");
  EXPECT_EQ(payload(AttemptFailed{"r", {}, {}, ""}), R"({"reason":"r"})");
  EXPECT_EQ(payload(AttemptFailed{"r", false, 0, "text"}),
            R"({"reason":"r","charged":false,"steps":0,"output":"text"})");
  EXPECT_EQ(payload(AttemptFailed{.reason = "r", .output = "", .job_may_run = true}),
            R"({"reason":"r","job_may_run":true})");
}

// As docs/operator/secrets.md promises.
TEST(Events, HoldNoSecretInTheirTexts) {
  const std::string text = "HF_TOKEN=hf_abcdefghijklmnopqrstuvwx";
  for (const Event& event :
       std::vector<Event>{AttemptFailed{text, {}, {}, text}, FacilityMissing{text},
                          FacilityPaused{text}, FacilityLeft{text}, RunStopped{"failed", text}}) {
    const std::string payload = encode(kScope, event).payload;
    EXPECT_THAT(payload, HasSubstr("HF_TOKEN=[removed]"));
    EXPECT_THAT(payload, Not(HasSubstr("hf_")));
  }
}

TEST(Events, AreTheSameAfterDecoding) {
  const StoredEvent row = encode(kScope, Submitted{JobId("42"), true, {JobId("43")}});
  EXPECT_EQ(row.kind, "submitted");
  EXPECT_EQ(row.round, 3);
  EXPECT_EQ(row.facility, "alba");
  EXPECT_EQ(row.attempt, 2);
  const RecordedEvent recorded = decode(row);
  EXPECT_EQ(recorded.scope.facility, FacilityName("alba"));
  const auto& submitted = std::get<Submitted>(recorded.event);
  EXPECT_EQ(submitted.job_id, JobId("42"));
  EXPECT_TRUE(submitted.adopted);
  EXPECT_EQ(submitted.duplicates, std::vector{JobId("43")});
  EXPECT_FALSE(decode(encode({}, RunCancelled{})).scope.facility);
  // Weights that a float cannot hold.
  const std::vector<double> weights = {16'777'217, 1.0 / 3};
  const ParticipantsFrozen frozen{
      {FacilityName("alba"), FacilityName("brno")}, {"u", "v"}, weights};
  EXPECT_EQ(std::get<ParticipantsFrozen>(decode(encode({.round = 3}, frozen)).event).weights,
            weights);
}

TEST(Events, FromEarlierReleasesAreEncodedToTheSameRows) {
  const test::TempDir dir;
  std::filesystem::copy_file(XFFL_SOURCE_DIR "/tests/golden/journal/journal.jsonl",
                             dir / "journal.jsonl");
  repair(dir / "journal.db");
  std::set<std::string> seen;
  for (const StoredEvent& event : read_events(dir / "journal.db")) {
    const RecordedEvent recorded = decode(event);
    const StoredEvent again = encode(recorded.scope, recorded.event);
    EXPECT_EQ(again.kind, event.kind);
    EXPECT_EQ(again.round, event.round);
    EXPECT_EQ(again.facility, event.facility);
    EXPECT_EQ(again.attempt, event.attempt);
    EXPECT_EQ(again.payload, event.payload);
    seen.insert(event.kind);
  }
  EXPECT_EQ(seen.size(), 20u) << "kinds in the golden journal";
}

TEST(Events, UnknownKindsAndMalformedPayloadsAreCorrupt) {
  EXPECT_EQ(refusal("teleported", "{}"),
            "event 7 has the unknown kind 'teleported': was the journal written by a newer xffl?");
  EXPECT_EQ(refusal("submitted", "{}"), "journal event 7 (submitted): 'job_id' is missing");
  EXPECT_THAT(refusal("submitted", R"({"job_id":5})"), HasSubstr("should be a string"));
  EXPECT_THAT(refusal("submitted", R"({"job_id":"a b"})"), HasSubstr("is not a valid name"));
  EXPECT_THAT(refusal("round_planned", R"({"facilities":["../x"]})"),
              HasSubstr("is not a valid name"));
  EXPECT_THAT(refusal("participants_frozen", R"({"facilities":[],"weights":["1"]})"),
              HasSubstr("should hold numbers only"));
  EXPECT_THAT(refusal("update_accepted", R"({"update_sha256":"u","report":{}})"),
              HasSubstr("journal"));
  EXPECT_THAT(refusal("published", "[]"), HasSubstr("expected an object"));
}

// --- docs/reference/journal_events.md --------------------------------------------------------

std::vector<std::string> words_in_backticks(const std::string& text) {
  static const std::regex kWord("`([a-z0-9_]+)`");
  std::vector<std::string> words;
  for (std::sregex_iterator it(text.begin(), text.end(), kWord), end; it != end; ++it)
    words.push_back((*it)[1]);
  return words;
}

// The rows "| `kind`, ... | scope | payload |" by kind.
std::map<std::string, std::set<std::string>> documented_events() {
  const std::string text = read_file(XFFL_SOURCE_DIR "/docs/reference/journal_events.md", 1 << 20);
  std::istringstream section(text);
  std::map<std::string, std::set<std::string>> events;
  for (std::string line; std::getline(section, line);) {
    if (!line.starts_with("| `")) continue;
    const size_t scope = line.find(" | "), payload = line.find(" | ", scope + 3);
    const auto words = words_in_backticks(line.substr(payload));
    for (const std::string& kind : words_in_backticks(line.substr(0, scope)))
      events[kind].insert(words.begin(), words.end());
  }
  return events;
}

TEST(Events, AreDocumentedWithAllTheirFields) {
  auto documented = documented_events();
  for (const EventFields& event : event_fields()) {
    const std::string kind(event.kind);
    EXPECT_TRUE(documented.contains(kind)) << kind << " is not in docs/reference/journal_events.md";
    for (const std::string_view field : event.fields)
      EXPECT_TRUE(documented[kind].contains(std::string(field)))
          << kind << ": docs/reference/journal_events.md does not name the field " << field;
  }
  EXPECT_EQ(documented.size(), event_fields().size())
      << "docs/reference/journal_events.md names another kind";
}

}  // namespace
}  // namespace xffl::history
