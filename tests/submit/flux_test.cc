// Flux's commands and answers, from the documented formats; no answer was recorded at a real site.
#include "xffl/submit/flux.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "flux_commands.h"
#include "support/fake_queues.h"
#include "support/thrown.h"
#include "xffl/submit/queue_manager.h"

namespace xffl::submit {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

const std::string kName = "xffl-demo-0001-r0001-alba-a1";
const FluxCommands kCommands{FluxSettings{}};

std::string answer_of(const std::string& lines) { return "1795585768\n" + lines + "xffl-end\n"; }
/// `fields`: state, result, return code, urgency, remaining time and exception.
JobStatus status_of(const std::string& fields) {
  const auto rows =
      kCommands.read_queue(answer_of("11435875434497|" + fields + "|" + kName + "\n"));
  EXPECT_TRUE(rows && rows->size() == 1) << fields;
  return rows && rows->size() == 1 ? rows->front().status : JobStatus();
}

TEST(FluxOptions, AreOneDirectiveEach) {
  FluxSettings settings;
  settings.queue = "pbatch";
  settings.bank = "b1";
  settings.constraints = {"mi300a", "himem"};
  settings.nodes = 2;
  EXPECT_THAT(
      flux_options(settings, kName, RemotePath("/s/a1")),
      testing::ElementsAre("--job-name=" + kName, "--cwd=/s/a1", "--output=/s/a1/job.out",
                           "--queue=pbatch", "--bank=b1", "--requires=mi300a", "--requires=himem",
                           "--nodes=2", "--exclusive", "--time-limit=3600s"));
  for (const char* hostile : {"-x", "a b", "a'b", "$(id)", "a\nb"}) {
    settings.bank = hostile;
    EXPECT_EQ(test::thrown_by([&] { flux_options(settings, kName, RemotePath("/s")); }).kind,
              ErrorKind::kConfig)
        << hostile;
  }
}

TEST(FluxAnswers, StatesAreRead) {
  EXPECT_EQ(status_of("DEPEND|-|-|16|-|-").state, JobState::kPending);
  EXPECT_EQ(status_of("PRIORITY|-|-|16|-|-").state, JobState::kPending);
  EXPECT_EQ(status_of("SCHED|-|-|16|-|-").state, JobState::kPending);
  EXPECT_EQ(status_of("SCHED|-|-|0|-|-").state, JobState::kHeld);
  EXPECT_EQ(status_of("RUN|-|-|16|3590.5|-").state, JobState::kRunning);
  EXPECT_EQ(status_of("RUN|-|-|16|3590.5|-").ends_in, std::chrono::seconds(3590));
  EXPECT_EQ(status_of("RUN|-|-|16|inf|-").ends_in, std::nullopt);
  EXPECT_TRUE(status_of("CLEANUP|-|-|16|-|-").is_ending);
  EXPECT_FALSE(status_of("RUN|-|-|16|3590.5|-").is_ending);
  EXPECT_EQ(status_of("INACTIVE|COMPLETED|0|16|-|-").state, JobState::kEnded);
  for (const char* ended : {"FAILED|1|16|-|-", "FAILED|1|16|-|exec", "TIMEOUT|142|16|-|timeout"})
    EXPECT_EQ(status_of("INACTIVE|" + std::string(ended)).state, JobState::kEnded) << ended;
  EXPECT_EQ(status_of("INACTIVE|FAILED|1|16|-|-").cause, EndCause::kOrdinary);
  EXPECT_EQ(status_of("INACTIVE|FAILED|1|16|-|exec").cause, EndCause::kInfrastructure);
  EXPECT_EQ(status_of("INACTIVE|FAILED|1|16|-|node-failure").cause, EndCause::kInfrastructure);
  EXPECT_EQ(status_of("INACTIVE|FAILED|1|16|-|prolog").cause, EndCause::kInfrastructure);
  EXPECT_EQ(status_of("INACTIVE|TIMEOUT|142|16|-|timeout").cause, EndCause::kWalltime);
  EXPECT_EQ(status_of("INACTIVE|CANCELED|-128|16|-|cancel").state, JobState::kCancelled);
  for (const char* unknown : {"INACTIVE|-|-|16|-|-", "LATER|-|-|16|-|-", "|||||"})
    EXPECT_EQ(status_of(unknown).state, JobState::kUnknown) << unknown;
}

TEST(FluxAnswers, IncompleteOnesAreNoAnswer) {
  const std::string whole = answer_of("12|RUN|-|-|16|5.0|-|" + kName + "\n");
  for (size_t size = 0; size + 1 < whole.size(); ++size)
    EXPECT_EQ(kCommands.read_queue(whole.substr(0, size)), std::nullopt) << size;
  EXPECT_EQ(kCommands.read_queue("now\nxffl-end\n"), std::nullopt);
  EXPECT_THAT(kCommands.read_queue(answer_of("")).value(), IsEmpty());
}

TEST(FluxAnswers, HostileLinesAreSkipped) {
  const auto rows = kCommands.read_queue(
      answer_of("12|RUN|-|-|16|5.0|-|" + kName + "\n|\n-1|RUN|-|-|16|5.0|-|" + kName +
                "\nf2oLk|RUN|-|-|16|5.0|-|" + kName + "\n13|RUN|-|-|16|5.0|-|x; rm -rf /\n" +
                std::string(100000, '9') + "|RUN|-|-|16|5.0|-|" + kName + "\n14|RUN\n"));
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows->size(), 1u);
  EXPECT_EQ(rows->front().id, "12");
}

