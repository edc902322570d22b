// Deployments of a small bundle, whose program is a shell script, to a folder of this machine and
// through a real sshd.
#include "xffl/deploy/deploy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "support/await.h"
#include "support/faulty_session.h"
#include "support/small_bundle.h"
#include "support/sshd.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"

namespace xffl::deploy {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::must_run;
using testing::HasSubstr;

void flip_byte(const fs::path& path, std::streamoff at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(at);
  file.put(byte);
}

class Deploy : public testing::Test {
 protected:
  Deploy() { bundle_ = make_bundle("exec echo xffl-train 0.1.0 '(torch 2.11.0)'"); }

  Bundle make_bundle(const std::string& line) const {
    return read_bundle(test::make_small_bundle(dir_.path(), line));
  }
  RemotePath workdir() const { return RemotePath((dir_ / "work").string()); }
  fs::path programs() const { return dir_ / "work/xffl.programs"; }
  std::string current() const { return fs::read_symlink(programs() / "current").string(); }
  Deployed deploy_now(remote::Session& session) { return deploy(session, bundle_, workdir(), {}); }

  test::TempDir dir_;
  Bundle bundle_;
  std::unique_ptr<remote::Session> session_ = remote::make_local_session();
};

TEST_F(Deploy, UnpacksStartsAndPromotes) {
  const Deployed done = deploy_now(*session_);
  EXPECT_FALSE(done.was_there);
  EXPECT_GT(done.moved_bytes, 0u);
  EXPECT_EQ(done.started, "xffl-train 0.1.0 (torch 2.11.0)");
  EXPECT_EQ(done.program.str(), (programs() / "current/bin/xffl-train").string());
  EXPECT_EQ(current(), bundle_.name);
  EXPECT_EQ(must_run({done.program.str()}), "xffl-train 0.1.0 (torch 2.11.0)\n");
  EXPECT_FALSE(fs::exists(programs() / ".staging"));
  EXPECT_EQ(deployed(*session_, workdir()), std::vector{bundle_.name});
  EXPECT_GT(fs::last_write_time(programs() / bundle_.name / "lib/large"),
            fs::file_time_type::clock::now() - std::chrono::hours(1))
      << "some sites remove files by their last change";

  const Deployed again = deploy_now(*session_);
  EXPECT_TRUE(again.was_there);
  EXPECT_EQ(again.moved_bytes, 0u);
}

// Some file systems of supercomputers create a few files a second.
TEST_F(Deploy, ABundleMayBeUnpackedForHalfAnHour) {
  test::FaultySession session(*session_);
  deploy_now(session);
  EXPECT_GE(session.longest_limit(), std::chrono::minutes(30));
}

TEST_F(Deploy, ADamagedFileOfADeployedBundleIsReplaced) {
  deploy_now(*session_);
  flip_byte(programs() / bundle_.name / "lib/large", 1000);
  const Deployed again = deploy_now(*session_);
  EXPECT_FALSE(again.was_there);
  EXPECT_EQ(read_file(programs() / bundle_.name / "lib/large", 1 << 20),
            read_file(dir_ / bundle_.name / "lib/large", 1 << 20));
}

TEST_F(Deploy, AFileThatTheSiteHasRemovedIsReplaced) {
  deploy_now(*session_);
  fs::remove(programs() / bundle_.name / "lib/large");
  EXPECT_FALSE(deploy_now(*session_).was_there);
  EXPECT_TRUE(fs::exists(programs() / bundle_.name / "lib/large"));
}

TEST_F(Deploy, ANewBundleMovesTheLinkAndTheOldOneStays) {
  deploy_now(*session_);
  const std::string old = bundle_.name;
  bundle_ = make_bundle("exec echo xffl-train 0.1.0");
  ASSERT_NE(bundle_.name, old);
  deploy_now(*session_);
  EXPECT_EQ(current(), bundle_.name);
  EXPECT_TRUE(fs::exists(programs() / old / "bin/xffl-train")) << "a job may use it";
  EXPECT_EQ(deployed(*session_, workdir()).size(), 2u);
  remove(*session_, workdir(), {});
  EXPECT_FALSE(fs::exists(programs()));
  EXPECT_TRUE(fs::exists(dir_ / "work"));
  EXPECT_TRUE(deployed(*session_, workdir()).empty());
}

// `xffl deploy` was killed between the two steps that move the link.
TEST_F(Deploy, ALeftoverLinkIsReplaced) {
  deploy_now(*session_);
  const std::string old = bundle_.name;
  fs::create_directory_symlink(old, programs() / ".current.new");
  bundle_ = make_bundle("exec echo xffl-train 0.1.0");
  deploy_now(*session_);
  EXPECT_EQ(current(), bundle_.name);
  EXPECT_FALSE(fs::is_symlink(programs() / old / bundle_.name));
}

TEST_F(Deploy, ABundleThatDoesNotStartIsNotPromoted) {
  deploy_now(*session_);
  const std::string good = current();
  for (const char* line :
       {"echo 'libtorch_cpu.so: cannot open shared object file' >&2; exit 127",
        "echo xffl-train 9.9.9", "echo xffl-train 0.1.0; exit 3", "echo xffl-train 0.1.01"}) {
    bundle_ = make_bundle(line);
    const Error error = error_of([&] { deploy_now(*session_); });
    EXPECT_EQ(error.kind(), ErrorKind::kFailed);
    EXPECT_THAT(error.what(), HasSubstr("does not print 'xffl-train 0.1.0'"));
    EXPECT_EQ(current(), good);
  }
}

TEST_F(Deploy, ALinkThatCannotBeMovedIsAnError) {
  make_dirs(programs() / "current");
  const Error error = error_of([&] { deploy_now(*session_); });
  EXPECT_EQ(error.kind(), ErrorKind::kIo);
  EXPECT_THAT(error.what(), HasSubstr("cannot move the link"));
}

TEST_F(Deploy, AnArchiveThatDiffersFromItsManifestIsRefused) {
  // Two files, one of which is not the one of MANIFEST.
  const fs::path tree = dir_ / bundle_.name;
  std::ofstream(tree / "lib/large", std::ios::app) << "more";
  must_run({"tar", "-czf", bundle_.archive.string(), "-C", dir_.path().string(), bundle_.name});
  bundle_ = read_bundle(bundle_.archive);
  Error error = error_of([&] { deploy_now(*session_); });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr("lib/large: FAILED"));
  // Another MANIFEST than the name's.
  must_run({"sh", "-c", "cd \"$0\" && find bin lib -type f | sort | xargs sha256sum >MANIFEST",
            tree.string()});
  must_run({"tar", "-czf", bundle_.archive.string(), "-C", dir_.path().string(), bundle_.name});
  error = error_of([&] { deploy_now(*session_); });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr("another hash than the archive's name"));
  // A flipped byte of the archive.
  flip_byte(bundle_.archive, static_cast<std::streamoff>(bundle_.archive_bytes / 2));
  EXPECT_EQ(error_of([&] { deploy_now(*session_); }).kind(), ErrorKind::kCorrupt);
  EXPECT_FALSE(fs::exists(programs() / "current"));
  EXPECT_FALSE(fs::exists(programs() / bundle_.name));
}

