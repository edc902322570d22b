#include "xffl/report/run_story.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/synthetic_run.h"
#include "xffl/base/file.h"
#include "xffl/report/format.h"

namespace xffl::report {
namespace {

using std::chrono::seconds;
using test::SyntheticRun;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(RunStory, OfAFirstRoundInProgressHasNoFiguresYet) {
  SyntheticRun run(3);
  run.plan(1, 2);
  const RunStory story = run.story("pid 7 on host");
  EXPECT_EQ(story.state, "running");
  EXPECT_EQ(story.rounds_published, 0);
  EXPECT_THAT(story.losses, IsEmpty());
  EXPECT_THAT(story.attempts, IsEmpty());
  EXPECT_THAT(mean_losses(story), IsEmpty());
  EXPECT_THAT(story.needs, IsEmpty());
}

TEST(RunStory, HasTheNewestModelAndConfigurationOfARunningRun) {
  SyntheticRun run(3);
  run.round(1, 2);
  run.add({}, history::ConfigChanged{SyntheticRun::hash('d')});
  run.plan(2, 2);
  const RunStory story = run.story("pid 7 on host");
  EXPECT_EQ(story.model_sha256, SyntheticRun::model(1));
  EXPECT_EQ(story.config_sha256, SyntheticRun::hash('d'));
  EXPECT_THAT(format_html(story),
              HasSubstr("<td>newest global model</td><td>" + SyntheticRun::model(1) + "</td>"));
}

TEST(RunStory, TellsThePhasesOfAJobWithTimesApart) {
  SyntheticRun run;
  run.round(1, 2);
  const RunStory story = run.story();
  const auto times = time_by_phase(story, SyntheticRun::name(0));
  // The fixture's job: submitted 30 s after its opening, times as in SyntheticRun::usage().
  EXPECT_EQ(times.at(Phase::kSending), seconds(30));
  EXPECT_EQ(times.at(Phase::kQueue), seconds(20));
  EXPECT_EQ(times.at(Phase::kLoading), seconds(5));
  EXPECT_EQ(times.at(Phase::kTraining), seconds(70));
  EXPECT_EQ(times.at(Phase::kFetching), seconds(15));
  EXPECT_EQ(times.at(Phase::kWaiting), seconds(10 + 30 + 110 + 10)) << "for site1";
  EXPECT_FALSE(times.contains(Phase::kJob));
  EXPECT_EQ(story.clock_anomalies, 0);
  EXPECT_EQ(story.rounds.at(1).last, SyntheticRun::name(1));
}

// The trainer writes its report before the job script marks the end of the ranks.
TEST(RunStory, AReportEndsATrainingWithoutAMark) {
  SyntheticRun run;
  run.plan(1, 1);
  run.open(1, 0);
  job::JobUsage usage = run.usage();
  usage.starts[0].trained.reset();
  job::JobReport report = run.report(1, 0, 1);
  report.total_seconds = 40;
  run.add({1, SyntheticRun::name(0), 1},
          history::UpdateAccepted{SyntheticRun::hash('1'), report, 0, usage}, seconds(110));
  const auto times = time_by_phase(run.story(), SyntheticRun::name(0));
  EXPECT_EQ(times.at(Phase::kTraining), seconds(40));
  EXPECT_EQ(times.at(Phase::kFetching), seconds(15 + 70 - 40));
}

TEST(RunStory, ARequeuedJobWaitsUntilItsLastStart) {
  SyntheticRun run;
  run.plan(1, 1);
  run.open(1, 0);
  job::JobUsage usage = run.usage();
  job::JobStart last = usage.starts[0];
  usage.starts[0].trained = usage.starts[0].end = std::nullopt;
  last.restart = 1;
  last.start += 30;
  *last.train += 30;
  usage.starts.push_back(last);
  run.add({1, SyntheticRun::name(0), 1},
          history::UpdateAccepted{SyntheticRun::hash('1'), run.report(1, 0, 1), 0, usage},
          seconds(110));
  const auto times = time_by_phase(run.story(), SyntheticRun::name(0));
  EXPECT_EQ(times.at(Phase::kQueue), seconds(20 + 30));
  EXPECT_EQ(times.at(Phase::kTraining), seconds(70 - 30));
}

TEST(RunStory, AJobWithoutTimesIsNotToldApart) {
  SyntheticRun run;
  run.plan(1, 1);
  run.open(1, 0);
  run.add({1, SyntheticRun::name(0), 1},
          history::UpdateAccepted{SyntheticRun::hash('1'), run.report(1, 0, 1), 0, {}},
          seconds(100));
  const RunStory story = run.story();
  const auto times = time_by_phase(story, SyntheticRun::name(0));
  EXPECT_EQ(times.at(Phase::kJob), seconds(100));
  EXPECT_FALSE(times.contains(Phase::kQueue));
  EXPECT_FALSE(times.contains(Phase::kTraining));
  EXPECT_FALSE(story.attempts.at(0).change) << "0 means not measured";
}

TEST(RunStory, HasTheDirectionOfEachUpdate) {
  SyntheticRun run;
  run.plan(1, 3);
  for (int facility = 0; facility < 3; ++facility) {
    run.open(1, facility);
    run.accept(1, facility);
  }
  // The third one came too late; the others are averaged in another order.
  run.add({1}, history::ParticipantsFrozen{
                   {SyntheticRun::name(1), SyntheticRun::name(0)}, {"u1", "u0"}, {1, 1}});
  run.add({1}, history::Aggregated{SyntheticRun::model(1), SyntheticRun::hash('f'), {0.25, -0.5}});
  const auto cosine = [&](int facility) { return run.story().attempts.at(facility).cosine; };
  EXPECT_EQ(cosine(0), -0.5);
  EXPECT_EQ(cosine(1), 0.25);
  EXPECT_FALSE(cosine(2));
}

TEST(RunStory, DirectionsThatDoNotFitTheParticipantsAreNotShown) {
  SyntheticRun run;
  run.plan(1, 2);
  run.open(1, 0);
  run.accept(1, 0);
  run.add({1}, history::ParticipantsFrozen{{SyntheticRun::name(0)}, {"u0"}, {1}});
  run.add({1}, history::Aggregated{SyntheticRun::model(1), SyntheticRun::hash('f'), {0.25, -0.5}});
  EXPECT_FALSE(run.story().attempts.at(0).cosine);
}

// The facility's clock is a day ahead, with and without a measured offset.
TEST(RunStory, ClocksThatDifferGiveNoNegativeTimes) {
  for (const bool is_measured : {true, false}) {
    SyntheticRun run;
    run.plan(1, 1);
    run.open(1, 0);
    job::JobUsage usage = run.usage();
    job::JobStart& start = usage.starts[0];
    for (int64_t* time : {&start.start, &*start.train, &*start.trained}) *time += 86400;
    usage.clock_offset = is_measured ? std::optional(86400.0) : std::nullopt;
    run.add({1, SyntheticRun::name(0), 1},
            history::UpdateAccepted{SyntheticRun::hash('1'), run.report(1, 0, 1), 0, usage},
            seconds(110));
    const RunStory story = run.story();
    for (const Span& span : story.attempts.at(0).spans) EXPECT_LT(span.begin, span.end);
    const auto times = time_by_phase(story, SyntheticRun::name(0));
    if (is_measured) {
      EXPECT_EQ(times.at(Phase::kTraining), seconds(70));
      EXPECT_EQ(story.clock_anomalies, 0);
    } else {
      EXPECT_FALSE(times.contains(Phase::kTraining));
      EXPECT_GT(story.clock_anomalies, 0);
    }
  }
}

// The coordinator of a loaded machine records the submission when the job already trains.
TEST(RunStory, AJobThatStartsBeforeItsSubmissionIsRecordedIsNoAnomaly) {
  SyntheticRun run;
  run.plan(1, 1);
  run.open(1, 0);  // submitted 30 s after the opening
  job::JobUsage usage = run.usage();
  job::JobStart& start = usage.starts[0];
  start.start -= 25;
  *start.train -= 25;
  *start.trained -= 25;
  run.add({1, SyntheticRun::name(0), 1},
          history::UpdateAccepted{SyntheticRun::hash('1'), run.report(1, 0, 1), 0, usage},
          seconds(110));
  const RunStory story = run.story();
  EXPECT_EQ(story.clock_anomalies, 0);
  const auto times = time_by_phase(story, SyntheticRun::name(0));
  EXPECT_FALSE(times.contains(Phase::kQueue));
  EXPECT_EQ(times.at(Phase::kTraining), seconds(70));
}

// The fixture's job is submitted 30 s after its opening and accepted 110 s after that; its times
// are whole seconds, and the clocks' comparison has an error of 4 s.
TEST(RunStory, OnlyTimesBeyondTheClocksErrorAreAnomalies) {
  const auto anomalies = [](int64_t start_after, int64_t trained_after) {
    SyntheticRun run;
    run.plan(1, 1);
    run.open(1, 0);
    job::JobUsage usage = run.usage();
    job::JobStart& start = usage.starts[0];
    const int64_t submitted = start.start - 20;
    usage.clock_error = 4;
    start.start = submitted + start_after;
    start.train = start.start;
    start.trained = submitted + trained_after;
    run.add({1, SyntheticRun::name(0), 1},
            history::UpdateAccepted{SyntheticRun::hash('1'), run.report(1, 0, 1), 0, usage},
            seconds(110));
    return run.story().clock_anomalies;
  };
  EXPECT_EQ(anomalies(-34, 100), 0);
  EXPECT_EQ(anomalies(-36, 100), 2) << "before the opening: the start and the training";
  EXPECT_EQ(anomalies(20, 114), 0);
  EXPECT_EQ(anomalies(20, 116), 1) << "after the acceptance";
  EXPECT_EQ(anomalies(20, 16), 0);
  EXPECT_EQ(anomalies(20, 14), 1) << "the training ends before it begins";
}

TEST(RunStory, HasIncidentsWithTheirConsequences) {
  SyntheticRun run;
  run.plan(1, 2);
  run.open(1, 0);
  run.open(1, 1);
  history::AttemptFailed failed{.reason = "job 4110 ended with exit code 1"};
  failed.usage = run.usage();  // 77 s on one node
  run.add({1, SyntheticRun::name(0), 1}, failed);
  run.open(1, 0, 2);
  run.accept(1, 0, 2);
  run.fail(1, 1, 1, "job 4111 ended with exit code 1");
  run.add({1, SyntheticRun::name(1)}, history::FacilityMissing{"no attempts are left"});
  run.publish(1, {0});
  run.add({0, SyntheticRun::name(1)}, history::FacilityPaused{"by a user"});
  run.add({}, history::RunResumed{});
  const RunStory story = run.story();
  ASSERT_EQ(story.incidents.size(), 5u);
  EXPECT_EQ(story.incidents[0].followed, "attempt 2: accepted");
  EXPECT_EQ(story.incidents[0].job_id, "4101");
  EXPECT_EQ(story.incidents[1].followed, "the round was averaged without the facility");
  EXPECT_EQ(story.incidents[4].kind, "coordinator ended");
  const std::vector<IncidentGroup> groups = grouped(story.incidents);
  EXPECT_EQ(groups[0].count, 2) << "reasons that differ in digits";
  EXPECT_THAT(groups[0].facilities, ElementsAre(SyntheticRun::name(0), SyntheticRun::name(1)));
  EXPECT_EQ(story.incidents[0].lost->seconds, 77);
  EXPECT_EQ(groups[0].lost->seconds, 77);
  EXPECT_EQ(groups[0].lost->unknown, 1) << "the second job left no times";
  EXPECT_FALSE(story.incidents[2].lost) << "a missing facility has no hours of its own";
  EXPECT_EQ(story.coordinators.size(), 2u);
  ASSERT_EQ(story.needs.size(), 2u) << "no coordinator, and a pause";
  EXPECT_EQ(story.needs[1].command, "xffl resume site1");
}

TEST(RunStory, AConsequenceIsOfTheSameFacilityAndRound) {
  SyntheticRun run(2);
  run.plan(1, 2);
  run.open(1, 0);
  run.open(1, 1);
  run.fail(1, 1, 1, "NODE_FAIL");
  run.add({1, SyntheticRun::name(1)}, history::FacilityMissing{"no attempts are left"});
  run.fail(1, 0, 1, "NODE_FAIL");
  run.open(1, 0, 2);
  run.accept(1, 0, 2);
  run.publish(1, {0});
  run.round(2, 2);
  std::vector<std::string> followed;
  for (const Incident& incident : run.story().incidents) followed.push_back(incident.followed);
  const std::string without = "the round was averaged without the facility";
  EXPECT_THAT(followed, ElementsAre(without, without, "attempt 2: accepted"));
}

TEST(RunStory, AFacilitysPauseEndsByItsOwnResumption) {
  SyntheticRun run(3);
  run.round(1, 2);
  for (const int facility : {0, 1})
    run.add({0, SyntheticRun::name(facility)}, history::FacilityPaused{"by a user"});
  run.add({0, SyntheticRun::name(1)}, history::FacilityResumed{});
  const RunStory story = run.story("pid 7 on host");
  ASSERT_EQ(story.incidents.size(), 2u);
  EXPECT_EQ(story.incidents[0].followed, "");
  EXPECT_THAT(story.incidents[1].followed, HasSubstr("resumed at "));
  ASSERT_EQ(story.needs.size(), 1u);
  EXPECT_EQ(story.needs[0].command, "xffl resume site0");
}

TEST(RunStory, AStopThatWasContinuedIsNoCrash) {
  SyntheticRun run(3);
  run.add({}, history::RunStopped{"io", "no space is left"});
  run.add({}, history::RunResumed{});
  const RunStory story = run.story("pid 7 on host");
  ASSERT_EQ(story.incidents.size(), 1u);
  EXPECT_EQ(story.incidents[0].kind, "run stopped");
  EXPECT_THAT(story.incidents[0].followed, HasSubstr("continued at "));
  ASSERT_EQ(story.coordinators.size(), 2u);
  EXPECT_EQ(story.coordinators[0].end, "stopped (io)");
  EXPECT_THAT(story.needs, IsEmpty());
}

// The scheduler ended two starts of attempt 1's job; the third start failed.
TEST(RunStory, ARequeuedStartIsAnIncidentWithItsOwnHours) {
  SyntheticRun run;
  run.plan(1, 1);
  run.open(1, 0);
  history::AttemptFailed failed{.reason = "job 4101 ended with exit code 1"};
  failed.usage = run.usage();
  const int64_t begin = failed.usage->starts[0].start;
  job::JobStart& first = failed.usage->starts[0];
  first.job = "4101";
  first.trained = first.end = std::nullopt;
  first.last_beat = begin + 30;
  job::JobStart second = first;
  second.restart = 1;
  second.start = begin + 40;
  second.train = second.last_beat = std::nullopt;  // it left no sign
  job::JobStart third = second;
  third.restart = 2;
  third.start = begin + 60;
  third.end = begin + 80;
  failed.usage->starts = {first, second, third};
  run.add({1, SyntheticRun::name(0), 1}, failed, seconds(110));
  run.open(1, 0, 2);
  run.accept(1, 0, 2);
  const RunStory story = run.story();
  ASSERT_EQ(story.incidents.size(), 3u);
  const auto at = [&](int64_t time) { return Clock::UtcTime(seconds(time)); };
  const auto expect_requeue = [&](const Incident& incident, int64_t time, int64_t again) {
    EXPECT_EQ(incident.kind, "job requeued");
    EXPECT_EQ(incident.job_id, "4101");
    EXPECT_EQ(incident.attempt, 1);
    EXPECT_EQ(incident.time, at(time));
    EXPECT_EQ(incident.followed, "started again at " + format_utc(at(again)));
  };
  expect_requeue(story.incidents[0], begin + 30, begin + 40);
  EXPECT_EQ(story.incidents[0].lost->seconds, 30);
  expect_requeue(story.incidents[1], begin + 60, begin + 60);
  EXPECT_EQ(story.incidents[1].lost->unknown, 1);
  EXPECT_EQ(story.incidents[2].kind, "attempt failed");
  EXPECT_EQ(story.incidents[2].lost->seconds, 20) << "without the hours of the other starts";
  const std::vector<IncidentGroup> groups = grouped(story.incidents);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].count, 2);
  EXPECT_EQ(groups[0].lost->seconds, 30);
}

