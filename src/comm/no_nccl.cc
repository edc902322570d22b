#include "backend_group.h"
#include "xffl/base/error.h"

namespace xffl::comm {

bool has_nccl() { return false; }
std::string nccl_version() { return ""; }

std::unique_ptr<Group> make_nccl(const Rendezvous&, at::Device, Store) {
  throw Error(ErrorKind::kUnsupported,
              "this xffl-train was built without NCCL: build it with the preset trainer-cuda");
}

}  // namespace xffl::comm