// A link that drops after each call, and replies that are lost: the next deployment continues.
TEST_F(Deploy, ContinuesAfterEachInterruption) {
  int interruptions = 0;
  for (const char* operation : {"run", "stat", "write", "rename", "make_dirs", "sync"})
    for (int nth = 1; nth <= 6; ++nth) {
      fs::remove_all(dir_ / "work");
      test::FaultySession link(*session_);
      link.lose_reply(operation, nth);
      try {
        deploy(link, bundle_, workdir(), {});
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kRemote) << error.what();
        ++interruptions;
      }
      link.reconnect();
      deploy(link, bundle_, workdir(), {});
      EXPECT_EQ(current(), bundle_.name) << operation << " " << nth;
      EXPECT_EQ(must_run({(programs() / "current/bin/xffl-train").string()}),
                "xffl-train 0.1.0 (torch 2.11.0)\n");
      EXPECT_FALSE(fs::exists(programs() / ".staging"));
    }
  EXPECT_GE(interruptions, 8);
}

// `xffl deploy` was killed, and its script goes on at the facility while the next one runs.
class KilledDeploy : public Deploy {
 protected:
  /// `body` replaces a program; its first call waits for the file $WORK/go after $WORK/first.
  void expect_no_change_with(const std::string& program, const std::string& body) {
    const fs::path staging = programs() / ".staging" / bundle_.name;
    fs::create_directories(staging);
    fs::copy_file(bundle_.archive, staging / (bundle_.name + ".tar.gz"));
    fs::create_directories(dir_ / "bin");
    write_file_atomic(dir_ / "bin" / program, "#!/bin/sh\nPATH=/usr/bin:/bin\n" + body);
    fs::permissions(dir_ / "bin" / program, fs::perms::owner_all);
    const ProcessSpec script{
        .argv = {"sh", XFFL_SOURCE_DIR "/src/deploy/place_bundle.sh", programs().string(),
                 bundle_.name, bundle_.name.substr(bundle_.name.rfind('-') + 1)},
        .env = {{"PATH", (dir_ / "bin").string() + ":/usr/bin:/bin"},
                {"WORK", (dir_ / "work").string()}},
        .cwd = programs(),
        .timeout = std::chrono::seconds(60)};
    ProcessResult earlier;
    std::jthread killed([&] { earlier = run_process(script); });
    ASSERT_TRUE(test::await([&] { return fs::exists(dir_ / "work/first"); }));
    const ProcessResult next = run_process(script);
    EXPECT_EQ(next.exit_code, 0) << next.err;
    EXPECT_THAT(next.out, HasSubstr("state unpacked"));
    const fs::path file = programs() / bundle_.name / "lib/large";
    const auto placed = fs::last_write_time(file);
    EXPECT_FALSE(fs::exists(programs() / ".staging"));
    std::ofstream(dir_ / "work/go").put('\n');
    killed.join();
    EXPECT_EQ(earlier.exit_code, 2) << earlier.out;
    EXPECT_THAT(earlier.err, HasSubstr("another deployment of this bundle has begun"));
    ASSERT_TRUE(fs::exists(file)) << "the newer script's bundle";
    EXPECT_EQ(fs::last_write_time(file), placed);
    EXPECT_FALSE(fs::exists(programs() / ".staging"));
  }
};

