// `xffl login` as a user calls it; tests/run has the coordinator's side.
#include <gmock/gmock.h>

#include <atomic>
#include <fstream>
#include <optional>

#include "apps/sample_run.h"
#include "support/sshd.h"
#include "xffl/base/error.h"
#include "xffl/run/log_in.h"

namespace xffl {
namespace {

using testing::HasSubstr;
using testing::Not;

class Login : public test::SampleRun {
 protected:
  // A section of xffl.yaml; `ssh`: keys of its section ssh.
  static std::string facility(const std::string& name, const std::string& ssh) {
    return "  " + name + ":\n    access: ssh\n    ssh: {agent: false, " + ssh +
           "}\n    scheduler: slurm\n    slurm: {nodes: 1, time: 1h}\n    workdir: /w/" + name +
           "\n    data: {train: [/x.tokens]}\n";
  }
  static void write_config(const std::filesystem::path& file, const std::string& facilities) {
    write_file_atomic(file,
                      "project: test\nmodel: model\nrounds: 3\ntraining: {steps_per_round: 4}\n"
                      "facilities:\n" +
                          facilities);
  }

  const std::string brno_ = facility("brno", "hosts: [\"127.0.0.1:1\"], user: ann");
  std::atomic<int> asked_ = 0;
  run::LoginServer::LogIn counting() {
    return [this](const auto&, const auto&) { ++asked_; };
  }
};

TEST_F(Login, ReachesTheCoordinatorOfTheNamedRun) {
  write_config(folder_.config(), brno_);
  // The keys that no log-in depends on may differ.
  write_config(
      project() / "xffl.yaml",
      facility("brno", "hosts: [\"127.0.0.1:1\"], user: ann, streams: 2, renew: \"step login\""));
  make_dirs(project() / "runs/0002");
  const run::LoginServer server(folder_.login(), *history_, counting());
  ProcessResult result = xffl({"login", "brno", "--run", "0001"});
  EXPECT_THAT(result.out, HasSubstr("the coordinator of run 0001 continues")) << result.err;
  std::filesystem::remove(folder_.config());
  result = xffl({"login", "brno", "--run", "0001"});
  EXPECT_THAT(result.out, HasSubstr("the coordinator of run 0001 continues")) << result.err;
  EXPECT_EQ(asked_.load(), 2);
}

TEST_F(Login, SettingsThatTheCoordinatorLacksAreTriedFromHere) {
  write_config(folder_.config(), brno_);
  const std::string host = "hosts: [\"127.0.0.1:1\"], user: ";
  std::optional<run::LoginServer> server(std::in_place, folder_.login(), *history_, counting());
  write_config(project() / "xffl.yaml", brno_ + facility("cern", host + "ann"));
  ProcessResult result = xffl({"login", "cern"});
  EXPECT_THAT(result.out, HasSubstr("run 0001 does not have these settings of cern")) << result.err;
  EXPECT_THAT(result.err, HasSubstr("127.0.0.1"));
  write_config(project() / "xffl.yaml", facility("brno", host + "eve"));
  result = xffl({"login", "brno"});
  EXPECT_THAT(result.out, HasSubstr("run 0001 does not have these settings of brno")) << result.err;
  EXPECT_EQ(asked_.load(), 0);
  server.reset();
  history_.reset();
  EXPECT_THAT(xffl({"login", "brno"}).out, Not(HasSubstr("the coordinator")));
}

TEST_F(Login, FailsWhenItsCoordinatorIsOutOfReach) {
  if (!test::Sshd::missing().empty()) GTEST_SKIP() << test::Sshd::missing();
  test::Sshd sshd;
  sshd.certify("-1m:+1h", test::own_user());
  const std::string ssh = "hosts: [\"127.0.0.1:" + std::to_string(sshd.port()) +
                          "\"], user: " + test::own_user() + ", keys: [" + sshd.key().string() +
                          "]";
  const std::string brno = facility("brno", ssh);
  write_config(folder_.config(), brno);
  write_config(project() / "xffl.yaml", brno);
  write_file_atomic(project() / "known_hosts", read_file(sshd.known_hosts(), 10'000));

  const std::filesystem::path aside = folder_.path() / "aside";
  {
    const run::LoginServer server(folder_.login(), *history_, counting());
    EXPECT_THAT(xffl({"login", "brno"}).out, HasSubstr("the certificate is valid until "));
    std::filesystem::rename(folder_.login(), aside);
  }
  std::filesystem::rename(aside, folder_.login());  // nothing listens
  ProcessResult result = xffl({"login", "brno"});
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::kFailed)) << result.err;
  EXPECT_THAT(result.out, HasSubstr("logged in: " + test::own_user()));
  EXPECT_THAT(result.out, HasSubstr("the certificate is valid until "));
  EXPECT_THAT(result.err, HasSubstr("start `xffl run` on a terminal"));

  std::ofstream(folder_.journal().string() + ".lock")
      << R"({"host":"login01","pid":1,"start_ticks":1,"since":"2026-01-01T00:00:00.000Z"})";
  result = xffl({"login", "brno"});
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::kFailed)) << result.err;
  EXPECT_THAT(result.err, HasSubstr("does not reach the coordinator (pid 1 on login01 since "
                                    "2026-01-01T00:00:00.000Z): run `xffl login brno` on that "
                                    "machine"));
  write_config(project() / "xffl.yaml", brno + facility("cern", ssh));
  result = xffl({"login", "cern"});
  EXPECT_EQ(result.exit_code, 0) << "the coordinator does not wait for it: " << result.err;

  history_.reset();
  result = xffl({"login", "brno"});
  EXPECT_EQ(result.exit_code, 0) << "no coordinator: " << result.err;
}

}  // namespace
}  // namespace xffl
