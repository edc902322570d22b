// Deployments by a job of this machine. The log-in node is a session whose PATH has a tar, a gzip
// and a sha256sum that fail and leave a trace.
#include "xffl/deploy/deploy_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <thread>

#include "support/await.h"
#include "support/faulty_session.h"
#include "support/small_bundle.h"
#include "support/sshd.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"
#include "xffl/config/load.h"
#include "xffl/facility/job_script.h"
#include "xffl/submit/slurm.h"

namespace xffl::deploy {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::must_run;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

// The log-in node.
class LoginNode final : public remote::Session {
 public:
  LoginNode(std::string path, remote::Session& inner) : path_(std::move(path)), inner_(inner) {}

  remote::CommandResult run(const std::vector<std::string>& argv, const std::string& stdin_text,
                            std::chrono::milliseconds timeout, std::stop_token stop) override {
    std::vector<std::string> there{"env", "PATH=" + path_};
    there.insert(there.end(), argv.begin(), argv.end());
    return inner_.run(there, stdin_text, timeout, stop);
  }
  std::optional<remote::FileInfo> stat(const RemotePath& path) override {
    const auto info = inner_.stat(path);
    if (after_stat) after_stat(path);
    return info;
  }
  size_t read(const RemotePath& path, uint64_t offset, std::span<std::byte> out) override {
    return inner_.read(path, offset, out);
  }
  void write(const RemotePath& path, uint64_t offset, std::span<const std::byte> bytes) override {
    inner_.write(path, offset, bytes);
  }
  std::optional<std::string> sha256(const RemotePath& path, uint64_t, uint64_t) override {
    ADD_FAILURE() << "the log-in node hashes " << path.str();
    return std::nullopt;
  }
  void sync(const RemotePath& path) override { inner_.sync(path); }
  void rename(const RemotePath& from, const RemotePath& to) override { inner_.rename(from, to); }
  std::vector<std::string> list(const RemotePath& folder) override { return inner_.list(folder); }
  void make_dirs(const RemotePath& folder) override { inner_.make_dirs(folder); }
  void remove_tree(const RemotePath& path, std::stop_token stop) override {
    inner_.remove_tree(path, stop);
  }

  std::function<void(const RemotePath&)> after_stat;

 private:
  const std::string path_;
  remote::Session& inner_;
};

class DeployByJob : public testing::Test {
 protected:
  DeployByJob() {
    for (const char* name : {"tar", "gzip", "sha256sum"})
      put_program(dir_ / "bin" / name,
                  "echo \"$0 $*\" >>'" + (dir_ / "trace").string() + "'\nexit 1");
    // xffl in the job's script: `xffl exec ... -- COMMAND`.
    services_.programs.xffl = dir_ / "xffl";
    put_program(dir_ / "xffl", "while [ \"$1\" != -- ]; do shift; done\nshift\nexec \"$@\"");
    bundle_ = make_bundle("exec echo xffl-train 0.1.0 '(torch 2.11.0)'");
    facility_.name = FacilityName("alba");
    facility_.workdir = RemotePath((dir_ / "work").string());
    facility_.deploy.unpack = config::UnpackPlace::kJob;
    facility_.poll_interval = std::chrono::milliseconds(50);
    services_.connect =
        services_.connect_transfer = [this](const config::Facility&) { return link_; };
  }
  ~DeployByJob() override {
    if (fs::exists(dir_ / "trace")) ADD_FAILURE() << read_file(dir_ / "trace", 1 << 20);
  }