TEST(RunStory, AJobOfAnotherFacilityIsNoFurtherStart) {
  SyntheticRun run;
  run.plan(1, 2);
  run.open(1, 0);
  run.open(1, 1);
  history::AttemptFailed failed{.reason = "NODE_FAIL"};
  failed.usage = run.usage();  // 77 s of job 4711
  run.add({1, SyntheticRun::name(0), 1}, failed, seconds(110));
  run.accept(1, 1);  // by its scheduler's job 4711
  const RunStory story = run.story();
  ASSERT_EQ(story.incidents.size(), 1u);
  EXPECT_EQ(story.incidents[0].kind, "attempt failed");
  ASSERT_TRUE(story.incidents[0].lost);
  EXPECT_EQ(story.incidents[0].lost->seconds, 77);
}

TEST(RunStory, AFacilityThatIsMissingInTheNewestRoundNeedsTheUser) {
  SyntheticRun run(3);
  run.round(1, 2);
  run.plan(2, 2);
  run.open(2, 1);
  run.fail(2, 1, 1, "NODE_FAIL");
  run.add({2, SyntheticRun::name(1)}, history::FacilityMissing{"no attempts are left"});
  const RunStory story = run.story("pid 7 on host");
  ASSERT_EQ(story.needs.size(), 1u);
  EXPECT_EQ(story.needs[0].text, "site1 is missing in round 2: no attempts are left");
  EXPECT_EQ(story.needs[0].command, "xffl resume site1");
  run.add({0, SyntheticRun::name(1)}, history::FacilityResumed{});
  EXPECT_EQ(run.story("pid 7 on host").needs.size(), 1u) << "a new coordinator tries it again";
  run.add({}, history::RunStopped{"failed", "1 of 2 updates"});
  run.add({}, history::RunResumed{});
  const RunStory resumed = run.story("pid 7 on host");
  EXPECT_THAT(resumed.needs, IsEmpty());
  EXPECT_THAT(resumed.rounds.at(2).missing, IsEmpty());
  run.open(2, 1, 2);
  run.accept(2, 1, 2);
  EXPECT_THAT(run.story("pid 7 on host").needs, IsEmpty()) << "its update is there";
}

