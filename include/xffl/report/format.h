// A run's story as a page, as text and as JSON. Pure: the same story gives the same bytes.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "xffl/report/run_story.h"

namespace xffl::report {

/// One HTML file without scripts and without other files: it opens from any folder, and its content
/// security policy forbids a browser to load or run anything. With `refresh` the browser reloads
/// the page after this time. All text of the run is escaped.
std::string format_html(const RunStory& story, std::optional<std::chrono::seconds> refresh = {});

/// At most 100 columns, except for a long reason.
std::string format_text(const RunStory& story);

/// docs/reference/report_json.md lists the keys.
std::string format_json(const RunStory& story);

}  // namespace xffl::report
