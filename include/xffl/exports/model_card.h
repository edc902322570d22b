// A published model as a folder to share: the model's files and README.md, a model card.
#pragma once

#include <filesystem>
#include <string>

#include "xffl/exports/model_signature.h"
#include "xffl/history/run_folder.h"
#include "xffl/report/run_story.h"

namespace xffl::exports {

struct ModelCard {
  std::string license;            // an SPDX identifier, or a word of the Hugging Face Hub
  std::string base_model;         // such as meta-llama/Llama-3.2-1B; empty: the card names none
  int round = 0;                  // 0: the newest published round
  bool names_facilities = false;  // else "facility 1", "facility 2", ... by name
};

/// README.md: the metadata of the Hugging Face Hub, and the story of the model. Pure. `is_adapter`:
/// the model is a LoRA adapter. Throws kNotFound unless the card's round is published.
///
/// Source: huggingface.co/docs/hub/model-cards.
std::string format_model_card(const report::RunStory& story, const ModelCard& card,
                              bool is_adapter);

/// Makes the folder `to`, whole or not at all: hard links to the weights of the round's model where
/// the file system permits them, else copies; copies of all other files; README.md. Hashes every
/// file. With `key` the folder has model.sig, the OpenSSF model signature of all other files.
/// Throws kUsage when `to` exists, kNotFound when the model was removed, kRejected when it is not
/// the model of the journal, kIo.
void export_model(const report::RunStory& story, const history::RunFolder& run,
                  const ModelCard& card, const std::filesystem::path& to,
                  const SigningKey* key = nullptr);

}  // namespace xffl::exports