  static void put_program(const fs::path& path, const std::string& script) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    fs::permissions(path, fs::perms::owner_all);
  }
  Bundle make_bundle(const std::string& line) const {
    return read_bundle(test::make_small_bundle(dir_.path(), line));
  }
  Deployed deploy_now(std::stop_token stop = {}) {
    return deploy_by_job(facility_, services_, bundle_, stop, {},
                         [this](const std::string& message) { states_.push_back(message); });
  }
  fs::path programs() const { return dir_ / "work/xffl.programs"; }
  fs::path job(int number) const {
    return programs() / ".jobs" / bundle_.name / ("job" + std::to_string(number));
  }
  fs::path staged() const {
    return programs() / ".staging" / bundle_.name / (bundle_.name + ".tar.gz");
  }
  std::string current() const { return fs::read_symlink(programs() / "current").string(); }
  // The next jobs wait until release().
  void hold() {
    write_file_atomic(dir_ / "hold", "");
    facility_.environment.push_back("while [ -e '" + (dir_ / "hold").string() +
                                    "' ]; do sleep 0.05; done");
  }
  void release() const { fs::remove(dir_ / "hold"); }
  // Calls `deploy` and stops it when its job, whose folder is `folder`, is there and held.
  static Error stop_when_held(const fs::path& folder,
                              const std::function<void(std::stop_token)>& deploy) {
    std::stop_source stop;
    std::jthread stopper([&] {
      EXPECT_TRUE(test::await([&] { return fs::exists(folder / "claim/owner"); }));
      stop.request_stop();
    });
    return error_of([&] { deploy(stop.get_token()); });
  }
  Error stopped_deployment() {
    return stop_when_held(job(1), [&](std::stop_token stop) { deploy_now(stop); });
  }
  void cancel() {
    cancel_jobs(facility_, services_, {},
                [this](const std::string& message) { states_.push_back(message); });
  }
  static void flip_byte(const fs::path& path, std::streamoff at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(at);
    file.put(byte);
  }

  test::TempDir dir_;
  Bundle bundle_;
  config::Facility facility_;
  SystemClock clock_;
  facility::Services services_ = facility::make_services(clock_, dir_.path());
  std::unique_ptr<remote::Session> local_ = remote::make_local_session();
  std::shared_ptr<LoginNode> login_node_ =
      std::make_shared<LoginNode>((dir_ / "bin").string() + ":" + std::getenv("PATH"), *local_);
  std::shared_ptr<remote::Session> link_ = login_node_;
  std::vector<std::string> states_;
};

TEST_F(DeployByJob, AJobUnpacksAndTheLogInNodeOnlyMovesTheLink) {
  const Deployed done = deploy_now();
  EXPECT_FALSE(done.was_there);
  EXPECT_GT(done.moved_bytes, 0u);
  EXPECT_EQ(done.started, "xffl-train 0.1.0 (torch 2.11.0)");
  EXPECT_EQ(current(), bundle_.name);
  EXPECT_EQ(must_run({done.program.str()}), "xffl-train 0.1.0 (torch 2.11.0)\n");
  EXPECT_FALSE(fs::exists(programs() / ".staging"));
  EXPECT_EQ(deployed(*link_, facility_.workdir), std::vector{bundle_.name});
  struct stat times = {};
  ASSERT_EQ(::stat((programs() / bundle_.name / "lib/large").c_str(), &times), 0);
  EXPECT_LT(time(nullptr) - times.st_atime, 3600) << "sites remove files by their access times";
  EXPECT_LT(time(nullptr) - times.st_mtime, 3600) << "other sites go by their last change";
  EXPECT_THAT(states_, Contains(HasSubstr(" is submitted")));

  const Deployed again = deploy_now();
  EXPECT_TRUE(again.was_there) << "verified by a second job";
  EXPECT_EQ(again.moved_bytes, 0u);
  EXPECT_TRUE(fs::exists(job(2) / "out/report.txt"));
}

TEST_F(DeployByJob, AStoppedDeploymentIsContinuedWithItsJob) {
  hold();
  const Error stopped = stopped_deployment();
  EXPECT_EQ(stopped.kind(), ErrorKind::kCancelled);
  EXPECT_THAT(stopped.what(), HasSubstr("goes on, and the same command follows it"));
  EXPECT_FALSE(fs::exists(programs() / "current"));
  // Once more while the job runs, then after its end.
  EXPECT_EQ(stopped_deployment().kind(), ErrorKind::kCancelled);
  release();
  EXPECT_TRUE(test::await([&] { return fs::exists(job(1) / "out/report.txt"); }));
  const Deployed done = deploy_now();
  EXPECT_FALSE(done.was_there);
  EXPECT_EQ(done.moved_bytes, 0u);
  EXPECT_EQ(current(), bundle_.name);
  EXPECT_FALSE(fs::exists(job(2)));
}

