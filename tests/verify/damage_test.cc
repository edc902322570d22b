// Each damage of a run's folder is found, and the finding names the file or the event.
#include <gmock/gmock.h>

#include <optional>

#include "support/unchecked_writer.h"
#include "verify/verified_run.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/checkpoint/block_hashes.h"
#include "xffl/checkpoint/manifest.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using verify::Verification;

struct Flip {
  std::string file;
  std::string at;       // the byte after this text
  std::string finding;  // of the fast checks; empty: only --read-data finds it
};
void PrintTo(const Flip& flip, std::ostream* out) { *out << flip.file; }

class Flipped : public test::VerifiedRun, public testing::WithParamInterface<Flip> {};

TEST_P(Flipped, ByteIsFoundAndItsFileIsNamed) {
  const auto& [name, at, finding] = GetParam();
  const fs::path file = path() / name;
  const std::string text = read_file(file, 1 << 20);
  const size_t offset = at.empty() ? text.size() * 3 / 4 : text.find(at) + at.size();
  ASSERT_LT(offset, text.size());
  test::flip_byte(file, static_cast<std::streamoff>(offset));
  const Verification fast = check();
  if (finding.empty())
    EXPECT_THAT(failures(fast), IsEmpty());
  else
    EXPECT_THAT(failures(fast), Contains(finding)) << format_text(fast);
  const Verification slow = check(everything());
  EXPECT_GT(slow.num("failed"), 0);
  std::string folder_or_file = name;
  if (name.ends_with(".blocks")) {
    EXPECT_THAT(failures(slow), Contains("block hashes: " + name));
  } else if (finding.empty()) {
    folder_or_file = fs::path(name).parent_path().string();
    EXPECT_THAT(failures(slow), Contains("files: " + folder_or_file));
  }
  EXPECT_THAT(format_text(slow), HasSubstr(folder_or_file));
}

