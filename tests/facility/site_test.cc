#include "site.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "fake_services.h"
#include "support/await.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "support/tiny_model.h"
#include "xffl/base/file.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/remote/stop_scope.h"
#include "xffl/tokens/prepared.h"

namespace xffl::facility {
namespace {

// One facility of a round, in memory.
struct SiteInMemory {
  SiteInMemory() {
    make_dirs(folder.path());
    experiment.facilities.emplace_back();
    alba.facility = experiment.facilities.front().name = FacilityName("alba");
    alba.round_folder = RemotePath("/w/r0001");
  }

  const test::TempDir dir;
  const history::RunFolder folder{dir.path(), RunName("0001")};
  config::Experiment experiment;
  plan::RoundPlan round{};
  plan::FacilityPlan alba;
  const Observer none;
  test::FakeServices fake;
};

struct OpenSite : SiteInMemory {
  history::RunHistory history{folder.journal()};
  history::StatusFile live{folder.live(), fake.clock};
  Context context{experiment, folder, fake.services, none, history, live, {}};
  Site site{context, round, alba};
};

// With LoRA: the model under the adapter, which a copy can replace.
struct AdaptedSite : OpenSite {
  AdaptedSite() {
    test::write_tiny_model(whole, test::kTinyRows, [](size_t) { return 1.0f; });
    sha256 = checkpoint::write_manifest(whole).root_sha256();
    make_dirs(adapted.parent_path());
    std::filesystem::copy(whole, adapted);
    history.record({}, history::ModelImported{sha256, sha256, sha256});
    context.models.make_first = [this](const std::filesystem::path& made) {
      std::filesystem::copy(whole, made / "adapted");
    };
  }

