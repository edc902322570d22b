// The page, the text and the JSON of a run's story.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/stories.h"
#include "run/small_federation.h"
#include "xffl/base/json.h"
#include "xffl/facility/machine.h"
#include "xffl/remote/ssh.h"
#include "xffl/report/format.h"

namespace xffl::report {
namespace {

using test::hostile_story;
using test::long_story;
using test::SyntheticRun;
using testing::HasSubstr;
using testing::Not;

// The tags that are open or closed in another order than they should; empty: none.
std::string unbalanced(const std::string& page) {
  std::vector<std::string> open;
  for (size_t i = page.find('<'); i != std::string::npos; i = page.find('<', i + 1)) {
    if (page[i + 1] == '!') continue;
    const size_t end = page.find('>', i);
    if (end == std::string::npos) return "a tag does not end";
    if (page[end - 1] == '/') continue;
    const bool closes = page[i + 1] == '/';
    const size_t begin = i + 1 + closes;
    const std::string tag = page.substr(begin, page.find_first_of(" >", begin) - begin);
    if (!closes) {
      open.push_back(tag);
    } else {
      if (open.empty() || open.back() != tag) return "</" + tag + ">";
      open.pop_back();
    }
  }
  return open.empty() ? "" : "<" + open.back() + ">";
}

// The part of the page with a figure and its table; empty: there is no such figure.
std::string figure_of(const std::string& page, const std::string& title) {
  const size_t begin = page.find("<h3>" + title + "</h3>");
  if (begin == std::string::npos) return "";
  return page.substr(begin, page.find("<h3>", begin + 1) - begin);
}

TEST(Page, HasItsPolicyAndNoScript) {
  SyntheticRun run(3);
  run.round(1, 2);
  const std::string page = format_html(run.story());
  EXPECT_THAT(page, HasSubstr("http-equiv=\"Content-Security-Policy\" content=\"default-src "
                              "&#39;none&#39;; style-src &#39;unsafe-inline&#39;"));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("http://")));
  EXPECT_THAT(page, Not(HasSubstr("https://")));
  EXPECT_THAT(page, Not(HasSubstr("http-equiv=\"refresh\"")));
  EXPECT_EQ(unbalanced(page), "");
  for (const char* id : {"needs", "learning", "time", "cost", "trouble", "trust", "details"})
    EXPECT_THAT(page, HasSubstr("<section id=\"" + std::string(id) + "\""));
  EXPECT_THAT(page, HasSubstr("4.0000 (54.60)")) << "the loss of the initial model";
  EXPECT_THAT(page, HasSubstr("not measured")) << "the loss of model 1";
}

TEST(Page, ShowsTheAccuracyBesideTheLoss) {
  SyntheticRun run(3);
  run.round(1, 2);
  RunStory story = run.story();
  EXPECT_THAT(format_html(story), Not(HasSubstr("predicted right")));
  ASSERT_GE(story.losses.size(), 2u);
  story.losses[0].accuracy = 0.41237;  // of the first of two sets
  const std::string page = format_html(story);
  EXPECT_EQ(unbalanced(page), "");
  EXPECT_THAT(page, HasSubstr("perplexity; share of the tokens predicted right"));
  EXPECT_THAT(page, HasSubstr("4.0000 (54.60; 0.4124)"));
  EXPECT_THAT(page, HasSubstr("model 0: 4.0000 (perplexity 54.60, accuracy 0.4124)"));
  EXPECT_THAT(page, HasSubstr("4.1000 (60.34)")) << "not measured at the second facility";
  EXPECT_THAT(format_text(story), HasSubstr("4.0000 (54.60), accuracy 0.4124\n"));
}

TEST(Page, RefreshesOnRequest) {
  SyntheticRun run(3);
  run.round(1, 2);
  EXPECT_THAT(format_html(run.story("pid 7"), std::chrono::seconds(60)),
              HasSubstr("http-equiv=\"refresh\" content=\"60\""));
}

TEST(Page, EscapesHostileText) {
  const std::string page = format_html(hostile_story());
  EXPECT_EQ(unbalanced(page), "");
  for (const char* harm : {"<script", "<img", "\x1b", "\xe2\x80\xae", "hunter2"})
    EXPECT_THAT(page, Not(HasSubstr(harm)));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(1)")) << "the reason";
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(3)")) << "the set";
  EXPECT_THAT(page, HasSubstr("xffl resume site1"));
}

