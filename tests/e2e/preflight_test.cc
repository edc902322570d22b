// Commands before a run: doctor, plan, and the check of the runs folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "e2e/project.h"
#include "support/on_terminal.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/sha256.h"
#include "xffl/history/run_folder.h"
#include "xffl/history/run_history.h"
#include "xffl/usage/accounting.h"

namespace xffl {
namespace {

using test::Project;
using testing::HasSubstr;

// Runs xffl with a mount table that has the project's folder, or a folder `below` it, on NFS.
ProcessResult on_nfs(const Project& project, const std::vector<std::string>& args,
                     const std::string& below = "") {
  const std::filesystem::path mounts = project.path() / "mounts";
  write_file_atomic(mounts, "/dev/sda1 / ext4 rw 0 0\nnas:/home " + project.path().string() +
                                below + " nfs4 rw 0 0\n");
  std::vector<std::string> argv = {
      "unshare",
      "--mount",
      "--propagation",
      "private",
      "sh",
      "-c",
      "mount --bind \"$1\" /proc/$$/mounts || exit 77; shift; exec \"$@\"",
      "sh",
      mounts.string(),
      XFFL_BINARY_DIR "/bin/xffl"};
  argv.insert(argv.end(), args.begin(), args.end());
  return run_process({.argv = argv, .timeout = std::chrono::seconds(120)});
}
bool lacks_namespaces(const ProcessResult& result) {
  return result.exit_code == 77 || result.err.find("unshare") != std::string::npos;
}

TEST(NetworkFileSystem, RunsOnlyWithAllowNetworkFs) {
  Project project;
  const std::string path = project.path().string();
  const ProcessResult refused = on_nfs(project, {"run", "-p", path});
  if (lacks_namespaces(refused)) GTEST_SKIP() << "no mount namespaces here: " << refused.err;
  EXPECT_EQ(refused.exit_code, exit_code(ErrorKind::kUnsupported)) << refused.err;
  EXPECT_NE(refused.err.find("(nfs4)"), std::string::npos) << refused.err;
  EXPECT_EQ(on_nfs(project, {"render", "alba", "--stage", "-p", path}).exit_code,
            exit_code(ErrorKind::kUnsupported));
  EXPECT_FALSE(std::filesystem::exists(project.path() / "runs"));
  EXPECT_EQ(on_nfs(project, {"run", "-p", path, "-w", path + "/nas"}, "/nas").exit_code,
            exit_code(ErrorKind::kUnsupported))
      << "the journal is below the folder of --workdir";
  const ProcessResult allowed = on_nfs(project, {"run", "-p", path, "--allow-network-fs"});
  EXPECT_EQ(allowed.exit_code, 0) << allowed.err;
  EXPECT_NE(allowed.err.find("one machine only"), std::string::npos) << allowed.err;
  // The journal uses no write-ahead log on NFS.
  EXPECT_EQ(read_file(project.run_folder() / "journal.db", 1 << 20).at(18), 1);
  EXPECT_TRUE(project.history().completed);
}

// A lock on NFS may not reach the other host.
TEST(NetworkFileSystem, TheLockOfAnotherHostHolds) {
  Project project;
  ASSERT_EQ(project.run({{"XFFL_FAILPOINT", "journal:after:8"}}).exit_code, 128 + 9);
  const auto lock = project.run_folder() / "journal.db.lock";
  write_file_atomic(lock, R"({"host":"elsewhere","pid":1,"start_ticks":1,)"
                          R"("since":"2026-01-01T00:00:00.000Z"})");
  const std::vector<std::string> args = {"run", "-p", project.path().string(),
                                         "--allow-network-fs"};
  const ProcessResult held = on_nfs(project, args);
  if (lacks_namespaces(held)) GTEST_SKIP() << "no mount namespaces here: " << held.err;
  EXPECT_EQ(held.exit_code, exit_code(ErrorKind::kBusy)) << held.err;
  EXPECT_NE(held.err.find("pid 1 on elsewhere"), std::string::npos) << held.err;
  std::filesystem::remove(lock);
  const ProcessResult run = on_nfs(project, args);
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

TEST(Doctor, FailsForAMissingModel) {
  Project project;
  const std::string path = project.path().string();
  std::filesystem::remove_all(project.path() / "model");
  const ProcessResult result = project.xffl({"doctor", "-p", path});
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::kFailed));
  EXPECT_NE(result.out.find("FAILED"), std::string::npos) << result.out;
}

TEST(Doctor, FailsForTheFirstOfSeveralFacilities) {
  Project project;
  const std::filesystem::path file = project.path() / "xffl.yaml";
  std::string yaml = read_file(file, 1 << 20);
  const std::string shard = "/data/unused.tokens";
  for (size_t at = 0; (at = yaml.find(shard, at)) != std::string::npos;)
    yaml.replace(at, shard.size(), file.string());  // a file that exists
  const size_t at = yaml.find("workdir:");          // alba's
  ASSERT_NE(at, std::string::npos) << yaml;
  yaml.replace(at, yaml.find('\n', at) - at, "workdir: " + file.string() + "/no-folder");
  write_file_atomic(file, yaml);
  const ProcessResult result = project.xffl({"doctor", "-p", project.path().string()});
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::kFailed)) << result.out << result.err;
  const ProcessResult brno = project.xffl({"doctor", "brno", "-p", project.path().string()});
  EXPECT_EQ(brno.exit_code, 0) << brno.out;
}