TEST_F(KilledDeploy, ItsScriptChangesNothingAfterItHasUnpackedAPart) {
  expect_no_change_with("tar", R"sh(if mkdir "$WORK/first" 2>/dev/null; then
  for last; do :; done
  mkdir -p "$last/part" && : >"$last/part/file"
  until [ -e "$WORK/go" ]; do sleep 0.05; done
fi
exec tar "$@"
)sh");
}

TEST_F(KilledDeploy, ItsScriptChangesNothingAfterItHasComparedTheFiles) {
  expect_no_change_with("sha256sum", R"sh(sha256sum "$@"
code=$?
if [ "$1" = -c ] && mkdir "$WORK/first" 2>/dev/null; then
  until [ -e "$WORK/go" ]; do sleep 0.05; done
fi
exit $code
)sh");
}

TEST_F(Deploy, ThroughSsh) {
  if (!test::Sshd::missing().empty()) GTEST_SKIP() << test::Sshd::missing();
  test::Sshd sshd;
  const auto session = remote::make_ssh_session(sshd.settings());
  EXPECT_FALSE(deploy_now(*session).was_there);
  EXPECT_TRUE(deploy_now(*session).was_there);
  EXPECT_EQ(current(), bundle_.name);
}

// A file system with noexec, named before a byte is sent.
TEST_F(Deploy, AFileSystemWithoutProgramsIsNamed) {
  if (!test::Sshd::missing().empty()) GTEST_SKIP() << test::Sshd::missing();
  if (!test::Sshd::no_own_view().empty()) GTEST_SKIP() << test::Sshd::no_own_view();
  fs::create_directories(dir_ / "work");
  const std::string work = (dir_ / "work").string();
  test::Sshd sshd({.own_view = "mount -t tmpfs -o noexec,size=1m none '" + work + "'"});
  const auto session = remote::make_ssh_session(sshd.settings());
  const Error error = error_of([&] { deploy_now(*session); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("noexec"));
  EXPECT_EQ(session->list(RemotePath(work + "/xffl.programs")), std::vector<std::string>{});
}

TEST(DeployProblems, NameEachReasonAndItsRemedy) {
  const Bundle bundle{"/x.tar.gz", "x",        "0.1.0",     "x86_64",
                      "cpu",       "01234567", 100'000'000, 400'000'000};
  const RemotePath folder("/scratch/me/programs");
  const Host good{"x86_64", "2.28", 10'000'000, 100'000, true, ""};
  EXPECT_EQ(problems(bundle, good, folder), std::vector<std::string>{});
  EXPECT_EQ(problems(bundle, Host{}, folder), std::vector<std::string>{}) << "nothing is known";
  const auto one = [&](const std::function<void(Host&)>& change) {
    Host host = good;
    change(host);
    const std::vector<std::string> found = problems(bundle, host, folder);
    EXPECT_EQ(found.size(), 1u);
    return found.empty() ? "" : found.front();
  };
  EXPECT_THAT(one([](Host& host) { host.machine = "aarch64"; }),
              HasSubstr("the log-in node is aarch64, and the bundle is for x86_64"));
  EXPECT_THAT(one([](Host& host) { host.glibc = "2.17"; }), HasSubstr("its glibc is 2.17"));
  EXPECT_THAT(one([](Host& host) { host.glibc = "2.9.1"; }), HasSubstr("its glibc is 2.9.1"));
  EXPECT_THAT(one([](Host& host) { host.starts_programs = false; }), HasSubstr("noexec"));
  EXPECT_THAT(one([](Host& host) { host.free_kib = 400'000; }), HasSubstr("500 MB are needed"));
  EXPECT_THAT(one([](Host& host) { host.free_kib = 0; }), HasSubstr("0 MB are free"));
  EXPECT_THAT(one([](Host& host) { host.free_files = 100; }), HasSubstr("100 files are left"));
  EXPECT_THAT(one([](Host& host) { host.missing = "tar gzip"; }), HasSubstr("lacks tar gzip"));
  Host newer = good;
  newer.glibc = "2.41";
  EXPECT_TRUE(problems(bundle, newer, folder).empty());
}

// A bundle for GPUs is larger than the 32 bits in which gzip writes a size.
TEST(BundleName, HasTheSizeOfTheUnpackedFiles) {
  const test::TempDir dir;
  const std::string stem = "xffl-trainer-0.1.0-x86_64-cu13-4742bbd5";
  write_file_atomic(dir / stem, std::string(3'000'000, 'x'));
  must_run({"sh", "-c", "gzip -c \"$0\" >\"$0.tar.gz\"", (dir / stem).string()});
  const Bundle small = read_bundle(dir / (stem + ".tar.gz"));
  EXPECT_EQ(small.unpacked_bytes, 3'000'000u);
  EXPECT_LT(small.archive_bytes, 100'000u);
  EXPECT_EQ(small.flavour, "cu13");
  // The end of an archive of 2.5 GB whose files have 2^32 + 1000 bytes; a file with a hole.
  const fs::path large = dir / (stem + ".tar.gz");
  fs::resize_file(large, 2'500'000'000);
  std::fstream file(large, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(2'500'000'000 - 4);
  file.write("\xe8\x03\0\0", 4);
  file.close();
  EXPECT_EQ(read_bundle(large).unpacked_bytes, (uint64_t{1} << 32) + 1000);
  const Host host{"x86_64", "2.28", 6'000'000, 100'000, true, ""};
  EXPECT_THAT(problems(read_bundle(large), host, RemotePath("/scratch")),
              testing::ElementsAre(HasSubstr("6794 MB are needed")));
}

TEST(BundleName, HasItsParts) {
  const test::TempDir dir;
  const fs::path file = dir / "xffl-trainer-0.1.0-x86_64-cpu-4742bbd5.tar.gz";
  std::ofstream(file) << "x";
  const Bundle bundle = read_bundle(file);
  EXPECT_EQ(bundle.name, "xffl-trainer-0.1.0-x86_64-cpu-4742bbd5");
  EXPECT_EQ(bundle.version, "0.1.0");
  EXPECT_EQ(bundle.arch, "x86_64");
  EXPECT_EQ(bundle.flavour, "cpu");
  EXPECT_EQ(bundle.manifest_hash, "4742bbd5");
  EXPECT_EQ(bundle.archive_bytes, 1u);
  for (const char* name : {"xffl-trainer.tar.gz", "xffl-trainer-0.1.0-x86_64-cpu-4742bbd5.zip",
                           "xffl-trainer-0.1.0-x86_64-cpu-4742bbdg.tar.gz",
                           "xffl-trainer-$(id)-x86_64-cpu-4742bbd5.tar.gz"})
    EXPECT_EQ(error_of([&] { read_bundle(dir / name); }).kind(), ErrorKind::kUsage) << name;
  EXPECT_EQ(
      error_of([&] { read_bundle(dir / "xffl-trainer-0.2.0-x86_64-cpu-4742bbd5.tar.gz"); }).kind(),
      ErrorKind::kNotFound);
}

}  // namespace
}  // namespace xffl::deploy
