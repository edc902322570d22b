// Signatures of published models by the real ssh-keygen.
#include "xffl/verify/sign.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <map>
#include <stop_token>

#include "support/thrown.h"
#include "verify/verified_run.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/sha256.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/history/audit.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Sign : public test::VerifiedRun {
 protected:
  Sign() {
    make_key("key");
    allow("key", std::string(verify::kSignatureNamespace));
  }
  void make_key(const std::string& name) const {
    const ProcessResult made = run_process({.argv = {"ssh-keygen", "-q", "-t", "ed25519", "-N", "",
                                                     "-C", "test", "-f", file(name).string()}});
    ASSERT_EQ(made.exit_code, 0) << made.err;
  }
  void allow(const std::string& key, const std::string& name_space,
             const std::string& principals = "me@lab") const {
    write_file_atomic(file("allowed"), principals + " namespaces=\"" + name_space + "\" " +
                                           read_file(file(key + ".pub"), 4096));
  }
  fs::path file(const std::string& name) const { return copy_.path() / name; }
  verify::Signed sign(int round = 0) const {
    return verify::sign_model(history::RunFolder(runs(), RunName("0001")), made_->path(), round,
                              file("key"), {});
  }
  verify::Verification check_signed() const { return check({.allowed_signers = file("allowed")}); }
};

TEST_F(Sign, TheNewestModelIsSignedAndVerified) {
  const verify::Signed made = sign();
  EXPECT_EQ(made.round, 2);
  const verify::Verification result = check_signed();
  EXPECT_THAT(failures(result), IsEmpty()) << format_text(result);
  EXPECT_EQ(find(result, "statements").passed, 1);
  EXPECT_EQ(find(result, "signatures").passed, 1);
  const Json json = parse_json(read_file(made.statement, 1 << 20), "statement");
  EXPECT_EQ(json.at("_type"), "https://in-toto.io/Statement/v1");
  EXPECT_EQ(json.at("subject").at(0).at("digest").at("sha256"), result.model_sha256);
  const Json& predicate = json.at("predicate");
  const auto root_of = [&](const fs::path& folder) {
    return checkpoint::read_manifest(path() / folder).root_sha256();
  };
  EXPECT_EQ(predicate.at("base_sha256"), root_of("r0001/global"));
  EXPECT_EQ(predicate.at("master_sha256"), root_of("r0002/master"));
  EXPECT_EQ(predicate.at("initial_sha256"), root_of("r0000/global"));
  EXPECT_EQ(predicate.at("participants").size(), 2u);
  std::map<std::string, double> weights;
  for (const Json& one : predicate.at("participants")) {
    const std::string facility = one.at("facility").get<std::string>();
    EXPECT_EQ(one.at("update_sha256"), root_of("r0002/" + facility + "/update")) << facility;
    weights[facility] = one.at("weight").get<double>();
  }
  EXPECT_GT(weights["brno"], 0);
  EXPECT_DOUBLE_EQ(weights["alba"], 3 * weights["brno"]) << "its tokens";
  const Json& journal = predicate.at("journal");
  const history::JournalAudit audit = history::audit_journal(path() / "journal.db");
  const size_t published = journal.at("seq").get<size_t>() - 1;
  EXPECT_EQ(audit.events.at(published).kind, "published");
  EXPECT_EQ(journal.at("chain"), audit.chains.at(published)) << "more events follow";
}

TEST_F(Sign, AStatementHasTheHashOfEachFileOfTheModel) {
  const Json json = parse_json(read_file(sign().statement, 1 << 20), "statement");
  const Json& subject = json.at("subject");
  const size_t files = checkpoint::read_manifest(path() / "r0002/global").files.size();
  ASSERT_EQ(subject.size(), 1 + files) << "the root hash first";
  for (size_t i = 1; i < subject.size(); ++i) {
    const std::string name = subject.at(i).at("name").get<std::string>();
    EXPECT_EQ(subject.at(i).at("digest").at("sha256"), sha256_file(path() / "r0002" / name));
  }
}

TEST_F(Sign, EachRoundHasItsStatementAndASecondSignatureReplacesTheFirst) {
  const verify::Signed first = sign(1);
  const std::string statement = read_file(first.statement, 1 << 20);
  sign(1);
  EXPECT_EQ(read_file(first.statement, 1 << 20), statement) << "a function of the run";
  sign(2);
  EXPECT_EQ(find(check_signed(), "signatures").passed, 2);
}

TEST_F(Sign, WithoutAllowedSignersASignatureIsNotChecked) {
  sign();
  const verify::Verification result = check();
  EXPECT_EQ(find(result, "statements").passed, 1);
  EXPECT_EQ(find(result, "signatures").result(), "not checked");
}

TEST_F(Sign, AChangedStatementIsFound) {
  const verify::Signed made = sign();
  const std::string text = read_file(made.statement, 1 << 20);
  test::flip_byte(made.statement, static_cast<std::streamoff>(text.find("config_sha256") + 20));
  EXPECT_THAT(failures(check_signed()),
              ElementsAre("statements: r0002/statement.json", "signatures: r0002/statement.json"));
}

TEST_F(Sign, AJournalThatWasRewrittenAfterTheSignatureIsFound) {
  sign();
  rewrite_journal([](history::StoredEvent&) {});  // the same events at other times
  const verify::Verification result = check_signed();
  EXPECT_THAT(failures(result), ElementsAre("statements: r0002/statement.json"));
}