// A mistyped name must not look like a facility without a problem.
TEST(Doctor, RejectsAnUnknownFacility) {
  const Project project;
  const ProcessResult result = project.xffl({"doctor", "nemo", "-p", project.path().string()});
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::kNotFound)) << result.out << result.err;
}

// A job reads its validation sets after its time in the queue, too.
TEST(Doctor, FailsForAMissingValidationSet) {
  Project project;
  project.set_validation("brno", "it");
  project.write_config();
  EXPECT_THAT(project.xffl({"doctor", "brno", "-p", project.path().string()}).out,
              HasSubstr("FAILED  validation data  /data/unused.tokens does not exist"));
}

// Without this check a job would find the damage only after its time in the queue.
TEST(Doctor, ChecksTheFilesOfTheModel) {
  Project project;
  const std::filesystem::path model = project.path() / "model";
  const std::string whole = read_file(model / "model.safetensors", 1 << 20);
  const auto doctor = [&] { return project.xffl({"doctor", "-p", project.path().string()}); };
  EXPECT_NE(doctor().out.find("ok      model"), std::string::npos);
  write_file_atomic(model / "model.safetensors", whole.substr(0, whole.size() - 9));
  const ProcessResult torn = doctor();
  EXPECT_NE(torn.out.find("FAILED  model"), std::string::npos) << torn.out;
  EXPECT_NE(torn.out.find("truncated"), std::string::npos) << torn.out;
  EXPECT_EQ(torn.exit_code, exit_code(ErrorKind::kFailed));
  std::filesystem::remove(model / "model.safetensors");
  write_file_atomic(model / "model-00001-of-00002.safetensors", whole);
  write_file_atomic(model / "model.safetensors.index.json",
                    R"({"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}})");
  const ProcessResult shard = doctor();
  EXPECT_NE(shard.out.find("names model-00002-of-00002.safetensors"), std::string::npos)
      << shard.out;
  EXPECT_EQ(shard.exit_code, exit_code(ErrorKind::kFailed));
}

// The number of another version may begin with the same digits.
TEST(Doctor, WarnsOfATrainerOfAnotherVersion) {
  Project project;
  const std::filesystem::path file = project.path() / "xffl.yaml";
  const std::filesystem::path trainer = project.path() / "xffl-train";
  const std::string fake = "trainer: {command: ['" XFFL_BINARY_DIR "/bin/xffl-fake-trainer']}";
  std::string yaml = read_file(file, 1 << 20);
  const size_t at = yaml.find(fake);  // alba's
  ASSERT_NE(at, std::string::npos) << yaml;
  write_file_atomic(file,
                    yaml.replace(at, fake.size(), "trainer: {program: " + trainer.string() + "}"));
  const auto doctor = [&](const std::string& printed) {
    write_file_atomic(trainer, "#!/bin/sh\necho 'xffl-train " + printed + "'\n");
    std::filesystem::permissions(trainer, std::filesystem::perms(0700));
    return project.xffl({"doctor", "alba", "-p", project.path().string()}).out;
  };
  const std::string version = project.xffl({"--version"}).out;  // "xffl 0.1.0" and a line feed
  const std::string own = version.substr(5, version.size() - 6);
  EXPECT_THAT(doctor(own + " (torch)"), HasSubstr("ok      trainer          xffl-train " + own));
  EXPECT_THAT(doctor(own + "0"), HasSubstr("warning trainer          "));
}

