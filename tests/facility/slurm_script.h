// The Slurm script run by a shell, with stand-ins for srun, scontrol, modules and apptainer.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "support/temp_dir.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"
#include "xffl/facility/job_script.h"
#include "xffl/submit/slurm.h"

namespace xffl::facility {

class SlurmScript : public testing::Test {
 protected:
  SlurmScript() {
    make_dirs(folder() / "out");
    program("bin/srun", "while [ \"${1#--}\" != \"$1\" ]; do shift; done\nexec \"$@\"\n");
    program("bin/scontrol", "printf 'node7\\nnode8\\n'\n");
    program("bin/apptainer",
            "echo \"apptainer $*\" >>image.txt\nuntil [ \"$1\" = x.sif ]; do shift; "
            "done\nshift\nexec \"$@\"\n");
    program("trainer", "echo \"$MASTER_ADDR:$MASTER_PORT $TAG $LOADED args $*\" >>ran.txt\n");
    make_dirs(dir_ / "modules/init");
    write_file_atomic(
        dir_ / "modules/init/bash",
        "module() { [ \"$2\" != absent ] && LOADED=\"$LOADED$2,\"; }\nexport LOADED\n");
    facility_.name = FacilityName("alba");
    facility_.scheduler = submit::QueueSettings("slurm");
    facility_.workdir = RemotePath(dir_.path().string());
    facility_.trainer_command = {(dir_ / "trainer").string()};
    slurm().tasks_per_node = 1;
  }

  void program(const std::string& name, const std::string& body) {
    make_dirs((dir_ / name).parent_path());
    write_file_atomic(dir_ / name, "#!/bin/bash\n" + body);
    ::chmod((dir_ / name).c_str(), 0755);
  }
  std::filesystem::path folder(int round = 1) const {
    return dir_ / (round == 1 ? "a1" : "r" + std::to_string(round));
  }
  /// For a job that may keep its allocation for the next round.
  std::string script(int round = 1) const {
    job::JobSpec spec;
    spec.key = {"demo", "0001", round,
                "alba", 1,      std::string(32, static_cast<char>('a' + round - 1))};
    std::optional<RemotePath> next;
    if (facility_.shape().keep_allocation.count() > 0)
      next = RemotePath(folder(round + 1).string());
    return job_script(facility_, spec, spec.key.name(), RemotePath(folder(round).string()),
                      {"/x/xffl", "/x/xffl-train"}, next);
  }
  ProcessSpec spec(const std::string& job, const std::string& restarts) const {
    write_file_atomic(dir_ / "job.sbatch", script());
    std::map<std::string, std::string> env{{"PATH", (dir_ / "bin").string() + ":/usr/bin:/bin"},
                                           {"SLURM_JOB_ID", job},
                                           {"SLURM_JOB_NODELIST", "node[7-8]"},
                                           {"SLURM_JOB_NUM_NODES", "2"},
                                           {"XFFL_CLAIM_BEAT", "1"},
                                           {"SLURM_EXPORT_ENV", "NONE"},
                                           {"MODULESHOME", (dir_ / "modules").string()}};
    if (!restarts.empty()) env["SLURM_RESTART_COUNT"] = restarts;
    return {.argv = {"bash", (dir_ / "job.sbatch").string()}, .env = env, .inherit_env = false};
  }
  ProcessResult run(const std::string& job, const std::string& restarts = "") {
    return run_process(spec(job, restarts));
  }
  std::string text(const std::string& name, int round = 1) const {
    const auto path = folder(round) / name;
    return std::filesystem::exists(path) ? read_file(path, 1 << 20) : "";
  }

  submit::SlurmSettings& slurm() { return facility_.scheduler.as<submit::SlurmSettings>(); }

  test::TempDir dir_;
  config::Facility facility_;
};

}  // namespace xffl::facility
