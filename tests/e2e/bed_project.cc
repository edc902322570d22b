#include "e2e/bed_project.h"

#include <algorithm>
#include <sstream>
#include <thread>

#include "xffl/base/file.h"

namespace xffl::test {

namespace fs = std::filesystem;

Placement placement(const Facility& facility, int nodes, const std::string& more) {
  std::ostringstream yaml;
  yaml << "    access: ssh\n    scheduler: slurm\n    ssh: {hosts: ['" << facility.host
       << "'], user: " << facility.user << ", keys: ['" << facility.key.string()
       << "'], agent: false}\n    slurm: {nodes: " << nodes
       << ", time: 5m, warning: 1m, settle_time: 2s, command_timeout: 20s}\n"
          "    poll_interval: 300ms\n    workdir: "
       << facility.scratch << "/work\n"
       << more;
  return {yaml.str(), facility.scratch + "/trainings.log",
          facility.folder / "scratch/trainings.log"};
}

BedProject::BedProject(const std::vector<std::string>& flavours)
    : bed_({"alba", "brno"}, flavours) {
  if (!bed_.up()) return;
  for (const char* name : {"alba", "brno"}) place(name, placement(facility(name)));
  write_config();
  // As `xffl trust` would leave it, once a person has compared the fingerprints.
  write_file_atomic(path() / "known_hosts", read_file(facility("alba").known_hosts, 1 << 20));
}

bool BedProject::await_events(const std::string& kind, int count,
                              std::chrono::seconds patience) const {
  const auto ends = std::chrono::steady_clock::now() + patience;
  for (; std::chrono::steady_clock::now() < ends;
       std::this_thread::sleep_for(std::chrono::milliseconds(50))) {
    if (!fs::exists(run_folder() / "journal.db")) continue;
    const auto all = events();
    if (std::count_if(all.begin(), all.end(), [&](const auto& e) { return e.kind == kind; }) >=
        count)
      return true;
  }
  return false;
}

void BedProject::forget_runs() const {
  Project::forget_runs();
  for (const char* name : {"alba", "brno"})
    facility(name).exec_on_login({"rm", "-rf", facility(name).scratch + "/work"});
}

std::string BedProject::jobs_left(const std::string& name) const {
  return facility(name).exec_on_login({"squeue", "-h", "-o", "%j %T"}).out;
}

}  // namespace xffl::test