TEST_F(Sign, AStatementHasTheConfigurationOfItsRound) {
  const fs::path config = path() / "config.resolved.yaml";
  const std::string first = read_file(config, 1 << 20);
  change_configuration_after(1);
  const std::string second = read_file(config, 1 << 20);
  const auto recorded = [&](int round) {
    const Json json = parse_json(read_file(sign(round).statement, 1 << 20), "statement");
    return json.at("predicate").at("config_sha256").get<std::string>();
  };
  EXPECT_EQ(recorded(1), sha256_hex(first));
  EXPECT_EQ(recorded(2), sha256_hex(second));
}

TEST_F(Sign, AStatementAboutARemovedModelIsNotChecked) {
  change_configuration_after(1);  // an earlier policy.keep_models may have removed the first model
  sign(1);
  fs::remove_all(path() / "r0001/global");
  const verify::Verification result = check_signed();
  EXPECT_THAT(failures(result), IsEmpty()) << format_text(result);
  EXPECT_EQ(find(result, "statements").result(), "not checked");
  EXPECT_THAT(format_text(result), HasSubstr("not checked  statements: its model is absent: "));
  EXPECT_EQ(find(result, "signatures").passed, 1);
  sign(2);
  fs::remove_all(path() / "r0002/global");  // the newest model always stays
  EXPECT_THAT(failures(check_signed()),
              ElementsAre("models: r0002/global", "statements: r0002/statement.json"));
}

TEST_F(Sign, AnotherKeyAnotherNamespaceAndAMissingSignatureAreFound) {
  const verify::Signed made = sign();
  make_key("other");
  allow("other", std::string(verify::kSignatureNamespace));
  EXPECT_THAT(failures(check_signed()), ElementsAre("signatures: r0002/statement.json"));
  allow("key", "file");
  EXPECT_THAT(failures(check_signed()), ElementsAre("signatures: r0002/statement.json"));
  allow("key", std::string(verify::kSignatureNamespace));
  EXPECT_THAT(failures(check_signed()), IsEmpty());
  fs::remove(made.signature);
  EXPECT_THAT(failures(check_signed()), ElementsAre("signatures: r0002/statement.json"));
}

TEST_F(Sign, ADamagedRunAnAbsentRoundAndAnAbsentKeyAreRefused) {
  const auto kind_of = [&](int round, const std::string& key) {
    try {
      verify::sign_model(history::RunFolder(runs(), RunName("0001")), made_->path(), round,
                         file(key), {});
      return ErrorKind::kInternal;
    } catch (const Error& error) {
      return error.kind();
    }
  };
  EXPECT_EQ(kind_of(3, "key"), ErrorKind::kNotFound);
  EXPECT_EQ(kind_of(0, "absent"), ErrorKind::kNotFound);
  write_file_atomic(file("text"), "no key\n");
  EXPECT_EQ(kind_of(0, "text"), ErrorKind::kAuth);
  EXPECT_FALSE(fs::exists(path() / "r0002/statement.json"));
  test::flip_byte(path() / "config.resolved.yaml", 3);
  EXPECT_EQ(kind_of(0, "key"), ErrorKind::kCorrupt);
}

// The finding would stay in verification.json.
TEST_F(Sign, AStopRequestIsNoFindingAboutASignature) {
  sign();
  std::stop_source stop;
  stop.request_stop();
  const verify::Options options{.allowed_signers = file("allowed"), .stop = stop.get_token()};
  EXPECT_EQ(test::kind_of([&] { check(options); }), ErrorKind::kCancelled);
}

TEST_F(Sign, TheCommandsWorkTogether) {
  const std::vector<std::string> where = {"-p", made_->path().string(), "-w",
                                          copy_.path().string()};
  std::vector<std::string> arguments = {"sign", "--key", file("key").string()};
  arguments.insert(arguments.end(), where.begin(), where.end());
  const ProcessResult signed_model = made_->xffl(arguments);
  ASSERT_EQ(signed_model.exit_code, 0) << signed_model.err;
  EXPECT_THAT(signed_model.out, HasSubstr("r0002/statement.json.sig\n"));
  arguments.insert(arguments.end(), {"--round", "1"});
  EXPECT_THAT(made_->xffl(arguments).out, HasSubstr("r0001/statement.json.sig\n"));
  arguments = {"verify", "--allowed-signers", file("allowed").string()};
  arguments.insert(arguments.end(), where.begin(), where.end());
  const ProcessResult verified = made_->xffl(arguments);
  EXPECT_EQ(verified.exit_code, 0) << verified.out;
  EXPECT_THAT(verified.out, HasSubstr("ok           signatures: "));
}

// Earlier releases of ssh-keygen print all principals of a key in one line.
TEST_F(Sign, AKeyOfSeveralPrincipalsVerifies) {
  allow("key", std::string(verify::kSignatureNamespace), "me@lab,me@home");
  sign();
  EXPECT_THAT(failures(check_signed()), IsEmpty());
  fs::create_directory(file("bin"));
  write_file_atomic(file("bin/ssh-keygen"),
                    "#!/bin/sh\nPATH=${PATH#*:}\n"
                    "[ \"$2\" = find-principals ] || exec ssh-keygen \"$@\"\n"
                    "ssh-keygen \"$@\" | paste -s -d , -\n",
                    0700);
  const ProcessResult verified =
      made_->xffl({"verify", "-p", made_->path().string(), "-w", copy_.path().string(),
                   "--allowed-signers", file("allowed").string()},
                  {{"PATH", file("bin").string() + ":" + std::getenv("PATH")}});
  EXPECT_EQ(verified.exit_code, 0) << verified.out;
  EXPECT_THAT(verified.out, HasSubstr("ok           signatures: "));
}

}  // namespace
}  // namespace xffl