TEST(RunStory, AFacilityWithoutWhichTheMeanWasMadeStaysMissing) {
  SyntheticRun run;
  run.plan(1, 2);
  run.open(1, 0);
  run.open(1, 1);
  run.accept(1, 0);
  run.fail(1, 1, 1, "NODE_FAIL");
  run.add({1, SyntheticRun::name(1)}, history::FacilityMissing{"no attempts are left"});
  run.publish(1, {0});
  run.add({}, history::RunResumed{});
  EXPECT_EQ(run.story().rounds.at(1).missing.size(), 1u);
}

TEST(RunStory, AFacilityStaysMissingAfterAStopBetweenTheFreezeAndThePublication) {
  SyntheticRun run;
  run.plan(1, 2);
  run.open(1, 0);
  run.accept(1, 0);
  run.add({1, SyntheticRun::name(1)}, history::FacilityMissing{"no attempts are left"});
  run.add({1},
          history::ParticipantsFrozen{{SyntheticRun::name(0)}, {SyntheticRun::hash('3')}, {1000}});
  run.add({}, history::RunResumed{});
  run.add({1}, history::Aggregated{SyntheticRun::model(1), SyntheticRun::hash('f'), {}});
  run.add({1}, history::Published{SyntheticRun::model(1)});
  const RunStory story = run.story();
  ASSERT_EQ(story.rounds.at(1).missing.size(), 1u);
  EXPECT_EQ(story.incidents.at(0).followed, "the round was averaged without the facility");
}