INSTANTIATE_TEST_SUITE_P(
    Files, Flipped,
    testing::Values(
        Flip{"journal.db", "participants_froze", "chain: journal.db"},
        Flip{"journal.jsonl", "\\\"weight", "mirror: journal.jsonl"},  // the line stays JSON
        Flip{"config.resolved.yaml", "rounds: ", "config: config.resolved.yaml"},
        Flip{"r0001/alba/report.json", "\"tokens\": ", "report files: r0001/alba/report.json"},
        Flip{"r0001/alba/job.json", "\"nonce\": \"", "jobs: r0001/alba/job.json"},
        Flip{"r0002/brno/job.sh", "", "jobs: r0002/brno/job.sh"},
        Flip{"r0001/alba/update/manifest.json", "\"sha256\": \"", "updates: r0001/alba/update"},
        Flip{"r0002/brno/update/model.safetensors", "", ""},
        Flip{"r0001/global/model.safetensors", "", ""}, Flip{"r0002/global/config.json", "", ""},
        Flip{"r0001/master/model.safetensors", "", ""}, Flip{"r0001/alba/update.blocks", "", ""}),
    [](const auto& each) {
      std::string name = each.param.file;
      std::replace_if(
          name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
      return name;
    });

using Damage = test::VerifiedRun;

TEST_F(Damage, OfAnUpdateIsFoundByTheReplay) {
  test::flip_byte(path() / "r0002/brno/update/model.safetensors",
                  static_cast<std::streamoff>(
                      fs::file_size(path() / "r0002/brno/update/model.safetensors") - 1));
  verify::Options options = everything();
  options.read_data = false;
  EXPECT_THAT(failures(check(options)), ElementsAre("replay: round 2", "blocks: r0002/global"));
}

TEST_F(Damage, BySwappedUpdatesNamesBoth) {
  const fs::path alba = path() / "r0001/alba/update", brno = path() / "r0001/brno/update";
  fs::rename(alba, path() / "swapped");
  fs::rename(brno, alba);
  fs::rename(path() / "swapped", brno);
  EXPECT_THAT(failures(check()),
              ElementsAre("updates: r0001/alba/update", "updates: r0001/brno/update"));
}

TEST_F(Damage, ByAMissingFileIsFound) {
  fs::remove(path() / "r0001/alba/update/model.safetensors");
  fs::remove_all(path() / "r0002/global");
  EXPECT_THAT(failures(check()), ElementsAre("updates: r0001/alba/update", "models: r0002/global"));
}

// An earlier policy may have removed files of earlier rounds, and nothing else.
TEST_F(Damage, IsFoundAfterAChangeOfTheConfiguration) {
  change_configuration_after(1);
  fs::remove_all(path() / "r0001/global");
  fs::remove_all(path() / "r0002/global");
  fs::remove(path() / "r0001/alba/update/model.safetensors");
  EXPECT_THAT(failures(check()), ElementsAre("updates: r0001/alba/update", "models: r0002/global"));
}

TEST_F(Damage, ByATruncatedFileIsFound) {
  for (const char* folder : {"r0002/brno/update", "r0001/global"}) {
    const fs::path file = path() / folder / "model.safetensors";
    fs::resize_file(file, fs::file_size(file) - 1);
  }
  EXPECT_THAT(failures(check()), ElementsAre("updates: r0002/brno/update", "models: r0001/global"));
}

TEST_F(Damage, ByAnotherValidConfigurationIsFound) {
  const fs::path file = path() / "config.resolved.yaml";
  write_file_atomic(file, read_file(file, 1 << 20) + "# edited\n");
  EXPECT_THAT(failures(check()), ElementsAre("config: config.resolved.yaml"));
}

TEST_F(Damage, ByAForeignFileIsFound) {
  write_file_atomic(path() / "r0001/global/more.safetensors", "");
  write_file_atomic(path() / "r0002/brno/update/more.txt", "");
  const Verification result = check();
  EXPECT_THAT(failures(result), ElementsAre("updates: r0002/brno/update", "models: r0001/global"));
  ASSERT_FALSE(find(result, "models").failures.empty());
  EXPECT_THAT(find(result, "models").failures[0].problem, HasSubstr("more.safetensors"));
}

// The root hash does not cover the hashes of a file's chunks.
TEST_F(Damage, OfPrefixHashesIsFoundInTheData) {
  const fs::path update = path() / "r0001/alba/update";
  checkpoint::Manifest manifest = checkpoint::make_manifest(update, 4096);
  for (checkpoint::ManifestFile& file : manifest.files)
    for (std::string& digest : file.prefix_sha256) digest = std::string(64, 'a');
  write_file_atomic(update / "manifest.json", checkpoint::format_manifest(manifest));
  EXPECT_THAT(failures(check()), IsEmpty());
  EXPECT_THAT(failures(check({.read_data = true})), ElementsAre("files: r0001/alba/update"));
}

// A whole file of another writer: its own hash fits its content.
TEST_F(Damage, OfAWrongBlockHashIsFoundInTheData) {
  const fs::path update = path() / "r0001/alba/update";
  std::optional<checkpoint::Manifest> hashes = checkpoint::read_block_hashes(update);
  ASSERT_TRUE(hashes && !hashes->files.back().block_xxh3.empty());
  ++hashes->files.back().block_xxh3.back();
  checkpoint::write_block_hashes(update, *hashes, test::write_unchecked);
  EXPECT_THAT(failures(check()), IsEmpty());
  EXPECT_THAT(failures(check({.read_data = true})),
              ElementsAre("block hashes: r0001/alba/update.blocks"));
}

TEST_F(Damage, ByAnotherCurrentModelIsFound) {
  for (const char* other : {"r0001/global", "r0003/global"}) {  // no event names the second
    fs::remove(path() / "CURRENT");
    fs::create_directory_symlink(other, path() / "CURRENT");
    EXPECT_THAT(failures(check()), ElementsAre("current: CURRENT")) << other;
  }
}

// Changes a number of the event's payload.
template <class Change>
auto changed(const std::string& kind, int round, const Change& change) {
  return [=](history::StoredEvent& event) {
    if (event.kind != kind || event.round != round) return;
    Json payload = parse_json(event.payload, kind);
    change(payload);
    event.payload = payload.dump();
  };
}

// The writer of such a journal can compute its chain and its mirror.
TEST_F(Damage, ByARewrittenWeightIsFoundWithAValidChain) {
  rewrite_journal(changed("participants_frozen", 2, [](Json& json) { json["weights"][0] = 1e6; }));
  const Verification result = check(everything());
  EXPECT_EQ(find(result, "chain").result(), "ok");
  EXPECT_EQ(find(result, "mirror").result(), "ok");
  EXPECT_THAT(failures(result), ElementsAre(StartsWith("weights: alba's weight in event"),
                                            "replay: round 2", "blocks: r0002/global"));
}

TEST_F(Damage, ByASmallerWeightIsFoundWithAValidChain) {
  rewrite_journal(changed("participants_frozen", 2, [](Json& json) { json["weights"][0] = 1e-6; }));
  EXPECT_THAT(failures(check()), ElementsAre(StartsWith("weights: alba's weight in event")));
}

TEST_F(Damage, ByARewrittenReportIsFoundWithAValidChain) {
  rewrite_journal(changed("update_accepted", 1, [](Json& json) {
    if (json["report"]["key"]["facility"] != "brno") return;
    json["report"]["tokens"] = 7;
    json["report"]["update_sha256"] = std::string(64, 'a');
  }));
  EXPECT_THAT(failures(check()),
              testing::IsSupersetOf(std::vector<testing::Matcher<std::string>>{
                  StartsWith("reports: event"), "report files: r0001/brno/report.json",
                  StartsWith("weights: brno's weight in event")}));
}

TEST_F(Damage, ByARewrittenParticipantIsFoundWithAValidChain) {
  rewrite_journal(changed("participants_frozen", 1, [](Json& json) {
    for (const char* list : {"facilities", "updates", "weights"}) json[list].erase(1);
  }));
  const Verification result = check(everything());
  EXPECT_THAT(failures(result), ElementsAre(StartsWith("participants: event"), "replay: round 1",
                                            "blocks: r0001/global"));
  EXPECT_THAT(find(result, "participants").failures[0].problem, HasSubstr("brno is left out"));
}

TEST_F(Damage, ByAParticipantThatCountsTwiceIsFoundWithAValidChain) {
  rewrite_journal(changed("participants_frozen", 1, [](Json& json) {
    for (const char* list : {"facilities", "updates", "weights"})
      json[list].push_back(Json(json[list][0]));
  }));
  EXPECT_THAT(failures(check()), ElementsAre(StartsWith("participants: alba's update in event")));
}

TEST_F(Damage, ByAParticipantWhoseUpdateCameLaterIsFoundWithAValidChain) {
  std::vector<history::StoredEvent> events = history::read_events(path() / "journal.db");
  const auto frozen = std::find_if(events.begin(), events.end(), [](const auto& event) {
    return event.kind == "participants_frozen";
  });
  ASSERT_NE(frozen, events.end());
  auto accepted = frozen;
  while (accepted != events.begin() && accepted->kind != "update_accepted") --accepted;
  ASSERT_EQ(accepted->kind, "update_accepted");
  std::rotate(accepted, frozen, frozen + 1);
  replace_journal(events);
  const Verification result = check();
  ASSERT_THAT(failures(result), ElementsAre(HasSubstr("'s update in event")));
  EXPECT_THAT(find(result, "participants").failures[0].problem, HasSubstr("accepted before"));
}

TEST_F(Damage, ByAnotherUpdateOrInputModelIsFoundWithAValidChain) {
  const std::string other(64, 'a');
  rewrite_journal([&](history::StoredEvent& event) {
    changed("participants_frozen", 1, [&](Json& json) { json["updates"][0] = other; })(event);
    changed("update_accepted", 2,
            [&](Json& json) { json["report"]["base_model_sha256"] = other; })(event);
  });
  const fs::path job = path() / "r0001/brno/job.json";
  Json spec = parse_json(read_file(job, 1 << 20), "job.json");
  spec["base_model_sha256"] = other;
  write_file_atomic(job, spec.dump());
  EXPECT_THAT(failures(check()), testing::IsSupersetOf(std::vector<testing::Matcher<std::string>>{
                                     StartsWith("participants: alba's update in event"),
                                     StartsWith("reports: event"), "jobs: r0001/brno/job.json"}));
}

TEST_F(Damage, ByAForeignNonceIsFoundWithAValidChain) {
  const std::string foreign(32, '0');
  rewrite_journal([&](history::StoredEvent& event) {
    if (event.round != 2 || event.facility != "alba") return;
    Json payload = parse_json(event.payload, event.kind);
    if (event.kind == "attempt_opened") payload["nonce"] = foreign;
    if (event.kind == "update_accepted") payload["report"]["key"]["nonce"] = foreign;
    event.payload = payload.dump();
  });
  EXPECT_THAT(failures(check()), testing::IsSupersetOf(std::vector<testing::Matcher<std::string>>{
                                     StartsWith("nonces: event"), StartsWith("reports: event")}));
}

TEST_F(Damage, ByAModelOfAnotherRunIsFoundWithAValidChain) {
  const std::string other(64, 'a');
  rewrite_journal([&](history::StoredEvent& event) {
    if (event.round != 2 && event.kind != "run_completed") return;
    Json payload = parse_json(event.payload, event.kind);
    if (payload.contains("model_sha256")) payload["model_sha256"] = other;
    event.payload = payload.dump();
  });
  EXPECT_THAT(failures(check(everything())), Contains("models: r0002/global"));
  EXPECT_THAT(failures(check(everything())), Contains("replay: round 2"));
}

TEST_F(Damage, ByAForeignMasterIsFoundWithAValidChain) {
  rewrite_journal(
      changed("aggregated", 2, [](Json& json) { json["master_sha256"] = std::string(64, 'a'); }));
  const Verification result = check(everything());
  EXPECT_THAT(failures(result),
              testing::IsSupersetOf({"masters: r0002/master", "replay: round 2"}));
  ASSERT_FALSE(find(result, "replay").failures.empty());
  EXPECT_THAT(find(result, "replay").failures[0].problem, HasSubstr("float32 master"));
}

// By its journal, the run trains adapters. Its folder has no model under them.
TEST_F(Damage, ByALostModelUnderTheAdaptersIsFound) {
  rewrite_journal(changed("model_imported", 0,
                          [](Json& json) { json["adapted_sha256"] = std::string(64, 'a'); }));
  EXPECT_THAT(failures(check()), Contains("models: r0000/adapted"));
}

TEST_F(Damage, ByEventsThatCannotHaveHappenedIsNamed) {
  rewrite_journal(
      changed("published", 1, [](Json& json) { json["model_sha256"] = std::string(64, 'b'); }));
  const Verification result = check();
  EXPECT_EQ(find(result, "chain").result(), "ok");
  EXPECT_THAT(find(result, "events").failures[0].problem, HasSubstr("(published)"));
  EXPECT_EQ(result.rounds_published, 0);
}

// A repair takes no line whose hash does not fit.
TEST_F(Damage, OfAHashInTheMirrorIsFound) {
  std::string mirror = read_file(path() / "journal.jsonl", 1 << 20);
  char& digit = mirror.at(mirror.rfind("\"chain\":\"") + 9);
  digit = digit == 'a' ? 'b' : 'a';
  write_file_atomic(path() / "journal.jsonl", mirror);
  EXPECT_THAT(failures(check()), ElementsAre("mirror: journal.jsonl"));
}

TEST_F(Damage, ByALostEndOfTheJournalIsFoundByTheMirror) {
  const std::string mirror = read_file(path() / "journal.jsonl", 1 << 20);
  const std::string last = mirror.substr(mirror.rfind('\n', mirror.size() - 2) + 1);
  write_file_atomic(path() / "journal.jsonl", mirror + last);
  const Verification result = check();
  EXPECT_THAT(failures(result), ElementsAre("mirror: journal.jsonl"));
  EXPECT_THAT(find(result, "mirror").failures[0].problem, HasSubstr("lost events"));
}

}  // namespace
}  // namespace xffl