// The fix for a project on NFS is --workdir.
TEST(Doctor, ChecksTheRunsFolderOfWorkdir) {
  Project project;
  const std::filesystem::path other = project.path() / "local/disk";
  const ProcessResult result =
      project.xffl({"doctor", "-p", project.path().string(), "-w", other.string()});
  EXPECT_NE(result.out.find("runs folder      " + project.path().string() + "\n"),
            std::string::npos)
      << result.out;  // the nearest existing folder
  make_dirs(other / "runs");
  EXPECT_NE(project.xffl({"doctor", "-p", project.path().string(), "-w", other.string()})
                .out.find("runs folder      " + (other / "runs").string() + "\n"),
            std::string::npos);
}

// The output of `xffl doctor` where the shell script `body` replaces a program.
std::string doctor_with(const Project& project, const std::string& program,
                        const std::string& body) {
  const std::filesystem::path bin = project.path() / "bin";
  make_dirs(bin);
  write_file_atomic(bin / program, "#!/bin/sh\n" + body + "\n");
  std::filesystem::permissions(bin / program, std::filesystem::perms(0700));
  return project
      .xffl({"doctor", "-p", project.path().string()},
            {{"PATH", bin.string() + ":/usr/sbin:/usr/bin:/sbin:/bin"}})
      .out;
}

// Reserves the bytes of a round; asks no quota tool of the site.
TEST(Doctor, FindsAQuotaByReservingSpace) {
  Project project;
  project.set_model_rows(4000);
  const std::string yaml = read_file(project.path() / "xffl.yaml", 1 << 20);
  write_file_atomic(project.path() / "xffl.yaml", yaml + "aggregation: {update_dtype: fp32}\n");
  const auto doctor = [&](const std::string& fallocate) {
    return doctor_with(project, "fallocate", fallocate);
  };
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const std::string over =
      doctor("echo 'fallocate: fallocate failed: Disk quota exceeded' >&2; exit 1");
  has(over, "FAILED  quota");
  has(over, "your quota does not leave");
  // 4013 rows of 8: the model in bfloat16, the update in float32, and 10 % more.
  const std::string enough =
      doctor("[ \"$2\" = 211882 ] || exit 3; exec /usr/bin/fallocate \"$@\"");
  if (enough.find("the file system is memory") == std::string::npos)
    has(enough, "could be reserved");
  const std::string unknown = doctor("echo 'Operation not supported' >&2; exit 1");
  has(unknown, "warning quota");
  has(unknown, "not checked: space cannot be reserved there");
  // Such a file would take the space of a round until a user finds it.
  doctor_with(project, "stat", "[ \"$3\" = %T ] && echo ext4 || echo ext4 1000000 5000");
  has(doctor("[ \"$3\" = -- ] && : >\"$4\""), "could be reserved");
  EXPECT_TRUE(std::filesystem::exists(project.path() / "work"));
  EXPECT_FALSE(std::filesystem::exists(project.path() / "work/.xffl-space"));
}

TEST(Doctor, FailsForAWorkFolderWithTooFewFreeFiles) {
  const Project project;
  const auto doctor = [&](const std::string& free) {
    return doctor_with(project, "stat",
                       "[ \"$3\" = %T ] && echo ext4 || echo ext4 1000000 " + free);
  };
  EXPECT_THAT(doctor("199"), HasSubstr("FAILED  free files       199 in the file system"));
  EXPECT_THAT(doctor("200"), HasSubstr("warning free files       200 in the file system"));
  EXPECT_THAT(doctor("5000"), HasSubstr("ok      free files       5000 in the file system"));
}