TEST(FluxAnswers, ASubmissionIsAcceptedForABareIdOnly) {
  const auto kind = [](int code, const std::string& out, const std::string& err = "") {
    return kCommands.read_submission({code, out, err}).kind;
  };
  using enum Submission::Kind;
  EXPECT_EQ(kind(0, "11435875434497\n"), kAccepted);
  EXPECT_EQ(kind(0, "18446744073709551615\n"), kAccepted) << "the highest 64-bit id";
  for (const char* out : {"", "f2oLkTLb\n", "1\n2\n", "0"})
    EXPECT_EQ(kind(0, out), kUnknown) << out;
  EXPECT_EQ(kind(1, "11435875434497\n"), kUnknown) << "printed, then failed";
  EXPECT_EQ(kind(1, "12\n", "logger: unrecognized arguments: --job\n"), kUnknown);
  EXPECT_EQ(kind(1, "logged\n12\n", "logger: Connection refused\n"), kUnknown);
  EXPECT_EQ(kind(1, "", "flux-batch: ERROR: [Errno 22] Invalid queue 'x' specified\n"), kRejected);
  EXPECT_EQ(kind(1, "", "flux-batch: ERROR: unsatisfiable request\n"), kRejected);
  EXPECT_EQ(kind(1, "", "flux-batch: ERROR: Unable to connect to Flux: broker not running?\n"),
            kDeferred);
  // The login node cannot start the program.
  EXPECT_EQ(kind(127, "", "flux: `job' is not a flux command"), kUnknown);
  EXPECT_EQ(kind(1, "", "something new"), kUnknown);
}

TEST(FluxAnswers, ACancelledJobMayHaveEnded) {
  EXPECT_TRUE(kCommands.is_cancelled({0, "", ""}));
  EXPECT_TRUE(kCommands.is_cancelled({1, "", "flux-cancel: 12: job is inactive\n"}));
  EXPECT_FALSE(kCommands.is_cancelled({1, "", "flux-cancel: 12: Operation not permitted\n"}));
}

TEST(FluxCommandsRun, ARejectionNamesTheMessage) {
  const test::FakeQueues queues;
  SystemClock clock;
  FluxSettings settings;
  settings.queue = "nowhere";
  const auto scheduler = make_flux_scheduler(settings, remote::make_local_session(), clock);
  const JobRequest request{kName, "true\n", RemotePath(queues.folder().string())};
  const auto rejected = test::thrown_by([&] { scheduler->submit(request, {}); });
  EXPECT_EQ(rejected.kind, ErrorKind::kConfig);
  EXPECT_THAT(rejected.message, HasSubstr("Invalid queue 'nowhere'"));
  EXPECT_THAT(scheduler->find(request, {}), IsEmpty());
}

// A site's wrapper of flux that fails after the submission, and a flux that cannot convert the id.
TEST(FluxCommandsRun, AJobMayExistAfterAnIdAndAFailure) {
  const test::FakeQueues queues;
  SystemClock clock;
  const auto scheduler = make_flux_scheduler(FluxSettings{}, remote::make_local_session(), clock);
  const JobRequest request{kName, "true\n", RemotePath(queues.folder().string())};
  const auto submit_with = [&](const std::string& batch_end, const std::string& conversion) {
    const std::filesystem::path flux = queues.folder() / "bin" / "flux";
    std::filesystem::remove(flux);
    std::ofstream(flux) << "#!/bin/sh\n"
                        << "if [ \"$1\" = batch ]; then cat >/dev/null; echo f2oLk; " << batch_end
                        << "; else " << conversion << "; fi\n";
    std::filesystem::permissions(flux, std::filesystem::perms::owner_all);
    return test::thrown_by([&] { scheduler->submit(request, {}); });
  };
  const auto failed = submit_with("echo unrecognized arguments >&2; exit 1", "echo 12");
  EXPECT_EQ(failed.kind, ErrorKind::kRemote);
  EXPECT_THAT(failed.message, HasSubstr("12"));
  const auto not_converted = submit_with("exit 0", "echo invalid argument >&2; exit 1");
  EXPECT_EQ(not_converted.kind, ErrorKind::kRemote);
  EXPECT_THAT(not_converted.message, HasSubstr("f2oLk"));
}

// The command of an instance that is down prints no job.
TEST(FluxCommandsRun, AnInstanceThatDoesNotAnswerEndsNoJob) {
  const test::FakeQueues queues;
  SystemClock clock;
  const auto scheduler = make_flux_scheduler(FluxSettings{}, remote::make_local_session(), clock);
  const std::filesystem::path flux = queues.folder() / "bin" / "flux";
  std::filesystem::remove(flux);
  std::ofstream(flux) << "#!/bin/sh\necho 'Unable to connect to Flux' >&2\nexit 1\n";
  std::filesystem::permissions(flux, std::filesystem::perms::owner_all);
  const SubmittedJob job{JobId("12"), kName};
  EXPECT_EQ(test::kind_of([&] { scheduler->query(std::span(&job, 1), {}); }), ErrorKind::kRemote);
}

TEST(FluxRow, SaysThatItHasNotRunOnARealSite) {
  EXPECT_THAT(std::string(flux_queue_manager().caution), HasSubstr("has not run on a real site"));
}

}  // namespace
}  // namespace xffl::submit
