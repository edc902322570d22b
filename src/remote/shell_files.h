// look() and put_files() where the facility has a shell: one command each.
#pragma once

#include <span>
#include <vector>

#include "xffl/base/names.h"
#include "xffl/remote/session.h"

namespace xffl::remote {

/// As Session::look(). Throws kRemote when the answer is cut, kIo when the folder is closed to us.
std::vector<FileView> look_by_shell(Session& session, const RemotePath& folder,
                                    std::span<const FileQuery> files);

/// As Session::put_files(). False when this shell's tools cannot do it: nothing has got its name
/// then. Throws kRemote, kIo.
bool put_by_shell(Session& session, const RemotePath& folder, std::span<const NewFile> files);

}  // namespace xffl::remote