TEST(Text, HasNoControlsAndSaysWhatIsOpen) {
  RunStory story = hostile_story();
  story.live[SyntheticRun::name(0)] = {1, test::kHostile, "2026-03-01T12:00:00.000Z"};
  const std::string text = format_text(story);
  EXPECT_THAT(text, HasSubstr("site0, round 1: "));
  for (const char harm : {'\x1b', '\a'}) EXPECT_EQ(text.find(harm), std::string::npos);
  EXPECT_THAT(text, Not(HasSubstr("hunter2")));
  EXPECT_THAT(text, HasSubstr("xffl resume site1"));
  EXPECT_THAT(text, HasSubstr("1 x attempt failed site0"));
  EXPECT_THAT(text, HasSubstr("attempt 2: accepted"));
}

TEST(Json, BeginsWithItsSchema) {
  RunStory story = hostile_story();
  story.notes = {"password=hunter2hunter2"};
  const std::string text = format_json(story);
  const Json json = parse_json(text, "report");
  EXPECT_EQ(json.begin().key(), "schema");
  EXPECT_EQ(json.at("schema"), 1);
  EXPECT_EQ(json.at("attempts").size(), 3u);
  EXPECT_EQ(json.at("incidents").at(1).at("followed"), "attempt 2: accepted");
  EXPECT_TRUE(json.at("incidents").at(1).at("lost_node_seconds").is_null()) << "not known, not 0";
  EXPECT_TRUE(json.at("attempts").at(0).at("change").is_null()) << "not measured, not 0";
  EXPECT_THAT(json.at("attempts").at(0).at("reason").get<std::string>(), HasSubstr("alert(1)"));
  const Json& missing = json.at("rounds").at(0).at("missing");
  EXPECT_THAT(missing.at("site2").get<std::string>(), HasSubstr("alert(1)"));
  EXPECT_THAT(text, Not(HasSubstr("hunter2"))) << "a secret in a reason or a note";
}

TEST(Report, HasTheNodeHours) {
  SyntheticRun run(3);
  run.round(1, 2);
  const RunStory story = run.story();
  EXPECT_THAT(format_html(story), HasSubstr("0.04 node-hours"));
  EXPECT_THAT(format_text(story), HasSubstr("total          2        0.04"));
  EXPECT_EQ(parse_json(format_json(story), "report").at("usage").at("total").at("starts"), 2);
}

// Three jobs of 77 s, and one of them fails.
TEST(Report, HasTheShareOfLostNodeHours) {
  SyntheticRun run(1);
  run.plan(1, 2);
  run.open(1, 0);
  history::AttemptFailed failed{.reason = "NODE_FAIL"};
  failed.usage = run.usage();
  run.add({1, SyntheticRun::name(0), 1}, failed, std::chrono::seconds(110));
  run.open(1, 0, 2);
  run.accept(1, 0, 2);
  run.open(1, 1);
  run.accept(1, 1);
  EXPECT_THAT(format_html(run.story()), HasSubstr(">33.3 % lost<"));
}

TEST(Report, OfTheSameStoryHasTheSameBytes) {
  EXPECT_EQ(format_html(hostile_story()), format_html(hostile_story()));
  EXPECT_EQ(format_json(hostile_story()), format_json(hostile_story()));
  EXPECT_EQ(format_text(hostile_story()), format_text(hostile_story()));
}

TEST(Report, OfAnEmptyRunSaysSo) {
  const std::string page = format_html(SyntheticRun().story());
  EXPECT_EQ(unbalanced(page), "");
  EXPECT_THAT(page, HasSubstr("Not measured: no facility has reported a validation loss."));
}

TEST(Page, OfALongRunIsSmall) {
  const std::string page = format_html(long_story(100, 8));
  EXPECT_LT(page.size(), 1'000'000u);
  EXPECT_THAT(page, Not(HasSubstr("rows are left out"))) << "100 rounds are shown in full";
  EXPECT_EQ(unbalanced(page), "");
  const std::string longer = format_html(long_story(250, 20));
  EXPECT_LT(longer.size(), 2'000'000u);
  EXPECT_THAT(longer, HasSubstr("rows are left out"));
}

