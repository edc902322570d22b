// The scripts for PBS, Flux and Grid Engine run by a shell, with stand-ins for the managers' own
// commands in a job: which rank runs where, and how the ranks end. The scripts for PBS and Flux
// have not run on a real site.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "support/temp_dir.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"
#include "xffl/base/sha256.h"
#include "xffl/facility/job_script.h"
#include "xffl/submit/flux.h"
#include "xffl/submit/grid_engine.h"
#include "xffl/submit/pbs.h"

namespace xffl::facility {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class RankScript : public testing::TestWithParam<const char*> {
 protected:
  RankScript() {
    make_dirs(dir_ / "a1/out");
    // PBS has two tasks on each host, and runs the script on host 9, whose name sorts last.
    write_file_atomic(dir_ / "nodes", "node9\nnode9\nnode10\nnode10\n");
    // A rank on another host begins in a folder and with a umask of the host's own.
    const std::string begin = "cd / && umask 022\n";
    program("bin/pbs_tmrsh", begin + "export ON=$1\nshift\nexec \"$@\"\n");
    // Broker 1 of Flux answers before broker 0.
    write_file_atomic(dir_ / "brokers", "1: node10\n0: node9\n");
    program("bin/flux", R"sh(brokers=${0%/*}/../brokers
case "$*" in
  "getattr jobid") echo f2oLk ;;
  "job id --to=dec f2oLk") cat "$NUMBER" ;;
  "exec --label-io --rank=all hostname") cat "$brokers" ;;
  "exec --rank="*)
    ON=$(sed -n "s/^${2#--rank=}: //p" "$brokers")
    export ON
    shift 2
    cd / && umask 022
    exec "$@" ;;
  *) echo "flux: unexpected $*" >&2; exit 1 ;;
esac
)sh");
    write_file_atomic(dir_ / "pe_hosts",
                      "node9 2 all.q@node9 UNDEFINED\nnode10 2 all.q@node10 <NULL>\n");
    program("bin/qrsh",
            begin + "[ \"$1 $2\" = '-inherit -nostdin' ] || exit 1\nexport ON=$3\nshift 3\n" +
                "exec \"$@\"\n");
    trainer("echo \"$RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $WORLD_SIZE ${ON:-here} $MASTER_ADDR\"\n");
    facility_.name = FacilityName("alba");
    facility_.scheduler = submit::QueueSettings(GetParam());
    facility_.workdir = RemotePath(dir_.path().string());
    facility_.trainer_command = {(dir_ / "trainer").string()};
    settings([](auto& values) { values.nodes = values.tasks_per_node = 2; });
    if (GetParam() == std::string("gridengine"))
      facility_.scheduler.as<submit::GridEngineSettings>().parallel_environment = "nodes";
  }

  void settings(auto change) {
    if (GetParam() == std::string("pbs"))
      change(facility_.scheduler.as<submit::PbsSettings>());
    else if (GetParam() == std::string("flux"))
      change(facility_.scheduler.as<submit::FluxSettings>());
    else
      change(facility_.scheduler.as<submit::GridEngineSettings>());
  }
  void program(const std::string& name, const std::string& body) {
    make_dirs((dir_ / name).parent_path());
    write_file_atomic(dir_ / name, "#!/bin/bash\n" + body);
    ::chmod((dir_ / name).c_str(), 0755);
  }
  void trainer(const std::string& body) { program("trainer", body); }
  /// The ranks of the first host run `body` and then wait for a warning, which comes so long after
  /// the job's start. The other host's ranks outlive the warning.
  void warned_trainer(std::chrono::seconds after, const std::string& body = "") {
    settings([&](auto& values) {
      values.time = std::chrono::seconds(600);
      values.warning = values.time - after;
    });
    trainer(
        "trap 'echo \"$RANK warned\"; exit 0' USR1\n"
        "if [ -n \"$ON\" ]; then sleep " +
        std::to_string(after.count() + 1) + "; exit 0; fi\n" + body +
        "for ((i = 0; i < 300; ++i)); do sleep 0.1; done\nexit 7\n");
  }
  void write_script() {
    job::JobSpec spec;
    spec.key = {"demo", "0001", 1, "alba", 1, std::string(32, 'a')};
    write_file_atomic(dir_ / "job.sh",
                      job_script(facility_, spec, spec.key.name(),
                                 RemotePath((dir_ / "a1").string()), {"/x/xffl", "/x/xffl-train"}));
  }
  ProcessResult run(const std::string& number = "12") {
    write_script();
    return run_script({"bash", (dir_ / "job.sh").string()}, number);
  }
  ProcessResult run_script(std::vector<std::string> argv, const std::string& number = "12") {
    write_file_atomic(dir_ / "number", number + "\n");
    return run_process({.argv = std::move(argv),
                        .env = {{"PATH", (dir_ / "bin").string() + ":/usr/bin:/bin"},
                                {"XFFL_CLAIM_BEAT", "1"},
                                {"PBS_JOBID", number + ".server"},
                                {"NUMBER", (dir_ / "number").string()},
                                {"JOB_ID", number},
                                {"PE_HOSTFILE", (dir_ / "pe_hosts").string()},
                                {"PBS_NODEFILE", (dir_ / "nodes").string()}},
                        .inherit_env = false});
  }
  static std::vector<std::string> ranks_of(const std::string& output) {
    std::vector<std::string> ranks;
    for (size_t begin = 0; begin < output.size();) {
      const size_t end = std::min(output.find('\n', begin), output.size());
      const std::string line = output.substr(begin, end - begin);
      if (!line.starts_with("xffl:")) ranks.push_back(line);
      begin = end + 1;
    }
    std::ranges::sort(ranks);
    return ranks;
  }

  test::TempDir dir_;
  config::Facility facility_;
};