TEST(RunStory, ADirectionIsThatOfItsRound) {
  SyntheticRun run;
  for (const int round : {1, 2}) {
    run.plan(round, 2);
    for (const int facility : {0, 1}) {
      run.open(round, facility);
      run.accept(round, facility);
    }
    run.add({round}, history::ParticipantsFrozen{{SyntheticRun::name(0), SyntheticRun::name(1)},
                                                 {SyntheticRun::hash('3'), SyntheticRun::hash('3')},
                                                 {1000, 1000}});
    run.add({round}, history::Aggregated{SyntheticRun::model(round),
                                         SyntheticRun::hash('f'),
                                         {0.5 * round - 0.25, -0.5 * round}});
    run.add({round}, history::Published{SyntheticRun::model(round)});
  }
  const RunStory story = run.story();
  ASSERT_EQ(story.attempts.size(), 4u);
  const double expected[] = {0.25, -0.5, 0.75, -1};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(story.attempts[i].cosine, expected[i]) << i;
}

TEST(RunStory, AStopAsksForItsContinuation) {
  SyntheticRun run;
  run.add({}, history::RunStopped{"io", "no space is left"});
  const RunStory story = run.story();
  ASSERT_EQ(story.needs.size(), 1u);
  EXPECT_THAT(story.needs[0].text, HasSubstr("no space is left"));
  EXPECT_EQ(story.needs[0].command, "xffl run --run 0001");
  run.add({}, history::RunCancelled{});
  EXPECT_THAT(run.story().needs, IsEmpty()) << "nothing is to be done for a cancelled run";
}

