// Grid Engine's commands and answers. The answers are those of Son of Grid Engine 8.1.9, which the
// testbed's tests run, except three that were written from the documented formats: the field
// deleted_by (Univa), the limit of jobs, and time-outs.
#include "xffl/submit/grid_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "grid_engine_commands.h"
#include "support/fake_clock.h"
#include "support/fake_session.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/file.h"
#include "xffl/job/fields.h"
#include "xffl/submit/queue_manager.h"

namespace xffl::submit {
namespace {

using remote::CommandResult;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const std::string kName = "xffl-demo-0001-r0001-alba-a1";
const RemotePath kFolder("/scratch/me/a1");
const JobRequest kRequest{kName, "#!/bin/bash\ntrue\n", kFolder};
constexpr int64_t kNow = 1795585768;  // 2026-11-25T05:49:28Z

std::string job(const std::string& list, const std::string& id, const std::string& state,
                const std::string& more = "", const std::string& name = kName) {
  return "    <job_list state=\"" + list + "\">\n      <JB_job_number>" + id +
         "</JB_job_number>\n      <JAT_prio>0.50000</JAT_prio>\n      <JB_name>" + name +
         "</JB_name>\n      <JB_owner>me</JB_owner>\n      <state>" + state + "</state>\n" + more +
         "      <slots>2</slots>\n      <full_job_name>" + name +
         "</full_job_name>\n      <requested_pe name=\"nodes\">2</requested_pe>\n" +
         "      <predecessor_jobs_req>" + name + "</predecessor_jobs_req>\n    </job_list>\n";
}
std::string queue(const std::string& running, const std::string& pending) {
  return std::to_string(kNow) +
         "\n<?xml version='1.0'?>\n<job_info  xmlns:xsd=\"http://x/qstat.xsd\">\n  <queue_info>\n" +
         running + "  </queue_info>\n  <job_info>\n" + pending +
         "  </job_info>\n</job_info>\nxffl-end\n";
}

std::string record(const std::string& id, const std::string& failed, const std::string& exit_status,
                   const std::string& more = "") {
  return "==============================================================\n"
         "qname        main.q              \nhostname     sge1                \n"
         "owner        me                \njobname      " +
         kName + "\njobnumber    " + id +
         "                  \ntaskid       undefined\n"
         "qsub_time    Wed Nov 25 05:48:35 2026\nstart_time   Wed Nov 25 05:48:59 2026\n"
         "end_time     Wed Nov 25 05:49:26 2026\ngranted_pe   nodes                \n"
         "slots        2                   \nfailed       " +
         failed + "\nexit_status  " + exit_status + "\nru_wallclock 27s\n" + more;
}

GridEngineSettings two_nodes() {
  GridEngineSettings settings;
  settings.parallel_environment = "nodes";
  settings.nodes = 2;
  settings.time = std::chrono::seconds(600);
  return settings;
}
const GridEngineCommands kCommands{two_nodes()};

JobStatus accounted(const std::string& records) {
  const auto rows = kCommands.read_accounting(records + "xffl-end\n");
  return rows && rows->size() == 1 ? rows->front().status : JobStatus();
}

TEST(GridEngineOptions, AreOneDirectiveEach) {
  GridEngineSettings settings = two_nodes();
  settings.project = "p1";
  settings.queue = "gpu.q,all.q";
  settings.parallel_environment = "mpi-4";
  settings.tasks_per_node = 2;
  settings.slots_per_node = 4;
  settings.resources = {"gpu=2", "h_vmem=4G"};
  settings.time = std::chrono::seconds(3600);
  EXPECT_THAT(grid_engine_options(settings, kName, kFolder),
              ElementsAre("-N " + kName, "-wd /scratch/me/a1", "-o job.out", "-j y", "-S /bin/bash",
                          "-r y", "-hold_jid " + kName, "-P p1", "-q gpu.q,all.q", "-pe mpi-4 8",
                          "-l gpu=2", "-l h_vmem=4G", "-l h_rt=3600"));
  EXPECT_THAT(grid_engine_options(settings, kName, kFolder, false), Contains("-r n"));
  for (const std::string& bad : {std::string("a b"), std::string("-x"), std::string("a\n#$ -P b"),
                                 std::string("$(id)"), std::string("'")}) {
    GridEngineSettings wrong = settings;
    wrong.project = bad;
    EXPECT_EQ(test::kind_of([&] { grid_engine_options(wrong, kName, kFolder); }),
              ErrorKind::kConfig)
        << bad;
  }
}

TEST(GridEngineKeys, TheWalltimeIsNoResource) {
  const job::Field* resources = grid_engine_queue_manager().keys().find("resources");
  ASSERT_NE(resources, nullptr);
  for (const char* walltime : {"h_rt=600", "h_rt", "s_rt=540"})
    EXPECT_EQ(resources->validate(walltime), "has a key of its own: 'time'") << walltime;
  for (const char* other : {"gpu=1", "exclusive", "h_rt_max=1"})
    EXPECT_EQ(resources->validate(other), "") << other;
}

TEST(GridEngineCommands, PassTheScriptByStdinAndEachOptionAsWords) {
  const auto argv = kCommands.submit(kRequest);
  EXPECT_THAT(argv, testing::IsSupersetOf({"qsub", "-terse", "-N", kName.c_str(), "-pe", "nodes",
                                           "2", "-l", "h_rt=600"}));
  EXPECT_EQ(argv.front(), "env");
  for (const std::string& word : argv) EXPECT_THAT(word, Not(HasSubstr("#!/bin/bash\ntrue")));
  EXPECT_THAT(kCommands.verify(kRequest), Not(Contains("-terse")));
  EXPECT_THAT(kCommands.verify(kRequest), testing::IsSupersetOf({"qsub", "-w", "v"}))
      << "without -w v, qsub submits a job";
}

TEST(GridEngineSubmission, OnlyABareIdIsAccepted) {
  using Kind = Submission::Kind;
  const auto kind = [](int code, const std::string& out, const std::string& err = "") {
    return kCommands.read_submission({code, out, err}).kind;
  };
  EXPECT_EQ(kCommands.read_submission({0, "17\n", ""}).id, "17");
  for (const char* other : {"", "0\n", "17.1-3:1\n", "Your job 17 has been submitted\n", "17 18\n",
                            "-1\n", "1234567890123456789\n"})
    EXPECT_EQ(kind(0, other), Kind::kUnknown) << other;
  EXPECT_EQ(kind(1, "17\n"), Kind::kUnknown);
  EXPECT_EQ(kind(1, "17\n", "logger: invalid option -- 'q'\n"), Kind::kUnknown);
  EXPECT_EQ(kind(1, "logged\n17\n", "logger: Connection refused\n"), Kind::kUnknown);
  for (const char* text :
       {"Unable to run job: Job was rejected because job requests unknown queue \"nosuch.q\"",
        "Unable to run job: job rejected: the requested parallel environment \"n\" does not exist",
        "Unable to run job: job rejected: the requested project \"nosuch\" does not exist",
        "Unable to run job: unknown resource \"nosuch\"", "qsub: invalid option argument \"-n\"",
        "Unable to run job: denied: \"1jq\" is not a valid object name (cannot start with a digit)",
        "Unable to read script file because of error: no input read from stdin"})
    EXPECT_EQ(kind(1, "", text), Kind::kRejected) << text;
  for (const char* text :
       {"error: commlib error: got select error (Connection refused)\nUnable to run job: unable to "
        "send message to qmaster using port 6444 on host \"login\": got send error\nExiting.",
        "Unable to run job: job rejected: Only 10 jobs are allowed per user (current job count: "
        "10)"})
    EXPECT_EQ(kind(1, "", text), Kind::kDeferred) << text;
  for (const char* text :
       {"error: commlib error: got read error (closing \"login/qmaster/1\")", "", "Exiting.",
        "error: failed receiving gdi request response for mid=1 (got syncron message receive "
        "timeout error).",
        "fork: retry: Resource temporarily unavailable"})
    EXPECT_EQ(kind(1, "", text), Kind::kUnknown) << text;
  EXPECT_EQ(kind(127, "", "qsub: not found, denied:"), Kind::kUnknown);
  EXPECT_EQ(kind(0, "", "access to gpu.q denied: a notice"), Kind::kUnknown)
      << "a command that reports success has rejected nothing";
}

TEST(GridEngineQueue, ReadsTheStatesOfQstat) {
  const auto state = [](const std::string& letters, bool waits = false) {
    return read_grid_engine_state(letters, waits).state;
  };
  for (const char* letters : {"r", "t", "Rr", "Rt", "s", "S", "T", "tT", "Rs"})
    EXPECT_EQ(state(letters), JobState::kRunning) << letters;
  for (const char* letters : {"qw", "Rq", "w"}) EXPECT_EQ(state(letters), JobState::kPending);
  EXPECT_FALSE(read_grid_engine_state("r", false).is_ending);
  EXPECT_EQ(state("hqw"), JobState::kHeld);
  EXPECT_EQ(state("hqw", true), JobState::kPending);
  for (const char* letters : {"", "z", "pending", "r r", "?", "é", "rr\n"})
    EXPECT_EQ(state(letters), JobState::kUnknown) << letters;
  for (const char* letters : {"dr", "dt", "dRr", "dqw", "dEqw"}) {
    EXPECT_EQ(state(letters), JobState::kRunning) << letters;
    EXPECT_TRUE(read_grid_engine_state(letters, false).is_ending) << letters;
  }
  for (const char* letters : {"Eqw", "Ehqw"}) {
    const JobStatus error = read_grid_engine_state(letters, false);
    EXPECT_EQ(error.state, JobState::kEnded);
    EXPECT_EQ(error.cause, EndCause::kInfrastructure);
    EXPECT_TRUE(error.stays_queued);
    EXPECT_THAT(error.reason, HasSubstr(letters));
  }
}

TEST(GridEngineQueue, ReadsEachJob) {
  const auto rows = kCommands.read_queue(queue(
      job("running", "9", "r", "      <JAT_start_time>2026-11-25T05:48:28</JAT_start_time>\n"),
      job("pending", "10", "hqw", "      <predecessor_jobs>9</predecessor_jobs>\n") +
          job("pending", "11", "Eqw", "", "other")));
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows->size(), 3u);
  EXPECT_EQ((*rows)[0].id, "9");
  EXPECT_EQ((*rows)[0].name, kName);
  EXPECT_EQ((*rows)[0].status.ends_in, std::chrono::seconds(540));
  EXPECT_EQ((*rows)[1].status.state, JobState::kPending);
  EXPECT_EQ((*rows)[2].name, "other");
  std::string of_others;
  for (int i = 0; i < 5000; ++i)
    of_others += job("pending", std::to_string(100 + i), "qw", "", "other");
  const auto many = kCommands.read_queue(queue("", of_others + job("pending", "9999", "qw")));
  ASSERT_TRUE(many);
  EXPECT_EQ(many->back().id, "9999");
  const auto none = kCommands.read_queue(queue("", ""));
  ASSERT_TRUE(none);
  EXPECT_THAT(*none, IsEmpty());
}

TEST(GridEngineQueue, AnIncompleteOrHostileAnswerIsNoAnswer) {
  const std::string whole = queue(job("running", "9", "r"), job("pending", "10", "qw"));
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(kCommands.read_queue(whole.substr(0, size))) << size;
  EXPECT_FALSE(kCommands.read_queue(whole.substr(whole.find('\n') + 1))) << "no clock";
  EXPECT_FALSE(kCommands.read_queue("1\nxffl-end\n")) << "no XML";
  EXPECT_FALSE(kCommands.read_queue(queue("<job_list>", ""))) << "an open job";
  std::string lines;
  for (int i = 0; i < 400'001; ++i) lines += '\n';
  EXPECT_FALSE(kCommands.read_queue(queue("", lines)));
  for (const std::string& bad :
       {job("running", "0", "r"), job("running", "-1", "r"), job("running", "9.1", "r"),
        job("running", "9", "r", "", "a&amp;b"), job("running", "9", "r", "", ""),
        std::string("    <job_list>\n    </job_list>\n")}) {
    const auto rows = kCommands.read_queue(queue(bad + job("running", "12", "r"), ""));
    ASSERT_TRUE(rows) << bad;
    EXPECT_EQ(rows->size(), 1u) << bad;
  }
  const auto early = kCommands.read_queue(queue(
      job("running", "9", "r", "      <JAT_start_time>1926-99-25T05:48:28</JAT_start_time>\n"),
      ""));
  ASSERT_TRUE(early);
  EXPECT_FALSE(early->front().status.ends_in);
}

TEST(GridEngineAccounting, ReadsTheCauseOfAnEnd) {
  EXPECT_EQ(accounted(record("9", "0    ", "0                   ")).state, JobState::kEnded);
  EXPECT_EQ(accounted(record("9", "0    ", "3                   ")).native, "exit status 3");
  const std::string killed = "100 : assumedly after job",
                    by_signal = "137                  (Killed)";
  EXPECT_EQ(accounted(record("9", killed, by_signal)).cause, EndCause::kOrdinary);
  EXPECT_EQ(accounted(record("9", killed, by_signal, "category     -l h_rt=600 -pe n 2\n")).cause,
            EndCause::kOrdinary);
  EXPECT_EQ(accounted(record("9", killed, by_signal, "category     -l h_rt=27\n")).cause,
            EndCause::kWalltime);
  EXPECT_EQ(accounted(record("9", "37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", by_signal))
                .cause,
            EndCause::kWalltime);
  EXPECT_EQ(accounted(record("9", "26  : opening input/output file", "0")).cause,
            EndCause::kInfrastructure);
  EXPECT_EQ(accounted(record("9", killed, by_signal, "deleted_by   root@login\n")).state,
            JobState::kCancelled);
  EXPECT_EQ(accounted(record("9", "0", "0", "deleted_by   NONE\n")).state, JobState::kEnded);
}

TEST(GridEngineAccounting, ARescheduledOrMigratedStartIsNoEnd) {
  for (const char* failed : {"25  : rescheduling", "24  : migrating"}) {
    const std::string first = record("9", failed, "0");
    const auto rows = kCommands.read_accounting(first + "xffl-end\n");
    ASSERT_TRUE(rows) << failed;
    EXPECT_THAT(*rows, IsEmpty()) << failed;
    EXPECT_EQ(accounted(first + record("9", "0", "0")).native, "exit status 0") << failed;
  }
}

TEST(GridEngineAccounting, AMalformedRecordIsSkipped) {
  for (const std::string& bad :
       {record("x", "0", "0"), record("9", "", "0"), record("9", "no", "0"),
        std::string("jobnumber 9\nfailed 0\njobname a\n"), std::string("====\n====\n")}) {
    const auto rows = kCommands.read_accounting(bad + "xffl-end\n");
    ASSERT_TRUE(rows) << bad;
    EXPECT_THAT(*rows, IsEmpty()) << bad;
  }
  EXPECT_FALSE(kCommands.read_accounting(record("9", "0", "0")));
}

TEST(GridEngineAccounting, ShowsTheStartsAndNodes) {
  const auto starts = kCommands.read_starts(record("9", "0", "0") + "xffl-end\n");
  ASSERT_TRUE(starts);
  ASSERT_EQ(starts->size(), 1u);
  EXPECT_EQ(starts->front().name, kName);
  EXPECT_EQ(starts->front().start.start, 1795585739);
  EXPECT_EQ(starts->front().start.end, 1795585766);
  EXPECT_EQ(starts->front().start.nodes, 2);
  GridEngineSettings shared = two_nodes();
  shared.tasks_per_node = 2;
  const auto of_one_node =
      GridEngineCommands(shared).read_starts(record("9", "0", "0") + "xffl-end\n");
  ASSERT_TRUE(of_one_node);
  ASSERT_EQ(of_one_node->size(), 1u);
  EXPECT_EQ(of_one_node->front().start.nodes, 1) << "two slots of one node";
}

TEST(GridEngineAccounting, AJobThatWasDeletedBeforeItsStartHasNone) {
  for (const char* start : {"-/-", "Thu Jan  1 00:00:00 1970"}) {
    const std::string recorded = "Wed Nov 25 05:48:59 2026";
    std::string text = record("9", "0", "0");
    text.replace(text.find(recorded), recorded.size(), start);
    const auto starts = kCommands.read_starts(text + "xffl-end\n");
    ASSERT_TRUE(starts) << start;
    EXPECT_THAT(*starts, IsEmpty()) << start;
  }
}

// One question to qacct holds 100 names.
TEST(GridEngineAccounting, EachStartOfManyJobsIsShownOnce) {
  test::FakeSession session;
  session.on_run = [](const std::vector<std::string>& argv, const std::string&) {
    std::string out;
    for (const std::string& word : argv) {
      if (!word.starts_with("job-")) continue;
      // Other users' jobs have the same name, and one of them has an id of our jobs.
      const std::string reused = word == "job-1" ? "2" : "1";
      for (const std::string& id : {word.substr(4), std::string("7000"), reused}) {
        std::string text = record(id, "0", "0");
        text.replace(text.find(kName), kName.size(), word);
        out += text;
      }
    }
    return CommandResult{0, out + "xffl-end\n", ""};
  };
  std::vector<SubmittedJob> jobs;
  for (int id = 1; id <= 150; ++id)
    jobs.push_back({JobId(std::to_string(id)), "job-" + std::to_string(id)});
  EXPECT_EQ(grid_engine_starts(session, {}, jobs, {}).size(), 150u);
}

// A name without a record, of a job that waits or runs, comes before one with a record.
TEST(GridEngineAccounting, AnUnknownNameHidesNoOther) {
  const test::TempDir dir;
  write_file_atomic(dir / "qacct", R"sh(#!/bin/sh
case $2 in
  unknown) echo "error: job name unknown not found" >&2; exit 1 ;;
  broken) echo "cannot open the accounting" >&2; exit 1 ;;
  *) echo "record of $2" ;;
esac
)sh");
  std::filesystem::permissions(dir / "qacct", std::filesystem::perms::owner_all);
  const auto session = remote::make_local_session();
  const auto ask = [&](const std::vector<std::string>& names) {
    std::vector<std::string> argv = kCommands.accounting(names);
    argv.insert(std::find(argv.begin(), argv.end(), "sh"),
                "PATH=" + dir.path().string() + ":/usr/bin:/bin");
    return session->run(argv, "", std::chrono::seconds(20), {});
  };
  const CommandResult answer = ask({"unknown", "job-a", "job-b"});
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_EQ(answer.out, "record of job-a\nrecord of job-b\nxffl-end\n");
  EXPECT_NE(ask({"broken", "job-a"}).exit_code, 0);
}