  const std::filesystem::path whole = dir / "whole", adapted = folder.adapted();
  std::string sha256;
};

// A link without progress is an outage, although each try finds the bytes of the try before.
TEST(Site, BytesOfEarlierTriesAreGainedOnce) {
  OpenSite open;
  Site& site = open.site;
  const auto gained = [&](uint64_t in_place) {
    site.gained_bytes = 0;
    site.progress("pushing", RemotePath("/w/model"))({.done_bytes = in_place, .total_bytes = 100});
    return site.gained_bytes;
  };
  EXPECT_EQ(gained(0), 0u);
  EXPECT_EQ(gained(60), 60u) << "the first try has moved them";
  EXPECT_EQ(gained(60), 0u) << "the second try has moved nothing";
  EXPECT_EQ(gained(100), 40u);
}

// The progress of a try passes the bytes of earlier tries step by step.
TEST(Site, BytesInPlaceAreNoProgressOfALaterTry) {
  OpenSite open;
  Site& site = open.site;
  const auto gained = [&](const std::vector<uint64_t>& in_place) {
    site.gained_bytes = 0;
    const auto progress = site.progress("pushing", RemotePath("/w/model"));
    for (const uint64_t there : in_place) progress({.done_bytes = there, .total_bytes = 100});
    return site.gained_bytes;
  };
  EXPECT_EQ(gained({20, 60}), 60u);
  EXPECT_EQ(gained({20, 60}), 0u) << "a link that moves nothing is down";
  EXPECT_EQ(gained({20, 60, 100}), 40u);
}

// With LoRA a push sends the adapter and the model under it, to folders beside each other.
TEST(Site, EachFolderHasItsOwnBytesInPlace) {
  OpenSite open;
  Site& site = open.site;
  const auto gained = [&](const std::string& folder, uint64_t in_place) {
    site.gained_bytes = 0;
    site.progress("pushing", RemotePath(folder))({.done_bytes = in_place, .total_bytes = 100});
    return site.gained_bytes;
  };
  EXPECT_EQ(gained("/w/models/adapter", 60), 60u);
  EXPECT_EQ(gained("/w/models/model", 40), 40u) << "the link makes progress: it is no outage";
}

// Another kind of error would end the run of all facilities.
TEST(Site, ADamagedListOfPreparedTextIsTroubleOfItsFacility) {
  OpenSite open;
  open.experiment.facilities.front().prepared = RemotePath("/w/text");
  for (const char* json : {"{", "{\"version\": 99}", ""}) {
    open.fake.session->put("/w/text/prepared.json", json);
    EXPECT_EQ(test::kind_of([&] { ModelPush(open.site).push(1, {}); }), ErrorKind::kRemote) << json;
  }
}

// The operator may prepare the folder of xffl.yaml for another run.
TEST(Site, PreparedTextIsComparedWithTheRunsOwnModel) {
  OpenSite open;
  open.experiment.facilities.front().prepared = RemotePath("/w/text");
  open.experiment.model = open.dir / "model";
  const auto write_tokenizer = [&](const std::filesystem::path& model, const char* text) {
    make_dirs(model);
    write_file_atomic(model / "tokenizer.json", text);
    return tokens::tokenizer_hash(model);
  };
  write_tokenizer(open.folder.global(0), "{}");
  const std::string other = write_tokenizer(open.experiment.model, "{\"other\": 1}");
  const auto prepare = [&](const std::string& tokenizer) {
    tokens::Prepared prepared;
    prepared.tokenizer_sha256 = tokenizer;
    prepared.text_sha256 = prepared.training.sha256 = std::string(64, 'a');
    open.fake.session->put("/w/text/prepared.json", tokens::format_prepared(prepared));
    open.fake.session->put("/w/text/train.tokens", "x");
  };
  const auto problem = [&] {
    return test::message_of(ErrorKind::kRemote, [&] { ModelPush(open.site).push(1, {}); });
  };
  prepare(other);
  const std::string other_model = open.experiment.model.string();
  EXPECT_THAT(problem(),
              testing::AllOf(testing::HasSubstr("another tokenizer"),
                             testing::HasSubstr("the tokenizer files in " + other_model + " are")));
  write_tokenizer(open.experiment.model, "{}");
  EXPECT_THAT(problem(), testing::Not(testing::HasSubstr(other_model)));
}

// Damages a model of this machine whenever a push looks at the facility's folder `looked_at`.
struct DamagingSession final : test::FakeSession {
  DamagingSession(RemotePath folder, std::filesystem::path model)
      : looked_at(std::move(folder)), damaged(std::move(model)) {}
  std::optional<FileInfo> stat(const RemotePath& path) override {
    if (path.parent() == looked_at) write_file_atomic(damaged, "damaged");
    return FakeSession::stat(path);
  }
  const RemotePath looked_at;
  const std::filesystem::path damaged;
};

// Another kind of error would end the run of all facilities.
TEST(Site, ADiskThatFailsNowAndThenIsTroubleOfItsPush) {
  AdaptedSite open;
  std::filesystem::copy(open.whole, open.folder.global(0));
  open.round.base_sha256 = open.round.adapted_sha256 = open.sha256;
  open.alba.folder = RemotePath("/w");
  open.alba.model_folder = RemotePath("/w/models/adapter");
  open.alba.adapted_folder = RemotePath("/w/models/model");
  open.fake.session = std::make_shared<DamagingSession>(open.alba.adapted_folder,
                                                        open.adapted / "model.safetensors");
  Site site(open.context, open.round, open.alba);
  EXPECT_THAT(test::message_of(ErrorKind::kIo, [&] { ModelPush(site).push(1, {}); }),
              testing::HasSubstr("model.safetensors differs from its manifest"));
}

// Each start of a requeued job has a heartbeat file of its own, and each attempt a folder.
TEST(Site, KilledStartsEndWithTheirOwnHeartbeats) {
  OpenSite open;
  const std::string claim = "/w/r0001/a2/claim/";
  open.fake.session->put(claim + "times",
                         "start 100 job=7 beat=aa\nstart 200 job=7 restart=1 beat=bb\n"
                         "start 300 job=7 restart=2 beat=cc\nstart 400 job=7 restart=3 beat=dd\n"
                         "end 450\n");
  open.fake.session->put(claim + "beat-aa", "150\n");
  open.fake.session->put(claim + "beat-bb", "250\n");
  open.fake.session->put(claim + "beat-cc", "35");  // torn
  open.fake.session->put(claim + "beat-dd", "445\n");
  JobTraces traces(open.site);
  const auto usage = traces.usage(2);
  ASSERT_TRUE(usage);
  std::vector<std::optional<int64_t>> beats;
  for (const job::JobStart& start : usage->starts) beats.push_back(start.last_beat);
  EXPECT_EQ(beats, (std::vector<std::optional<int64_t>>{150, 250, {}, {}}));
}

// The journal would reject such a time, and with it every later start of the run.
TEST(Site, AHeartbeatInTheDistantFutureIsNone) {
  OpenSite open;
  const std::string claim = "/w/r0001/a2/claim/";
  open.fake.session->put(claim + "times", "start 100 job=7 beat=aa\nstart 200 job=7 beat=bb\n");
  open.fake.session->put(claim + "beat-aa", "100000000000\n");
  open.fake.session->put(claim + "beat-bb", "100000000001\n");
  const auto usage = JobTraces(open.site).usage(2);
  ASSERT_TRUE(usage);
  EXPECT_EQ(usage->starts.at(0).last_beat, 100'000'000'000);
  EXPECT_EQ(usage->starts.at(1).last_beat, std::nullopt);
  EXPECT_EQ(job::parse_job_usage(job::format_job_usage(*usage), "journal"), *usage);
}

TEST(Site, AClockThatIsThousandsOfYearsAwayIsNotRecorded) {
  OpenSite open;
  open.fake.session->put("/w/r0001/a2/claim/times", "start 100 job=7\n");
  for (const double sign : {-1.0, 1.0}) {
    open.fake.cluster.clock = submit::ClockOffset{.offset = sign * 1e11, .error = 1};
    EXPECT_EQ(JobTraces(open.site).usage(2)->clock_offset, sign * 1e11);
    open.fake.cluster.clock->offset = sign * 1.1e11;
    const auto usage = JobTraces(open.site).usage(2);
    ASSERT_TRUE(usage);
    EXPECT_EQ(usage->clock_offset, std::nullopt);
    EXPECT_EQ(usage->starts.size(), 1u);
  }
}

// Calls `before` ahead of each look at a file.
struct WatchedSession final : test::FakeSession {
  explicit WatchedSession(std::function<void()> call) : before(std::move(call)) {}
  std::optional<FileInfo> stat(const RemotePath& path) override {
    before();
    return FakeSession::stat(path);
  }
  const std::function<void()> before;
};

// The first round's accepted update of alba: damaged on this machine, and gone at the facility.
struct DamagedUpdate : OpenSite {
  DamagedUpdate() {
    test::write_tiny_model(folder.global(0), test::kTinyRows, [](size_t) { return 1.0f; });
    const std::string sha256 = checkpoint::write_manifest(folder.global(0)).root_sha256();
    history.record({}, history::ModelImported{sha256, sha256, ""});
    round.base_sha256 = sha256;
    alba.folder = RemotePath("/w");
    test::write_tiny_model(folder.facility(1, alba.facility) / "update", test::kTinyRows,
                           [](size_t) { return 2.0f; });
  }
  std::optional<std::string> restore(std::function<void()> before_stat,
                                     const UpdateFetch::IsOver& is_over) {
    fake.session = std::make_shared<WatchedSession>(std::move(before_stat));
    fake.session->make_dirs(alba.folder);
    Site watched(context, round, alba);
    const history::Accepted accepted{.facility = alba.facility,
                                     .attempt = 1,
                                     .update_sha256 = std::string(64, 'c'),
                                     .report = {}};
    return UpdateFetch(watched).restore(accepted, std::chrono::hours(1), is_over, {});
  }
};

// A cancellation would end the run of all facilities.
TEST(UpdateFetch, AFetchThatTheDeadlineEndsCostsTheUpdateOnly) {
  DamagedUpdate open;
  const auto silent = [] {
    const std::stop_token stop = remote::StopScope::current();
    EXPECT_TRUE(test::await([&] { return stop.stop_requested(); }));
    throw Error(ErrorKind::kCancelled, "stopped while it looked");
  };
  EXPECT_THAT(open.restore(silent, [](auto) { return true; }),
              testing::Optional(testing::HasSubstr("before the round's deadline")));
}

// The check of a large update may take the whole time of a check.
TEST(UpdateFetch, AFetchAfterALongCheckHasItsOwnTime) {
  DamagedUpdate open;
  std::optional<std::chrono::steady_clock::time_point> of_check;
  const auto is_over = [&](std::chrono::steady_clock::time_point began) {
    if (!of_check) of_check = began;
    return began == *of_check;
  };
  bool has_waited = false;
  const auto wait_once = [&] {
    if (std::exchange(has_waited, true)) return;
    const std::stop_token stop = remote::StopScope::current();
    EXPECT_FALSE(test::await([&] { return stop.stop_requested(); }, std::chrono::seconds(1)));
  };
  EXPECT_THAT(open.restore(wait_once, is_over), testing::Optional(testing::HasSubstr("vanished")));
}

// The job of a folder that the site has removed may have used its whole walltime.
TEST(Site, AJobNeverStartedOnlyIfItsFolderIsThere) {
  OpenSite open;
  EXPECT_FALSE(JobTraces(open.site).usage(2));
  open.fake.session->put("/w/r0001/a2/job.json", "{}");
  const auto usage = JobTraces(open.site).usage(2);
  ASSERT_TRUE(usage);
  EXPECT_TRUE(usage->starts.empty());
}

// An error of this machine may pass. Only a model without a remedy ends the run.
TEST(RunModels, AFullDiskDuringARebuildIsNoLackOfARemedy) {
  OpenSite open;
  RunModels& models = open.context.models;
  const std::string sha256(64, 'a');
  open.history.record({}, history::ModelImported{sha256, sha256, sha256});
  make_dirs(open.folder.adapted());
  write_file_atomic(open.folder.adapted() / "model.safetensors", "damaged");
  const auto restore_with = [&](ErrorKind kind) {
    models.make_first = [kind](const std::filesystem::path&) { throw Error(kind, "text"); };
    return test::kind_of([&] { models.restore_adapted(); });
  };
  for (const ErrorKind kind : {ErrorKind::kIo, ErrorKind::kCancelled, ErrorKind::kBusy})
    EXPECT_EQ(restore_with(kind), kind) << to_string(kind);
  for (const ErrorKind kind : {ErrorKind::kCorrupt, ErrorKind::kNotFound, ErrorKind::kRejected})
    EXPECT_EQ(restore_with(kind), ErrorKind::kCorrupt) << to_string(kind);
}

// A facility that joins later, or whose site has removed its files, gets the whole model.
TEST(RunModels, ADamagedModelUnderTheAdapterIsMadeAgain) {
  AdaptedSite open;
  RunModels& models = open.context.models;
  int reads = 0;
  models.with_adapted([&](const checkpoint::Hashes&) {
    if (++reads > 1) return;
    write_file_atomic(open.adapted / "model.safetensors", "damaged");
    throw Error(ErrorKind::kCorrupt, "a block is damaged");
  });
  EXPECT_EQ(reads, 2);
  EXPECT_EQ(read_file(open.adapted / "model.safetensors", 1 << 20),
            read_file(open.whole / "model.safetensors", 1 << 20));
}

}  // namespace
}  // namespace xffl::facility
