// `xffl logs` of the coordinator and of the facilities' jobs.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>

#include "apps/sample_run.h"
#include "support/on_terminal.h"
#include "xffl/base/error.h"
#include "xffl/config/load.h"
#include "xffl/plan/facility_layout.h"
#include "xffl/submit/scheduler.h"

namespace xffl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Logs : public test::SampleRun {
 protected:
  std::filesystem::path output(const std::string& facility, int round, int attempt) const {
    const config::Experiment experiment = config::load_experiment(project());
    const RemotePath folder = plan::facility_folder(experiment, *history_->state().identity,
                                                    experiment.facility(FacilityName(facility)));
    return (plan::attempt_folder(folder, round, attempt) / submit::kJobOutput).str();
  }
  void write(const std::string& facility, int round, int attempt, const std::string& text) const {
    const std::filesystem::path file = output(facility, round, attempt);
    make_dirs(file.parent_path());
    std::ofstream(file, std::ios::app) << text;
  }
};

TEST_F(Logs, OfAllFacilitiesNameTheFacilityInEachLine) {
  write("brno", 1, 1, "step 1\nstep 2\n");
  write("alba", 1, 1,
        "\033[2Jcleared\n\nexport HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345\n"
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\nc2Vjb25k\ndGhpcmQ\n"
        "-----END OPENSSH PRIVATE KEY-----\nno line feed");
  const ProcessResult result = xffl({"logs", "--all"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, testing::StartsWith("alba | "));
  EXPECT_THAT(result.out, HasSubstr("cleared\nalba | \nalba | export HF_TOKEN=[removed]\n"));
  EXPECT_THAT(result.out, Not(HasSubstr("\033")));
  for (const char* line : {"b3BlbnNzaC1rZXk", "c2Vjb25k", "dGhpcmQ"})
    EXPECT_THAT(result.out, Not(HasSubstr(line)));
  EXPECT_THAT(result.out, testing::EndsWith("alba | no line feed\nbrno | step 1\nbrno | step 2\n"));
}

TEST_F(Logs, OfARoundAreThoseOfItsNewestJobs) {
  write("alba", 1, 1, "alba 1\n");
  write("brno", 1, 1, "brno 1\n");
  history_->record({1, FacilityName("brno"), 1}, history::AttemptFailed{"the node failed", true});
  submit(1, "brno", 2, "4103");
  write("brno", 1, 2, "brno 1 again\n");
  plan_round(2);
  submit(2, "alba", 1, "4104");
  write("alba", 2, 1, "alba 2\n");

  const ProcessResult newest = xffl({"logs", "--all"});
  EXPECT_EQ(newest.out, "alba | alba 2\n");
  EXPECT_EQ(newest.err, "facility brno has no job in round 2 yet\n");
  EXPECT_EQ(xffl({"logs", "--round", "1"}).out, "alba | alba 1\nbrno | brno 1 again\n");
  EXPECT_EQ(xffl({"logs", "alba", "--round", "1"}).out, "alba 1\n");
  EXPECT_EQ(xffl({"logs", "alba"}).out, "alba 2\n");
  EXPECT_EQ(xffl({"logs", "brno"}).out, "brno 1 again\n");

  const ProcessResult absent = xffl({"logs", "brno", "--round", "2"});
  EXPECT_EQ(absent.exit_code, exit_code(ErrorKind::kNotFound));
  EXPECT_THAT(absent.err, HasSubstr("facility brno has no job in round 2 yet"));
  const ProcessResult future = xffl({"logs", "--round", "7"});
  EXPECT_EQ(future.exit_code, exit_code(ErrorKind::kNotFound));
  EXPECT_THAT(future.err, HasSubstr("run 0001 has no round 7 yet: its newest is 2"));
  EXPECT_EQ(xffl({"logs", "--all", "brno"}).exit_code, exit_code(ErrorKind::kUsage));
}

TEST_F(Logs, OfALongRunHaveTheCoordinatorsLastMessage) {
  std::ofstream log(folder_.log());
  for (int i = 0; i < 1000; ++i)
    log << R"({"time":"12:00","level":"info","event":"look )" << i << "\"}\n";
  log.close();
  const ProcessResult result = xffl({"logs"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, testing::EndsWith("\n12:00 info look 999 \n"));
  EXPECT_EQ(std::ranges::count(result.out, '\n'), 1000);
}

TEST_F(Logs, ContinueAfterAnUnreadableOutput) {
  make_dirs(output("alba", 1, 1));  // a folder in place of the file
  write("brno", 1, 1, "step 1\n");
  const ProcessResult result = xffl({"logs", "--all"});
  EXPECT_EQ(result.out, "brno | step 1\n");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, AllOf(HasSubstr("a facility's output is left out"), HasSubstr("alba: ")));
}

TEST_F(Logs, FollowTheCoordinator) {
  const auto write_line = [&](const std::string& event) {
    std::ofstream(folder_.log(), std::ios::app)
        << R"({"time":"12:00","level":"info","event":")" << event << "\"}\n";
  };
  write_line("look 1");
  test::OnTerminal terminal(command({"logs", "-f"}), 24, 80, {});
  ASSERT_TRUE(terminal.await_text("12:00 info look 1")) << terminal.bytes;
  write_line("look 2");
  EXPECT_TRUE(terminal.await_text("12:00 info look 2")) << terminal.bytes;
  terminal.type("\3");  // Ctrl-C
  EXPECT_EQ(terminal.finish(), 0) << terminal.bytes;
}

TEST_F(Logs, FollowAllFacilities) {
  write("alba", 1, 1, "step 1\n");
  test::OnTerminal terminal(command({"logs", "--all", "-f"}), 24, 80, {});
  ASSERT_TRUE(terminal.await_text("alba | step 1")) << terminal.bytes;
  write("brno", 1, 1, "begin\n");
  ASSERT_TRUE(terminal.await_text("brno | begin")) << terminal.bytes;
  write("alba", 1, 1, "step 2\n");
  ASSERT_TRUE(terminal.await_text("alba | step 2")) << terminal.bytes;
  terminal.type("\3");  // Ctrl-C
  EXPECT_EQ(terminal.finish(), 0) << terminal.bytes;
  EXPECT_THAT(terminal.bytes, Not(HasSubstr("no output yet")));
}

// A long output does not delay the outputs of other facilities.
TEST_F(Logs, FollowAllFacilitiesInTurn) {
  const std::string line = std::string(60, 'x') + "\n";
  std::string steps;
  while (steps.size() < 200'000) steps += line;
  write("alba", 1, 1, steps + "the end\n");
  write("brno", 1, 1, "begin\n");
  test::OnTerminal terminal(command({"logs", "--all", "-f"}), 24, 80, {});
  ASSERT_TRUE(terminal.await_text("alba | the end"));
  EXPECT_LT(terminal.bytes.find("brno | begin"), terminal.bytes.find("alba | the end"));
}

// Neither a long output nor a line without an end costs memory.
TEST_F(Logs, NeedLittleMemory) {
  write("alba", 1, 1, "begin");
  write("brno", 1, 1, "step 1\n");
  std::filesystem::resize_file(output("alba", 1, 1), 200u << 20);
  const ProcessResult result = xffl({"logs", "--all"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(testing::StartsWith("alba | begin"), testing::EndsWith("\nbrno | step 1\n")));
  rusage usage{};
  ASSERT_EQ(::getrusage(RUSAGE_CHILDREN, &usage), 0);
  EXPECT_LT(usage.ru_maxrss, 100 << 10) << "KiB";
}

}  // namespace
}  // namespace xffl
