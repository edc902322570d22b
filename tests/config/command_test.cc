// `xffl config` and its sub-commands as processes; the wizard on a terminal of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/process.h"
#include "xffl/config/load.h"
#include "xffl/submit/slurm.h"

namespace xffl {
namespace {

using testing::HasSubstr;

const std::string kProgram = XFFL_BINARY_DIR "/bin/xffl";

struct Outcome {
  int code = 0;
  std::string out, err;
};

Outcome run(std::vector<std::string> words) {
  words.insert(words.begin(), kProgram);
  ProcessResult result = run_process({.argv = std::move(words)});
  return {result.exit_code, std::move(result.out), std::move(result.err)};
}

class ConfigCommand : public testing::Test {
 protected:
  std::vector<std::string> make(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words{"config",     "--project",
                                   project(),    "--no-input",
                                   "--name",     "bi",
                                   "--model",    "m",
                                   "--set",      "training.steps_per_round=4",
                                   "--facility", "alba",
                                   "--facility", "brno",
                                   "--set",      "facilities.alba.data.train=[/a b, /c]",
                                   "--set",      "facilities.brno.data.train=/d"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::string project() const { return (dir_ / "project").string(); }
  std::string file() const { return project() + "/xffl.yaml"; }

  test::TempDir dir_;
};

TEST_F(ConfigCommand, WritesAValidFileFromFlags) {
  const Outcome made = run(make({"--rounds", "3", "--set", "training.learning_rate=1e-4"}));
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("wrote " + file()));
  EXPECT_THAT(made.err, HasSubstr("warning: facilities.brno.data.train: there is no file /d"));
  EXPECT_EQ(read_file(file(), 10'000).front(), '#');
  const config::Experiment experiment = config::load_experiment(project());
  EXPECT_EQ(experiment.rounds, 3);
  EXPECT_EQ(experiment.facilities.at(0).training.learning_rate, 1e-4);
  EXPECT_THAT(experiment.facilities.at(0).train_data, testing::ElementsAre("/a b", "/c"));
}

TEST_F(ConfigCommand, NeverOverwritesWithoutForce) {
  EXPECT_EQ(run(make()).code, 0);
  const std::string before = read_file(file(), 10'000);
  const Outcome again = run(make({"--rounds", "9"}));
  EXPECT_EQ(again.code, exit_code(ErrorKind::kUsage));
  EXPECT_THAT(again.err, HasSubstr("--force"));
  EXPECT_EQ(read_file(file(), 10'000), before);
  EXPECT_EQ(run(make({"--rounds", "9", "--force"})).code, 0);
  EXPECT_EQ(config::load_experiment(project()).rounds, 9);
}

TEST_F(ConfigCommand, WritesNothingWhenTheSettingsAreWrong) {
  const Outcome wrong = run(make({"--set", "training.learning_rat=1"}));
  EXPECT_EQ(wrong.code, exit_code(ErrorKind::kConfig));
  EXPECT_THAT(wrong.err, HasSubstr("did you mean 'learning_rate'?"));
  EXPECT_EQ(run(make({"--set", "nonsense"})).code, exit_code(ErrorKind::kUsage));
  EXPECT_EQ(run({"config", "--project", project(), "--no-input"}).code,
            exit_code(ErrorKind::kConfig));
  EXPECT_FALSE(std::filesystem::exists(project()));
}

TEST_F(ConfigCommand, ValidateNamesEveryProblemAtItsPlace) {
  make_dirs(project());
  write_file_atomic(file(), "project: p\nmodle: m\nrounds: 0x3\n");
  for (const std::vector<std::string>& how :
       {std::vector<std::string>{"-p", project()}, {project()}, {file()}}) {
    std::vector<std::string> words{"config", "validate"};
    words.insert(words.end(), how.begin(), how.end());
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, exit_code(ErrorKind::kConfig));
    EXPECT_THAT(outcome.err,
                testing::StartsWith(file() + ":1:1: error: missing required key 'facilities'"));
    EXPECT_THAT(
        outcome.err,
        HasSubstr("\n" + file() + ":2:1: error: unknown key 'modle': did you mean 'model'?\n"));
    EXPECT_THAT(outcome.err, HasSubstr("xffl.yaml has 3 problems"));
  }
}

TEST_F(ConfigCommand, ValidateWarnsOfMissingFilesAndStrictRejectsThem) {
  EXPECT_EQ(run(make()).code, 0);
  const Outcome outcome = run({"config", "validate", "-p", project()});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("valid: project 'bi', 1 rounds, 2 facilities"));
  EXPECT_THAT(outcome.err, HasSubstr("warning: model: there is no folder " + project() + "/m"));
  EXPECT_EQ(run({"config", "validate", "-p", project(), "--strict"}).code,
            exit_code(ErrorKind::kNotFound));
  EXPECT_EQ(run({"config", "validate", "-p", project() + "/no"}).code,
            exit_code(ErrorKind::kNotFound));
}

TEST_F(ConfigCommand, ShowAndSchemaPrintValidDocuments) {
  EXPECT_EQ(run(make()).code, 0);
  const std::string shown = run({"config", "show", "-p", project()}).out;
  EXPECT_EQ(config::parse_experiment(shown, "f", project()), config::load_experiment(project()));
  EXPECT_TRUE(parse_json(run({"config", "schema"}).out, "schema").contains("properties"));
}

TEST_F(ConfigCommand, APresetBecomesKeysOfTheFile) {
  std::vector<std::string> words{
      "config", "--project", project(), "--no-input", "--name",
      "bi",     "--model",   "m",       "--preset",   "bologna=leonardo"};
  for (const char* setting :
       {"training.steps_per_round=4", "facilities.bologna.ssh.user=me",
        "facilities.bologna.workdir=/scratch/me", "facilities.bologna.data.train=/scratch/me/t",
        "facilities.bologna.slurm.nodes=2"}) {
    words.emplace_back("--set");
    words.emplace_back(setting);
  }
  const Outcome made = run(words);
  EXPECT_EQ(made.code, 0) << made.err;
  const config::Facility facility = config::load_experiment(project()).facilities.at(0);
  EXPECT_EQ(facility.scheduler.as<submit::SlurmSettings>().partition, "boost_usr_prod");
  EXPECT_EQ(facility.world_size, 8);
  EXPECT_FALSE(facility.transfer.shell);
  EXPECT_THAT(run({"config", "preset"}).out, HasSubstr("leonardo\nlumi\n"));
  EXPECT_THAT(run({"config", "preset", "lumi"}).out, HasSubstr("partition: standard-g"));
  EXPECT_EQ(run({"config", "preset", "nowhere"}).code, exit_code(ErrorKind::kNotFound));
}

TEST_F(ConfigCommand, TheWizardNeedsATerminal) {
  const Outcome outcome = run({"config", "-p", project()});  // its stdin is closed
  EXPECT_EQ(outcome.code, exit_code(ErrorKind::kUsage));
  EXPECT_THAT(outcome.err, HasSubstr("--no-input"));
}

/// Runs the wizard on a new terminal with `answers` typed in; `shown` gets its output.
int answer(const std::string& project, const std::string& answers, std::string& shown) {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    execl(kProgram.c_str(), "xffl", "config", "-p", project.c_str(), nullptr);
    _exit(127);
  }
  EXPECT_GT(child, 0);
  EXPECT_EQ(write(terminal, answers.data(), answers.size()), static_cast<ssize_t>(answers.size()));
  char buffer[4096];
  for (ssize_t n = 0; (n = read(terminal, buffer, sizeof buffer)) > 0;)
    shown.append(buffer, static_cast<size_t>(n));
  close(terminal);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(ConfigCommand, TheWizardAsksAgainUntilAnAnswerIsGood) {
  std::string shown;
  const int code = answer(project(),
                          "Bad Name\nbi\n\nthree\n3\n40\n\n1e-4\nfp23\nbf16\nalba brno\n"
                          "\n\n2\na.tokens b.tokens\nit=v.tokens\n\n/scratch/x\n\n\n\ny\n",
                          shown);
  EXPECT_EQ(code, 0) << shown;
  EXPECT_THAT(shown, HasSubstr("'Bad Name' cannot be a project name"));
  EXPECT_THAT(shown, HasSubstr("did you mean 'fp32'?"));
  const config::Experiment experiment = config::load_experiment(project());
  EXPECT_EQ(experiment.project.str(), "bi");
  EXPECT_EQ(experiment.rounds, 3);
  const config::Facility& alba = experiment.facilities.at(0);
  EXPECT_EQ(alba.world_size, 2);
  EXPECT_EQ(alba.train_data.size(), 2u);
  EXPECT_EQ(alba.validation.at(0).name, "it");
  EXPECT_EQ(experiment.facilities.at(1).workdir.str(), "/scratch/x");
}

TEST_F(ConfigCommand, TheWizardAsksForAClusterBehindSsh) {
  std::string shown;
  const int code =
      answer(project(),
             "bi\n\n\n\n\n\n\nalba leo\n"
             "shh\nssh\n\na.example b.example:2222\nann b\nann\n/k\nno\nproj\n\n2\n4\n12h\n"
             "rel\n/scratch/x\n/opt/xffl-train\n\n\n/scratch/it.tokens\n\n"
             "leonardo\nann\n\nno\n\n\n/scratch/y\n\n/data/*.txt /more\nno\nA: {text}\ny\n",
             shown);
  EXPECT_EQ(code, 0) << shown;
  EXPECT_THAT(shown, HasSubstr("should be local or ssh, found 'shh': did you mean 'ssh'?"));
  EXPECT_THAT(shown, HasSubstr("or a list of them, found nothing"));
  EXPECT_THAT(shown, HasSubstr("should be a user's name, found 'ann b'"));
  const config::Experiment experiment = config::load_experiment(project());
  const config::Facility& alba = experiment.facilities.at(0);
  EXPECT_EQ(alba.scheduler.manager().name, "slurm");
  EXPECT_EQ(alba.ssh.hosts.size(), 2u);
  EXPECT_EQ(alba.ssh.keys.at(0), "/k");
  EXPECT_EQ(alba.scheduler.as<submit::SlurmSettings>().account, "proj");
  EXPECT_EQ(alba.world_size, 8);
  EXPECT_EQ(alba.trainer_program, "/opt/xffl-train");
  const config::Facility& leo = experiment.facilities.at(1);
  EXPECT_EQ(leo.scheduler.as<submit::SlurmSettings>().partition, "boost_usr_prod");
  EXPECT_TRUE(leo.trainer_bundle);
  EXPECT_THAT(leo.text.files, testing::ElementsAre("/data/*.txt", "/more"));
  EXPECT_EQ(leo.text.prompt, "A: {text}");
  EXPECT_THAT(shown, HasSubstr("'template' should contain {text}, found 'no'"));
}

TEST_F(ConfigCommand, TheWizardWritesNothingWithoutAYes) {
  std::string shown;
  const int code = answer(project(), "bi\n\n\n\n\n\n\na\n\n\n\n\n\nn\n", shown);
  EXPECT_EQ(code, exit_code(ErrorKind::kCancelled)) << shown;
  EXPECT_THAT(shown, HasSubstr("steps_per_round: 100"));
  EXPECT_EQ(answer(project(), "bi\n\x04", shown), exit_code(ErrorKind::kCancelled));
  EXPECT_FALSE(std::filesystem::exists(file()));
}

}  // namespace
}  // namespace xffl
