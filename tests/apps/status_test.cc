// `xffl status`, and the commands that show the same certificates, as a user calls them.
// tests/status has the texts.
#include <gmock/gmock.h>

#include "apps/sample_run.h"
#include "xffl/base/json.h"

namespace xffl {
namespace {

using testing::HasSubstr;

using StatusCommand = test::SampleRun;

// The text shows the newest rounds only.
TEST_F(StatusCommand, JsonHasAllRoundsOfALongRun) {
  for (int round = 2; round <= 25; ++round) plan_round(round);
  const ProcessResult result = xffl({"status", "--json"});
  const Json rounds = parse_json(result.out, result.err).at("rounds_detail");
  ASSERT_EQ(rounds.size(), 25u);
  EXPECT_EQ(rounds.front().at("facilities").at("alba").at("job_id"), "4101");
}

// brno's certificate ends in half an hour. alba, the facility before it, is on this machine and has
// no certificate.
class EndingCertificate : public test::SampleRun {
 protected:
  EndingCertificate() {
    const std::string key = (project() / "id").string();
    for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
             {"-t", "ed25519", "-N", "", "-f", key},
             {"-s", key, "-I", "test", "-n", "ann", "-V", "-1m:+30m", key + ".pub"}}) {
      std::vector<std::string> argv = {"ssh-keygen", "-q"};
      argv.insert(argv.end(), arguments.begin(), arguments.end());
      const ProcessResult made = run_process({.argv = argv});
      EXPECT_EQ(made.exit_code, 0) << made.err;
    }
    const std::string yaml =
        "project: test\nmodel: model\nrounds: 3\ntraining: {steps_per_round: 4}\n"
        "observe: {prometheus: " +
        figures_.string() +
        "}\nfacilities:\n"
        "  alba: {workdir: work, data: {train: [x.tokens]}}\n"
        "  brno:\n    access: ssh\n    ssh: {hosts: [a.example], user: ann, keys: [" +
        key +
        "], agent: false}\n    scheduler: slurm\n    slurm: {nodes: 1, time: 1h}\n"
        "    workdir: /w\n    data: {train: [/x.tokens]}\n";
    write_file_atomic(folder_.config(), yaml);
    write_file_atomic(project() / "xffl.yaml", yaml);
  }
  std::string figures() const { return read_file(figures_, 1 << 20); }

  const std::filesystem::path figures_ = dir_ / "xffl.prom";
  const std::string figure_ = "xffl_credential_expiry_timestamp_seconds{facility=\"brno\"} ";
};

TEST_F(EndingCertificate, OfTheSecondFacilityIsShown) {
  history_.reset();  // `xffl attach` ends without a coordinator
  EXPECT_THAT(xffl({"status"}).out, HasSubstr("brno: its certificate ends in "));
  const Json status = parse_json(xffl({"status", "--json"}).out, "status");
  EXPECT_TRUE(status.at("credentials").contains("brno")) << status;
  EXPECT_THAT(xffl({"attach"}).out, HasSubstr("brno: its certificate ends at "));
  EXPECT_THAT(xffl({"report", "--text"}).out, HasSubstr("The certificate of brno ends at "));
}

TEST_F(EndingCertificate, IsInTheExportedFigures) {
  const ProcessResult result = xffl({"export", "prometheus", figures_.string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(figures(), HasSubstr(figure_));
  EXPECT_THAT(figures(), HasSubstr("xffl_run_state{state=\"running\"} 1\n"));
  EXPECT_THAT(figures(), HasSubstr("xffl_rounds_planned 3\n"));
}

// The coordinator of a cancelled run ends at once, and writes its figures before.
TEST_F(EndingCertificate, IsInTheFiguresOfTheCoordinator) {
  history_->record({}, history::RunCancelled{});
  history_.reset();
  make_dirs(folder_.global(0));  // of the model, which a run needs
  EXPECT_THAT(xffl({"run"}).err, HasSubstr("run 0001 was cancelled"));
  EXPECT_THAT(figures(), HasSubstr(figure_));
}

}  // namespace
}  // namespace xffl