TEST(Page, HasItsFiguresWithTables) {
  const std::string page = format_html(long_story(3, 2));
  for (const char* title :
       {"Loss of the global model", "Effect of each round", "Size of each update",
        "Direction of each update", "Training loss by step", "Shares of the elapsed time",
        "Duration of each round", "Rounds 1 to 3 by time"})
    EXPECT_THAT(page, HasSubstr("<h3>" + std::string(title) + "</h3>"));
  for (const char* table :
       {"loss of each published model", "effect of each round", "size of each update",
        "direction of each update", "training loss by step", "time by phase",
        "facilities that came last", "models sent to the facilities", "all attempts"})
    EXPECT_THAT(page, HasSubstr("<summary>Table: " + std::string(table)));
  // SyntheticRun::report(): 2 + 2 / round before the training of site0, 0.2 less after it.
  EXPECT_THAT(page, HasSubstr("round 2: given 3.0000, after training 2.8000, after averaging "
                              "2.6667"));
  EXPECT_THAT(page, HasSubstr("round 3: given 2.6667, after training 2.4667, after averaging not "
                              "measured"));
}

TEST(Page, MarksTheLowestLossByADot) {
  SyntheticRun run(3);
  for (int round = 1; round <= 3; ++round) run.round(round, 1);
  RunStory story = run.story();
  ASSERT_EQ(story.losses.size(), 3u);
  story.losses[1].nll = 2;  // the other models have 4.00 and 2.67
  const std::string page = format_html(story);
  EXPECT_THAT(page, HasSubstr(">4.0000 → 2.6667<"));
  EXPECT_THAT(page, HasSubstr("of model 0 and 2; best: model 1, 2.0000<"));
  const std::string figure = figure_of(page, "Loss of the global model");
  EXPECT_THAT(figure, HasSubstr("class=\"dot\" d=\"M50 95.45h0\""));
  EXPECT_THAT(figure, HasSubstr("class=\"s\" d=\"M16.67 4.55L50 95.45L83.33 65.15\""))
      << "a lower loss is further down: 0 is the top";
}

TEST(Page, HasTheShareOfEachPhaseInTheElapsedTime) {
  SyntheticRun run(1);
  run.round(1, 1);  // 200 s from the first event to the last one
  const std::string figure = figure_of(format_html(run.story()), "Shares of the elapsed time");
  EXPECT_THAT(figure, HasSubstr("sending and submitting: 30 s, 15.0 %<"));
  EXPECT_THAT(figure, HasSubstr("training and measuring: 70 s, 35.0 %<"));
}

TEST(Page, HasTheDirectionOfEachUpdate) {
  const std::string page = format_html(long_story(3, 2));
  // SyntheticRun::publish(): 0.5 - 0.1 per facility.
  const std::string figure = figure_of(page, "Direction of each update");
  EXPECT_THAT(figure, HasSubstr("<td>0.50</td><td>0.40</td>"));
  for (const char* shade : {"c1", "c2"})  // of 0 (the same direction) to 6
    EXPECT_THAT(figure, HasSubstr("class=\"" + std::string(shade) + "\""));
  EXPECT_THAT(format_html(long_story(3, 1)),
              HasSubstr("The directions of the updates were not measured"));
}

TEST(Page, AColumnOfSeveralRoundsShowsTheOutlier) {
  SyntheticRun run(60);
  for (int round = 1; round <= 60; ++round) run.round(round, 20);
  RunStory story = run.story();
  AttemptStory& outlier = story.attempts.at(20);
  ASSERT_EQ(outlier.round, 2);
  outlier.change = 5;
  EXPECT_THAT(figure_of(format_html(story), "Size of each update"),
              HasSubstr("<title>round 2: 5.0e+00</title>"))
      << "for rounds 1 and 2";
}

TEST(Page, HasAllRoundsByTimeOnceTheLastTenAreNotAll) {
  const std::string title = "All rounds by time";
  EXPECT_EQ(figure_of(format_html(long_story(10, 2)), title), "");
  const std::string page = format_html(long_story(11, 2));
  EXPECT_THAT(page, HasSubstr("<h3>Rounds 2 to 11 by time</h3>"));
  const std::string figure = figure_of(page, title);
  for (int round = 1; round <= 11; ++round)
    EXPECT_THAT(figure, HasSubstr("<title>round " + std::to_string(round) + ": "));
  // long_story(): site0 fails once in rounds 5 and 10.
  EXPECT_THAT(figure, HasSubstr("round 4: 1 attempt<"));
  EXPECT_THAT(figure, HasSubstr("round 5: 2 attempts, 1 without an update<"));
}