// A sum of node-hours without some of the jobs would look like the whole one.
TEST(GridEngineAccounting, AFailureHidesNoStarts) {
  test::FakeSession session;
  CommandResult answer{1, "", "cannot open the accounting\n"};
  session.on_run = [&](const std::vector<std::string>&, const std::string&) { return answer; };
  const std::vector<SubmittedJob> jobs{{JobId("9"), kName}};
  const auto ask = [&] { grid_engine_starts(session, {}, jobs, {}); };
  EXPECT_EQ(test::kind_of(ask), ErrorKind::kRemote);
  answer = {0, record("9", "0", "0"), ""};  // no end mark
  EXPECT_EQ(test::kind_of(ask), ErrorKind::kRemote);
}

// `stoppable`: each command ends at a stop request.
struct StoppableSession : test::FakeSession {
  std::vector<std::chrono::milliseconds> timeouts;
  bool stoppable = true;

  CommandResult run(const std::vector<std::string>& argv, const std::string& text,
                    std::chrono::milliseconds timeout, std::stop_token stop) override {
    timeouts.push_back(timeout);
    stoppable = stoppable && stop.stop_possible();
    return FakeSession::run(argv, text, timeout, stop);
  }
};

class GridEngineScheduler : public testing::Test {
 protected:
  GridEngineScheduler() {
    session_->on_run = [this](const std::vector<std::string>& argv, const std::string&) {
      clock_.advance(round_trip_);
      std::string line;
      for (const std::string& word : argv) line += word + " ";
      for (const char* program : {"qdel", "qacct", "qstat", "qsub"})
        if (line.find(std::string(program) + " ") != std::string::npos) {
          asked_.push_back(program);
          if (program == hangs_)
            throw Error(ErrorKind::kRemote, "the command did not end within 60000 ms");
          return answers_[program];
        }
      return CommandResult{127, "", "?"};
    };
  }
  JobStatus status_of(const std::string& id) {
    const SubmittedJob asked{JobId(id), kName};
    return scheduler_->query(std::span(&asked, 1), {}).at(asked.id);
  }