TEST(Plan, PrintsBytesAndSubmitsNothing) {
  Project project;
  const std::string path = project.path().string();
  const ProcessResult result = project.xffl({"plan", "-p", path, "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json plan = parse_json(result.out, "plan");
  EXPECT_EQ(plan["schema"], 1);
  ASSERT_EQ(plan["facilities"].size(), 2u);
  EXPECT_EQ(plan["facilities"][0]["facility"], "alba");
  EXPECT_EQ(plan["facilities"][0]["push_bytes"], 2 * (16 * 8 + 12 * 8 + 8));
  EXPECT_TRUE(project.trainings().empty());
  EXPECT_FALSE(std::filesystem::exists(project.path() / "runs"));
}

// Jobs of 2 node-hours; alba may use 7, the run `run_node_hours`.
void set_budgets(Project& project, int run_node_hours) {
  for (const char* name : {"alba", "brno"})
    project.place(name, {.yaml = "    scheduler: slurm\n    slurm: {nodes: 2, time: 1h}\n",
                         .trainings = {},
                         .trainings_here = {}});
  project.set_keys("alba", "budget: {node_hours: 7}");
  project.set_policy("{budget: {node_hours: " + std::to_string(run_node_hours) + "}}");
  project.write_config();
}

TEST(Plan, ShowsTheRoundsThatFitIntoEachBudget) {
  Project project;
  set_budgets(project, 3);
  const std::string path = project.path().string();
  const ProcessResult text = project.xffl({"plan", "-p", path, "--offline"});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out,
              testing::AllOf(HasSubstr("facilities.alba.budget: 0.00 of 7.00 node-hours are used "
                                       "or reserved; 3 more rounds fit with whole walltimes\n"),
                             HasSubstr("policy.budget: 0.00 of 3.00 node-hours are used or "
                                       "reserved; the next round does not fit\n"),
                             HasSubstr("at most 12.0 node-hours to the end of the run\n"),
                             HasSubstr("\n  not asked (--offline)\n")));
  const ProcessResult json = project.xffl({"plan", "-p", path, "--offline", "--json"});
  const Json budgets = parse_json(json.out, "plan")["budgets"];
  ASSERT_EQ(budgets.size(), 2u);
  EXPECT_EQ(budgets[1]["key"], "policy.budget");
  EXPECT_EQ(budgets[1]["round_node_hours"], 4);
}

TEST(Plan, AFacilitysBudgetIsSpentByItsOwnJobs) {
  Project project;
  set_budgets(project, 30);
  const history::RunFolder folder(project.path() / "runs", RunName("0001"));
  make_dirs(folder.path());
  std::filesystem::copy_file(project.path() / "xffl.yaml", folder.config());
  {
    history::RunHistory history(folder.journal());
    history.record({}, history::RunCreated{RunName("0001"), "test", "s", "0123abcd",
                                           sha256_hex(read_file(folder.config(), 1 << 20))});
    const history::EventScope scope{1, FacilityName("brno"), 1};
    history.record(scope, history::AttemptOpened{std::string(32, '1')});
    history.record(
        scope,
        history::SubmitIntended{
            .job_name = "j", .script_sha256 = "s", .nodes = 2, .walltime_s = 3600, .keep_s = 0});
  }
  const ProcessResult result =
      project.xffl({"plan", "-p", project.path().string(), "--offline", "--json"});
  const Json budgets = parse_json(result.out, result.err)["budgets"];
  ASSERT_EQ(budgets.size(), 2u);
  EXPECT_EQ(budgets[0]["spent_node_hours"], 0) << "alba's";
  EXPECT_EQ(budgets[1]["spent_node_hours"], 2);
}

TEST(Doctor, TellsWhatItsCheckJobMayCost) {
  Project project;
  set_budgets(project, 30);
  const auto asked = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"doctor", "--job", "alba", "-p", project.path().string()};
    words.insert(words.end(), more.begin(), more.end());
    const ProcessResult result = project.xffl(words);
    EXPECT_EQ(result.exit_code, exit_code(ErrorKind::kUsage)) << result.out;
    return result.err;
  };
  EXPECT_THAT(asked({}), HasSubstr("2 nodes for at most 15 minutes: 30 node-minutes"));
  EXPECT_THAT(asked({"--nodes", "1", "--minutes", "40"}),
              HasSubstr("1 nodes for at most 40 minutes: 40 node-minutes"));
}

