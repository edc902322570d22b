// A coordinator whose run another one takes over ends, and changes nothing more at a facility.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "run_parts.h"
#include "small_federation.h"
#include "support/thrown.h"
#include "xffl/checkpoint/block_hashes.h"
#include "xffl/history/run_history.h"

namespace xffl::run {
namespace {

namespace fs = std::filesystem;
using std::chrono::hours;

// A session of this machine that calls `on_remove` before each removal, `on_free_bytes` before each
// answer about the free space, and `on_stat` before each look at a file.
class WatchedSession final : public remote::Session {
 public:
  explicit WatchedSession(
      std::function<void(const RemotePath&)> on_remove, std::function<void()> on_free_bytes = [] {},
      std::function<void(const RemotePath&)> on_stat = [](const RemotePath&) {})
      : on_remove_(std::move(on_remove)),
        on_free_bytes_(std::move(on_free_bytes)),
        on_stat_(std::move(on_stat)) {}

  remote::CommandResult run(const std::vector<std::string>& argv, const std::string& text,
                            std::chrono::milliseconds timeout, std::stop_token stop) override {
    return inner_->run(argv, text, timeout, stop);
  }
  std::optional<remote::FileInfo> stat(const RemotePath& path) override {
    on_stat_(path);
    return inner_->stat(path);
  }
  size_t read(const RemotePath& path, uint64_t offset, std::span<std::byte> out) override {
    return inner_->read(path, offset, out);
  }
  void write(const RemotePath& path, uint64_t offset, std::span<const std::byte> bytes) override {
    inner_->write(path, offset, bytes);
  }
  void sync(const RemotePath& path) override { inner_->sync(path); }
  void rename(const RemotePath& from, const RemotePath& to) override { inner_->rename(from, to); }
  std::vector<std::string> list(const RemotePath& folder) override { return inner_->list(folder); }
  void make_dirs(const RemotePath& folder) override { inner_->make_dirs(folder); }
  void remove_tree(const RemotePath& path, std::stop_token stop) override {
    on_remove_(path);
    inner_->remove_tree(path, stop);
  }
  std::optional<uint64_t> free_bytes(const RemotePath&) override {
    on_free_bytes_();
    return std::nullopt;  // unknown
  }