TEST(RunStory, NamesTheRuleThatEndedTheTraining) {
  SyntheticRun run;
  EXPECT_FALSE(run.story().stop_rule);
  run.round(1, 2);
  run.add({}, history::StopRuleMet{"loss_below", "the loss is 1.5, below 2"});
  const std::string sentence =
      "o round follows: policy.stop_when.loss_below: the loss is 1.5, below 2";
  EXPECT_THAT(format_text(run.story()), HasSubstr("n" + sentence));
  EXPECT_THAT(format_html(run.story()), HasSubstr("N" + sentence));
  EXPECT_THAT(format_json(run.story()), HasSubstr("\"rule\": \"loss_below\""));
}

TEST(RunStory, ASilentCoordinatorNeedsTheUser) {
  SyntheticRun run(3);
  run.round(1, 2);
  StoryContext context = run.context("pid 7 on login1");
  context.last_sign = context.now - std::chrono::minutes(6);
  ASSERT_EQ(make_story(run.events(), context).needs.size(), 1u);
  EXPECT_THAT(make_story(run.events(), context).needs.front().text,
              HasSubstr("no sign of life for 6 min"));
  context.last_sign = context.now;
  EXPECT_TRUE(make_story(run.events(), context).needs.empty());
}

TEST(RunStory, ACertificateThatEndsNeedsTheUser) {
  SyntheticRun run(3);
  run.round(1, 2);
  StoryContext context = run.context("pid 7 on login1");
  status::EndingCredential& credential = context.credentials[SyntheticRun::name(1)];
  credential = {context.now + std::chrono::hours(2), "get-certificate"};
  const RunStory story = make_story(run.events(), context);
  ASSERT_EQ(story.needs.size(), 1u);
  EXPECT_EQ(story.needs[0].text,
            "The certificate of site1 ends at " + format_utc(credential.ends) + ".");
  EXPECT_EQ(story.needs[0].command, "get-certificate");
  credential.ends = context.now;
  EXPECT_THAT(make_story(run.events(), context).needs.at(0).text,
              HasSubstr("The certificate of site1 expired at "));
}