  test::FakeClock clock_;
  std::shared_ptr<StoppableSession> session_ = std::make_shared<StoppableSession>();
  std::chrono::seconds round_trip_{0};  // the time of a command
  std::map<std::string, CommandResult> answers_{{"qstat", {0, queue("", ""), ""}},
                                                {"qacct", {0, "xffl-end\n", ""}}};
  std::vector<std::string> asked_;
  std::string hangs_;  // a program
  std::shared_ptr<Scheduler> scheduler_ = make_grid_engine_scheduler({}, session_, clock_);
};

TEST_F(GridEngineScheduler, EachAnswerShowsTheFacilitysClock) {
  EXPECT_FALSE(scheduler_->clock_offset());
  round_trip_ = std::chrono::seconds(2);
  const double here = 1767225600;  // FakeClock
  status_of("9");
  ASSERT_TRUE(scheduler_->clock_offset());
  EXPECT_EQ(*scheduler_->clock_offset(),
            (ClockOffset{.offset = static_cast<double>(kNow) - here - 0.5, .error = 1.5}));
}

TEST_F(GridEngineScheduler, EachCommandHasTheTimeLimitAndEndsAtAStop) {
  GridEngineSettings settings;
  settings.settle_time = std::chrono::seconds(7);
  settings.command_timeout = std::chrono::seconds(13);
  scheduler_ = make_grid_engine_scheduler(settings, session_, clock_);
  std::stop_source source;
  const std::stop_token stop = source.get_token();
  const SubmittedJob running{JobId("9"), kName}, ended{JobId("8"), kName};
  answers_["qsub"] = {0, "9\n", ""};
  answers_["qstat"].out = queue(job("running", "9", "r"), "");
  answers_["qdel"] = {0, "me has registered the job 9 for deletion\n", ""};
  scheduler_->submit(kRequest, stop);
  scheduler_->find(kRequest, stop);
  scheduler_->query(std::span(&ended, 1), stop);
  scheduler_->cancel(running, stop);
  verify_grid_engine(*session_, settings, kRequest, stop);
  grid_engine_starts(*session_, settings, std::span(&ended, 1), stop);
  EXPECT_THAT(asked_, ElementsAre("qsub", "qstat", "qacct", "qstat", "qacct", "qstat", "qdel",
                                  "qsub", "qacct"));
  EXPECT_THAT(session_->timeouts, testing::Each(settings.command_timeout));
  EXPECT_TRUE(session_->stoppable);
}