TEST(Doctor, SubmitsItsCheckJobFromATerminalOnlyAfterAYes) {
  Project project;
  set_budgets(project, 30);
  test::OnTerminal terminal({"doctor", "--job", "brno", "-p", project.path().string()}, 24, 200,
                            {});
  ASSERT_TRUE(terminal.await_text("submit the check job at brno")) << terminal.bytes;
  terminal.type("y\n");
  EXPECT_EQ(terminal.finish(), exit_code(ErrorKind::kCancelled)) << terminal.bytes;
  EXPECT_THAT(terminal.bytes, HasSubstr("nothing was submitted"));
}

// The script waits for a submission by hand: nothing is sent to Slurm.
TEST(Render, StagesAJobOfANewRun) {
  Project project;
  set_budgets(project, 30);
  for (const char* run : {"0001", "0002"}) {
    const ProcessResult staged =
        project.xffl({"render", "alba", "--stage", "--new", "-p", project.path().string()});
    EXPECT_EQ(staged.exit_code, 0) << staged.err;
    EXPECT_THAT(staged.out, HasSubstr("sbatch"));
    EXPECT_TRUE(std::filesystem::exists(project.run_folder(run))) << run;
  }
}

TEST(Render, StagesAJobOnANetworkFileSystemWithAllowNetworkFs) {
  Project project;
  set_budgets(project, 30);
  const ProcessResult staged = on_nfs(
      project, {"render", "alba", "--stage", "--allow-network-fs", "-p", project.path().string()});
  if (lacks_namespaces(staged)) GTEST_SKIP() << "no mount namespaces here: " << staged.err;
  EXPECT_EQ(staged.exit_code, 0) << staged.err;
  EXPECT_THAT(staged.err, HasSubstr("one machine only"));
  EXPECT_THAT(staged.out, HasSubstr("sbatch"));
}

TEST(Simulate, RunsTheJobOfAClusterOnThisMachine) {
  Project project;
  const std::filesystem::path log = project.path() / "trainings.log";
  project.place("brno", {"    scheduler: slurm\n    slurm: {nodes: 2, time: 1h}\n", log, log});
  project.write_config();
  const ProcessResult result =
      project.xffl({"simulate", "-p", project.path().string(), "--facility", "brno"}, {},
                   std::chrono::seconds(60));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(project.trainings(), std::vector<std::string>{"brno 1 1"});
  EXPECT_FALSE(std::filesystem::exists(project.path() / "work")) << "the facilities' own folder";
  EXPECT_FALSE(std::filesystem::exists(project.path() / "runs")) << "`xffl run` would continue it";
}

// Neither the site's log-in node nor its paths exist here.
TEST(Simulate, RunsTheJobOfASiteBehindSshOnThisMachine) {
  Project project;
  const std::filesystem::path log = project.path() / "trainings.log";
  const std::string path = project.path().string();
  project.place("brno", {"    access: ssh\n    ssh: {hosts: ['127.0.0.1:1'], user: ann}\n"
                         "    scheduler: slurm\n    slurm: {nodes: 2, time: 1h}\n"
                         "    compute_mounts: ['/data:/there', '" +
                             path + ":/there']\n    workdir: " + path + "/work\n",
                         log, log});
  project.write_config();
  const ProcessResult result =
      project.xffl({"simulate", "-p", path, "--facility", "brno"}, {}, std::chrono::seconds(60));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(project.trainings(), std::vector<std::string>{"brno 1 1"});
  EXPECT_FALSE(std::filesystem::exists(project.path() / "work")) << "the site's own folder";
}

// The user waits for the command: no further attempt, and no wait for another user.
TEST(Simulate, EndsAfterAFailedJob) {
  Project project;
  project.set_fault("brno", "crash!");
  project.write_config();
  const ProcessResult result =
      project.xffl({"simulate", "-p", project.path().string(), "--facility", "brno"}, {},
                   std::chrono::seconds(60));
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::kFailed)) << result.err;
  EXPECT_EQ(project.started_trainings(), std::vector<std::string>{"brno 1 1"});
}