TEST_F(DeployByJob, ABundleThatWasPurgedAfterItsJobIsSentAgain) {
  hold();
  stopped_deployment();
  release();
  EXPECT_TRUE(test::await([&] { return fs::exists(job(1) / "out/report.txt"); }));
  fs::remove_all(programs() / bundle_.name);
  const Deployed done = deploy_now();
  EXPECT_FALSE(done.was_there);
  EXPECT_GT(done.moved_bytes, 0u);
  EXPECT_TRUE(fs::exists(programs() / "current/MANIFEST"));
}

// As by a full file system.
TEST_F(DeployByJob, AReportThatWasCutShortFailsOneDeployment) {
  put_program(dir_ / "cut/mv",
              "[ \"$1\" != out/report.part ] || echo host n1 >\"$1\"\nexec \"$(PATH=/usr/bin:/bin "
              "command -v mv)\" \"$@\"");
  facility_.environment = {"PATH='" + (dir_ / "cut").string() + "':$PATH"};
  const Error error = error_of([&] { deploy_now(); });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr("its last line should be 'end'"));
  facility_.environment.clear();
  EXPECT_TRUE(deploy_now().was_there);
  EXPECT_EQ(current(), bundle_.name);
}

TEST_F(DeployByJob, AJobThatReportsDuringTheLookIsFollowed) {
  hold();
  stopped_deployment();
  login_node_->after_stat = [&](const RemotePath& path) {
    if (!path.str().ends_with("report.txt")) return;
    release();
    EXPECT_TRUE(test::await([&] { return fs::exists(job(1) / "out/report.txt"); }));
  };
  EXPECT_FALSE(deploy_now().was_there);
  EXPECT_FALSE(fs::exists(job(2)));
}

TEST_F(DeployByJob, AnArchiveThatIsDamagedAtTheFacilityIsFoundAndSentAgain) {
  hold();
  stopped_deployment();
  flip_byte(staged(), static_cast<std::streamoff>(bundle_.archive_bytes / 2));
  release();
  const Error error = error_of([&] { deploy_now(); });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr("was damaged at the facility and is removed"));
  EXPECT_FALSE(fs::exists(programs() / "current"));
  EXPECT_FALSE(fs::exists(programs() / bundle_.name));
  EXPECT_GT(deploy_now().moved_bytes, 0u);
  EXPECT_EQ(current(), bundle_.name);
}

TEST_F(DeployByJob, AnArchiveThatDiffersFromItsManifestIsRefused) {
  std::ofstream(dir_ / bundle_.name / "lib/large", std::ios::app) << "more";
  must_run({"tar", "-czf", bundle_.archive.string(), "-C", dir_.path().string(), bundle_.name});
  bundle_ = read_bundle(bundle_.archive);
  const Error error = error_of([&] { deploy_now(); });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr("lib/large: FAILED"));
  EXPECT_THAT(error.what(), Not(HasSubstr("damaged at the facility")));
  EXPECT_FALSE(fs::exists(programs() / "current"));
}

TEST_F(DeployByJob, ADamagedFileOfADeployedBundleIsReplaced) {
  deploy_now();
  flip_byte(programs() / bundle_.name / "lib/large", 1000);
  const Deployed again = deploy_now();
  EXPECT_FALSE(again.was_there);
  EXPECT_EQ(read_file(programs() / bundle_.name / "lib/large", 1 << 20),
            read_file(dir_ / bundle_.name / "lib/large", 1 << 20));
}

TEST_F(DeployByJob, ABundleThatDoesNotStartOnItsNodeIsNotPromoted) {
  deploy_now();
  const std::string good = current();
  bundle_ = make_bundle("echo 'libtorch_cpu.so: cannot open shared object file' >&2; exit 127");
  for (int i = 0; i < 2; ++i) {
    const Error error = error_of([&] { deploy_now(); });
    EXPECT_EQ(error.kind(), ErrorKind::kFailed);
    EXPECT_THAT(error.what(), HasSubstr("does not print 'xffl-train 0.1.0' on node "));
    EXPECT_THAT(error.what(), HasSubstr("libtorch_cpu.so: cannot open shared object file"));
    EXPECT_EQ(current(), good);
  }
}