TEST_F(GridEngineScheduler, AJobThatNobodyMentionsIsUnknown) {
  EXPECT_EQ(status_of("9").state, JobState::kUnknown);
  EXPECT_THAT(asked_, ElementsAre("qstat", "qacct"));
  answers_["qacct"] = {1, "", "cannot open the accounting"};
  EXPECT_EQ(status_of("9").state, JobState::kUnknown);
  hangs_ = "qacct";
  EXPECT_EQ(status_of("9").state, JobState::kUnknown) << "qacct reads a long file";
  answers_["qstat"] = {1, std::to_string(kNow) + "\n", "error: commlib error"};
  EXPECT_EQ(test::kind_of([&] { status_of("9"); }), ErrorKind::kRemote);
}

TEST_F(GridEngineScheduler, AsksTheAccountingOnlyForJobsThatLeftTheQueue) {
  answers_["qstat"].out = queue(job("running", "9", "r"), "");
  EXPECT_EQ(status_of("9").state, JobState::kRunning);
  EXPECT_THAT(asked_, ElementsAre("qstat"));
  answers_["qstat"].out = queue("", "");
  answers_["qacct"].out =
      record("9", "26  : opening input/output file", "0") + record("9", "0", "0") + "xffl-end\n";
  EXPECT_EQ(status_of("9").state, JobState::kEnded);
  EXPECT_EQ(status_of("9").native, "exit status 0") << "the last start counts";
}

