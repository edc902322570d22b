// A model on its way to a facility while it is still being written, so that the push that follows
// finds most of it there.
//
// Only large files go ahead, as the part files that push() would leave when interrupted, in a
// folder that nothing else looks at: what the model will be called is known when it is whole.
#pragma once

#include <cstdint>
#include <map>
#include <stop_token>
#include <string>

#include "xffl/base/growing_files.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/transfer/transfer.h"

namespace xffl::transfer {

/// Sends what is written of `files`, as soon as it is worth a stream, into `to`, which is emptied
/// first; until the writer has ended, or on `enough`, once what is under way has arrived. `sent`
/// says at every moment what has arrived, an error included. Nothing is sent when the facility has
/// no room for `total_bytes`, and what was is removed when the room ends. `on_progress` counts in
/// `total_bytes`. Throws kRemote, kAuth, kIo, and kCancelled on `stop`.
void send_ahead(const Endpoint& facility, const GrowingFiles& files, uint64_t total_bytes,
                const RemotePath& to, Sent& sent, std::stop_token enough, std::stop_token stop,
                const OnProgress& on_progress = {});

/// Makes what send_ahead() has left in `from`, if anything, the beginning of a push of `manifest`
/// to `to`. False, and `from` is gone: there was nothing, or `to` has something already. Throws
/// kRemote, kAuth, kIo.
bool take_ahead(const Endpoint& facility, const RemotePath& from,
                const checkpoint::Manifest& manifest, const RemotePath& to);

}  // namespace xffl::transfer
