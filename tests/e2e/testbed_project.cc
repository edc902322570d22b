#include "e2e/testbed_project.h"

#include <gtest/gtest.h>

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

std::string local_sha256() {
  Project project;
  EXPECT_EQ(project.run().exit_code, 0);
  return project.current_sha256();
}

bool await(const std::function<bool()>& what, std::chrono::seconds patience) {
  const auto ends = std::chrono::steady_clock::now() + patience;
  while (!what() && std::chrono::steady_clock::now() < ends)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  return what();
}

TestbedProject::TestbedProject(const std::vector<std::string>& flavours)
    : testbed_({"alba", "brno"}, flavours) {
  if (!testbed_.up()) return;
  for (const char* name : {"alba", "brno"}) place(name, placement(facility(name)));
  write_config();
  // As `xffl trust` would leave it, once a person has compared the fingerprints.
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

void TestbedProject::expect_result(const std::string& sha256, const std::string& what,
                                   const std::vector<std::string>& expected) const {
  EXPECT_EQ(current_sha256(), sha256) << what;
  EXPECT_EQ(trainings(), expected) << what;
  std::map<int, int> published;
  for (const history::StoredEvent& event : events())
    if (event.kind == "published") ++published[event.round];
  for (const auto& [round, times] : published) EXPECT_EQ(times, 1) << what << " round " << round;
  EXPECT_EQ(static_cast<int>(published.size()), history().done().rounds_published) << what;
  EXPECT_TRUE(history().completed) << what;
  for (const char* name : {"alba", "brno"}) {
    // A node that found no controller tells it of a job's end every 15 s only.
    await([&] { return jobs_left(name).empty(); });
    EXPECT_EQ(jobs_left(name), "") << what;
  }
  if (testing::Test::HasFailure() && fs::exists(log()))
    std::cerr << "--- what the coordinator said\n" << read_file(log(), 1 << 20);
}

std::string TestbedProject::jobs_left(const std::string& name) const {
  return facility(name).exec_on_login({"squeue", "-h", "-o", "%j %T"}).out;
}

}  // namespace xffl::test
