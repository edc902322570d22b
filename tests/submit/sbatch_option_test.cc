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

TEST(SbatchOption, RejectsTextThatIsNotOneOption) {
  for (const char* bad :
       {"", "-", "--", "---x", "-N2", "x", "--x=", "--x=a b", "--x='a'", "--x=a\nb", "--x=$(id)",
        "--x=`id`", "--x=a;b", "--X", "--x y", "--x=a#b", "--=x"})
    EXPECT_NE(validate_sbatch_option(bad), "") << bad;
  EXPECT_NE(validate_sbatch_option("--x=" + std::string(300, 'a')), "");
}

}  // namespace
}  // namespace xffl::submit