TEST_P(RankScript, EachRankRunsOnItsHost) {
  const ProcessResult result = run();
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(ranks_of(result.out), ElementsAre("0 0 2 4 here node9", "1 1 2 4 here node9",
                                                "2 0 2 4 node10 node9", "3 1 2 4 node10 node9"));
  EXPECT_THAT(result.out, HasSubstr("on node9 node10"));
  EXPECT_THAT(read_file(dir_ / "a1/claim/owner", 1000),
              testing::StartsWith(GetParam() == std::string("pbs") ? "12.server " : "12 "));
}

// The account of node-hours counts them.
TEST_P(RankScript, ItsStartHasTheNumberOfNodes) {
  EXPECT_EQ(run().exit_code, 0);
  EXPECT_THAT(read_file(dir_ / "a1/claim/times", 1000), HasSubstr(" nodes=2 "));
}

TEST_P(RankScript, EachRankWritesPrivateFilesIntoTheJobsFolder) {
  trainer("echo x >\"file-$RANK\"\n");
  EXPECT_EQ(run().exit_code, 0);
  for (int rank = 0; rank < 4; ++rank) {
    struct stat info {};
    ASSERT_EQ(::stat((dir_ / ("a1/file-" + std::to_string(rank))).c_str(), &info), 0) << rank;
    EXPECT_EQ(info.st_mode & 0777, 0600u) << rank;
  }
}

TEST_P(RankScript, EachRankRunsInItsImageWithItsModules) {
  program("bin/apptainer",
          "until [ \"$1\" = x.sif ]; do shift; done\nshift\nexport IN_IMAGE=yes\nexec \"$@\"\n");
  make_dirs(dir_ / "modules/init");
  write_file_atomic(dir_ / "modules/init/bash", "module() { export LOADED=\"$2\"; }\n");
  facility_.image.file = "x.sif";
  facility_.modules = {"cuda"};
  trainer("echo \"$RANK image ${IN_IMAGE:-no} module ${LOADED:-none}\"\n");
  write_script();
  const ProcessResult result = run_script(
      {"env", "MODULESHOME=" + (dir_ / "modules").string(), "bash", (dir_ / "job.sh").string()});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(ranks_of(result.out),
              ElementsAre("0 image yes module cuda", "1 image yes module cuda",
                          "2 image yes module cuda", "3 image yes module cuda"));
}

class FluxScript : public RankScript {};

// "10: node10" sorts before "2: node2" as text.
TEST_P(FluxScript, TheHostsOfElevenBrokersAreInTheOrderOfTheirNumbers) {
  settings([](auto& values) {
    values.nodes = 11;
    values.tasks_per_node = 1;
  });
  std::string brokers, hosts;
  std::vector<std::string> ranks;
  for (int i = 0; i < 11; ++i) {
    const std::string number = std::to_string(i), host = "node" + number;
    brokers.insert(0, number + ": " + host + "\n");
    hosts += " " + host;
    ranks.push_back(number + " 0 1 11 " + (i == 0 ? "here" : host) + " node0");
  }
  write_file_atomic(dir_ / "brokers", brokers);
  const ProcessResult result = run();
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr(" on" + hosts + "\n"));
  EXPECT_THAT(ranks_of(result.out), testing::UnorderedElementsAreArray(ranks));
}

// Flux's ids have up to 20 digits, more than a shell calculates with.
TEST_P(RankScript, EachIdGivesAPortForAllRanks) {
  trainer("echo \"$MASTER_PORT\"\n");
  for (const char* number : {"12", "0089", "1152921504606846975", "18446744073709551615"}) {
    std::filesystem::remove_all(dir_ / "a1/claim");
    const ProcessResult result = run(number);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_EQ(result.err, "") << number;
    const std::vector<std::string> ports = ranks_of(result.out);
    ASSERT_EQ(ports.size(), 4u) << result.out;
    EXPECT_THAT(ports, testing::Each(ports[0]));
    EXPECT_GE(std::stoi(ports[0]), 15000) << number;
    EXPECT_LT(std::stoi(ports[0]), 32000) << number;
  }
}

