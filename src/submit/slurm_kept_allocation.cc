#include "slurm_kept_allocation.h"

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::submit {
namespace {

// $1 is the folder of the attempt that has reported. Listing the folder makes a shared file system
// ask its server for the newest names.
constexpr const char* kEnter = R"sh(cd -- "$1" 2>/dev/null || { echo none; exit 0; }
: stay.*
)sh";

// $2 is the job id by the journal, $3 the next attempt's folder, $4 "wait" or "".
constexpr const char* kTake = R"sh(if [ ! -e stay.taken ]; then
  [ -e stay.planned ] || [ -e stay.offered ] || { echo none; exit 0; }
  read -r owner _ 2>/dev/null <claim/owner
  if [ "$owner" = "$2" ]; then
    cat >"$3/job.sh.part" && mv -f -- "$3/job.sh.part" "$3/job.sh" || exit 1
    [ "$4" = wait ] || mv stay.planned stay.closed 2>/dev/null
    mv stay.offered stay.taken 2>/dev/null
  else
    mv stay.planned stay.closed 2>/dev/null || mv stay.offered stay.closed 2>/dev/null
  fi
fi
if [ -e stay.taken ]; then echo taken
elif [ -e stay.planned ] || [ -e stay.offered ]; then echo planned
else echo none; fi
)sh";

constexpr const char* kRelease =
    "mv stay.planned stay.closed 2>/dev/null || mv stay.offered stay.closed 2>/dev/null\n"
    "exit 0\n";

}  // namespace

std::vector<std::string> take_command(const KeptAllocation& kept, const RemotePath& next,
                                      bool wait) {
  return {"sh",           "-c",       std::string(kEnter) + kTake, "sh", kept.folder.str(),
          kept.job.str(), next.str(), wait ? "wait" : ""};
}

TakeResult read_take_result(const remote::CommandResult& result) {
  if (result.exit_code == 0) {
    if (result.out == "taken\n") return TakeResult::kTaken;
    if (result.out == "planned\n") return TakeResult::kPlanned;
    if (result.out == "none\n") return TakeResult::kNone;
  }
  throw Error(ErrorKind::kRemote,
              "it is unknown whether the kept allocation was taken: exit status " +
                  std::to_string(result.exit_code) + ": " +
                  log::printable(result.err.empty() ? result.out : result.err, 300));
}

std::vector<std::string> release_command(const KeptAllocation& kept) {
  return {"sh", "-c", std::string(kEnter) + kRelease, "sh", kept.folder.str()};
}

RemotePath taken_file(const KeptAllocation& kept) { return kept.folder / "stay.taken"; }

}  // namespace xffl::submit
