#include "e2e/testbed_project.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <thread>

#include "xffl/base/file.h"

namespace xffl::test {

namespace fs = std::filesystem;

Placement placement(const Facility& facility, const std::string& more, const std::string& slurm) {
  std::ostringstream yaml;
  yaml << "    access: ssh\n    scheduler: slurm\n    ssh: {hosts: ['" << facility.host
       << "'], user: " << facility.user << ", keys: ['" << facility.key.string()
       << "'], agent: false}\n    slurm: {settle_time: 2s, command_timeout: 20s, " << slurm
       << "}\n    poll_interval: 300ms\n    workdir: " << facility.scratch << "/work\n"
       << more;
  return {yaml.str(), facility.scratch + "/trainings.log",
          facility.folder / "scratch/trainings.log"};
}

std::string local_sha256(const std::function<void(Project&)>& change) {
  Project project;
  if (change) {
    change(project);
    project.write_config();
  }
  EXPECT_EQ(project.run().exit_code, 0);
  return project.current_sha256();
}

TestbedProject::TestbedProject(const std::vector<std::string>& flavours)
    : testbed_({"alba", "brno"}, flavours) {
  if (!testbed_.up()) return;
  for (const char* name : {"alba", "brno"}) place(name, placement(facility(name)));
  write_config();
  // The host keys, as after `xffl trust`.
  write_file_atomic(path() / "known_hosts", read_file(facility("alba").known_hosts, 1 << 20));
}

void TestbedProject::forget_runs() const {
  Project::forget_runs();
  for (const char* name : {"alba", "brno"})
    facility(name).exec_on_login({"rm", "-rf", facility(name).scratch + "/work"});
}

std::string TestbedProject::running_job(const std::string& name,
                                        const std::string& other_than) const {
  const Facility& there = facility(name);
  std::string found;
  const auto has_begun = [&](const std::string& id) {
    return there
               .exec_on_login(
                   {"grep", "-rqs", "^" + id + " ", there.scratch + "/work", "--include=owner"})
               .exit_code == 0;
  };
  await([&] {
    std::istringstream ids(there.exec_on_login({"squeue", "-h", "-t", "R", "-o", "%A"}).out);
    for (std::string id; std::getline(ids, id);)
      if (id != other_than && has_begun(id)) found = id;
    return !found.empty();
  });
  return found;
}

void TestbedProject::expect_result(const std::string& sha256, const std::string& context,
                                   const std::vector<std::string>& expected,
                                   const std::vector<std::string>& also_started) const {
  EXPECT_EQ(current_sha256(), sha256) << context;
  EXPECT_EQ(trainings(), expected) << context;
  std::vector<std::string> started = expected;
  started.insert(started.end(), also_started.begin(), also_started.end());
  std::sort(started.begin(), started.end());
  EXPECT_EQ(started_trainings(), started) << context;
  std::map<int, int> published;
  for (const history::StoredEvent& event : events())
    if (event.kind == "published") ++published[event.round];
  for (const auto& [round, times] : published) EXPECT_EQ(times, 1) << context << " round " << round;
  EXPECT_EQ(static_cast<int>(published.size()), history().done().rounds_published) << context;
  EXPECT_TRUE(history().completed) << context;
  for (const char* name : {"alba", "brno"}) {
    // A node without a controller reports a job's end only every 15 s.
    await([&] { return jobs_left(name).empty(); });
    EXPECT_EQ(jobs_left(name), "") << context;
  }
  if (testing::Test::HasFailure() && fs::exists(log()))
    std::cerr << "--- the output of the coordinator\n" << read_file(log(), 1 << 20);
}

std::string TestbedProject::jobs_left(const std::string& name) const {
  return facility(name).exec_on_login({"squeue", "-h", "-o", "%j %T"}).out;
}

}  // namespace xffl::test
