// `xffl login` as a user calls it; tests/run has the coordinator's side.
#include <gmock/gmock.h>

#include "apps/sample_run.h"
#include "xffl/run/log_in.h"

namespace xffl {
namespace {

using Login = test::SampleRun;

TEST_F(Login, ReachesTheCoordinatorOfTheNamedRun) {
  write_file_atomic(project() / "xffl.yaml",
                    "project: test\nmodel: model\nrounds: 3\ntraining: {steps_per_round: 4}\n"
                    "facilities:\n  brno:\n    access: ssh\n"
                    "    ssh: {hosts: [\"127.0.0.1:1\"], user: ann, agent: false}\n"
                    "    scheduler: slurm\n    slurm: {nodes: 1, time: 1h}\n"
                    "    workdir: /w\n    data: {train: [/x.tokens]}\n");
  make_dirs(project() / "runs/0002");
  const run::LoginServer server(folder_.login(), *history_, [](const auto&, const auto&) {});
  const ProcessResult result = xffl({"login", "brno", "--run", "0001"});
  EXPECT_THAT(result.out, testing::HasSubstr("the coordinator of run 0001 continues"))
      << result.err;
}

}  // namespace
}  // namespace xffl
