// Session::look() and put_files() by one shell command each.
#pragma once

#include <span>
#include <vector>

#include "xffl/base/names.h"
#include "xffl/remote/session.h"

namespace xffl::remote {

/// See Session::look(). Throws kRemote when the answer is incomplete, kIo when the folder is not
/// accessible.
std::vector<FileView> look_by_shell(Session& session, const RemotePath& folder,
                                    std::span<const FileQuery> files);

/// See Session::put_files(). False when the facility's tools fail; no file has its final name then.
/// Throws kRemote, kIo.
bool put_by_shell(Session& session, const RemotePath& folder, std::span<const NewFile> files);

}  // namespace xffl::remote