TEST(Page, OverviewGroupsTheRoundsOfALongRun) {
  const std::string page = format_html(long_story(250, 20));
  EXPECT_THAT(page, HasSubstr("<title>rounds 1 to 5: "));
  EXPECT_THAT(page, HasSubstr("<title>rounds 246 to 250: "));
}

TEST(Page, OverviewShowsThePhaseOfMostOfEachSlice) {
  // In each of eleven rounds an attempt is lost after ten hours; the second attempt takes less than
  // half a slice.
  SyntheticRun run(11);
  for (int round = 1; round <= 11; ++round) {
    run.plan(round, 1);
    run.open(round, 0);
    run.add({round, SyntheticRun::name(0), 1}, history::AttemptFailed{"NODE_FAIL"},
            std::chrono::hours(10));
    run.open(round, 0, 2);
    run.accept(round, 0, 2);
    run.publish(round, {0});
  }
  const std::string figure = figure_of(format_html(run.story()), "All rounds by time");
  EXPECT_THAT(figure, HasSubstr("class=\"p6\" d=\"M0 0h100v100h-100z\"")) << figure;
  EXPECT_THAT(figure, Not(HasSubstr("class=\"p0\"")));
}

TEST(Page, MarksTheBeginOfEachCoordinator) {
  const auto marks = [](const SyntheticRun& run) {
    const std::string page = format_html(run.story());
    size_t count = 0;
    for (size_t i = page.find("class=\"mark\""); i != std::string::npos;
         i = page.find("class=\"mark\"", i + 1))
      ++count;
    return count;
  };
  SyntheticRun run(2), resumed(2);
  for (SyntheticRun* one : {&run, &resumed}) {
    one->round(1, 2);
    if (one == &resumed) one->add({}, history::RunResumed{});
    one->round(2, 2);
  }
  EXPECT_EQ(marks(run), 0u);
  EXPECT_EQ(marks(resumed), 1u + 2u) << "in the rounds' figure, and in the row of each facility";
}

TEST(Page, ShowsTheShareOfEachParticipant) {
  SyntheticRun run(1);
  run.round(1, 2);  // with weights of 1000 and 2000
  EXPECT_THAT(format_html(run.story()), HasSubstr("<td>site0 33.3 %, site1 66.7 %</td>"));
}

TEST(Page, ShowsThePresentActivities) {
  SyntheticRun run(3);
  run.plan(1, 2);
  StoryContext context = run.context("pid 7 on host");
  context.live[SyntheticRun::name(1)] = {1, "pushing <a model>", "2026-03-01T12:00:01.000Z"};
  const RunStory story = make_story(run.events(), context);
  const std::string page = format_html(story);
  EXPECT_EQ(unbalanced(page), "");
  EXPECT_THAT(page, HasSubstr("<li>site1, round 1: pushing &lt;a model&gt; (since 2026-03-01"));
  EXPECT_THAT(format_text(story), HasSubstr("site1, round 1: pushing"));
  EXPECT_TRUE(story.needs.empty());
}

TEST(Page, NamesTheCommandOfAFacilityThatWaitsForAUser) {
  facility::FacilityMachine refused, changed, untrusted, full;
  refused.link = {"the log-in was refused", true};
  changed.link = {std::string(remote::kHostKeyChanged) + ": " + std::string(300, '.'), true};
  untrusted.link = {"the host a is not trusted yet: run 'xffl trust site2'", true};
  full.link = {"the quota is full", false, 100};
  SyntheticRun run(3);
  run.plan(1, 4);
  StoryContext context = run.context("pid 7 on host");
  int site = 0;
  for (const auto& machine : {refused, changed, untrusted, full})
    context.live[SyntheticRun::name(site++)] = {1, describe(machine), "2026-03-01T12:00:01.000Z"};
  const RunStory story = make_story(run.events(), context);
  ASSERT_EQ(story.needs.size(), 4u);
  const Json needs = parse_json(format_json(story), "report").at("needs");
  const std::string page = format_html(story), text = format_text(story);
  const std::vector<std::string> commands = {"xffl login site0", "xffl trust site1",
                                             "xffl trust site2", "xffl doctor site3"};
  for (size_t i = 0; i < commands.size(); ++i) {
    const std::string& command = commands[i];
    EXPECT_EQ(needs[i].at("command"), command);
    EXPECT_EQ(story.needs[i].command, command);
    EXPECT_THAT(page, HasSubstr(command));
    EXPECT_THAT(text, HasSubstr(command));
  }
}

