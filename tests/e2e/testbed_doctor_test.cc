// `xffl doctor`, `xffl plan` and `xffl logs` at real facilities: each fault is reported by name,
// with its fix.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "e2e/testbed_project.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"

namespace xffl {
namespace {

using test::Facility;
using test::TestbedProject;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class DoctorProject : public TestbedProject {
 public:
  DoctorProject() {
    if (!up()) return;
    set_rounds(1);
    write_config();
    for (const char* name : {"alba", "brno"})
      facility(name).exec_as_user({"sh", "-c", "printf XFFLTOK1 >\"$1\"", "sh", data(name)});
    replace_all("/data/unused.tokens", data("alba"));
    whole_ = yaml();
  }
  std::string data(const std::string& name) const { return facility(name).scratch + "/a.tokens"; }
  std::string yaml() const { return read_file(path() / "xffl.yaml", 1 << 20); }

  /// The correct xffl.yaml with one text of alba's replaced.
  void edit(const std::string& from, const std::string& to) const {
    std::string text = whole_;
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from << " is not in\n" << text;
    write_file_atomic(path() / "xffl.yaml", text.replace(at, from.size(), to));
  }
  void restore() const { write_file_atomic(path() / "xffl.yaml", whole_); }
  /// The output of doctor for alba.
  std::string doctor(int expected_code) const {
    const ProcessResult result = xffl({"doctor", "alba", "-p", path().string()});
    EXPECT_EQ(result.exit_code, expected_code) << result.out << result.err;
    return result.out;
  }
  std::string doctor_fails() const { return doctor(exit_code(ErrorKind::kFailed)); }
  ProcessResult plan(const std::string& more = "--json") const {
    return xffl({"plan", more, "-p", path().string()});
  }
  /// Creates a program at alba that prints `version`; returns its path.
  std::string trainer_with_version(const std::string& version) const {
    const std::string path = facility("alba").scratch + "/xffl-train";
    facility("alba").exec_as_user({"sh", "-c", "cat >\"$1\" && chmod 700 \"$1\"", "sh", path},
                                  "#!/bin/sh\necho " + version + "\n");
    return path;
  }

 private:
  void replace_all(const std::string& from, const std::string& to) const {
    std::string text = yaml();
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
    write_file_atomic(path() / "xffl.yaml", text);
  }
  std::string whole_;
};

void expect_log_in_faults(const DoctorProject& project) {
  const Facility& alba = project.facility("alba");
  const auto known_hosts = project.path() / "known_hosts";
  const std::string pinned = read_file(known_hosts, 1 << 20);
  write_file_atomic(known_hosts, "");
  EXPECT_THAT(project.doctor_fails(),
              ContainsRegex("FAILED  host key .* is not trusted yet\n *-> run `xffl trust alba`"));
  write_file_atomic(known_hosts, pinned);

  const std::string keys = "keys: ['" + alba.key.string() + "']";
  const std::string others = "keys: ['" + alba.certified_key.string() + "']";
  const std::filesystem::path certificate = alba.certified_key.string() + "-cert.pub";
  std::filesystem::remove(certificate);
  project.edit(keys, others);
  EXPECT_THAT(project.doctor_fails(),
              AllOf(ContainsRegex("FAILED  log-in .*was refused"), HasSubstr("is ssh.user right")));
  project.edit(keys, others + ", renew: 'step ssh login ann'");
  alba.certify("-10m:-1m");
  EXPECT_THAT(project.doctor_fails(),
              AllOf(HasSubstr("FAILED  certificate      expired: valid until"),
                    HasSubstr("-> renew it with: step ssh login ann")));
  alba.certify("-1m:+90m");
  EXPECT_THAT(project.doctor(0),
              AllOf(ContainsRegex("warning certificate .*\n *-> it ends in "),
                    HasSubstr("renew it with: step ssh login ann"), HasSubstr("ok      log-in")));
  std::filesystem::remove(certificate);
}

void expect_clock_faults(const DoctorProject& project) {
  const Facility& alba = project.facility("alba");
  project.restore();
  EXPECT_THAT(project.doctor(0),
              ContainsRegex("ok      clock            [0-9.]+ s (ahead of|behind) "
                            "this machine's \\(to [0-9.]+ s\\)"));
  const auto on_login = [&](const std::string& script) {
    EXPECT_EQ(alba.exec_on_login({"sh", "-c", script}).exit_code, 0) << script;
  };
  on_login(
      "printf '#!/bin/sh\\necho 1000000000\\n' >/run/date && chmod 755 /run/date && "
      "mount --bind /run/date /usr/bin/date");
  EXPECT_THAT(project.doctor(0),
              AllOf(ContainsRegex("warning clock +[0-9.]+ s behind this machine"),
                    HasSubstr("certificates may be refused")));
  on_login("printf '#!/bin/sh\\necho soon\\n' >/run/date");
  EXPECT_THAT(project.doctor(0),
              HasSubstr("warning clock            not compared: `date` printed 'soon'"));
  on_login("umount /usr/bin/date");
}

void expect_folder_faults(const DoctorProject& project) {
  const Facility& alba = project.facility("alba");
  project.edit("workdir: " + alba.scratch + "/work", "workdir: /proc/work");
  EXPECT_THAT(project.doctor_fails(), AllOf(HasSubstr("FAILED  work folder"),
                                            HasSubstr("choose a workdir that you may write")));
  project.edit(project.data("alba"), alba.scratch + "/b.tokens");
  EXPECT_THAT(project.doctor_fails(), AllOf(HasSubstr("FAILED  training data    " + alba.scratch +
                                                      "/b.tokens does not exist"),
                                            HasSubstr("correct the path")));
  project.edit("    access: ssh\n", "    access: ssh\n    image: {file: /scratch/none.sif}\n");
  EXPECT_THAT(project.doctor_fails(),
              AllOf(HasSubstr("FAILED  image            /scratch/none.sif does not exist"),
                    HasSubstr("trainer          not checked: it is inside the image")));
}

void expect_trainer_faults(const DoctorProject& project) {
  const std::string own = "trainer: {command: ['" XFFL_BINARY_DIR "/bin/xffl-fake-trainer']}";
  const std::string version = project.xffl({"--version"}).out.substr(5);
  project.edit(own, "trainer: {program: /scratch/none/xffl-train}");
  EXPECT_THAT(project.doctor_fails(),
              AllOf(HasSubstr("FAILED  trainer          /scratch/none/xffl-train does not start"),
                    HasSubstr("facilities.alba.trainer")));
  project.edit(own, "trainer: {program: " + project.trainer_with_version("xffl-train 0.0.1") + "}");
  EXPECT_THAT(project.doctor(0),
              AllOf(ContainsRegex("warning trainer .*is 'xffl-train 0.0.1', and"),
                    HasSubstr("install xffl-train")));
  const auto program = [&](const std::string& data) {
    project.edit(own,
                 "trainer: {program: " + project.trainer_with_version("xffl-train " + version) +
                     "}\n    training: {seed: 1}");
    const std::string yaml = project.yaml();
    const size_t at = yaml.find(project.data("alba"));
    write_file_atomic(project.path() / "xffl.yaml",
                      std::string(yaml).replace(at, project.data("alba").size(), data));
  };
  program("/scratch");
  EXPECT_THAT(project.doctor_fails(), HasSubstr("training data    /scratch is a folder"));
  program("/scratch/xffl-train");
  EXPECT_THAT(project.doctor_fails(), HasSubstr("xffl-train is not a token shard"));
  program(project.data("alba"));
  EXPECT_THAT(project.doctor(0), HasSubstr("ok      trainer          xffl-train "));
}

void expect_slurm_faults(const DoctorProject& project) {
  const Facility& alba = project.facility("alba");
  project.edit("slurm: {", "slurm: {partition: nowhere, ");
  EXPECT_THAT(project.doctor_fails(), AllOf(ContainsRegex("FAILED  allocation .*nvalid partition"),
                                            HasSubstr("correct account, partition")));
  EXPECT_THAT(project.plan().out, HasSubstr("REFUSED: "));
  project.restore();
  project.edit(" time: 5m", " time: 30h");  // Slurm accepts the job and never starts it
  EXPECT_THAT(
      project.doctor(0),
      HasSubstr("warning walltime         slurm.time is 1800 min, the partition allows 60"));
  project.restore();
  alba.stop_daemon("slurmctld");
  EXPECT_THAT(project.doctor_fails(),
              AllOf(ContainsRegex("FAILED  allocation .*nable to contact slurm controller"),
                    HasSubstr("try again later"), Not(HasSubstr("correct account"))));
  alba.start_daemon("slurmctld");
}

// A changed host key hides all other faults of the host.
void expect_a_changed_host_key(const DoctorProject& project) {
  project.restore();
  project.facility("alba").change_host_key();
  EXPECT_THAT(project.doctor_fails(),
              AllOf(HasSubstr("FAILED  host key         HOST KEY CHANGED"),
                    HasSubstr("-> ask the site whether it has a new key; if so, run `xffl trust"),
                    Not(HasSubstr("work folder"))));
}

TEST(TestbedDoctor, NamesEachFaultWithItsFix) {
  DoctorProject project;
  NEED_TESTBED(project);
  expect_log_in_faults(project);
  expect_clock_faults(project);
  expect_folder_faults(project);
  expect_trainer_faults(project);
  expect_slurm_faults(project);
  expect_a_changed_host_key(project);
}

TEST(TestbedDoctor, PlanAndLogsWorkAtAHealthyFacility) {
  DoctorProject project;
  NEED_TESTBED(project);
  const std::string path = project.path().string();
  const ProcessResult doctor = project.xffl({"doctor", "-p", path});
  EXPECT_EQ(doctor.exit_code, 0) << doctor.out << doctor.err;
  EXPECT_THAT(doctor.out, AllOf(HasSubstr("all checks passed"), Not(HasSubstr("FAILED")),
                                HasSubstr("ok      allocation"), HasSubstr("ok      free files"),
                                ContainsRegex("(ok     |warning) quota")));

  const ProcessResult planned = project.plan();
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  const Json plan = parse_json(planned.out, "plan");
  ASSERT_EQ(plan["facilities"].size(), 2u);
  for (const Json& facility : plan["facilities"]) {
    EXPECT_THAT(facility["answer"].get<std::string>(), HasSubstr("to start at")) << planned.out;
    EXPECT_NEAR(facility["node_hours"].get<double>(), 2 * 5 / 60.0, 1e-9);
  }
  EXPECT_EQ(project.jobs_left("alba"), "") << "planning submits nothing";
  const std::vector<std::string> logs = {"logs", "alba", "-p", path};
  EXPECT_EQ(project.xffl(logs).exit_code, exit_code(ErrorKind::kNotFound));

  project.edit("environment:\n", "environment:\n      - echo this is job $SLURM_JOB_NAME\n");
  ASSERT_EQ(project.run().exit_code, 0);
  const ProcessResult read = project.xffl(logs);
  EXPECT_EQ(read.exit_code, 0) << read.err;
  EXPECT_THAT(read.out, ContainsRegex("this is job xffl-.*-r000.-alba-a1"));
}

}  // namespace
}  // namespace xffl