TEST(RunStory, AMeanLossNeedsAllSets) {
  SyntheticRun run;
  run.round(1, 2);
  run.plan(2, 2);
  run.open(2, 0);
  run.accept(2, 0);
  EXPECT_EQ(mean_losses(run.story()).size(), 1u) << "model 1 was measured at one facility only";
  run.open(2, 1);
  run.accept(2, 1);
  const std::vector<MeanLoss> means = mean_losses(run.story());
  ASSERT_EQ(means.size(), 2u);
  EXPECT_EQ(means[1].round, 1);
  EXPECT_NEAR(means[1].nll, 3.05, 1e-9);
  EXPECT_THAT(format_text(run.story()),
              HasSubstr("mean loss: 4.0500 (model 0) -> 3.0500 (model 1)\n"));
}

TEST(RunStory, AMeanLossWeighsEachSetByItsTokens) {
  SyntheticRun run;
  run.round(1, 2);
  RunStory story = run.story();  // losses of 4.0 and 4.1, each of 100 tokens
  story.losses.at(1).tokens = 300;
  EXPECT_NEAR(mean_losses(story).at(0).nll, 4.075, 1e-9);
}

TEST(Metrics, SkipLinesThatAreNoLosses) {
  const std::vector<StepLoss> losses = parse_metrics(
      "{\"step\": 1, \"loss\": 3.5}\n{\"step\": 2, \"validation\": {\"it\": 3}}\n"
      "{\"step\": 2, \"loss\": null}\n[\"loss\"]\n{\"step\": -1, \"loss\": 1}\n"
      "{\"step\": 3, \"loss\": 1e999}\n\xff\n\"loss\"" +
      std::string(1 << 17, 'x') + "\n" +
      "{\"step\": 4, \"loss\": 2.5, \"other\": {}}\n{\"step\": 5, \"loss\": 2");
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_EQ(losses[0].step, 1);
  EXPECT_EQ(losses[1].step, 4);
  EXPECT_EQ(losses[1].loss, 2.5);
}

}  // namespace
}  // namespace xffl::report
