// The answers of sinfo and sacctmgr, as read for `xffl config`.
#include "xffl/submit/slurm_site.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/fake_session.h"

namespace xffl::submit {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kPartitions =
    "serial|up|4:00:00|1|(null)|serial*\n"
    "boost|up|1-00:00:00|3000|gpu:a100:4(S:0-1)|boost\n"
    "boost|up|1-00:00:00|50|gpu:h100:8|boost\n"
    "long|drain|infinite|2|gpu:2,craynetwork:4|long\n"
    "xffl-end\n";

TEST(SlurmSite, ReadsPartitionsWithTheirGpus) {
  const auto found = read_partitions(kPartitions);
  ASSERT_TRUE(found);
  EXPECT_THAT(*found, ElementsAre(SlurmPartition{"serial", true, true, 1, 0, "", hours(4)},
                                  SlurmPartition{"boost", false, true, 3050, 4, "a100", hours(24)},
                                  SlurmPartition{"long", false, false, 2, 2, "", std::nullopt}));
}

TEST(SlurmSite, SkipsRowsThatAreNoPartitions) {
  const auto found = read_partitions(
      "Welcome to the machine!\n"
      "a b|up|1:00:00|1|(null)|a b\n"
      "-x|up|1:00:00|1|(null)|-x\n"
      "$(reboot)|up|1:00:00|1|(null)|x\n"
      "\x1b[31mred|up|1:00:00|1|(null)|red\n"
      "many|up|1:00:00|99999999999|(null)|many\n"
      "never|up|soon|1|(null)|never\n"
      "gpus|up|1:00:00|1|gpu:1000000,gpu:a b:x|gpus\n"
      "short|up|1:00:00|1\n"
      "xffl-end\n");
  ASSERT_TRUE(found);
  EXPECT_THAT(*found, ElementsAre(SlurmPartition{"gpus", false, true, 1, 0, "", hours(1)}));
  EXPECT_FALSE(read_partitions("main|up|1:00:00|1|(null)|main*\n"));
  EXPECT_FALSE(read_partitions(""));
  std::string many;
  for (int i = 0; i < 5000; ++i) many += "p" + std::to_string(i) + "|up|1:00:00|1||p\n";
  EXPECT_EQ(read_partitions(many + "xffl-end\n").value().size(), 200u);
}

// Answers a program by its first word behind "LC_ALL=C".
class FakeSite : public test::FakeSession {
 public:
  std::map<std::string, remote::CommandResult> answers;
  FakeSite() {
    on_run = [this](const std::vector<std::string>& argv, const std::string&) {
      for (const auto& [part, answer] : answers)
        if (argv.back().find(part) != std::string::npos) return answer;
      return remote::CommandResult{.exit_code = 127, .out = {}, .err = "sh: 1: not found"};
    };
  }
};

TEST(SlurmSite, TheDefaultAccountComesFirst) {
  FakeSite session;
  session.answers = {{"sinfo", {.exit_code = 0, .out = kPartitions, .err = {}}},
                     {"show assoc", {0, "eu|normal,boost_dbg\nit|normal\nxffl-end\n", ""}},
                     {"show user", {0, "it|None\nxffl-end\n", ""}},
                     {"show qos", {0, "normal|\nboost_dbg|00:30:00\nother|1:00\nxffl-end\n", ""}}};
  const SlurmSite site = ask_slurm_site(session, {});
  EXPECT_THAT(site.problems, ElementsAre());
  EXPECT_THAT(site.accounts, ElementsAre("it", "eu"));
  EXPECT_THAT(site.qos, ElementsAre(SlurmQos{"boost_dbg", minutes(30)}, SlurmQos{"normal"}));
  ASSERT_NE(site.proposed(), nullptr);
  EXPECT_EQ(site.proposed()->name, "boost");
  EXPECT_EQ(proposed_walltime(site.proposed(), site.find_qos("normal")), hours(12));
  EXPECT_EQ(proposed_walltime(site.proposed(), site.find_qos("boost_dbg")), minutes(30));
  EXPECT_EQ(proposed_walltime(site.partition("serial"), nullptr), hours(4));
  EXPECT_EQ(proposed_walltime(nullptr, nullptr), hours(12));
}

TEST(SlurmSite, AbsentAndFailingCommandsAreProblemsOnly) {
  FakeSite session;
  const SlurmSite nothing = ask_slurm_site(session, {});
  EXPECT_THAT(nothing.problems, ElementsAre(HasSubstr("sinfo has no answer: exit status 127"),
                                            HasSubstr("sacctmgr has no answer")));
  EXPECT_EQ(nothing.proposed(), nullptr);
  session.answers = {
      {"sinfo", {.exit_code = 0, .out = "motd \x1b[2J only\n", .err = {}}},
      {"sacctmgr", {1, "", "sacctmgr: error: You are not running a supported accounting_storage"}}};
  const SlurmSite odd = ask_slurm_site(session, {});
  ASSERT_EQ(odd.problems.size(), 2u);
  EXPECT_THAT(odd.problems[0], testing::AllOf(HasSubstr("motd"), testing::Not(HasSubstr("\x1b"))));
  EXPECT_THAT(odd.problems[1], HasSubstr("supported accounting_storage"));
}

}  // namespace
}  // namespace xffl::submit
