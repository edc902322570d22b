// PBS's commands and answers, from the documented formats; no answer was recorded at a real site.
#include "xffl/submit/pbs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "pbs_commands.h"
#include "queue_answers.h"
#include "support/await.h"
#include "support/fake_clock.h"
#include "support/fake_queues.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/json.h"
#include "xffl/job/fields.h"
#include "xffl/submit/queue_manager.h"

namespace xffl::submit {
namespace {

using remote::CommandResult;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kName = "xffl-demo-0001-r0001-alba-a1";
constexpr int64_t kNow = 1795585768;  // 2026-11-25T05:49:28Z
const PbsCommands kCommands{PbsSettings{}};

std::string answer_of(const Json& jobs) {
  const Json answer{
      {"timestamp", kNow}, {"pbs_version", "2022.1.1"}, {"pbs_server", "srv"}, {"Jobs", jobs}};
  return std::to_string(kNow) + "\n" + answer.dump(4) + "\nxffl-end\n";
}
Json a_job(const std::string& state) {
  return {{"Job_Name", kName},
          {"Job_Owner", "me@login"},
          {"job_state", state},
          {"queue", "workq"},
          {"stime", "Wed Nov 25 05:48:28 2026"},
          {"Resource_List", {{"ncpus", 1}, {"walltime", "01:00:00"}}},
          {"Variable_List", {{"PBS_O_HOME", "/home/me"}}}};
}
JobStatus status_of(const Json& job) {
  const auto rows = kCommands.read_queue(answer_of({{"12.srv", job}}));
  EXPECT_TRUE(rows && rows->size() == 1);
  return rows && rows->size() == 1 ? rows->front().status : JobStatus();
}
JobStatus ended(const Json& exit_status, int substate) {
  Json job = a_job("F");
  job["substate"] = substate;
  if (!exit_status.is_null()) job["Exit_status"] = exit_status;
  return status_of(job);
}

TEST(PbsOptions, AreOneDirectiveEach) {
  PbsSettings settings;
  settings.account = "a1";
  settings.project = "p1";
  settings.queue = "prod";
  settings.nodes = 2;
  settings.tasks_per_node = 4;
  settings.gpus_per_node = 4;
  settings.chunk = {"mem=480gb", "gpu_type=a100"};
  settings.resources = {"filesystems=home:eagle"};
  EXPECT_THAT(
      pbs_options(settings, kName, RemotePath("/s/a1"), false),
      testing::ElementsAre("-N " + kName, "-o /s/a1/job.out", "-j oe", "-k doe", "-S /bin/bash",
                           "-m n", "-r n", "-A a1", "-P p1", "-q prod",
                           "-l select=2:ncpus=4:mpiprocs=4:ngpus=4:mem=480gb:gpu_type=a100",
                           "-l filesystems=home:eagle", "-l place=scatter", "-l walltime=3600"));
  settings.resources = {"place=pack:excl", "filesystems=home"};
  EXPECT_THAT(pbs_options(settings, kName, RemotePath("/s/a1")),
              testing::Not(testing::Contains("-l place=scatter")));
  for (const char* hostile : {"-q x", "a b", "a'b", "$(id)", "a\nb"}) {
    settings.account = hostile;
    EXPECT_EQ(test::thrown_by([&] { pbs_options(settings, kName, RemotePath("/s")); }).kind,
              ErrorKind::kConfig)
        << hostile;
  }
  settings.account = "a1";
  EXPECT_EQ(test::thrown_by([&] { pbs_options(settings, kName, RemotePath("/s:1/a")); }).kind,
            ErrorKind::kConfig);
}

TEST(PbsKeys, AResourceOfANodeBelongsIntoItsChunk) {
  const job::Field* chunk = pbs_queue_manager().keys().find("chunk");
  const job::Field* resources = pbs_queue_manager().keys().find("resources");
  ASSERT_TRUE(chunk != nullptr && resources != nullptr);
  for (const char* memory : {"mem=480gb", "vmem=1tb"}) {
    EXPECT_EQ(chunk->validate(memory), "") << memory;
    EXPECT_EQ(resources->validate(memory), "is a resource of a node: name it in 'chunk'") << memory;
  }
  for (const job::Field* field : {chunk, resources}) {
    EXPECT_EQ(field->validate("ncpus=8"), "has a key of its own: 'cpus_per_node'");
    EXPECT_EQ(field->validate("mpiprocs=4"), "has a key of its own: 'tasks_per_node'");
    EXPECT_EQ(field->validate("ngpus=4"), "has a key of its own: 'gpus_per_node'");
    EXPECT_EQ(field->validate("walltime=60"), "has a key of its own: 'time'");
  }
  EXPECT_EQ(chunk->validate("place=scatter"), "holds for the whole job: name it in 'resources'");
  EXPECT_EQ(resources->validate("place=scatter"), "");
  const std::string pattern(chunk->pattern);
  EXPECT_THAT("mem=480gb", testing::MatchesRegex(pattern));
  for (const char* several : {"mem=1gb:ngpus=8", "mem=1gb+1:ncpus=1", "mem"})
    EXPECT_THAT(several, testing::Not(testing::MatchesRegex(pattern)));
}

TEST(PbsAnswers, TimesOfAllDaysAndMonthsAreRead) {
  EXPECT_EQ(read_ctime("Wed Nov 25 05:48:28 2026"), 1795585708);
  EXPECT_EQ(read_ctime("Sat Dec  5 05:48:28 2026"), 1796449708);
  EXPECT_EQ(read_ctime("Fri Jan  2 00:00:01 1970"), 86401);
  for (const char* wrong : {"Sat Dec  0 05:48:28 2026", "Sat Feb 30 05:48:28 2026",
                            "Sat anF  5 05:48:28 2026", "Sat Dec  5 24:48:28 2026", "Sat Dec  5"})
    EXPECT_EQ(read_ctime(wrong), std::nullopt) << wrong;
}

TEST(PbsAnswers, StatesAreRead) {
  EXPECT_EQ(status_of(a_job("Q")).state, JobState::kPending);
  EXPECT_EQ(status_of(a_job("W")).state, JobState::kPending);
  EXPECT_EQ(status_of(a_job("T")).state, JobState::kPending);  // being moved to another queue
  EXPECT_EQ(status_of(a_job("H")).state, JobState::kHeld);
  EXPECT_EQ(status_of(a_job("R")).state, JobState::kRunning);
  EXPECT_EQ(status_of(a_job("R")).ends_in, std::chrono::seconds(3540));
  EXPECT_EQ(status_of(a_job("S")).state, JobState::kRunning);
  EXPECT_EQ(status_of(a_job("U")).state, JobState::kRunning);  // its node is in use
  EXPECT_TRUE(status_of(a_job("E")).is_ending);
  EXPECT_FALSE(status_of(a_job("R")).is_ending);
  EXPECT_EQ(status_of(a_job("M")).state, JobState::kUnknown);  // moved to another server
  EXPECT_EQ(status_of(a_job("?")).state, JobState::kUnknown);
  Json held = a_job("H");
  held["comment"] = "job held, too many failed attempts to run";
  EXPECT_TRUE(status_of(held).stays_queued);
  EXPECT_EQ(status_of(held).cause, EndCause::kInfrastructure);
}

TEST(PbsAnswers, EndsAreToldApart) {
  EXPECT_EQ(ended(0, 92).state, JobState::kEnded);
  EXPECT_EQ(ended(1, 93).cause, EndCause::kOrdinary);
  EXPECT_EQ(ended("1", 93).native, "exit status 1");  // as a string in some releases
  EXPECT_EQ(ended(-29, 93).cause, EndCause::kWalltime);
  EXPECT_EQ(ended(-1, 93).cause, EndCause::kInfrastructure);
  EXPECT_EQ(ended(-30, 93).cause, EndCause::kInfrastructure);  // its nodes did not join
  EXPECT_EQ(ended(-27, 93).cause, EndCause::kOutOfMemory);
  EXPECT_EQ(ended(-26, 93).cause, EndCause::kOutOfMemory);
  EXPECT_EQ(ended(-24, 93).cause, EndCause::kOrdinary);
  EXPECT_EQ(ended("-29", 93).cause, EndCause::kWalltime);
  EXPECT_EQ(ended("-1", 93).cause, EndCause::kInfrastructure);
  EXPECT_EQ(ended(-28, 93).cause, EndCause::kOrdinary);  // over its processor time
  EXPECT_EQ(ended(271, 91).state, JobState::kCancelled);
  EXPECT_EQ(ended(nullptr, 91).state, JobState::kCancelled);  // deleted before its start
}

TEST(PbsAnswers, IncompleteOnesAreNoAnswer) {
  const std::string whole = answer_of({{"12.srv", a_job("R")}});
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_EQ(kCommands.read_queue(whole.substr(0, size)), std::nullopt) << size;
  for (const char* body :
       {"[]", "{}", "{\"Jobs\":[]}", "{\"Jobs\":{},\"Jobs\":{}}", "12", "{\"Jobs\":"})
    EXPECT_EQ(kCommands.read_queue("5\n" + std::string(body) + "\nxffl-end\n"), std::nullopt)
        << body;
  EXPECT_THAT(kCommands.read_queue("5\nxffl-end\n").value(), IsEmpty());
  EXPECT_EQ(kCommands.read_queue("5\n" + std::string(200000, '[') + "\nxffl-end\n"), std::nullopt);
}

TEST(PbsAnswers, HostileJobsAreSkipped) {
  Json other = a_job("R"), number = a_job("R"), nested = a_job("R");
  other["Job_Name"] = "x; rm -rf /";
  number["Job_Name"] = 12;
  nested["job_state"] = {{"a", 1}};
  const auto rows = kCommands.read_queue(answer_of({{"12.srv", a_job("Q")},
                                                    {"-13.srv", a_job("R")},
                                                    {"14.srv;x", a_job("R")},
                                                    {"15[1].srv", a_job("R")},
                                                    {"16.srv", other},
                                                    {"17.srv", number},
                                                    {"18.srv", "R"},
                                                    {"19.srv", nested}}));
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_EQ(rows->front().id, "12.srv");
  EXPECT_EQ(rows->back().status.state, JobState::kUnknown);
}

TEST(PbsAnswers, ASubmissionIsAcceptedForABareIdOnly) {
  const auto kind = [](int code, const std::string& out, const std::string& err = "") {
    return kCommands.read_submission({code, out, err}).kind;
  };
  using enum Submission::Kind;
  EXPECT_EQ(kind(0, "12.srv\n"), kAccepted);
  for (const char* out : {"", "12.srv\n13.srv\n", "12.srv;x", "qsub: waiting\n12.srv", "12."})
    EXPECT_EQ(kind(0, out), kUnknown) << out;
  EXPECT_EQ(kind(1, "12.srv\n"), kUnknown) << "printed, then failed";
  EXPECT_EQ(kind(1, "12.srv\n", "logger: invalid option -- 'q'\n"), kUnknown);
  EXPECT_EQ(kind(1, "logged\n12.srv\n", "logger: Connection refused\n"), kUnknown);
  EXPECT_EQ(kind(170, "", "qsub: Unknown queue\n"), kRejected);
  EXPECT_EQ(kind(2, "", "qsub: Resource invalid in \"select\" specification: ngpu\n"), kRejected);
  EXPECT_EQ(kind(191, "", "qsub: Request not allowed: Server shutting down\n"), kDeferred);
  EXPECT_EQ(kind(188, "", "qsub: Job violates queue and/or server resource limits\n"), kRejected);
  EXPECT_EQ(kind(38, "", "qsub: would exceed queue generic's per-user limit\n"), kDeferred);
  EXPECT_EQ(kind(111, "", "Connection refused\nqsub: cannot connect to server srv (errno=111)\n"),
            kDeferred);
  EXPECT_EQ(kind(1, "", "qsub: End of File\n"), kUnknown);
  EXPECT_EQ(kind(1, "", "something new"), kUnknown);
}

TEST(PbsAnswers, ACancelledJobMayHaveEnded) {
  EXPECT_TRUE(kCommands.is_cancelled({0, "", ""}));
  EXPECT_TRUE(kCommands.is_cancelled({35, "", "qdel: Job has finished 12.srv\n"}));
  EXPECT_TRUE(kCommands.is_cancelled({153, "", "qdel: Unknown Job Id 12.srv\n"}));
  EXPECT_FALSE(kCommands.is_cancelled({159, "", "qdel: Unauthorized Request 12.srv\n"}));
}

struct PbsCommandsRun : testing::Test {
  PbsCommandsRun() { ::setenv("TZ", "XXX+7", 1); }  // a site west of UTC
  ~PbsCommandsRun() override { ::unsetenv("TZ"); }