TEST(Page, SaysThatFiguresWereNotMeasured) {
  SyntheticRun run(1);
  run.plan(1, 1);
  run.open(1, 0);
  job::JobReport report = run.report(1, 0, 1);
  report.validation.clear();
  run.add({1, SyntheticRun::name(0), 1},
          history::UpdateAccepted{SyntheticRun::hash('1'), report, 0, {}});
  const std::string page = format_html(run.story());
  EXPECT_THAT(page, HasSubstr("The size of the updates was not measured."));
  EXPECT_THAT(page, HasSubstr("The loss of single steps is not known"));
  EXPECT_THAT(page, HasSubstr("training and queue not known"));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
  EXPECT_THAT(page, Not(HasSubstr("inf ")));
}

TEST(Page, AJobThatStoppedEarlyMeasuredNoLossAfterTraining) {
  SyntheticRun run(1);
  run.plan(1, 1);
  run.open(1, 0);
  job::JobReport report = run.report(1, 0, 1);
  report.stopped_early = true;
  report.validation.at(0).nll_after = 0;
  run.add({1, SyntheticRun::name(0), 1},
          history::UpdateAccepted{SyntheticRun::hash('1'), report, 0, {}});
  EXPECT_THAT(format_html(run.story()),
              HasSubstr("round 1: given 4.0000, after training not measured"));
}

class Federation : public test::SmallFederation {};

TEST_F(Federation, HasAReportOfItsRun) {
  run("", 2);
  StoryContext context;
  context.rounds_planned = 2;
  context.now = clock_.utc();
  const RunStory story = collect_story(run_folder(), context);
  EXPECT_EQ(story.state, "completed");
  EXPECT_EQ(story.rounds_published, 2);
  EXPECT_EQ(story.losses.size(), 3u) << "models 0 to 2";
  const std::string page = format_html(story);
  EXPECT_EQ(unbalanced(page), "");
  EXPECT_THAT(page, HasSubstr("2.0000 (7.39)"));
}

// A coordinator that was killed leaves the file of its activities.
TEST_F(Federation, HasNoActivitiesWithoutACoordinator) {
  run("", 1);
  write_file_atomic(run_folder().live(), R"({"alba": {"round": 1, "doing": ")" +
                                             std::string(facility::kAuthPause) +
                                             R"(", "since": "2026-03-01T12:00:01.000Z"}})");
  ASSERT_EQ(history::read_activities(run_folder().live()).size(), 1u);
  const RunStory story = collect_story(run_folder(), {});
  EXPECT_TRUE(story.live.empty());
}

TEST_F(Federation, KeepsTheLossesOfArchivedMetrics) {
  run("", 1);
  write_file_atomic(run_folder().metrics(1, FacilityName("brno"), 1),
                    "{\"step\": 2, \"loss\": 2.5}\n{\"step\": 1, \"loss\": 3.5}\ntorn");
  const auto alba = run_folder().metrics(1, FacilityName("alba"), 1);
  std::filesystem::remove(alba);
  std::filesystem::create_symlink("/dev/zero", alba);
  const RunStory story = collect_story(run_folder(), {});
  const std::vector<StepLoss>& losses = story.step_losses.at(FacilityName("brno"));
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_EQ(losses[0].loss, 3.5);
  EXPECT_FALSE(story.step_losses.contains(FacilityName("alba")));
  ASSERT_EQ(story.notes.size(), 1u);
  EXPECT_THAT(story.notes[0], HasSubstr("1 files of metrics were not read"));
}

TEST_F(Federation, ShowsTheStepLossesOfTheAcceptedAttempt) {
  const FacilityName name = SyntheticRun::name(0);
  SyntheticRun run;
  run.plan(1, 1);
  run.open(1, 0);
  run.fail(1, 0, 1, "NODE_FAIL");
  run.open(1, 0, 2);
  run.accept(1, 0, 2);
  make_dirs(run_folder().facility(1, name));
  auto store = history::Store::open(run_folder().journal());
  for (const history::StoredEvent& event : run.events()) store->append(event);
  store.reset();
  for (const int attempt : {1, 2})
    write_file_atomic(run_folder().metrics(1, name, attempt),
                      "{\"step\": 1, \"loss\": " + std::to_string(attempt) + ".5}\n");
  const RunStory story = collect_story(run_folder(), {});
  ASSERT_EQ(story.step_losses.at(name).size(), 1u);
  EXPECT_EQ(story.step_losses.at(name)[0].loss, 2.5);
}

