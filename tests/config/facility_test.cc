// Facilities behind SSH and Slurm: the meaning of their keys, and their errors.
#include "support/temp_dir.h"
#include "texts.h"
#include "xffl/base/file.h"
#include "xffl/submit/slurm.h"

namespace xffl::config {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kSite = R"(project: p
model: /m
training: {steps_per_round: 4, batch_size: 16}
facilities:
  alba:
    access: ssh
    ssh:
      hosts: [login01.example.org, "login02:2222", "[fe80::1]:22"]
      user: me
      keys: [keys/id_ed25519]
    scheduler: slurm
    slurm:
      account: EUHPC_D01_001
      nodes: 2
      gpus_per_node: 4
      memory_per_node: 480GB
      time: 12h
      warning: 10m
      extra: [--mail-type=END]
    workdir: /scratch/me/xffl
    modules: cuda/12.2
    data: {train: /scratch/me/it.tokens}
)";

std::string site_with(const std::string& from, const std::string& to) {
  return with(kSite, from, to);
}

TEST(RemoteFacility, HasTypedSettings) {
  const Facility facility = parse(kSite).facilities.at(0);
  EXPECT_EQ(facility.access, AccessKind::kSsh);
  EXPECT_EQ(facility.scheduler.manager().name, "slurm");
  EXPECT_THAT(facility.ssh.hosts,
              ElementsAre(remote::SshHost{"login01.example.org", 22},
                          remote::SshHost{"login02", 2222}, remote::SshHost{"fe80::1", 22}));
  EXPECT_EQ(facility.ssh.user, "me");
  EXPECT_THAT(facility.ssh.keys, ElementsAre("/project/keys/id_ed25519"));
  EXPECT_TRUE(facility.ssh.agent);
  const auto& slurm = facility.scheduler.as<submit::SlurmSettings>();
  EXPECT_EQ(slurm.account, "EUHPC_D01_001");
  EXPECT_EQ(slurm.memory_per_node, 480'000'000'000);
  EXPECT_EQ(slurm.time, hours(12));
  EXPECT_EQ(slurm.warning, minutes(10));
  EXPECT_THAT(slurm.extra, ElementsAre("--mail-type=END"));
  EXPECT_THAT(facility.modules, ElementsAre("cuda/12.2"));
  EXPECT_FALSE(facility.login_shell);
  EXPECT_TRUE(facility.transfer.hosts.empty());
  EXPECT_TRUE(facility.image.file.empty());
}

TEST(RemoteFacility, PathsOfComputeNodesFollowFromTheDeepestMount) {
  const auto with_mounts = [](const std::string& mounts) {
    return parse(site_with("modules:", "compute_mounts: [" + mounts + "]\n    modules:"))
        .facilities.at(0);
  };
  EXPECT_EQ(with_mounts("\"/scratch/me:/compute/m\", /scratch")
                .on_compute_nodes(std::string("/scratch/me/xffl")),
            "/compute/m/xffl")
      << "in either order";
  const Facility facility = with_mounts("/scratch, \"/scratch/me:/compute/m\", /data");
  const auto there = [&](const char* path) { return facility.on_compute_nodes(std::string(path)); };
  EXPECT_EQ(there("/scratch/me/xffl"), "/compute/m/xffl");
  EXPECT_EQ(there("/scratch/me"), "/compute/m");
  EXPECT_EQ(there("/scratch/mel/x"), "/scratch/mel/x");
  EXPECT_EQ(there("xffl-train"), "xffl-train");
  EXPECT_EQ(there("/usr/bin/xffl-train"), "/usr/bin/xffl-train");
  EXPECT_FALSE(facility.find_on_compute_nodes(RemotePath("/scratchy/x")));
  const Facility everything = parse(kSite).facilities.at(0);
  EXPECT_EQ(everything.find_on_compute_nodes(RemotePath("/p/x")), RemotePath("/p/x"));
}

TEST(RemoteFacility, TheImageTheTextAndValidationSetsAreMountedOnComputeNodes) {
  const std::string mounted = site_with(
      "modules:", "compute_mounts: /scratch\n    image: {file: /scratch/x.sif}\n    modules:");
  const auto data = [&](const std::string& text) {
    return problems(with(mounted, "{train: /scratch/me/it.tokens}", text));
  };
  EXPECT_EQ(data("{text: /scratch/me/*.txt, validation: {it: /scratch/v.tokens}}"), "");
  EXPECT_THAT(problems(with(mounted, "/scratch/x.sif", "/images/x.sif")),
              HasSubstr("'/images/x.sif' is in no folder that compute nodes mount"));
  EXPECT_THAT(data("{text: [/scratch/me/*.txt, /more/*.txt]}"),
              HasSubstr("'/more/*.txt' is in no folder that compute nodes mount"));
  EXPECT_THAT(data("{train: /scratch/me/it.tokens, validation: {it: /held/v.tokens}}"),
              HasSubstr("'/held/v.tokens' is in no folder that compute nodes mount"));
}

TEST(RemoteFacility, WorldSizeFollowsFromTheSlurmRequest) {
  const Facility facility = parse(kSite).facilities.at(0);
  EXPECT_EQ(facility.scheduler.as<submit::SlurmSettings>().tasks_per_node, 4);
  EXPECT_EQ(facility.world_size, 8);
  EXPECT_EQ(parse(site_with("gpus_per_node: 4", "tasks_per_node: 2")).facilities[0].world_size, 4);
  EXPECT_EQ(parse(site_with("      gpus_per_node: 4\n", "")).facilities[0].world_size, 2);
  EXPECT_EQ(problems(site_with("workdir:", "world_size: 8\n    workdir:")), "");
}

TEST(RemoteFacility, SlurmIsPolledOnceAMinuteByDefault) {
  const auto interval = [](const std::string& yaml) {
    const Experiment experiment = parse(yaml);
    return experiment.poll_interval(experiment.facilities.at(0));
  };
  EXPECT_EQ(interval(kSite), seconds(60));
  EXPECT_EQ(interval(site_with("model:", "policy: {poll_interval: 5s}\nmodel:")), seconds(5));
  EXPECT_EQ(interval(site_with("workdir:", "poll_interval: 90s\n    workdir:")), seconds(90));
  EXPECT_EQ(interval("project: p\nmodel: /m\ntraining: {steps_per_round: 1}\n"
                     "facilities: {a: {data: {train: t}}}\n"),
            seconds(1));
}

TEST(RemoteFacility, TransferMayUseOtherHosts) {
  const Transfer transfer =
      parse(site_with("scheduler:",
                      "transfer: {hosts: data.example.org, shell: false}\n    scheduler:"))
          .facilities[0]
          .transfer;
  EXPECT_THAT(transfer.hosts, ElementsAre(remote::SshHost{"data.example.org", 22}));
  EXPECT_EQ(transfer.user, "me");
  EXPECT_FALSE(transfer.shell);
}

TEST(RemoteFacility, TransferHostsMayHaveAnotherUser) {
  const Facility facility =
      parse(site_with("scheduler:",
                      "transfer: {hosts: data.example.org, user: mover}\n    scheduler:"))
          .facilities[0];
  EXPECT_EQ(facility.transfer.user, "mover");
  EXPECT_EQ(facility.ssh.user, "me");
}

TEST(RemoteFacility, ItsTrainerAndItsValidationSetsHaveAbsolutePaths) {
  EXPECT_THAT(problems(site_with("modules:", "trainer: {program: bin/xffl-train}\n    modules:")),
              HasSubstr("'facilities.alba.trainer.program' is a path at another machine"));
  EXPECT_THAT(problems(site_with("it.tokens}", "it.tokens, validation: {it: held.tokens}}")),
              HasSubstr("'facilities.alba.data.validation.it' is a path at another machine"));
}

TEST(RemoteFacility, ALocalFacilityAfterItMayHaveRelativePaths) {
  const std::string local = "  borea:\n    data: {train: it.tokens}\n";
  EXPECT_THAT(parse(kSite + local).facilities.at(1).train_data, ElementsAre("/project/it.tokens"));
}

TEST(RemoteFacility, RemoteFilesAreNotCheckedOnThisMachine) {
  const test::TempDir project;
  write_file_atomic(project / "xffl.yaml", kSite);
  const auto missing = find_missing(load_experiment(project.path()));
  EXPECT_THAT(missing,
              ElementsAre(HasSubstr("model: "), HasSubstr("alba.ssh.keys: there is no file " +
                                                          (project / "keys/id_ed25519").string())));
}

class WrongSite : public testing::TestWithParam<Wrong> {};

TEST_P(WrongSite, IsRejectedWithLineAndColumn) {
  const auto& [from, to, message] = GetParam();
  EXPECT_THAT(problems(site_with(from, to)), HasSubstr(message));
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongSite,
    testing::Values(
        Wrong{"user: me", "user: -me", "9:13: error: 'facilities.alba.ssh.user' should be a user"},
        Wrong{"      user: me\n", "", "missing required key 'facilities.alba.ssh.user'"},
        Wrong{"login01.example.org", "-oProxyCommand=x",
              "8:15: error: 'facilities.alba.ssh.hosts'"},
        Wrong{"login01.example.org", "me@login", "should be a host such as"},
        Wrong{"login02:2222", "login02:70000", "should have a port from 1 to 65535"},
        Wrong{R"([login01.example.org, "login02:2222", "[fe80::1]:22"])", "[]",
              "8:14: error: 'facilities.alba.ssh.hosts' should be a host such as "
              "login.example.org or gate:2222, or a list of them, found a list: it is empty"},
        Wrong{"keys/id_ed25519", "~/.ssh/id", "'~' is not expanded"},
        Wrong{"/scratch/me/xffl", "work", "should start with '/', found 'work'"},
        Wrong{"    workdir: /scratch/me/xffl\n", "",
              "missing required key 'facilities.alba.workdir'"},
        Wrong{"/scratch/me/xffl", "/scratch/a b", "stands in directives of Slurm"},
        Wrong{"/scratch/me/it.tokens", "it.tokens",
              "22:19: error: 'facilities.alba.data.train' is "
              "a path at another machine"},
        Wrong{"modules: cuda/12.2", "trainer: {command: [./train.py]}",
              "starts at the project's folder"},
        Wrong{"EUHPC_D01_001", "'x --wrap=id'", "should be a Slurm account"},
        Wrong{"EUHPC_D01_001", "-x", "should be a Slurm account"},
        Wrong{"account: EUHPC_D01_001", "partition: 'a;b'", "should be a partition's name"},
        Wrong{"account: EUHPC_D01_001", "constraint: 'a b'", "should be node features"},
        Wrong{"account: EUHPC_D01_001", "qos: a$b", "should be the name of a QOS"},
        Wrong{"account: EUHPC_D01_001", "acount: x", "did you mean 'account'?"},
        Wrong{"--mail-type=END", "--dependency=singleton",
              "19:15: error: 'facilities.alba.slurm.extra': '--dependency=singleton' is an option "
              "of sbatch that xffl sets itself"},
        Wrong{"--mail-type=END", "--dep=x", "that xffl sets itself"},
        Wrong{"--mail-type=END", "--nodes=3", "has a key of its own: 'nodes'"},
        Wrong{"--mail-type=END", "-N3", "should be an option such as --mail-type=END"},
        Wrong{"--mail-type=END", "'--comment=a b'", "without blanks or quotes"},
        Wrong{"memory_per_node: 480GB", "memory_per_node: 480", "found '480': add the unit"},
        Wrong{"memory_per_node: 480GB", "memory_per_node: 5 Gb", "a size such as 512MB"},
        Wrong{"memory_per_node: 480GB", "exclusive: yes", "should be true or false, found 'yes'"},
        Wrong{"time: 12h", "time: 12", "add the unit"},
        Wrong{"time: 12h", "time: 10m", "'warning' should be shorter than 'time'"},
        Wrong{"workdir:", "world_size: 4\n    workdir:",
              "20:17: error: 'world_size' is 4, but a job of Slurm has 2 nodes * 4 tasks_per_node"},
        Wrong{"nodes: 2", "nodes: 3", "'batch_size' counts the sequences of all ranks"},
        Wrong{"scheduler: slurm", "scheduler: process",
              "'facilities.alba.slurm' has a meaning only with scheduler: slurm"},
        Wrong{"scheduler: slurm", "scheduler: process",
              "needs 'scheduler: slurm, gridengine, pbs or flux'"},
        Wrong{"access: ssh", "access: local",
              "'facilities.alba.ssh' has a meaning only with access: ssh"},
        Wrong{"modules: cuda/12.2", "modules: [\"a;b\"]", "should be a module such as"},
        Wrong{"modules: cuda/12.2", "compute_mounts: scratch", "should be a folder such as /e"},
        Wrong{"modules: cuda/12.2", "compute_mounts: [\"/p/a b\"]",
              "should be a folder such as /e"},
        Wrong{"modules: cuda/12.2", "compute_mounts: [/e, \"/p:/q\"]",
              "'/scratch/me/xffl' is in no folder that compute nodes mount (/e, /p:/q): move it"},
        Wrong{"modules: cuda/12.2", "compute_mounts: /scratch/me/xffl",
              "'/scratch/me/it.tokens' is in no folder that compute nodes mount"},
        Wrong{"modules: cuda/12.2", "login_shell: yes", "should be true or false"},
        Wrong{"account: EUHPC_D01_001", "visible_gpus: two", "should be site, one or all"},
        Wrong{"modules: cuda/12.2", "cuda_compat: compat", "should start with '/'"},
        Wrong{"modules: cuda/12.2", "cuda_compat: \"/a:/b\"", "should have no ':' and no space"},
        Wrong{"modules: cuda/12.2", "library_path: [/ok, \"/a b/libcxi.so.1\"]",
              "stands in LD_LIBRARY_PATH or LD_PRELOAD"},
        Wrong{"modules: cuda/12.2", "nccl_plugin: [/a, /b]", "'facilities.alba.nccl_plugin'"},
        Wrong{"modules: cuda/12.2", "image: {binds: /a}",
              "missing required key 'facilities.alba.image.file'"},
        Wrong{"modules: cuda/12.2", "image: {file: x.sif}", "should start with '/'"},
        Wrong{"modules: cuda/12.2", "image: {file: /x.sif, binds: [\"/a,/b\"]}",
              "should be a bind such as"},
        Wrong{"modules: cuda/12.2", "transfer: {shell: false}", "'transfer' needs hosts"},
        Wrong{"modules: cuda/12.2", "image: {file: /x.sif, options: [\"--env\\n#SBATCH -A x\"]}",
              "'facilities.alba.image.options' holds a line break"}));

TEST(ParseHost, TakesNamesAddressesAndPorts) {
  EXPECT_EQ(parse_host("a.b-c"), (remote::SshHost{"a.b-c", 22}));
  EXPECT_EQ(parse_host("10.0.0.1:65535"), (remote::SshHost{"10.0.0.1", 65535}));
  EXPECT_EQ(parse_host("[::1]:1"), (remote::SshHost{"::1", 1}));
  for (const char* wrong : {"", ":22", "a:", "a:0", "a:65536", "a:022", "a:2x", "-a", ".a", "a b",
                            "a/b", "::1", "[::1", "[::1]x", "[a]", "a:1:2", "a:+2"})
    EXPECT_EQ(parse_host(wrong), std::nullopt) << wrong;
  for (const char* text : {"a", "a:2222", "[::1]", "[::1]:2222"})
    EXPECT_EQ(format_host(parse_host(text).value()), text);
}

}  // namespace
}  // namespace xffl::config