TEST_F(DeployByJob, AFailedJobShowsItsOutput) {
  facility_.environment = {"echo there is no such module", "exit 7"};
  const Error error = error_of([&] { deploy_now(); });
  EXPECT_EQ(error.kind(), ErrorKind::kFailed);
  EXPECT_THAT(error.what(), HasSubstr("has ended without a report"));
  EXPECT_THAT(error.what(), HasSubstr("job1/job.out ends with:"));
  EXPECT_THAT(error.what(), HasSubstr("there is no such module"));
  facility_.environment.clear();
  EXPECT_EQ(deploy_now().moved_bytes, 0u) << "the archive is there";
  EXPECT_EQ(current(), bundle_.name);
}

TEST_F(DeployByJob, ANodeWithoutTarIsNamed) {
  fs::create_directories(dir_ / "node");
  for (const char* name :
       {"sh", "mv", "uname", "getconf", "tail", "tr", "mkdir", "rm", "sha256sum"})
    fs::create_symlink(fs::path("/usr/bin") / name, dir_ / "node" / name);
  facility_.environment = {"PATH='" + (dir_ / "node").string() + "'"};
  const Error error = error_of([&] { deploy_now(); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("the PATH of node "));
  EXPECT_THAT(error.what(), HasSubstr(" lacks tar gzip, "));
}

TEST_F(DeployByJob, TheLogInNodeMayBeAnotherMachineWithAnOldGlibc) {
  put_program(dir_ / "bin/uname", "echo riscv64");
  put_program(dir_ / "bin/getconf", "echo glibc 2.17");
  EXPECT_EQ(deploy_now().started, "xffl-train 0.1.0 (torch 2.11.0)");
  EXPECT_EQ(current(), bundle_.name);
}

TEST_F(DeployByJob, TheLogInNodeMayLackTheProgramsThatUnpack) {
  fs::create_directories(dir_ / "few");
  for (const auto& program : fs::directory_iterator("/usr/bin"))
    fs::create_symlink(program.path(), dir_ / "few" / program.path().filename());
  for (const char* name : {"tar", "gzip", "sha256sum"}) fs::remove(dir_ / "few" / name);
  link_ = std::make_shared<LoginNode>((dir_ / "few").string(), *local_);
  EXPECT_EQ(deploy_now().started, "xffl-train 0.1.0 (torch 2.11.0)");
  EXPECT_EQ(current(), bundle_.name);
}

TEST_F(DeployByJob, TheLogInNodeHasItsFreeSpaceAndItsFreeFiles) {
  put_program(dir_ / "bin/df",
              "echo Filesystem\n"
              "if [ \"$1\" = -Pi ]; then echo tmpfs 9000 5000 4000 56% /site\n"
              "else echo tmpfs 900 700 200 78% /site; fi");
  const Host host = ask_host(*login_node_, RemotePath(programs().string()));
  EXPECT_EQ(host.free_kib, 200u);
  EXPECT_EQ(host.free_files, 4000u);
}

// Network and user-space file systems may report a size of 0.
TEST_F(DeployByJob, TheLogInNodeHasNoSpaceOrDoesNotKnowIt) {
  const auto free_kib = [&](const std::string& line) {
    put_program(dir_ / "bin/df", "echo Filesystem\necho " + line);
    return ask_host(*login_node_, RemotePath(programs().string())).free_kib;
  };
  EXPECT_EQ(free_kib("tmpfs 900 900 0 100% /site"), 0u);
  EXPECT_FALSE(free_kib("site: 0 0 0 - /site"));
  EXPECT_FALSE(free_kib(""));
}

// A repetition moves the link to a bundle of before.
TEST_F(DeployByJob, ABundleThatIsInPlaceNeedsNoSpace) {
  deploy_now();
  put_program(dir_ / "bin/df", "echo Filesystem\necho tmpfs 900 900 0 100% /site");
  EXPECT_TRUE(deploy_now().was_there);
  fs::remove_all(programs() / bundle_.name);
  EXPECT_EQ(error_of([&] { deploy_now(); }).kind(), ErrorKind::kUnsupported);
}

// Lost replies at each step: the next deployment continues, and the archive is unpacked once.
TEST_F(DeployByJob, ContinuesAfterEachInterruption) {
  int interruptions = 0;
  for (const char* operation : {"run", "stat", "write", "rename", "make_dirs", "list"})
    for (int nth = 1; nth <= 4; ++nth) {
      const std::string context = operation + (" " + std::to_string(nth));
      fs::remove_all(dir_ / "work");
      const auto faulty = std::make_shared<test::FaultySession>(*login_node_);
      link_ = faulty;
      faulty->lose_reply(operation, nth);
      try {
        deploy_now();
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kRemote) << context << ": " << error.what();
        ++interruptions;
      }
      link_ = login_node_;
      deploy_now();
      EXPECT_EQ(current(), bundle_.name) << context;
      EXPECT_FALSE(fs::exists(programs() / ".staging")) << context;
      int unpacked = 0;
      for (int number = 1; fs::exists(job(number)); ++number)
        if (fs::exists(job(number) / "out/report.txt") &&
            read_file(job(number) / "out/report.txt", 1 << 16).find("state unpacked") !=
                std::string::npos)
          ++unpacked;
      EXPECT_EQ(unpacked, 1) << context;
    }
  EXPECT_GE(interruptions, 8);
}

