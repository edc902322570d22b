// Tokenizes a facility's text there, by a job of its queue manager: the text stays at the facility,
// the tokenizer travels.
#pragma once

#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "xffl/config/experiment.h"
#include "xffl/facility/services.h"
#include "xffl/tokens/prepared.h"

namespace xffl::prepare {

using tokens::Prepared;
using tokens::PrepareJob;

/// The options of the facility's job. Without data.sequence_length, a sequence has 2048 tokens, or
/// the model's max_position_embeddings if that is less. Throws kConfig for a facility without
/// data.text, and for a data.sequence_length beyond the model's figure.
PrepareJob prepare_job(const config::Experiment& experiment, const config::Facility& facility);
/// The facility with the resources and the command of the job: one task that runs xffl-tokenize.
/// Its training data lie in the folders of the text, which an image has to bind.
config::Facility job_shape(const config::Facility& facility, const facility::Programs& programs);
/// xffl-tokenize at the facility: beside its xffl-train.
std::string tokenize_program(const config::Facility& facility, const facility::Programs& programs);

struct Callbacks {
  std::function<void(const std::string& message)> on_state{};  // each change
  std::function<void(const tokens::PrepareProgress&)> on_progress{};
};

struct Outcome {
  Prepared prepared;
  bool was_there = false;  // made by an earlier job, with the same tokenizer and length
};

/// Returns the facility's prepared text; when there is none that fits, or with `again`, follows the
/// job that makes it, and submits one if none is under way. After its success, removes the shards
/// that earlier jobs have left unfinished. A stop or a lost link leaves the job alone, and the next
/// call follows it. Throws kConfig (as prepare_job(), and when the queue manager rejects the job),
/// kNotFound (the model has no tokenizer), kFailed (the job ended without shards: with the end of
/// its output), kRemote (the answer to a submission was lost), kCancelled.
Outcome prepare(const config::Experiment& experiment, const config::Facility& facility,
                facility::Services& services, bool again, std::stop_token stop,
                const Callbacks& callbacks = {});

}  // namespace xffl::prepare
