#include "xffl/comm/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "xffl/base/error.h"

namespace xffl::comm {
namespace {

Environment environment_of(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

std::string error_of(std::map<std::string, std::string> variables) {
  try {
    read_rendezvous(environment_of(std::move(variables)));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "no error";
}

TEST(Rendezvous, WorldOfOneNeedsNoVariables) {
  const Rendezvous single = read_rendezvous(environment_of({}));
  EXPECT_EQ(single.world_size, 1);
  EXPECT_EQ(single.rank, 0);
  EXPECT_EQ(read_rendezvous(environment_of({{"WORLD_SIZE", "1"}, {"RANK", "0"}})).world_size, 1);
  EXPECT_EQ(
      read_rendezvous(environment_of({{"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}})).world_size,
      1);
}

// `xffl simulate` may run in a Slurm step of one task.
TEST(Rendezvous, ReadsPlainVariables) {
  const Rendezvous rank = read_rendezvous(environment_of({{"SLURM_PROCID", "0"},
                                                          {"SLURM_NTASKS", "1"},
                                                          {"RANK", "3"},
                                                          {"WORLD_SIZE", "4"},
                                                          {"LOCAL_RANK", "1"},
                                                          {"LOCAL_WORLD_SIZE", "2"},
                                                          {"MASTER_ADDR", "n1"},
                                                          {"MASTER_PORT", "2345"},
                                                          {"XFFL_COMM_TIMEOUT", "7"}}));
  EXPECT_EQ(rank.rank, 3);
  EXPECT_EQ(rank.world_size, 4);
  EXPECT_EQ(rank.local_rank, 1);
  EXPECT_EQ(rank.local_world_size, 2);
  EXPECT_EQ(rank.master_address, "n1");
  EXPECT_EQ(rank.master_port, 2345);
  EXPECT_EQ(rank.timeout.count(), 7);
}

TEST(Rendezvous, WithoutLocalVariablesAllRanksAreOnOneMachine) {
  const Rendezvous rank = read_rendezvous(environment_of(
      {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "n1"}, {"MASTER_PORT", "2345"}}));
  EXPECT_EQ(rank.local_rank, 3);
  EXPECT_EQ(rank.local_world_size, 4);
}

// A job script may export a variable without a value.
TEST(Rendezvous, AnEmptyVariableCountsAsUnset) {
  const Rendezvous single = read_rendezvous(
      environment_of({{"RANK", ""}, {"WORLD_SIZE", ""}, {"XFFL_COMM_TIMEOUT", ""}}));
  EXPECT_EQ(single.world_size, 1);
  EXPECT_EQ(single.timeout.count(), 600);
  EXPECT_THAT(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", ""}}),
              testing::HasSubstr("MASTER_ADDR is not set"));
}

TEST(Rendezvous, UsesSlurmVariablesByDefault) {
  std::map<std::string, std::string> variables{
      {"SLURM_PROCID", "5"},      {"SLURM_NTASKS", "8"},
      {"SLURM_LOCALID", "1"},     {"SLURM_JOB_NODELIST", "lrdn[0012-0015,0020]"},
      {"SLURM_JOB_ID", "123456"}, {"SLURM_TASKS_PER_NODE", "2(x4)"}};
  const Rendezvous rank = read_rendezvous(environment_of(variables));
  EXPECT_EQ(rank.rank, 5);
  EXPECT_EQ(rank.world_size, 8);
  EXPECT_EQ(rank.local_rank, 1);
  EXPECT_EQ(rank.local_world_size, 2);
  EXPECT_EQ(rank.master_address, "lrdn0012");
  EXPECT_GE(rank.master_port, 1024);
  EXPECT_LT(rank.master_port, 32768);
  variables["SLURM_PROCID"] = "0";
  variables["SLURM_STEP_NODELIST"] = "lrdn0013";
  variables["SLURM_STEP_TASKS_PER_NODE"] = "4(x2)";
  const Rendezvous other = read_rendezvous(environment_of(variables));
  EXPECT_EQ(other.local_world_size, 4) << "of the step, not of the allocation";
  EXPECT_EQ(other.master_port, rank.master_port);
  EXPECT_EQ(other.master_address, "lrdn0013");
  variables["SLURM_STEP_ID"] = "1";
  const int second_step = read_rendezvous(environment_of(variables)).master_port;
  EXPECT_NE(second_step, rank.master_port) << "steps of a job run at the same time";
  variables.erase("SLURM_STEP_ID");
  variables["SLURM_JOB_ID"] = "123457";
  const int next_job = read_rendezvous(environment_of(variables)).master_port;
  EXPECT_NE(next_job, rank.master_port) << "jobs share a node";
  EXPECT_NE(next_job, second_step) << "a job's second step runs beside the next job";
}

// A job's environment may name another network or a free port.
TEST(Rendezvous, MasterVariablesTakePrecedenceOverSlurms) {
  const Rendezvous rank = read_rendezvous(environment_of({{"SLURM_PROCID", "1"},
                                                          {"SLURM_NTASKS", "2"},
                                                          {"SLURM_LOCALID", "0"},
                                                          {"SLURM_JOB_NODELIST", "n[1-2]"},
                                                          {"SLURM_STEP_NODELIST", "n[1-2]"},
                                                          {"SLURM_JOB_ID", "7"},
                                                          {"MASTER_ADDR", "n1-ib"},
                                                          {"MASTER_PORT", "2345"}}));
  EXPECT_EQ(rank.master_address, "n1-ib");
  EXPECT_EQ(rank.master_port, 2345);
}

TEST(Rendezvous, NamesTheInvalidVariable) {
  EXPECT_THAT(error_of({{"RANK", "0"}}), testing::HasSubstr("WORLD_SIZE is not set"));
  EXPECT_THAT(error_of({{"WORLD_SIZE", "2"}}), testing::HasSubstr("RANK is not set"));
  EXPECT_THAT(error_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
              testing::HasSubstr("RANK is '2', expected an integer from 0 to 1"));
  EXPECT_THAT(error_of({{"RANK", "1x"}, {"WORLD_SIZE", "2"}}), testing::HasSubstr("RANK is '1x'"));
  EXPECT_THAT(error_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}}),
              testing::HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(
      error_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "0"}}),
      testing::HasSubstr("MASTER_PORT is '0'"));
  EXPECT_THAT(error_of({{"SLURM_PROCID", "0"}}), testing::HasSubstr("SLURM_NTASKS is not set"));
  EXPECT_THAT(error_of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "0"}}),
              testing::HasSubstr("SLURM_JOB_NODELIST is not set"));
  EXPECT_THAT(error_of({{"XFFL_COMM_TIMEOUT", "0"}}), testing::HasSubstr("XFFL_COMM_TIMEOUT"));
}

TEST(Rendezvous, ReadsTheFirstHostOfSlurmNodeLists) {
  EXPECT_EQ(first_host("node7"), "node7");
  EXPECT_EQ(first_host("a,b,c"), "a");
  EXPECT_EQ(first_host("n[001-003,7]"), "n001");
  EXPECT_EQ(first_host("n[5],m1"), "n5");
  EXPECT_EQ(first_host("r[1-2]n[03-04].cluster,x"), "r1n03.cluster");
  for (const char* bad : {"", "n[", "n[]", "n[,1]", "a b", "$(reboot)"})
    EXPECT_THROW(first_host(bad), Error) << bad;
}

}  // namespace
}  // namespace xffl::comm
