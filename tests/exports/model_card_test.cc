#include "xffl/exports/model_card.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "report/synthetic_run.h"
#include "support/recorded_syncs.h"
#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/exports/model_signature.h"

namespace xffl::exports {
namespace {

namespace fs = std::filesystem;
using test::SyntheticRun;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

report::RunStory two_rounds(const std::string& model = "") {
  SyntheticRun run(3);
  run.round(1, 2);
  run.plan(2, 2);
  for (int facility = 0; facility < 2; ++facility) {
    run.open(2, facility);
    run.accept(2, facility);
  }
  report::RunStory story = run.story();
  if (!model.empty()) story.rounds[1].model_sha256 = model;
  return story;
}

TEST(ModelCardText, HasMetadataParticipantsAndLosses) {
  const std::string text =
      format_model_card(two_rounds(), {.license = "apache-2.0", .base_model = "org/base"}, false);
  EXPECT_THAT(text, StartsWith("---\nlicense: \"apache-2.0\"\nbase_model: \"org/base\"\n"
                               "base_model_relation: finetune\nlibrary_name: transformers\n"));
  EXPECT_THAT(text, HasSubstr("| facility 1 | 1 | 1000 |\n| facility 2 | 1 | 2000 |\n"));
  EXPECT_THAT(text, HasSubstr("| round | facility 1: it | facility 2: it |\n|---|---|---|\n"
                              "| 0 | 4.0000 | 4.1000 |\n| 1 | 3.0000 | 3.1000 |\n"));
  EXPECT_THAT(text, HasSubstr(SyntheticRun::model(1)));
  EXPECT_THAT(text, Not(HasSubstr("site")));
}

TEST(ModelCardText, NamesFacilitiesOnRequestOnly) {
  const std::string text =
      format_model_card(two_rounds(), {.license = "mit", .names_facilities = true}, true);
  EXPECT_THAT(text, HasSubstr("| site0 | 1 | 1000 |"));
  EXPECT_THAT(text, HasSubstr("library_name: peft\n"));
  EXPECT_THAT(text, Not(HasSubstr("base_model")));
}

// A license such as "mit\nx: y" stays one string of YAML.
TEST(ModelCardText, KeepsTheMetadataWellFormed) {
  const std::string text = format_model_card(two_rounds(), {.license = "a: \"b\"\nevil: c"}, false);
  EXPECT_THAT(text, StartsWith("---\nlicense: \"a: \\\"b\\\""));
  EXPECT_THAT(text, Not(HasSubstr("\nevil")));
}

TEST(ModelCardText, CountsNoUpdateThatWasLost) {
  SyntheticRun run(1);
  run.plan(1, 1);
  run.open(1, 0);
  run.accept(1, 0);
  run.add({1, SyntheticRun::name(0), 1}, history::UpdateLost{"both copies are damaged"});
  run.open(1, 0, 2);
  run.accept(1, 0, 2);
  run.publish(1, {0});
  EXPECT_THAT(format_model_card(run.story(), {.license = "mit"}, false),
              HasSubstr("| facility 1 | 1 | 1000 |\n"));
}

TEST(ModelCardText, OfAnEarlierRoundHasNoLossesOfLaterModels) {
  SyntheticRun run(3);
  for (int round = 1; round <= 3; ++round) run.round(round, 2);  // round 3 measures model 2
  const std::string text = format_model_card(run.story(), {.license = "mit", .round = 1}, false);
  EXPECT_THAT(text, HasSubstr("| 1 | 3.0000 | 3.1000 |\n"));
  EXPECT_THAT(text, Not(HasSubstr("| 2 |")));
}

TEST(ModelCardText, NeedsAPublishedRound) {
  EXPECT_THROW(format_model_card(two_rounds(), {.license = "x", .round = 2}, false), Error);
  EXPECT_THROW(format_model_card(SyntheticRun().story(), {.license = "x"}, false), Error);
}

class ExportedModel : public testing::Test {
 protected:
  ExportedModel() {
    make_dirs(run_.global(1));
    std::ofstream(run_.global(1) / "config.json") << "{}";
    std::ofstream(run_.global(1) / "model.safetensors") << "weights";
    sha256_ = checkpoint::write_manifest(run_.global(1)).root_sha256();
  }
  void export_to(const fs::path& to, const std::string& model) {
    export_model(two_rounds(model), run_, {.license = "mit"}, to);
  }

