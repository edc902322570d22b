// The figures of the page, as inline SVG.
//
// Each figure fills its box: its coordinates run from 0 to 100 in both directions, and the browser
// stretches them. Lines keep their width by `vector-effect`, and labels are HTML, placed in per
// cent, so that text keeps its size on any screen. A colour is a class of the style sheet.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "html_writer.h"

namespace xffl::report {

/// The range of an axis that shows all `values`; never empty.
struct Axis {
  double low = 0, high = 1;
  double at(double value) const { return 100 * (value - low) / (high - low); }
};
Axis axis_of(const std::vector<double>& values);

/// A number of an SVG path: at most two decimals.
std::string coordinate(double value);

// A small figure of one line. A missing value is a gap.
struct Line {
  std::string title;
  std::vector<std::optional<double>> values;  // by column
  int first = 0, last = 0;                    // labels of the horizontal axis
  std::vector<std::string> tooltips;          // one per value; empty: none
};
/// A grid of figures with one vertical axis and the same columns; a dot marks the lowest value of
/// each.
void write_small_multiples(HtmlWriter& html, const std::vector<Line>& lines,
                           std::string_view columns);

// A part of a bar, from `begin` to `end` in per cent of the bar's length.
struct Segment {
  double begin = 0, end = 0;
  int color = 0;  // a phase
};
struct Bar {
  std::string title;
  std::vector<Segment> segments;
  double whole = 0;  // of a column: its height, with the parts that have no segment
  struct Tooltip {
    double begin = 0, end = 0;
    std::string text;
  };
  std::vector<Tooltip> tooltips;
};
/// Bars below one another with their titles. `marks`: dashed lines across all bars.
void write_bars(HtmlWriter& html, const std::vector<Bar>& bars,
                const std::vector<double>& marks = {});

/// One column for each bar, next to each other; segments count from the bottom. `top` names the
/// value at 100. `marks`: dashed lines at these columns.
void write_columns(HtmlWriter& html, const std::vector<Bar>& bars, std::string_view top,
                   const std::vector<size_t>& marks = {});

// A figure of rows and columns in seven shades.
struct Strip {
  std::string title;
  std::vector<std::optional<int>> shades;  // 0 (low) to 6 by column; absent: not measured
  std::vector<std::string> tooltips;       // one per column
};
void write_strips(HtmlWriter& html, const std::vector<Strip>& strips);

/// A line with the range of its values around it.
struct Envelope {
  std::string title;
  struct Point {
    double x = 0, low = 0, high = 0, mean = 0;  // x: 0 to 100
  };
  std::vector<Point> points;
  std::string first_label, last_label;  // of the horizontal axis
};
void write_envelopes(HtmlWriter& html, const std::vector<Envelope>& envelopes);

/// Three values of each column: the model as it was given to a facility, after the facility's
/// training, and the next global model.
struct Effect {
  std::string title;
  struct Round {
    int round = 0;
    std::optional<double> given, trained, averaged;
  };
  std::vector<Round> rounds;
};
void write_effects(HtmlWriter& html, const std::vector<Effect>& effects);

/// The colours' meanings.
void write_legend(HtmlWriter& html, const std::vector<std::pair<int, std::string_view>>& entries);

}  // namespace xffl::report