// A wait for `xffl prepare` would last until policy.max_outage.
TEST(Simulate, NeedsTheShardsOnThisMachine) {
  Project project;
  project.write_config();
  const auto config = project.path() / "xffl.yaml";
  std::string yaml = read_file(config, 1 << 20);
  const std::string data = "data: {train: [/data/unused.tokens]";
  yaml.replace(yaml.find(data, yaml.find("  brno:")), data.size(), "data: {text: /site/*.txt");
  write_file_atomic(config, yaml);
  const ProcessResult result =
      project.xffl({"simulate", "-p", project.path().string(), "--facility", "brno"}, {},
                   std::chrono::seconds(60));
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::kNotFound)) << result.err;
  EXPECT_THAT(result.err, HasSubstr("copy the shards of `xffl prepare` there"));
}

// A facility that does not answer, or has no accounting, keeps its earlier answer.
TEST(Usage, KeepsTheEarlierAccountingOfAFacility) {
  Project project;
  project.set_rounds(1);
  project.write_config();
  ASSERT_EQ(project.run().exit_code, 0);
  submit::AccountedStart start;
  start.job = JobId("7");
  start.state = "COMPLETED";
  start.start = 1'772'000'000;
  start.end = start.start + 60;
  start.nodes = 2;
  const auto file = history::RunFolder(project.path() / "runs", RunName("0001")).accounting();
  write_file_atomic(file, usage::format_accounting({{FacilityName("alba"), {start}}}));
  const std::string before = read_file(file, 1 << 20);
  ASSERT_EQ(project.xffl({"usage", "-p", project.path().string(), "--accounting"}).exit_code, 0);
  EXPECT_EQ(read_file(file, 1 << 20), before);
}

TEST(Usage, ReplacesADamagedFileOfTheAccounting) {
  Project project;
  project.set_rounds(1);
  project.write_config();
  ASSERT_EQ(project.run().exit_code, 0);
  const std::string path = project.path().string();
  const auto file = history::RunFolder(project.path() / "runs", RunName("0001")).accounting();
  write_file_atomic(file, "{\"schema\": 1, \"facilities\": {");
  EXPECT_EQ(project.xffl({"usage", "-p", path}).exit_code, exit_code(ErrorKind::kCorrupt));
  const ProcessResult asked = project.xffl({"usage", "-p", path, "--accounting"});
  EXPECT_EQ(asked.exit_code, 0) << asked.err;
  EXPECT_THAT(asked.err, HasSubstr("facilities that give none now are lost"));
  EXPECT_EQ(project.xffl({"usage", "-p", path}).exit_code, 0);
}

// The forecast of `plan` and `doctor` for this machine's disk follows the keys.
TEST(Preflight, ForecastsTheDiskOfTheWholeRun) {
  Project project;
  project.set_model_rows(100'000);  // 1.6 MB published, 3.2 MB in float32
  project.set_rounds(100);
  project.write_config();
  const std::string path = project.path().string();
  EXPECT_THAT(project.xffl({"plan", "-p", path, "--offline"}).out,
              HasSubstr("disk of this machine: at most 0.5 GB for the whole run; "
                        "policy.keep_models and policy.keep_updates limit it\n"));
  EXPECT_THAT(project.xffl({"doctor", "-p", path}).out, HasSubstr("0.5 GB for 100 rounds"));
  project.set_policy("{on_missing: wait, keep_models: 5, keep_updates: 3}");
  project.write_config();
  EXPECT_THAT(project.xffl({"plan", "-p", path, "--offline"}).out,
              HasSubstr("at most 36.8 MB for the whole run; 0.5 GB if all models and updates "
                        "stayed\n"));
  const auto doctor = [&] { return project.xffl({"doctor", "-p", path}).out; };
  EXPECT_THAT(doctor(), testing::AllOf(HasSubstr("ok      space for the run"),
                                       HasSubstr("36.8 MB for 100 rounds")));
  project.set_policy("{on_missing: wait}");
  project.set_model_rows(1'000'000);
  project.set_rounds(1'000'000);  // tens of terabytes
  project.write_config();
  EXPECT_THAT(doctor(), HasSubstr("warning space for the run"));
}

}  // namespace
}  // namespace xffl