TEST_F(DeployByJob, ARemovalCancelsTheJob) {
  hold();
  stopped_deployment();
  std::string owner;  // "JOB ..."
  ASSERT_TRUE(
      test::await([&] { return !(owner = read_file(job(1) / "claim/owner", 1000)).empty(); }));
  EXPECT_TRUE(process_start_ticks(std::stoi(owner)));
  cancel();
  EXPECT_THAT(states_, Contains(HasSubstr("is cancelled")));
  EXPECT_FALSE(process_start_ticks(std::stoi(owner))) << "the job goes on";
  remove(*link_, facility_.workdir, {});
  release();
  EXPECT_FALSE(fs::exists(programs()));
  facility_.environment.clear();
  deploy_now();
  EXPECT_EQ(current(), bundle_.name);
}

// --- images ----------------------------------------------------------------------------------

class DeployImageByJob : public DeployByJob {
 protected:
  DeployImageByJob() {
    // A stand-in for Apptainer, which runs the image as a script. It is on the job's node only.
    put_program(dir_ / "module/apptainer", "exec sh \"$2\" \"$3\"");
    load_ = "PATH='" + (dir_ / "module").string() + "':$PATH";
    facility_.environment = {load_};
    facility_.image.file = there().string();
    make_image("echo xffl-train 0.1.0");
  }
  void make_image(const std::string& line) const {
    write_file_atomic(dir_ / "built.sif", line + "\nexit\n" + std::string(300'000, 'x'));
  }
  fs::path there() const { return dir_ / "site/xffl.sif"; }
  DeployedImage deploy_image_now(std::stop_token stop = {}) {
    return deploy_image_by_job(facility_, services_, dir_ / "built.sif",
                               {.file = RemotePath(there().string()),
                                .program = "apptainer",
                                .trainer = "xffl-train",
                                .version = "0.1.0"},
                               stop);
  }
  Error stopped_image_deployment() {
    return stop_when_held(image_job(1), [&](std::stop_token stop) { deploy_image_now(stop); });
  }
  std::string linked() const { return fs::read_symlink(there()).string(); }
  fs::path image_job(int number) const {
    return programs() / ".jobs" / ("xffl-image-" + hash()) / ("job" + std::to_string(number));
  }
  std::string hash() const {
    return must_run({"sha256sum", (dir_ / "built.sif").string()}).substr(0, 8);
  }

  std::string load_;
};

TEST_F(DeployImageByJob, AJobHashesAndStartsTheImage) {
  const DeployedImage done = deploy_image_now();
  EXPECT_FALSE(done.was_there);
  EXPECT_EQ(done.started, "xffl-train 0.1.0");
  EXPECT_EQ(linked(), "xffl-" + hash() + ".sif");
  EXPECT_EQ(read_file(there(), 1 << 20), read_file(dir_ / "built.sif", 1 << 20));
  EXPECT_FALSE(fs::exists(dir_ / "site/.xffl-staging"));
  EXPECT_TRUE(deploy_image_now().was_there);
}

TEST_F(DeployImageByJob, AnImageThatWasDamagedThereIsFoundAndSentAgain) {
  hold();
  EXPECT_EQ(stopped_image_deployment().kind(), ErrorKind::kCancelled);
  flip_byte(dir_ / "site/.xffl-staging" / hash() / "built.sif", 1000);
  release();
  const Error error = error_of([&] { deploy_image_now(); });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr("is damaged and was removed (its SHA-256 is "));
  EXPECT_FALSE(fs::exists(image_job(2)));
  EXPECT_FALSE(fs::is_symlink(there()));
  EXPECT_GT(deploy_image_now().moved_bytes, 0u);
  EXPECT_EQ(linked(), "xffl-" + hash() + ".sif");
}

TEST_F(DeployImageByJob, AnImageThatWasPurgedAfterItsJobIsSentAgain) {
  hold();
  stopped_image_deployment();
  release();
  EXPECT_TRUE(test::await([&] { return fs::exists(image_job(1) / "out/report.txt"); }));
  fs::remove(dir_ / "site" / ("xffl-" + hash() + ".sif"));
  const DeployedImage done = deploy_image_now();
  EXPECT_FALSE(done.was_there);
  EXPECT_GT(done.moved_bytes, 0u);
  EXPECT_EQ(read_file(there(), 1 << 20), read_file(dir_ / "built.sif", 1 << 20));
}

TEST_F(DeployImageByJob, ANodeWithoutApptainerIsNamed) {
  facility_.environment.clear();
  const Error error = error_of([&] { deploy_image_now(); });
  EXPECT_EQ(error.kind(), ErrorKind::kFailed);
  EXPECT_THAT(error.what(), HasSubstr("apptainer is not in the PATH of node "));
  EXPECT_FALSE(fs::is_symlink(there()));
}

TEST_F(DeployImageByJob, AnImageThatDoesNotStartIsNotPromoted) {
  deploy_image_now();
  const std::string good = linked();
  make_image("echo no libtorch >&2; exit 1");
  const Error error = error_of([&] { deploy_image_now(); });
  EXPECT_EQ(error.kind(), ErrorKind::kFailed);
  EXPECT_THAT(error.what(), HasSubstr("no libtorch"));
  EXPECT_EQ(linked(), good);
}

TEST_F(DeployImageByJob, ARemovalCancelsTheJob) {
  hold();
  stopped_image_deployment();
  cancel();
  EXPECT_THAT(states_, Contains(HasSubstr("is cancelled")));
  release();
}

TEST_F(DeployImageByJob, ARemovalCancelsOnlyJobsThatAreUnderWay) {
  deploy_image_now();  // its job has ended, and comes first in the list
  hold();
  stopped_deployment();
  states_.clear();
  cancel();
  EXPECT_THAT(states_, testing::ElementsAre(HasSubstr("is cancelled")));
  release();
}

TEST_F(DeployImageByJob, AFolderWithoutSpaceIsNamedBeforeTheImageIsSent) {
  put_program(dir_ / "bin/df", "echo Filesystem\necho tmpfs 900 700 200 78% /site");
  const Error error = error_of([&] { deploy_image_now(); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("0 MB are free in " + (dir_ / "site").string()));
  EXPECT_FALSE(fs::exists(dir_ / "site/.xffl-staging"));
  fs::remove(dir_ / "bin/df");
  deploy_image_now();
  put_program(dir_ / "bin/df", "echo Filesystem\necho tmpfs 900 900 0 100% /site");
  EXPECT_TRUE(deploy_image_now().was_there) << "an image that is in place needs no space";
}

config::Facility facility_with(const std::string& scheduler, const std::string& settings) {
  return config::parse_experiment(
             "project: demo\nmodel: /m\ntraining: {steps_per_round: 4, batch_size: 16}\n"
             "facilities:\n  alba:\n    access: ssh\n    ssh: {hosts: login.example.org, user: me}"
             "\n    scheduler: " +
                 scheduler + "\n    " + scheduler + ": {" + settings +
                 "}\n"
                 "    deploy: {unpack: job}\n    workdir: /scratch/me/xffl\n    trainer: bundle\n"
                 "    compute_mounts: [\"/scratch/me:/compute\"]\n    modules: [zlib]\n"
                 "    image: {file: /scratch/me/x.sif}\n    data: {train: /scratch/me/it.tokens}\n",
             "xffl.yaml", "/project")
      .facilities.front();
}

Bundle some_bundle() {
  return {"/x.tar.gz", "xffl-trainer-0.1.0-x86_64-cu13-0a1b2c3d",
          "0.1.0",     "x86_64",
          "cu13",      "0a1b2c3d",
          100,         200};
}

std::string script_of(const config::Facility& shape) {
  job::JobSpec spec;
  spec.key.nonce = "0123456789abcdef0123456789abcdef";
  return facility::job_script(
      shape, spec, "xffl-deploy-0a1b2c3d-1",
      RemotePath("/scratch/me/xffl/xffl.programs/.jobs/" + some_bundle().name + "/job1"),
      {"/opt/xffl/bin/xffl", "/opt/xffl/bin/xffl-train"});
}

TEST(DeployJobScript, ForSlurmMatchesTheGoldenFile) {
  const std::string script = script_of(
      job_shape(facility_with("slurm",
                              "account: a1, partition: boost, check_partition: debug, nodes: 4, "
                              "gpus_per_node: 4, cpus_per_task: 8, time: 12h, warning: 10m"),
                some_bundle()));
  const fs::path file = fs::path(XFFL_SOURCE_DIR) / "tests/golden/scripts/slurm_deploy.sbatch";
  if (std::getenv("XFFL_ACCEPT") != nullptr) write_file_atomic(file, script, 0644);
  EXPECT_EQ(script, read_file(file, 1 << 20)) << "XFFL_ACCEPT=1 rewrites " << file;
  EXPECT_THAT(script, HasSubstr("#SBATCH --partition=debug\n"));
  EXPECT_THAT(script, HasSubstr(" /compute/xffl/xffl.programs "
                                "xffl-trainer-0.1.0-x86_64-cu13-0a1b2c3d 0a1b2c3d "));
}

TEST(DeployJobScript, RequestsNoGpusInAQueueForCpus) {
  const std::string script = script_of(job_shape(
      facility_with("slurm",
                    "account: a1, partition: boost, check_partition: debug, cpu_partition: serial, "
                    "gpus_per_node: 4, cpus_per_task: 8, memory_per_node: 100GB, constraint: h100, "
                    "time: 12h, warning: 10m"),
      some_bundle()));
  EXPECT_THAT(script, HasSubstr("#SBATCH --partition=serial\n"));
  EXPECT_THAT(script, HasSubstr("#SBATCH --account=a1\n"));
  for (const char* option : {"gpus", "mem=", "constraint", "cpus-per-task"})
    EXPECT_THAT(script, Not(HasSubstr(std::string("#SBATCH --") + option)));
}

TEST(DeployJobScript, IsOneShortTaskWithEveryQueueManager) {
  for (const char* name : {"slurm", "pbs", "flux", "gridengine"}) {
    const std::string environment =
        name == std::string("gridengine") ? ", parallel_environment: mpi" : "";
    const config::Facility shape = job_shape(
        facility_with(name, "nodes: 4, tasks_per_node: 2, time: 12h, warning: 10m" + environment),
        some_bundle());
    EXPECT_EQ(shape.shape().nodes, 1) << name;
    EXPECT_EQ(shape.shape().tasks_per_node, 1) << name;
    EXPECT_EQ(shape.world_size, 1) << name;
    EXPECT_EQ(shape.shape().walltime, std::chrono::minutes(30)) << name;
    const std::string script = script_of(shape);
    EXPECT_THAT(script, HasSubstr("trap \"\" USR1; sh place.sh ")) << name;
    EXPECT_THAT(script, Not(HasSubstr("apptainer"))) << name;
  }
}

}  // namespace
}  // namespace xffl::deploy
