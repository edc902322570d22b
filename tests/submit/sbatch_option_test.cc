#include <gtest/gtest.h>

#include "xffl/submit/slurm.h"

namespace xffl::submit {
namespace {

TEST(SbatchOption, AcceptsOptionsOfSites) {
  for (const char* good :
       {"--mail-type=END", "--exclude=n[1-3]", "--comment=a:b", "--mem-per-gpu=4G",
        "--gpus-per-task=1", "--switches=1@10:00", "--contiguous", "--nice=100"})
    EXPECT_EQ(validate_sbatch_option(good), "") << good;
  EXPECT_EQ(validate_srun_option("--cpu-bind=mask_cpu:0xff,0xff00"), "");
  EXPECT_EQ(validate_srun_option("--mpi=none"), "");
}

TEST(SbatchOption, RejectsOptionsOfXfflAndTheirPrefixes) {
  for (const char* bad : {"--job-name=x", "--job=x", "--dependency=singleton", "--d=x", "--wrap=id",
                          "--array=1-9", "--export=ALL", "--output=/x", "--no-requeue", "--nodes=2",
                          "--chdir=/", "--signal=9", "--parsable", "--hold", "--uid=0", "--mem=1G"})
    EXPECT_NE(validate_sbatch_option(bad), "") << bad;
  EXPECT_EQ(validate_sbatch_option("--qos=x"), "has a key of its own: 'qos'");
  EXPECT_NE(validate_srun_option("--kill-on-bad-exit=0"), "");
}

TEST(SbatchOption, NoOptionOfXfflCanBeGivenTwice) {
  for (const char* option : {"account=x",
                             "clusters=x",
                             "constraint=x",
                             "cpus-per-task=1",
                             "error=x",
                             "exclusive",
                             "export-file=x",
                             "get-user-env",
                             "gid=1",
                             "gpus=1",
                             "gres=gpu:1",
                             "input=x",
                             "ntasks=1",
                             "ntasks-per-node=1",
                             "gpus-per-node=1",
                             "partition=x",
                             "quiet",
                             "requeue",
                             "reservation=x",
                             "open-mode=append",
                             "time=9",
                             "test-only",
                             "wait",
                             "usage"})
    EXPECT_NE(validate_sbatch_option("--" + std::string(option)), "") << option;
  for (const char* option :
       {"chdir=/", "error=x", "export=NONE", "input=x", "jobid=1", "label", "nodes=1", "ntasks=1",
        "ntasks-per-node=1", "open-mode=append", "output=x", "prolog=x", "epilog=x",
        "task-prolog=x", "task-epilog=x", "test-only"})
    EXPECT_NE(validate_srun_option("--" + std::string(option)), "") << option;
}

TEST(SbatchOption, RejectsTextThatIsNotOneOption) {
  for (const char* bad :
       {"", "-", "--", "---x", "-N2", "x", "--x=", "--x=a b", "--x='a'", "--x=a\nb", "--x=$(id)",
        "--x=`id`", "--x=a;b", "--X", "--x y", "--x=a#b", "--=x"})
    EXPECT_NE(validate_sbatch_option(bad), "") << bad;
  EXPECT_NE(validate_sbatch_option("--x=" + std::string(300, 'a')), "");
}

}  // namespace
}  // namespace xffl::submit
