// Answers of a real Slurm 22.05, and malformed ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "slurm_commands.h"

namespace xffl::submit {
namespace {

using Kind = Submission::Kind;
using std::chrono::seconds;

Kind kind_of(int exit_code, const std::string& out, const std::string& err = "") {
  return read_submission({exit_code, out, err}).kind;
}

TEST(ReadSubmission, AcceptsABareIdOnly) {
  EXPECT_EQ(read_submission({0, "1234\n", ""}).id, "1234");
  EXPECT_EQ(read_submission({0, "1234;leonardo\n", "sbatch: a notice\n"}).id, "1234");
  EXPECT_EQ(read_submission({0, "  77\r\n", ""}).id, "77");
  for (const char* out : {"", "\n", "Submitted batch job 1234\n", "1234 5678\n", "1234\n5678\n",
                          "-5\n", "0\n", "0123\n", "12a\n", "1234;a b\n", "9999999999999999999\n",
                          "welcome to the cluster\n1234\n"}) {
    EXPECT_EQ(kind_of(0, out), Kind::kUnknown) << out;
    EXPECT_EQ(kind_of(1, out), Kind::kUnknown) << out;
  }
  EXPECT_EQ(kind_of(1, "1234\n"), Kind::kUnknown);  // printed, then failed
  EXPECT_EQ(kind_of(0, "", "sbatch: error: invalid partition specified: nope\n"), Kind::kUnknown);
}

// A site's wrapper of sbatch that fails in a step of its own.
TEST(ReadSubmission, AnIdAheadOfAFailureRejectsNothing) {
  const std::string permanent = "logger: unrecognized option '--job'\n";
  const std::string temporary = "logger: write: Connection refused\n";
  ASSERT_EQ(kind_of(1, "", permanent), Kind::kRejected);
  ASSERT_EQ(kind_of(1, "", temporary), Kind::kDeferred);
  for (const char* out : {"1234\n", "1234", "1234;leonardo\n", "a notice\n1234\nlogged\n"})
    for (const std::string& err : {permanent, temporary})
      EXPECT_EQ(kind_of(1, out, err), Kind::kUnknown) << out << err;
  EXPECT_THAT(read_submission({1, "1234\n", permanent}).text, testing::HasSubstr("1234"));
  for (const char* out : {"\n", "0\n", "job 1234\n", "1234 5678\n"})
    EXPECT_EQ(kind_of(1, out, permanent), Kind::kRejected) << out;
}

TEST(ReadSubmission, DistinguishesRejectionsFromUnknownOutcomes) {
  const auto failed = [](const std::string& text) {
    return kind_of(1, "", "sbatch: error: " + text);
  };
  for (const char* text :
       {"invalid partition specified: nope\nsbatch: error: Batch job submission failed: Invalid "
        "partition name specified\n",
        "Batch job submission failed: Requested node configuration is not available\n",
        "Batch job submission failed: Invalid feature specification\n",
        "Batch job submission failed: Requested reservation is invalid\n",
        "Memory specification can not be satisfied\n",
        "Batch job submission failed: Invalid account or account/partition combination specified\n",
        "Batch job submission failed: Invalid qos specification\n",
        "Batch job submission failed: User's group not permitted to use this partition\n",
        "Batch job submission failed: Requested time limit is invalid (missing or exceeds some "
        "limit)\n",
        "QOSMaxWallDurationPerJobLimit\nsbatch: error: Batch job submission failed: Job violates "
        "accounting/QOS policy (job submit limit, user's size and/or time limits)\n",
        "Batch script contains only whitespace!\n"})
    EXPECT_EQ(failed(text), Kind::kRejected) << text;
  for (const char* text :
       {"QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates "
        "accounting/QOS policy (job submit limit, user's size and/or time limits)\n",
        "AssocGrpSubmitJobsLimit\nsbatch: error: Batch job submission failed: Job violates\n",
        "Batch job submission failed: Unable to contact slurm controller (connect failure)\n",
        "Batch job submission failed: Resource temporarily unavailable\n",
        "too many nodes in the request\nsbatch: error: Batch job submission failed: Unable to "
        "contact slurm controller (connect failure)\n",
        "Munge encode failed: Failed to access \"/run/munge/munge.socket.2\": No such file or "
        "directory\nsbatch: error: Batch job submission failed: Invalid authentication "
        "credential\n"})
    EXPECT_EQ(failed(text), Kind::kDeferred) << text;
  for (const char* text :
       {"Batch job submission failed: Socket timed out on send/recv operation\n",
        "Batch job submission failed: Unexpected message received\n",
        "Batch job submission failed: Zero Bytes were transmitted or received\n",
        "Batch job submission failed: Unspecified error\n", "a message of a later version\n",
        "invalid account\nsbatch: error: Socket timed out on send/recv operation\n",
        "Batch job submission failed: Too many open files\n",
        "fopen(/etc/slurm/slurm.conf): Too many open files in system\n",
        "Batch job submission failed: Input/output error\n", "Cannot fork\n",
        "bash: fork: Resource temporarily unavailable\n",
        "/usr/bin/sbatch: fork: Cannot allocate memory\n"})
    EXPECT_EQ(failed(text), Kind::kUnknown) << text;
  // A failure of the login node itself rejects no job, whatever else the message says.
  const std::string permanent = "Unable to open file /scratch/job.sh: ";
  ASSERT_EQ(failed(permanent), Kind::kRejected);
  for (const char* failure :
       {"Too many open files", "Too many users", "Stale file handle", "Stale NFS file handle",
        "Input/output error", "Device or resource busy", "No buffer space available", "Cannot fork",
        "bash: fork: retry", "error while loading shared libraries: libslurm.so"})
    EXPECT_EQ(failed(permanent + failure), Kind::kUnknown) << failure;
  // Another submission of the same request would get the same answer.
  for (const char* text : {"Invalid wckey specification",
                           "Invalid generic resource (gres) specification",
                           "Invalid Trackable RESource (TRES) specification",
                           "Invalid license specification",
                           "Invalid cluster name",
                           "Invalid --nodes specification",
                           "Invalid numeric value \"x\"",
                           "Invalid node name specified",
                           "Node count specification invalid",
                           "CPU count per node can not be satisfied",
                           "More processors requested than permitted",
                           "Access/permission denied",
                           "Access denied to requested resource",
                           "Task limit: too many tasks",
                           "Pathname of a file, directory or other parameter too long",
                           "This does not look like a batch script",
                           "Batch script contains DOS line breaks",
                           "Batch script is empty!",
                           "No partition specified or system default partition",
                           "Requested GRES option unsupported by configured SelectType plugin",
                           "Account is missing or invalid",
                           "The job size specification is wrong"})
    EXPECT_EQ(failed(text), Kind::kRejected) << text;
  EXPECT_EQ(kind_of(255, "", "sbatch: unrecognized option '--foo'\n"), Kind::kRejected);
  // A login node without room for another process, or without the file system of Slurm's programs.
  EXPECT_EQ(kind_of(127, "", "sh: sbatch: not found\n"), Kind::kUnknown);
  EXPECT_EQ(kind_of(126, "", "sh: sbatch: Permission denied\n"), Kind::kUnknown);
  EXPECT_EQ(kind_of(137, ""), Kind::kUnknown);
}

TEST(ReadSubmission, KeepsSlurmsMessageOnOnePrintableLine) {
  const Submission submission = read_submission(
      {1, "", "sbatch: error: a\x1b[2J\nsbatch: error: b\n" + std::string(1 << 20, 'x')});
  EXPECT_EQ(submission.text.find('\n'), std::string::npos);
  EXPECT_EQ(submission.text.find('\x1b'), std::string::npos);
  EXPECT_LT(submission.text.size(), 3000u);
  EXPECT_EQ(read_submission({9, "", ""}).text, "no answer, exit status 9");
}

// SLURM_TIME_FORMAT=%s squeue --me --states=all of a testbed with a job in every state below.
constexpr const char* kQueue = R"(1795259546
16|canc|CANCELLED|1795259542|1:00:00|/scratch/me|fac1c1|None
15|good|COMPLETED|1795259541|59:59|/scratch/me|fac1c1|None
14|bad|FAILED|1795259541|1:00:00|/scratch/me|fac1c1|NonZeroExitCode
11|duplicate|PENDING|N/A|1:00:00|/scratch/me||Dependency
17|depn|PENDING|N/A|1:00:00|/scratch/me||DependencyNeverSatisfied
18|long|PENDING|N/A|4-03:00:00|/scratch/me||PartitionTimeLimit
19|begin|PENDING|1795263142|1:00:00|/scratch/me||BeginTime
12|held|PENDING|N/A|1:00:00|/scratch/me||JobHeldUser
9|xffl-p-0001-r0001-a-a1|RUNNING|1795259481|8:55|/scratch/link|fac1c1|None
20|tl|RUNNING|1795259542|0:56|/scratch/me|fac1c1|None
31|refused|FAILED|1795259541|1:00:00|/scratch/me||BadConstraints
xffl-end
)";

TEST(ReadQueue, ParsesEveryStateOfARealController) {
  const auto rows = read_queue(kQueue);
  ASSERT_TRUE(rows);
  std::map<std::string, QueueRow> by_name;
  for (const QueueRow& row : *rows) by_name[row.name] = row;
  ASSERT_EQ(by_name.size(), 11u);
  EXPECT_TRUE(by_name["bad"].had_nodes);
  EXPECT_FALSE(by_name["refused"].had_nodes);
  EXPECT_EQ(by_name["canc"].status.state, JobState::kCancelled);
  EXPECT_EQ(by_name["good"].status.state, JobState::kEnded);
  EXPECT_EQ(by_name["good"].status.reason, "");
  EXPECT_EQ(by_name["bad"].status.state, JobState::kEnded);
  EXPECT_EQ(by_name["bad"].status.reason, "NonZeroExitCode");
  EXPECT_EQ(by_name["duplicate"].status.state, JobState::kPending);
  EXPECT_EQ(by_name["duplicate"].status.starts_in, std::nullopt);
  for (const char* held : {"depn", "long", "held"})
    EXPECT_EQ(by_name[held].status.state, JobState::kHeld) << held;
  EXPECT_EQ(by_name["held"].status.reason, "JobHeldUser");
  EXPECT_EQ(by_name["begin"].status.starts_in, seconds(1795263142 - 1795259546));
  const QueueRow& running = by_name["xffl-p-0001-r0001-a-a1"];
  EXPECT_EQ(running.status.state, JobState::kRunning);
  EXPECT_EQ(running.status.ends_in, seconds(8 * 60 + 55));
  EXPECT_EQ(running.id, "9");
  EXPECT_EQ(running.folder, "/scratch/link");
}

TEST(ReadQueue, RejectsAnIncompleteAnswer) {
  const std::string whole = kQueue;
  for (size_t size = 0; size < whole.size(); ++size)
    ASSERT_EQ(read_queue(whole.substr(0, size)), std::nullopt) << size;
  EXPECT_EQ(read_queue("xffl-end\n"), std::nullopt);  // no clock
  EXPECT_EQ(read_queue("welcome\n1795259546\nxffl-end\n"), std::nullopt);
  EXPECT_EQ(read_queue("1795259546\nxffl-end\nmore\n"), std::nullopt);
  EXPECT_EQ(read_queue("1795259546\nxffl-end\n")->size(), 0u);
}

TEST(ReadQueue, RejectsAnswersOfManyRows) {
  const auto answer = [](int rows) {
    std::string text = "1784000000\n";
    for (int i = 1; i <= rows; ++i)
      text += std::to_string(i) + "|job|RUNNING|0|1:00:00|/folder|node1|None\n";
    return text + "xffl-end\n";
  };
  EXPECT_EQ(read_queue(answer(5000)).value().size(), 5000u);
  EXPECT_FALSE(read_queue(answer(20'000)));
}

// A wrapper that prints a note in place of the rows, and a caching one that prints half of a row.
TEST(ReadQueue, ALineThatIsNoRowLeavesNoAnswer) {
  const std::string row = "6|name|RUNNING|1|1:00|/x|n1|None\n";
  for (const char* line :
       {"Slurm is in maintenance until 18:00\n", "no jobs\n", "xffl-end\n", "cluster: leonardo\n",
        "5|name|RUNNING|1|1:00|/x|n1\n",       // a field short
        "x|name|RUNNING|1|1:00|/x|n1|None\n",  // no id
        "-5|name|RUNNING|1|1:00|/x|n1|None\n",
        "123456789012345678901|n|RUNNING|1|1:00|/x|n1|None\n", "|||||||\n"}) {
    EXPECT_FALSE(read_queue("100\n" + std::string(line) + "xffl-end\n")) << line;
    EXPECT_FALSE(read_queue("100\n" + row + line + "xffl-end\n")) << line;
    EXPECT_FALSE(read_queue("100\n" + std::string(line) + row + "xffl-end\n")) << line;
  }
}

TEST(ReadQueue, SkipsTheHeadingsOfClusters) {
  const auto rows = read_queue(
      "100\n"
      "CLUSTER: leonardo\n"
      "6|name|RUNNING|1|1:00|/x|n1|None\n"
      "\n"
      "CLUSTER: booster\n"
      "xffl-end\n");
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows->size(), 1u);
  EXPECT_EQ(rows->front().id, "6");
}

TEST(ReadQueue, TrustsNoField) {
  const auto rows = read_queue(
      "100\n"
      "6|na|me|RUNNING|1|1:00|/x|n1|None\n"  // a bar in a name shifts the fields
      "7|name|RUNNING|9999999999999999999999|99999999:99:99|/x|n1|a|b\x1b[2J\n"
      "8|name|PENDING|-4|-1:00|/x|n1|None\n"
      "9|name|FLYING|1|1:00|/x|n1|None\n"
      "xffl-end\n");
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows->size(), 4u);
  EXPECT_EQ(rows->at(0).name, "na");
  EXPECT_EQ(rows->at(0).status.state, JobState::kUnknown);
  EXPECT_EQ(rows->at(1).status.state, JobState::kRunning);
  EXPECT_EQ(rows->at(1).status.ends_in, std::nullopt);
  EXPECT_EQ(rows->at(1).status.reason.find('\x1b'), std::string::npos);
  EXPECT_EQ(rows->at(2).status.starts_in, std::nullopt);
  EXPECT_EQ(rows->at(3).status.state, JobState::kUnknown);
  EXPECT_EQ(rows->at(3).status.native, "FLYING");
}

TEST(ReadAccounting, ReportsEndedJobsOnly) {
  const auto rows = read_accounting(
      "10|duplicate|CANCELLED by 3001|n1|/scratch/me\n"
      "11|duplicate|RUNNING|n1|/scratch/me\n"
      "12|duplicate|TIMEOUT|n1|/scratch/me\n"
      "12.batch|batch|COMPLETED|n1|\n"
      "13|duplicate|COMPLETED|n1|/scratch/me\n"
      "xffl-end\n");
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows->size(), 4u);
  EXPECT_EQ(rows->at(0).status.state, JobState::kCancelled);
  EXPECT_EQ(rows->at(0).status.native, "CANCELLED by 3001");
  EXPECT_EQ(rows->at(1).status.state, JobState::kUnknown);
  EXPECT_EQ(rows->at(2).status.cause, EndCause::kWalltime);
  EXPECT_EQ(rows->at(3).status.state, JobState::kEnded);
  EXPECT_EQ(read_accounting(""), std::nullopt);
  EXPECT_EQ(read_accounting("Slurm accounting storage is disabled\n"), std::nullopt);
  EXPECT_EQ(read_accounting("xffl-end\n")->size(), 0u);
}

TEST(ReadState, MapsSlurmStatesAndPendingReasons) {
  const auto state = [](const char* name, const char* reason = "None") {
    return read_state(name, reason).state;
  };
  for (const char* name : {"PENDING", "CONFIGURING", "POWER_UP_NODE", "REQUEUED", "REQUEUE_FED"})
    EXPECT_EQ(state(name), JobState::kPending) << name;
  // SIGNALING: while the job gets the warning before its walltime.
  for (const char* name : {"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED",
                           "SUSPENDED", "UPDATE_DB"})
    EXPECT_EQ(state(name), JobState::kRunning) << name;
  EXPECT_TRUE(read_state("COMPLETING", "None").is_ending);
  for (const char* name : {"RUNNING", "SUSPENDED", "COMPLETED"})
    EXPECT_FALSE(read_state(name, "None").is_ending) << name;
  for (const char* name : {"REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
    EXPECT_EQ(state(name), JobState::kHeld) << name;
  for (const char* name :
       {"NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "LAUNCH_FAILED", "RECONFIG_FAIL"}) {
    EXPECT_EQ(state(name), JobState::kEnded) << name;
    EXPECT_EQ(read_state(name, "None").cause, EndCause::kInfrastructure) << name;
  }
  for (const char* name : {"COMPLETED", "FAILED", "DEADLINE", "TIMEOUT", "OUT_OF_MEMORY"})
    EXPECT_EQ(state(name), JobState::kEnded) << name;
  for (const char* reason : {"launch failed requeued held", "launch_failed_requeued_held"}) {
    EXPECT_EQ(state("PENDING", reason), JobState::kEnded) << reason;
    EXPECT_EQ(read_state("PENDING", reason).cause, EndCause::kInfrastructure) << reason;
    EXPECT_TRUE(read_state("PENDING", reason).stays_queued) << reason;
  }
  EXPECT_EQ(read_state("OUT_OF_MEMORY", "OutOfMemory").cause, EndCause::kOutOfMemory);
  EXPECT_EQ(read_state("TIMEOUT", "TimeLimit").cause, EndCause::kWalltime);
  for (const char* name : {"", "running", "RUNNINGS", "REVOKED", "?"})
    EXPECT_EQ(state(name), JobState::kUnknown) << name;
  for (const char* reason :
       {"Priority", "Resources", "Dependency", "BeginTime", "ReqNodeNotAvail, UnavailableNodes:n1",
        "QOSMaxJobsPerUserLimit", "AssocGrpGRES", "Reservation", "PartitionDown", "NodeDown",
        "QOSGrpNodeLimit", "AssocGrpNodeLimit"})
    EXPECT_EQ(state("PENDING", reason), JobState::kPending) << reason;
  for (const char* reason :
       {"JobHeldAdmin", "AssocGrpCPUMinutesLimit", "QOSMaxWallDurationPerJobLimit",
        "PartitionNodeLimit", "user env retrieval failed requeued held", "BadConstraints",
        "JobHoldMaxRequeue", "InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed",
        "ReservationDeleted", "PartitionConfig"})
    EXPECT_EQ(state("PENDING", reason), JobState::kHeld) << reason;
  for (const char* reason :
       {"QOSMaxNodePerJobLimit", "QOSMaxCpuPerJobLimit", "AssocMaxGRESPerJob", "QOSMaxCpuPerNode",
        "QOSMinCpuNotSatisfied", "QOSMinGRES", "QOSMinMemory", "QOSMinNode",
        "AssocMaxCpuMinutesPerJobLimit", "AssocGrpBillingMinutes", "AssocGrpGRESMinutes"})
    EXPECT_EQ(state("PENDING", reason), JobState::kHeld) << reason;
}

TEST(ReadTimeLeft, ParsesSqueueDurations) {
  EXPECT_EQ(read_time_left("4-03:00:00"), seconds(((4 * 24 + 3) * 60) * 60));
  EXPECT_EQ(read_time_left("1-00:00:05"), seconds(86405));
  EXPECT_EQ(read_time_left("1:00:00"), seconds(3600));
  EXPECT_EQ(read_time_left("0:56"), seconds(56));
  for (const char* none : {"", "UNLIMITED", "NOT_SET", "INVALID", "N/A", "56", "1:2:3:4", "a:b",
                           "-1:00", "1-", "99999999-00:00:00", ":", "0:-5"})
    EXPECT_EQ(read_time_left(none), std::nullopt) << none;
}

TEST(ReadLongestWalltime, TakesTheNamedPartitionsOrTheDefault) {
  const std::string text = "main* 2:00:00\nlong 2-00:00:00\ndebug 30:00\nfree infinite\n";
  EXPECT_EQ(read_longest_walltime(text, ""), seconds(7200));
  EXPECT_EQ(read_longest_walltime(text, "long"), seconds(2 * 86400));
  EXPECT_EQ(read_longest_walltime(text, "debug,main"), seconds(7200));
  EXPECT_EQ(read_longest_walltime(text, "debug,free"), std::nullopt);
  EXPECT_EQ(read_longest_walltime(text, "gone"), std::nullopt);
}

TEST(ReadStarts, ReadsEveryStartOfAJob) {
  const auto starts = read_starts(
      "7|job|NODE_FAIL|1000|1100|2|0|billing=8,cpu=8,node=2\n"
      "7|job|COMPLETED|1200|1300|2|90000|cpu=8,node=2,billing=12\n"
      "8|job|RUNNING|1200|Unknown|1||cpu=8\n"
      "9|job|CANCELLED by 1000|None|1300|0||\n"
      "7.batch|batch|COMPLETED|1200|1300|2||\n"
      "xffl-end\n");
  ASSERT_TRUE(starts);
  ASSERT_EQ(starts->size(), 3u) << "no start, no job";
  const AccountedStart& failed = (*starts)[0].start;
  EXPECT_EQ(failed.state, "NODE_FAIL");
  EXPECT_EQ(failed.start, 1000);
  EXPECT_EQ(failed.end, 1100);
  EXPECT_EQ(failed.nodes, 2);
  EXPECT_FALSE(failed.energy_joules) << "no sensor";
  EXPECT_EQ(failed.billing, 8);
  EXPECT_EQ((*starts)[1].start.energy_joules, 90000);
  EXPECT_EQ((*starts)[1].start.billing, 12);
  EXPECT_FALSE((*starts)[2].start.end);
  EXPECT_FALSE((*starts)[2].start.billing);
}

TEST(ReadStarts, TrustsNoNumber) {
  const auto one = [](const std::string& row) {
    const auto starts = read_starts(row + "\nxffl-end\n");
    return starts && starts->size() == 1 ? std::optional(starts->front().start) : std::nullopt;
  };
  EXPECT_FALSE(read_starts("7|job|COMPLETED|1000|1100|2|0|\n")) << "incomplete";
  EXPECT_FALSE(one("7|job|COMPLETED|-5|1100|2|0|"));
  EXPECT_FALSE(one("7|job|COMPLETED|1000|1100|0|0|"));
  EXPECT_FALSE(one("7|job|COMPLETED|1000|1100|99999999|0|"));
  EXPECT_FALSE(one("7|job|COMPLETED|1000|1100|2"));
  EXPECT_FALSE(one("7|job|COMPLETED|2026-11-25T05:48:59|2026-11-25T05:49:26|2|0|"))
      << "SLURM_TIME_FORMAT has no effect";
  EXPECT_FALSE(one("7|job|COMPLETED|1000|900|2|0|")->end) << "it ends before it starts";
  EXPECT_FALSE(one("7|job|COMPLETED|1000|1100|2|18446744073709551614|")->energy_joules);
  EXPECT_FALSE(one("7|job|COMPLETED|1000|1100|2|20000001|")->energy_joules) << "over 100 kW a node";
  EXPECT_FALSE(one("7|job|COMPLETED|1000|1100|2|0|billing=x,billings=3")->billing);
}

}  // namespace
}  // namespace xffl::submit