history::KeptCheck kept(const std::string& name, const std::string& result,
                        const history::StoredEvent& last) {
  history::KeptCheck check;
  check.name = name;
  check.content = "the files";
  check.result = result;
  check.checked_at = "2026-11-24T01:02:03.004Z";
  check.events = last.seq;
  check.last_event_at = last.time_utc;
  if (result == "ok") check.passed = 12;
  if (result == "failed") {
    check.failed = 7;
    check.failures = {"r0001/global: <b>expected</b> a, found b"};
  }
  if (result == "not checked") check.not_checked = {"only with --replay"};
  return check;
}

TEST_F(Federation, ShowsTheResultsOfVerifications) {
  run("", 2);
  const std::vector<history::StoredEvent> events = history::read_events(run_folder().journal());
  const auto first_published = std::find_if(
      events.begin(), events.end(), [](const auto& event) { return event.kind == "published"; });
  const auto story_with = [&](const std::vector<history::KeptCheck>& checks) {
    write_file_atomic(run_folder().verification(), history::format_kept_checks(checks));
    return collect_story(run_folder(), {});
  };

  RunStory story = collect_story(run_folder(), {});
  EXPECT_EQ(story.verified_round(), -1);
  EXPECT_THAT(format_html(story), HasSubstr("never verified"));
  EXPECT_THAT(format_text(story), HasSubstr("not checked: the files of models and updates"));
  EXPECT_THAT(format_json(story), HasSubstr("\"verified_round\": null"));

  story =
      story_with({kept("chain", "ok", events.back()), kept("replay", "not checked", events[0])});
  EXPECT_EQ(story.verified_round(), 2);
  EXPECT_TRUE(story.notes.empty());
  std::string page = format_html(story);
  EXPECT_EQ(unbalanced(page), "");
  EXPECT_THAT(page, HasSubstr(">verified<"));
  EXPECT_THAT(page, HasSubstr("1 of 2 checks made"));
  EXPECT_THAT(page, HasSubstr("the files (12)"));
  EXPECT_THAT(page, HasSubstr("not checked: only with --replay"));
  EXPECT_THAT(format_text(story), HasSubstr("ok: chain, by `xffl verify` at 2026-11-24"));
  EXPECT_THAT(format_json(story), HasSubstr("\"verified_round\": 2"));

  story = story_with({kept("chain", "ok", events.back()), kept("replay", "ok", *first_published)});
  EXPECT_EQ(story.verified_round(), 1);
  EXPECT_THAT(format_html(story), HasSubstr("verified up to round 1"));
  EXPECT_THAT(format_html(story), HasSubstr("The rounds after 1 were published after"));
  EXPECT_THAT(format_text(story), HasSubstr("not checked: the rounds after 1"));
  story = story_with({kept("chain", "ok", *first_published), kept("replay", "ok", events.back())});
  EXPECT_EQ(story.verified_round(), 1) << "the order of the checks has no effect";

  story = story_with({kept("chain", "ok", events.front())});
  EXPECT_EQ(story.verified_round(), 0);
  EXPECT_THAT(format_text(story), HasSubstr("not checked: the rounds after 0"));

  story = story_with({kept("chain", "failed", events.back())});
  page = format_html(story);
  EXPECT_THAT(page, HasSubstr("1 check FAILED"));
  EXPECT_THAT(page, HasSubstr("&lt;b&gt;expected&lt;/b&gt; a, found b; and 6 more"));
  EXPECT_THAT(format_text(story), HasSubstr("FAILED: chain"));
  EXPECT_THAT(format_json(story), HasSubstr("\"failed\": 7"));

  history::StoredEvent foreign = events.back();
  foreign.time_utc = "2020-01-01T00:00:00.000Z";
  for (const int64_t seq : {foreign.seq, foreign.seq + 5}) {
    foreign.seq = seq;
    story = story_with({kept("chain", "ok", foreign)});
    EXPECT_EQ(story.verified_round(), -1) << seq;
    ASSERT_EQ(story.notes.size(), 1u);
    EXPECT_THAT(story.notes[0], HasSubstr("of another journal"));
  }

  write_file_atomic(run_folder().verification(), "torn");
  story = collect_story(run_folder(), {});
  EXPECT_EQ(story.verified_round(), -1);
  ASSERT_EQ(story.notes.size(), 1u);
  EXPECT_THAT(story.notes[0], HasSubstr("verification.json"));
}

}  // namespace
}  // namespace xffl::report