TEST_F(GridEngineScheduler, HalfAnAnswerOfQstatIsNoEmptyQueue) {
  const std::string whole = queue(job("running", "9", "r"), "");
  answers_["qstat"] = {0, whole.substr(0, whole.find("<queue_info>")), ""};
  EXPECT_EQ(test::kind_of([&] { status_of("9"); }), ErrorKind::kRemote);
  EXPECT_EQ(test::kind_of([&] { scheduler_->find(kRequest, {}); }), ErrorKind::kRemote);
  EXPECT_EQ(test::kind_of([&] {
              scheduler_->cancel({JobId("9"), kName}, {});
            }),
            ErrorKind::kRemote);
}

// Grid Engine gives old ids to new jobs.
TEST_F(GridEngineScheduler, AnotherJobWithTheSameIdIsNotTheJob) {
  answers_["qstat"].out = queue(job("running", "9", "r", "", "other"), "");
  EXPECT_EQ(status_of("9").state, JobState::kUnknown);
  answers_["qacct"].out = record("9", "0", "0") + "xffl-end\n";
  EXPECT_EQ(status_of("9").state, JobState::kEnded);
}

TEST_F(GridEngineScheduler, FindsJobsOfTheNameOldestFirst) {
  answers_["qstat"].out =
      queue(job("running", "10", "r") + job("running", "8", "r", "", "other"), "");
  answers_["qacct"].out = record("9", "0", "0") + "xffl-end\n";
  EXPECT_EQ(scheduler_->find(kRequest, {}), (std::vector{JobId("9"), JobId("10")}));
}