 private:
  const std::shared_ptr<remote::Session> inner_ = remote::make_local_session();
  const std::function<void(const RemotePath&)> on_remove_;
  const std::function<void()> on_free_bytes_;
  const std::function<void(const RemotePath&)> on_stat_;
};

class StaleCoordinator : public test::SmallFederation {
 protected:
  // Without its lock file the journal looks like a dead coordinator's.
  void take_over() {
    fs::remove(run_folder().journal().string() + ".lock");
    const history::RunHistory fresh(run_folder().journal());
  }
};

TEST_F(StaleCoordinator, RemovesNoModel) {
  std::mutex mutex;
  bool taken = false;
  std::vector<std::string> models;  // removed after the take-over
  sessions_["alba"] = std::make_shared<WatchedSession>([&](const RemotePath& path) {
    const std::lock_guard lock(mutex);
    const fs::path folder = path.str();
    if (taken && folder.parent_path().filename() == "models") models.push_back(path.str());
    if (taken || folder.filename() != "r0001") return;
    take_over();
    taken = true;
  });
  EXPECT_EQ(test::kind_of([&] { run("policy: {keep_rounds: 1, evaluate_last: false}\n", 2); }),
            ErrorKind::kBusy);
  EXPECT_TRUE(taken);
  EXPECT_THAT(models, testing::IsEmpty());
}

// Another coordinator takes the run over while the coordinator looks for the files of a model.
TEST_F(StaleCoordinator, PushesNoModel) {
  fs::path model;
  sessions_["alba"] = std::make_shared<WatchedSession>(
      [](const RemotePath&) {}, [] {},
      [&](const RemotePath& path) {
        if (!model.empty() || path.filename() != ".manifest.json.part") return;
        model = path.parent().str();
        take_over();
      });
  EXPECT_EQ(test::kind_of([&] { run("policy: {evaluate_last: false}\n"); }), ErrorKind::kBusy);
  EXPECT_FALSE(model.empty());
  EXPECT_TRUE(!fs::exists(model) || fs::is_empty(model)) << model;
}

// Another coordinator takes the run over between the record of a submission and the submission,
// while the coordinator asks for the free space. The new coordinator submits the attempt.
TEST_F(StaleCoordinator, SubmitsNoJob) {
  write_model(600'000);  // the space for small models is not checked
  bool taken = false;
  sessions_["alba"] = std::make_shared<WatchedSession>(
      [](const RemotePath&) {},
      [&] {
        const fs::path script = run_folder().facility(1, FacilityName("alba")) / "job.sh";
        if (taken || !fs::exists(script)) return;
        take_over();
        taken = true;
      });
  EXPECT_EQ(test::kind_of([&] {
              run("policy: {evaluate_last: false}\naggregation: {update_dtype: fp32}\n");
            }),
            ErrorKind::kBusy);
  EXPECT_TRUE(taken);
  EXPECT_THAT(jobs_of("alba"), testing::IsEmpty());
}

// At each point after the take-over: the hashes are files of the run, beside the models.
TEST_F(StaleCoordinator, WritesNoModelAndNoBlockHashes) {
  const config::Experiment parsed = experiment("policy: {evaluate_last: false}\n");
  run("policy: {evaluate_last: false}\n");
  const history::RunFolder folder = run_folder();
  history::RunHistory stale(folder.journal());
  const fs::path global = folder.global(1), next = folder.global(2);
  const fs::path blocks = checkpoint::block_hashes_path(global), work = stale.work_name(next);
  make_dirs(work.parent_path());
  fs::copy(global, work, fs::copy_options::recursive);
  facility::RunModels models(parsed, folder, stale);
  EXPECT_NO_THROW(models.global(1));
  take_over();

  const checkpoint::Manifest manifest = checkpoint::make_manifest(work);
  EXPECT_EQ(test::kind_of([&] { facility::publish_with_hashes(stale, next, manifest); }),
            ErrorKind::kBusy);
  EXPECT_FALSE(fs::exists(next));
  EXPECT_FALSE(fs::exists(checkpoint::block_hashes_path(next)));

  fs::remove(blocks);
  facility::RunModels anew(parsed, folder, stale);
  EXPECT_EQ(test::kind_of([&] { anew.global(1); }), ErrorKind::kBusy);
  EXPECT_FALSE(fs::exists(blocks));
  fs::remove(checkpoint::block_hashes_path(folder.facility(1, FacilityName("alba")) / "update"));
  EXPECT_EQ(test::kind_of([&] { anew.inputs(1); }), ErrorKind::kBusy);

  write_file_atomic(global / "model.safetensors", "damaged");
  EXPECT_EQ(test::kind_of([&] { anew.restore_global(1); }), ErrorKind::kBusy)
      << "the damage is the other coordinator's to mend";
  EXPECT_EQ(read_file(global / "model.safetensors", 1 << 20), "damaged");
}

// It was frozen before the rename that publishes a model; a user then cancels or pauses the run.
TEST_F(StaleCoordinator, RenamesNothingAfterAUsersCommand) {
  const std::string policy = "policy: {on_missing: fail, max_attempts: 1, evaluate_last: false}\n";
  rejected_["brno"] = "there is no such account";
  EXPECT_EQ(test::kind_of([&] { run(policy); }), ErrorKind::kFailed);
  using Kind = history::Request::Kind;
  for (const history::Request& request :
       {history::Request{Kind::kPause, {FacilityName("alba")}, "maintenance"},
        history::Request{Kind::kCancel, {}, "enough"}}) {
    fs::path work;
    {
      const history::RunHistory stale(run_folder().journal());
      work = stale.work_name(run_folder().current());
    }
    fs::create_symlink("r0001/global", work);
    facility::Services made = services();
    operate(experiment(policy), run_folder(), made, request, std::chrono::seconds(1));
    EXPECT_FALSE(fs::is_symlink(work)) << work;
  }
}

// It publishes round 1 when the other coordinator has published round 2.
TEST_F(StaleCoordinator, LeavesTheCurrentModelAlone) {
  const config::Experiment parsed = experiment("policy: {evaluate_last: false}\n", 2);
  run("policy: {evaluate_last: false}\n", 2);
  const history::RunFolder folder = run_folder();
  history::RunHistory stale(folder.journal());
  facility::Services services{
      .clock = clock_, .connect = {}, .connect_transfer = {}, .scheduler = {}, .programs = {}};
  history::StatusFile live(folder.live(), clock_, &stale);
  facility::Context context{
      parsed, folder, services, observer_, stale, live, stale.state().identity.value()};
  const auto first = plan::next_round(
      parsed, context.identity, {.rounds_published = 0, .model_sha256 = stale.model_sha256(0)});
  ASSERT_TRUE(first);
  std::vector<history::Accepted> updates;
  for (const char* name : {"alba", "brno"})
    updates.push_back(stale.facility(1, FacilityName(name)).accepted.value());
  take_over();
  EXPECT_EQ(test::kind_of([&] { publish_round(context, *first, updates); }), ErrorKind::kBusy);
  EXPECT_EQ(fs::canonical(folder.current()), fs::canonical(folder.global(2)));
}

// A cancellation without an effect is repeated; another coordinator may use the job by then.
TEST_F(StaleCoordinator, RepeatsNoCancellation) {
  int cancellations = 0;
  on_cancel_ = [&](const std::string& facility) {
    EXPECT_EQ(facility, "brno");
    if (++cancellations == 2) take_over();
    return false;
  };
  trainings_["brno"].duration = hours(100);
  EXPECT_EQ(test::kind_of([&] {
              run("policy: {on_missing: skip, quorum: 1, quorum_grace: 0s, deadline: 2h, "
                  "poll_interval: 1m, evaluate_last: false}\n");
            }),
            ErrorKind::kBusy);
  EXPECT_EQ(cancellations, 2);
}

}  // namespace
}  // namespace xffl::run
