#include "backend_group.h"
#include "xffl/base/error.h"

namespace xffl::comm {

bool has_gloo() { return false; }

BackendMaker gloo_maker(const Rendezvous&) {
  throw Error(ErrorKind::kUnsupported,
              "this xffl-train was built without Gloo, so it cannot run several ranks on CPUs: "
              "install libgloo-dev and rebuild, or start one rank");
}

}  // namespace xffl::comm
