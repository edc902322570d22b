// The figures of a run's story, each with its table.
#pragma once

#include "html_writer.h"
#include "xffl/report/run_story.h"

namespace xffl::report {

/// The first of `rows` rows of a table with `cells` cells each: a long table has its newest rows
/// only, and begins with a note.
size_t first_row(size_t rows, size_t cells);
void note_omitted_rows(HtmlWriter& html, size_t first);

void write_loss_figure(HtmlWriter& html, const RunStory& story);
void write_effect_figure(HtmlWriter& html, const RunStory& story);
void write_change_figure(HtmlWriter& html, const RunStory& story);
void write_direction_figure(HtmlWriter& html, const RunStory& story);
void write_step_figure(HtmlWriter& html, const RunStory& story);
void write_share_figure(HtmlWriter& html, const RunStory& story);
void write_round_figure(HtmlWriter& html, const RunStory& story);
void write_sent(HtmlWriter& html, const RunStory& story);
void write_timeline(HtmlWriter& html, const RunStory& story);

}  // namespace xffl::report
