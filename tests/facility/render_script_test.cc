#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "xffl/base/error.h"
#include "xffl/config/load.h"
#include "xffl/facility/job_script.h"

namespace xffl::facility {
namespace {

using testing::HasSubstr;

const FacilityName kAlba("alba");
const Programs kPrograms{"/opt/xffl", "/opt/xffl-train"};

config::Experiment experiment() {
  return config::parse_experiment(R"(
project: demo
model: /m
rounds: 3
training: {steps_per_round: 4}
facilities:
  alba:
    access: ssh
    ssh: {hosts: login, user: me}
    scheduler: slurm
    workdir: /scratch/me
    data: {train: /scratch/me/t}
)",
                                  "xffl.yaml", "/project");
}

history::RunState run_state() {
  history::RunState run_state;
  run_state.identity = plan::RunIdentity{RunName("0007"), "0123456789abcdef0123456789abcdef"};
  run_state.initial_sha256 = std::string(64, 'a');
  return run_state;
}

TEST(RenderScript, IsForTheNextRoundAndItsFolder) {
  const RenderedScript rendered = render_script(experiment(), run_state(), kAlba, {}, kPrograms);
  EXPECT_EQ(rendered.round, 1);
  EXPECT_EQ(rendered.attempt, 1);
  EXPECT_EQ(rendered.job_name, "xffl-demo-0007-01234567-r0001-alba-a1");
  EXPECT_EQ(rendered.folder.str(), "/scratch/me/demo/0007-01234567/alba/r0001/a1");
  EXPECT_THAT(rendered.script, HasSubstr("#SBATCH --job-name=" + rendered.job_name + "\n"));
  EXPECT_THAT(rendered.script, HasSubstr("#SBATCH --chdir=" + rendered.folder.str() + "\n"));
  EXPECT_EQ(render_script(experiment(), run_state(), kAlba, 1, kPrograms).script, rendered.script);
}

TEST(RenderScript, IsForTheOpenAttemptOrTheNext) {
  history::RunState open = run_state();
  history::FacilityState& state = open.rounds[1].facilities[kAlba];
  state.attempts.push_back({.number = 1, .pushed = true, .job_id = "42"});
  EXPECT_EQ(render_script(experiment(), open, kAlba, {}, kPrograms).attempt, 1);
  state.attempts.back().failure = "node failed";
  const RenderedScript next = render_script(experiment(), open, kAlba, {}, kPrograms);
  EXPECT_EQ(next.attempt, 2);
  EXPECT_EQ(next.folder.filename(), "a2");
  EXPECT_EQ(render_script(experiment(), open, kAlba, 3, kPrograms).job_name,
            "xffl-demo-0007-01234567-r0003-alba-a1");
}

// A run under way during an upgrade keeps the names of its jobs.
TEST(RenderScript, UsesTheJobNameOnRecord) {
  history::RunState open = run_state();
  history::FacilityState& state = open.rounds[1].facilities[kAlba];
  state.attempts.push_back(
      {.number = 1, .submit_intended = true, .job_name = "xffl-demo-0007-r0001-alba-a1"});
  const RenderedScript rendered = render_script(experiment(), open, kAlba, {}, kPrograms);
  EXPECT_EQ(rendered.job_name, "xffl-demo-0007-r0001-alba-a1");
  EXPECT_THAT(rendered.script, HasSubstr("#SBATCH --job-name=xffl-demo-0007-r0001-alba-a1\n"));
  state.attempts.back().job_name.clear();  // a journal without names
  EXPECT_EQ(render_script(experiment(), open, kAlba, {}, kPrograms).job_name,
            "xffl-demo-0007-r0001-alba-a1");
  state.attempts.back().submit_intended = false;
  EXPECT_EQ(render_script(experiment(), open, kAlba, {}, kPrograms).job_name,
            "xffl-demo-0007-01234567-r0001-alba-a1");
}

// The first attempt's job may still be known to the scheduler.
TEST(RenderScript, ALaterAttemptHasAJobNameOfItsOwn) {
  history::RunState open = run_state();
  history::FacilityState& state = open.rounds[1].facilities[kAlba];
  state.attempts.push_back(
      {.number = 1, .submit_intended = true, .job_name = "xffl-demo-0007-01234567-r0001-alba-a1"});
  state.attempts.back().failure = "node failed";
  EXPECT_EQ(render_script(experiment(), open, kAlba, {}, kPrograms).job_name,
            "xffl-demo-0007-01234567-r0001-alba-a2");
}

TEST(RenderScript, RejectsUnknownFacilitiesAndRounds) {
  EXPECT_THROW(render_script(experiment(), run_state(), kAlba, 4, kPrograms), Error);
  EXPECT_THROW(render_script(experiment(), run_state(), FacilityName("brno"), {}, kPrograms),
               Error);
  EXPECT_THROW(render_script(experiment(), {}, kAlba, {}, kPrograms), Error);
  EXPECT_NO_THROW(render_script(experiment(), preview_state(), kAlba, {}, kPrograms));
}

TEST(RenderScript, NamesAdapterAndModelBeforeAndAfterTheImport) {
  config::Experiment adapted = experiment();
  adapted.facilities[0].training.lora = {4, 8, 0, {"q_proj"}};
  const RenderedScript preview = render_script(adapted, preview_state(), kAlba, {}, kPrograms);
  EXPECT_THAT(preview.model_folder.str(), HasSubstr("/alba/models/1111"));
  EXPECT_THAT(preview.adapter_folder.str(), HasSubstr("/alba/models/0000"));
  history::RunState imported = run_state();
  imported.adapted_sha256 = std::string(64, 'b');
  const RenderedScript known = render_script(adapted, imported, kAlba, {}, kPrograms);
  EXPECT_EQ(known.model_folder.filename(), std::string(16, 'b'));
  EXPECT_EQ(known.adapter_folder.filename(), std::string(16, 'a'));
  EXPECT_TRUE(
      render_script(experiment(), run_state(), kAlba, {}, kPrograms).adapter_folder.empty());
}

TEST(RenderScript, AfterTheLastRoundIsTheEvaluation) {
  config::Experiment measured = experiment();
  measured.facilities[0].validation = {{"it", "/scratch/me/v"}};
  history::RunState over = run_state();
  over.completed = true;
  const RenderedScript rendered = render_script(measured, over, kAlba, 4, kPrograms);
  EXPECT_TRUE(rendered.evaluates);
  EXPECT_EQ(rendered.job_name, "xffl-demo-0007-01234567-r0004-alba-a1");
  EXPECT_FALSE(render_script(measured, over, kAlba, 3, kPrograms).evaluates);
  measured.facilities.push_back(measured.facilities[0]);
  measured.facilities[1].name = FacilityName("brno");
  measured.facilities[1].validation.clear();
  EXPECT_THROW(render_script(measured, over, FacilityName("brno"), 4, kPrograms), Error);
}

}  // namespace
}  // namespace xffl::facility
