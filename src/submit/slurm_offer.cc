#include "slurm_offer.h"

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::submit {
namespace {

// $1 the folder of the attempt that was reported on. Its names are listed first: a shared file
// system then asks its server for them.
constexpr const char* kEnter = R"sh(cd -- "$1" 2>/dev/null || { echo none; exit 0; }
: stay.*
)sh";

// $2 the job by the journal, $3 the next attempt's folder, $4 "wait" or "".
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
elif [ -e stay.planned ] || [ -e stay.offered ]; then echo coming
else echo none; fi
)sh";

constexpr const char* kDecline =
    "mv stay.planned stay.closed 2>/dev/null || mv stay.offered stay.closed 2>/dev/null\n"
    "exit 0\n";

}  // namespace

std::vector<std::string> take_command(const Offer& offer, const RemotePath& next, bool waits) {
  return {"sh",
          "-c",
          std::string(kEnter) + kTake,
          "sh",
          offer.folder.str(),
          offer.job.str(),
          next.str(),
          waits ? "wait" : ""};
}

Taking read_taking(const remote::CommandResult& answer) {
  if (answer.exit_code == 0) {
    if (answer.out == "taken\n") return Taking::kTaken;
    if (answer.out == "coming\n") return Taking::kComing;
    if (answer.out == "none\n") return Taking::kNone;
  }
  throw Error(ErrorKind::kRemote,
              "whether the job that stays was taken is in doubt: exit status " +
                  std::to_string(answer.exit_code) + ": " +
                  log::printable(answer.err.empty() ? answer.out : answer.err, 300));
}

std::vector<std::string> decline_command(const Offer& offer) {
  return {"sh", "-c", std::string(kEnter) + kDecline, "sh", offer.folder.str()};
}

RemotePath taken_file(const Offer& offer) { return offer.folder / "stay.taken"; }

}  // namespace xffl::submit
