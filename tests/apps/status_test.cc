// `xffl status` as a user calls it. tests/status has the texts.
#include <gmock/gmock.h>

#include "apps/sample_run.h"
#include "xffl/base/json.h"

namespace xffl {
namespace {

using StatusCommand = test::SampleRun;

// The text shows the newest rounds only.
TEST_F(StatusCommand, JsonHasAllRoundsOfALongRun) {
  for (int round = 2; round <= 25; ++round) plan_round(round);
  const ProcessResult result = xffl({"status", "--json"});
  const Json rounds = parse_json(result.out, result.err).at("rounds_detail");
  ASSERT_EQ(rounds.size(), 25u);
  EXPECT_EQ(rounds.front().at("facilities").at("alba").at("job_id"), "4101");
}

// alba, the facility before it, is on this machine and has no certificate.
TEST_F(StatusCommand, TellsTheEndOfACertificateOfTheSecondFacility) {
  const std::string key = (project() / "id").string();
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"-t", "ed25519", "-N", "", "-f", key},
           {"-s", key, "-I", "test", "-n", "ann", "-V", "-1m:+30m", key + ".pub"}}) {
    std::vector<std::string> argv = {"ssh-keygen", "-q"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    const ProcessResult made = run_process({.argv = argv});
    ASSERT_EQ(made.exit_code, 0) << made.err;
  }
  write_file_atomic(
      folder_.config(),
      "project: test\nmodel: model\nrounds: 3\ntraining: {steps_per_round: 4}\nfacilities:\n"
      "  alba: {workdir: work, data: {train: [x.tokens]}}\n"
      "  brno:\n    access: ssh\n    ssh: {hosts: [a.example], user: ann, keys: [" +
          key +
          "], agent: false}\n    scheduler: slurm\n    slurm: {nodes: 1, time: 1h}\n"
          "    workdir: /w\n    data: {train: [/x.tokens]}\n");
  const ProcessResult result = xffl({"status"});
  EXPECT_THAT(result.out, testing::HasSubstr("brno: its certificate ends in ")) << result.err;
}

}  // namespace
}  // namespace xffl
