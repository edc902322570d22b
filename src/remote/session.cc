#include "xffl/remote/session.h"

#include <algorithm>

#include "xffl/base/error.h"

namespace xffl::remote {

std::string read_text(Session& session, const RemotePath& path, uint64_t max_bytes) {
  const auto info = session.stat(path);
  if (!info)
    throw Error(ErrorKind::kNotFound, "there is no file " + path.str() + " at the facility");
  if (info->type != FileInfo::Type::kRegular)
    throw Error(ErrorKind::kCorrupt, path.str() + " at the facility is not a regular file");
  // The size is a claim of the far side: what is read decides.
  std::string text;
  while (text.size() <= max_bytes) {
    const size_t wanted = std::min<uint64_t>(max_bytes + 1 - text.size(), 1u << 20);
    const size_t present = text.size();
    text.resize(present + wanted);
    const size_t n = session.read(path, present,
                                  std::as_writable_bytes(std::span(text.data() + present, wanted)));
    text.resize(present + n);
    if (n == 0) return text;
  }
  throw Error(ErrorKind::kCorrupt, path.str() + " at the facility is larger than the " +
                                       std::to_string(max_bytes) + " bytes allowed for it");
}

void write_text_atomic(Session& session, const RemotePath& path, std::string_view text) {
  const RemotePath temp(path.str() + ".tmp");
  session.remove_tree(temp);  // a longer one may be left from an interrupted call
  session.write(temp, 0, std::as_bytes(std::span(text.data(), text.size())));
  session.sync(temp);
  session.rename(temp, path);
}

}  // namespace xffl::remote