  test::TempDir folder_;
  const history::RunFolder run_{folder_ / "runs", RunName("0001")};
  std::string sha256_;
};

TEST_F(ExportedModel, HasTheFilesOfTheRoundAndACard) {
  export_to(folder_ / "out/", sha256_);
  EXPECT_EQ(read_file(folder_ / "out/model.safetensors", 100), "weights");
  EXPECT_EQ(fs::hard_link_count(folder_ / "out/model.safetensors"), 2u);
  constexpr fs::perms kOthersMay = fs::perms::others_read;
  for (const char* name : {"out", "out/model.safetensors", "out/manifest.json", "out/README.md"})
    EXPECT_NE(fs::status(folder_ / name).permissions() & kOthersMay, fs::perms::none) << name;
  EXPECT_NE(fs::status(folder_ / "out").permissions() & fs::perms::others_exec, fs::perms::none);
  EXPECT_EQ(fs::hard_link_count(folder_ / "out/config.json"), 1u) << "a user may edit it";
  EXPECT_THAT(read_file(folder_ / "out/README.md", 1 << 16), HasSubstr(sha256_));
  EXPECT_EQ(checkpoint::read_manifest(folder_ / "out").root_sha256(), sha256_);
}

// "Whole or not at all" holds after a power loss, too.
TEST_F(ExportedModel, IsDurableUnderItsName) {
  test::synced_sizes.clear();
  export_to(folder_ / "out", sha256_);
  for (const char* file : {"", "config.json", "manifest.json", "README.md"})
    EXPECT_TRUE(test::is_synced(folder_ / "out" / file)) << file;
  EXPECT_TRUE(test::is_synced(folder_.path()));
}

TEST_F(ExportedModel, IsCopiedToAnotherFileSystem) {
  struct stat here {
  }, there{};
  ASSERT_EQ(::stat(folder_.path().c_str(), &here), 0);
  if (::stat("/dev/shm", &there) != 0 || here.st_dev == there.st_dev)
    GTEST_SKIP() << "/dev/shm is on the disk of TempDir";
  const fs::path other = "/dev/shm/xffl-export-" + std::to_string(::getpid());
  export_to(other, sha256_);
  EXPECT_EQ(read_file(other / "model.safetensors", 100), "weights");
  EXPECT_EQ(fs::hard_link_count(other / "model.safetensors"), 1u);
  fs::remove_all(other);
}

TEST_F(ExportedModel, OfAnAdapterHasTheCardOfAnAdapter) {
  fs::remove_all(run_.global(1));
  make_dirs(run_.global(1));
  std::ofstream(run_.global(1) / "adapter_config.json") << "{}";
  std::ofstream(run_.global(1) / "adapter_model.safetensors") << "weights";
  export_to(folder_ / "out", checkpoint::write_manifest(run_.global(1)).root_sha256());
  EXPECT_THAT(read_file(folder_ / "out/README.md", 1 << 16), HasSubstr("library_name: peft\n"));
}

TEST_F(ExportedModel, OfADamagedAdapterIsRefused) {
  fs::remove_all(run_.global(1));
  make_dirs(run_.global(1));
  std::ofstream(run_.global(1) / "adapter_config.json") << "{}";
  std::ofstream(run_.global(1) / "adapter_model.safetensors") << "weights";
  const std::string sha256 = checkpoint::write_manifest(run_.global(1)).root_sha256();
  std::ofstream(run_.global(1) / "adapter_model.safetensors") << "weighty";  // of the same size
  EXPECT_THROW(export_to(folder_ / "out", sha256), Error);
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(ExportedModel, ReplacesNoFolder) {
  make_dirs(folder_ / "out");
  EXPECT_THROW(export_to(folder_ / "out", sha256_), Error);
  EXPECT_TRUE(fs::is_empty(folder_ / "out"));
}

TEST_F(ExportedModel, ReplacesTheRestOfAnInterruptedExport) {
  make_dirs(folder_ / "out.part");
  std::ofstream(folder_ / "out.part/config.json") << "{";
  export_to(folder_ / "out", sha256_);
  EXPECT_EQ(read_file(folder_ / "out/config.json", 100), "{}");
}

TEST_F(ExportedModel, IsTheModelOfTheJournal) {
  EXPECT_THROW(export_to(folder_ / "out", std::string(64, 'e')), Error);
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  std::ofstream(run_.global(1) / "model.safetensors") << "weighty";  // damaged, of the same size
  EXPECT_THROW(export_to(folder_ / "out", sha256_), Error);
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

// The link's target may change without a change of the signed folder.
TEST_F(ExportedModel, IsNotSignedWithASymbolicLink) {
  const fs::path pem = folder_ / "ec.pem";
  const ProcessResult made = run_process({.argv = {"openssl", "ecparam", "-name", "prime256v1",
                                                   "-genkey", "-noout", "-out", pem.string()}});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const SigningKey key(pem);
  EXPECT_NO_THROW(sign_model_folder(run_.global(1), "model", key));
  fs::create_symlink(run_.global(1) / "config.json", run_.global(1) / "link.json");
  EXPECT_THROW(sign_model_folder(run_.global(1), "model", key), Error);
}

}  // namespace
}  // namespace xffl::exports