  test::FakeQueues queues;
  SystemClock clock;
  std::shared_ptr<remote::Session> session = remote::make_local_session();
  JobRequest request{kName, "true\n", RemotePath(queues.folder().string())};

  void replace(const std::string& program, const std::string& body) const {
    const std::filesystem::path path = queues.folder() / "bin" / program;
    std::filesystem::remove(path);
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
};

// qstat would fail for each number of a warning, as long as the warning stays.
TEST_F(PbsCommandsRun, AWarningWithNumbersIsNoListOfJobs) {
  const auto scheduler = make_pbs_scheduler({}, session, clock);
  const SubmittedJob job{JobId("7.fake"), kName};
  replace("qselect", "echo '2 of 10.1 servers do not answer' >&2; echo 7.fake");
  const std::filesystem::path arguments = queues.folder() / "arguments";
  replace("qstat", "echo \"$*\" >'" + arguments.string() + "'; exit 1");
  EXPECT_EQ(test::kind_of([&] { scheduler->query(std::span(&job, 1), {}); }), ErrorKind::kRemote);
  std::string line;
  std::getline(std::ifstream(arguments) >> std::ws, line);
  EXPECT_EQ(line, "-x -f -F json 7.fake");
}

TEST_F(PbsCommandsRun, AJobIsForgottenWithoutTheServersHistory) {
  std::ofstream(queues.jobs() / "history-off") << "";
  const auto scheduler = make_pbs_scheduler({}, session, clock);
  request.script = "while [ ! -e finish ]; do sleep 0.02; done\n";
  const JobId id = scheduler->submit(request, {});
  const SubmittedJob job{id, kName};
  const JobStatus status = scheduler->query(std::span(&job, 1), {}).at(id);
  JobState state = status.state;
  EXPECT_EQ(state, JobState::kRunning);
  EXPECT_GT(status.ends_in, std::chrono::seconds(3000)) << "of an hour, in each time zone";
  EXPECT_THAT(scheduler->find(request, {}), testing::ElementsAre(id));
  std::ofstream(queues.folder() / "finish") << "";
  for (int i = 0; i < 400 && state == JobState::kRunning; ++i) {
    try {
      state = scheduler->query(std::span(&job, 1), {}).at(id).state;
    } catch (const Error& error) {  // the job ended between qselect and qstat
      EXPECT_EQ(error.kind(), ErrorKind::kRemote);
    }
  }
  EXPECT_EQ(state, JobState::kUnknown);
  EXPECT_THAT(scheduler->find(request, {}), IsEmpty());
}

TEST_F(PbsCommandsRun, OneQueryAnswersForJobsOfSeveralNames) {
  const auto scheduler = make_pbs_scheduler({}, session, clock);
  std::vector<SubmittedJob> jobs;
  for (const std::string& name : {kName, kName + "-2"}) {
    request.name = name;
    jobs.push_back({scheduler->submit(request, {}), name});
  }
  auto states = scheduler->query(jobs, {});
  const auto ended = [&](const SubmittedJob& job) {
    return states.at(job.id).state == JobState::kEnded;
  };
  for (int i = 0; i < 40 && !std::ranges::all_of(jobs, ended); ++i)
    states = scheduler->query(jobs, {});
  for (const SubmittedJob& job : jobs)
    EXPECT_EQ(states.at(job.id).state, JobState::kEnded) << job.name;
}

// After a lost answer the same job may be submitted twice.
TEST_F(PbsCommandsRun, JobsOfOneNameAreToldApartByTheirIds) {
  const auto scheduler = make_pbs_scheduler({}, session, clock);
  const auto state_of = [&](const JobId& id) {
    const SubmittedJob job{id, kName};
    return scheduler->query(std::span(&job, 1), {}).at(id).state;
  };
  const JobId first = scheduler->submit(request, {});
  ASSERT_TRUE(test::await([&] { return state_of(first) == JobState::kEnded; }));
  request.script = "while [ ! -e finish ]; do sleep 0.02; done\n";
  const JobId second = scheduler->submit(request, {});
  EXPECT_EQ(state_of(first), JobState::kEnded);
  EXPECT_EQ(state_of(second), JobState::kRunning);
  scheduler->cancel({second, kName}, {});
  EXPECT_TRUE(test::await([&] { return state_of(second) == JobState::kCancelled; },
                          std::chrono::seconds(60)));
  std::ofstream(queues.folder() / "finish") << "";
}

// The commands of a server that is down print no job.
TEST_F(PbsCommandsRun, AServerThatDoesNotAnswerEndsNoJob) {
  const auto scheduler = make_pbs_scheduler({}, session, clock);
  const SubmittedJob job{JobId("7.fake"), kName};
  const auto query = [&] { scheduler->query(std::span(&job, 1), {}); };
  const std::string down = "echo 'cannot connect to server srv (errno=111)' >&2; exit 1";
  replace("qselect", "echo 7.fake");
  replace("qstat", down);
  EXPECT_EQ(test::kind_of(query), ErrorKind::kRemote);
  replace("qselect", down);
  EXPECT_EQ(test::kind_of(query), ErrorKind::kRemote);
}

// The server goes down between the two questions about a name.
TEST_F(PbsCommandsRun, AServerWithoutHistoryThatDoesNotAnswerEndsNoJob) {
  const auto scheduler = make_pbs_scheduler({}, session, clock);
  const SubmittedJob job{JobId("7.fake"), kName};
  replace("qselect",
          "case \" $* \" in *' -x '*)\n"
          "  echo 'qselect: PBS is not configured to maintain job history' >&2; exit 0 ;;\n"
          "esac\necho 'cannot connect to server srv (errno=111)' >&2\nexit 1");
  EXPECT_EQ(test::kind_of([&] { scheduler->query(std::span(&job, 1), {}); }), ErrorKind::kRemote);
}

TEST_F(PbsCommandsRun, ARejectionNamesTheMessage) {
  const auto rejected = [&](const std::string& queue) {
    PbsSettings settings;
    settings.queue = queue;
    return test::thrown_by(
        [&] { make_pbs_scheduler(settings, session, clock)->submit(request, {}); });
  };
  EXPECT_EQ(rejected("nowhere").kind, ErrorKind::kConfig);
  EXPECT_THAT(rejected("nowhere").message, HasSubstr("Unknown queue"));
  EXPECT_EQ(rejected("off").kind, ErrorKind::kBusy);
  EXPECT_THAT(make_pbs_scheduler({}, session, clock)->find(request, {}), IsEmpty());
}

TEST_F(PbsCommandsRun, MemoryBesideTheChunksIsRejected) {
  PbsSettings settings;
  settings.resources = {"mem=1gb"};
  EXPECT_THAT(
      test::message_of(ErrorKind::kConfig,
                       [&] { make_pbs_scheduler(settings, session, clock)->submit(request, {}); }),
      HasSubstr("resource is: mem"));
}

TEST(PbsRow, SaysThatItHasNotRunOnARealSite) {
  EXPECT_THAT(std::string(pbs_queue_manager().caution), HasSubstr("has not run on a real site"));
}

}  // namespace
}  // namespace xffl::submit