TEST_F(GridEngineScheduler, CancelsNoOtherJobWithTheSameId) {
  const SubmittedJob ours{JobId("9"), kName};
  answers_["qstat"].out = queue(job("running", "9", "r", "", "other"), "");
  scheduler_->cancel(ours, {});
  EXPECT_THAT(asked_, Not(Contains("qdel")));
  answers_["qstat"].out = queue("", job("pending", "9", "Eqw"));
  answers_["qdel"] = {0, "me has deleted job 9\n", ""};
  scheduler_->cancel(ours, {});
  EXPECT_THAT(asked_, Contains("qdel"));
  answers_["qdel"] = {1, "", "denied: job \"9\" does not exist\n"};
  scheduler_->cancel(ours, {});
  answers_["qdel"] = {1, "", "error: commlib error: got select error (Connection refused)\n"};
  EXPECT_EQ(test::kind_of([&] { scheduler_->cancel(ours, {}); }), ErrorKind::kRemote);
}

TEST(GridEngineCommands, OnlyAMessageOfADeletionIsACancellation) {
  for (const int code : {0, 1}) {
    EXPECT_TRUE(kCommands.is_cancelled({code, "me has registered the job 9 for deletion\n", ""}));
    EXPECT_FALSE(kCommands.is_cancelled(
        {code, "me - you do not have the necessary privileges to delete the job \"9\"\n", ""}))
        << code;
    EXPECT_FALSE(kCommands.is_cancelled({code, "", ""})) << code;
  }
}

TEST_F(GridEngineScheduler, VerifiesARequestWithoutSubmittingIt) {
  answers_["qsub"] = {0, "verification: found suitable queue(s)\n", ""};
  EXPECT_TRUE(verify_grid_engine(*session_, {}, kRequest, {}).accepted);
  answers_["qsub"] = {1, "", "Unable to run job: unknown resource \"gpu\"\nExiting.\n"};
  const TestOnly refused = verify_grid_engine(*session_, {}, kRequest, {});
  EXPECT_FALSE(refused.accepted);
  EXPECT_TRUE(refused.permanent);
}

}  // namespace
}  // namespace xffl::submit