TEST_P(RankScript, ARankThatFailsEndsTheOthers) {
  trainer("[ \"$RANK\" != 3 ] || exit 5\nexec sleep 60\n");
  const auto start = std::chrono::steady_clock::now();
  const ProcessResult result = run();
  EXPECT_EQ(result.exit_code, 5) << result.out << result.err;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST_P(RankScript, TheWarningReachesTheFirstHost) {
  warned_trainer(std::chrono::seconds(2));
  const ProcessResult result = run();
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(ranks_of(result.out), ElementsAre("0 warned", "1 warned"));
}

// The signal comes between the start of the first rank and the note of its process id.
TEST_P(RankScript, AWarningWhileTheRanksStartReachesThem) {
  write_file_atomic(dir_ / "env.sh",
                    "trap '[ \"$BASH_COMMAND\" != \"steps+=(\\$!)\" ] || "
                    "{ trap - DEBUG; kill -USR1 $$; }' DEBUG\n");
  trainer(
      "[ -z \"$ON\" ] || exit 0\ntrap 'exit 3' USR1\n"
      "for ((i = 0; i < 100; ++i)); do sleep 0.1; done\n");
  write_script();
  const ProcessResult result = run_script(
      {"env", "BASH_ENV=" + (dir_ / "env.sh").string(), "bash", (dir_ / "job.sh").string()});
  EXPECT_NE(result.exit_code, 0) << result.out << result.err;  // a shell before its trap dies
  EXPECT_THAT(result.out, HasSubstr("the trainer ended with"));
}

// A full disk or a failover of the file system lasts a moment.
TEST_P(RankScript, AFailedHeartbeatEndsNeitherTheHeartbeatNorTheWarning) {
  warned_trainer(std::chrono::seconds(3),
                 "if [ \"$RANK\" = 0 ]; then\n"
                 "  for beat in claim/beat-*; do rm \"$beat\"; mkdir \"$beat\"; done\n"
                 "  sleep 1.5\n  rmdir claim/beat-*\nfi\n");
  const ProcessResult result = run();
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(ranks_of(result.out), ElementsAre("0 warned", "1 warned"));
}

// The signal interrupts one `wait` of the script. A later exit code above 128 is a rank's.
TEST_P(RankScript, ARankThatIsKilledAfterTheWarningEndsTheOthers) {
  trainer(
      "case $RANK in\n"
      "  0) trap 'kill -KILL $$' USR1\n"
      "    until [ -e last ]; do sleep 0.1; done\n"
      "    sleep 0.3\n"  // until the script waits for its ranks
      "    kill -USR1 \"$PPID\"\n"
      "    for ((i = 0; i < 600; ++i)); do sleep 0.1; done ;;\n"
      "  3) touch last ;;\n"
      "esac\n"
      "trap '' USR1\nexec sleep 20\n");
  const ProcessResult result = run();
  EXPECT_GT(result.exit_code, 128) << result.out << result.err;
}

TEST_P(RankScript, AnotherNumberOfHostsIsAnError) {
  settings([](auto& values) { values.nodes = 3; });
  const ProcessResult result = run();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("the job has 2 hosts (node9 node10), expected 3"));
}

TEST_P(RankScript, AnotherJobOfTheAttemptLeavesAtOnce) {
  make_dirs(dir_ / "a1/claim");
  write_file_atomic(dir_ / "a1/claim/owner", "7.server n s 0\n");
  const ProcessResult result = run();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("already claimed by job 7.server"));
}

// For a trainer of one's own, which may not look.
TEST_P(RankScript, ADamagedModelIsNotTrainedOn) {
  write_file_atomic(dir_ / "weights", "weighty");
  write_file_atomic(dir_ / "a1/model.sha256",
                    sha256_hex("weights") + "  " + (dir_ / "weights").string() + "\n");
  const ProcessResult result = run();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(ranks_of(result.out), testing::IsEmpty());
  EXPECT_THAT(read_file(dir_ / "a1/out/model.failure", 1000), HasSubstr("weights: FAILED"));
}

// A beat that outlives its script would keep a later start of the job away.
TEST_P(RankScript, TheHeartbeatEndsWithAKilledScript) {
  trainer("sleep 6\n");
  write_script();
  const std::string beats = (dir_ / "a1/claim/beat-*").string();
  const ProcessResult result =
      run_script({"bash", "-c",
                  "bash " + (dir_ / "job.sh").string() + " >/dev/null 2>&1 &\nscript=$!\n" +
                      "for ((i = 0; i < 300; ++i)); do compgen -G '" + beats +
                      "' >/dev/null && break; sleep 0.1; done\n" +
                      "kill -KILL \"$script\"; wait \"$script\"\nsleep 2\ncat " + beats +
                      "\nsleep 3\ncat " + beats});
  const auto times = ranks_of(result.out);
  ASSERT_EQ(times.size(), 2u) << result.out << result.err;
  EXPECT_EQ(times[0], times[1]);
}

INSTANTIATE_TEST_SUITE_P(QueueManagers, RankScript, testing::Values("pbs", "flux", "gridengine"),
                         [](const auto& each) { return std::string(each.param); });
INSTANTIATE_TEST_SUITE_P(Flux, FluxScript, testing::Values("flux"));

}  // namespace
}  // namespace xffl::facility
