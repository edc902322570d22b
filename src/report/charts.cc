#include "charts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "numbers.h"

namespace xffl::report {
namespace {

void open_svg(HtmlWriter& html, std::string label, std::string shape) {
  html.open("svg", {{"class", std::move(shape)},
                    {"viewBox", "0 0 100 100"},
                    {"preserveAspectRatio", "none"},
                    {"role", "img"},
                    {"aria-label", std::move(label)}});
}

// A transparent area with a tooltip.
// Over the whole height of a figure.
void write_tooltip(HtmlWriter& html, double x, double width, std::string_view text) {
  html.open(
      "rect",
      {{"class", "t"}, {"x", coordinate(x)}, {"width", coordinate(width)}, {"height", "100"}});
  html.element("title", text);
  html.close();
}

void write_path(HtmlWriter& html, std::string shape, std::string path) {
  if (!path.empty()) html.empty("path", {{"class", std::move(shape)}, {"d", std::move(path)}});
}

std::string point(char command, double x, double y) {
  return command + coordinate(x) + " " + coordinate(y);
}

// A rectangle.
std::string box(double x, double y, double width, double height) {
  return point('M', x, y) + "h" + coordinate(width) + "v" + coordinate(height) + "h" +
         coordinate(-width) + "z";
}

// The centre of a column, of `n`.
double centre(size_t column, size_t n) {
  return 100 * (static_cast<double>(column) + 0.5) / static_cast<double>(n);
}

// The labels at the ends of the vertical axis.
void axis_labels(HtmlWriter& html, const Axis& axis) {
  html.element("i", fixed(axis.high, 2), {{"class", "hi"}});
  html.element("i", fixed(axis.low, 2), {{"class", "lo"}});
}

void x_labels(HtmlWriter& html, std::string_view first, std::string_view last) {
  html.open("div", {{"class", "x"}});
  html.element("i", first);
  html.element("i", last);
  html.close();
}

const char* phase_class(int color) {
  static constexpr std::array<const char*, 8> kClasses = {"p0", "p1", "p2", "p3",
                                                          "p4", "p5", "p6", "p7"};
  return kClasses.at(static_cast<size_t>(color));
}

}  // namespace

Axis axis_of(const std::vector<double>& values) {
  if (values.empty()) return {};
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const double margin = std::max({0.05 * (*high - *low), 1e-6 * std::abs(*high), 1e-9});
  return {*low - margin, *high + margin};
}

std::string coordinate(double value) {
  std::string text = fixed(value, 2);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

void write_small_multiples(HtmlWriter& html, const std::vector<Line>& lines,
                           std::string_view columns) {
  std::vector<double> all;
  for (const Line& line : lines)
    for (const auto& value : line.values)
      if (value) all.push_back(*value);
  if (all.empty()) return;
  const Axis axis = axis_of(all);
  html.open("div", {{"class", "grid"}});
  for (const Line& line : lines) {
    const size_t n = line.values.size();
    html.open("figure");
    html.element("figcaption", line.title);
    html.open("div", {{"class", "plot"}});
    axis_labels(html, axis);
    open_svg(html, line.title, "line");
    std::string path, dots;
    std::optional<size_t> best;
    for (size_t i = 0; i < n; ++i) {
      const auto& value = line.values[i];
      if (!value) continue;
      const bool continues = i > 0 && line.values[i - 1];
      const bool is_alone = !continues && (i + 1 == n || !line.values[i + 1]);
      path += point(continues ? 'L' : 'M', centre(i, n), 100 - axis.at(*value));
      if (is_alone) dots += point('M', centre(i, n), 100 - axis.at(*value)) + "h0";
      if (!best || *value < *line.values[*best]) best = i;
    }
    write_path(html, "s", path);
    write_path(html, "dot", dots);
    if (best)
      write_path(html, "dot",
                 point('M', centre(*best, n), 100 - axis.at(*line.values[*best])) + "h0");
    for (size_t i = 0; i < n; ++i)
      if (line.values[i] && !line.tooltips.empty())
        write_tooltip(html, centre(i, n) - 50.0 / static_cast<double>(n),
                      100.0 / static_cast<double>(n), line.tooltips[i]);
    html.close();
    html.close();
    x_labels(html, std::string(columns) + " " + std::to_string(line.first),
             std::to_string(line.last));
    html.close();
  }
  html.close();
}

void write_bars(HtmlWriter& html, const std::vector<Bar>& bars, const std::vector<double>& marks) {
  html.open("div", {{"class", "bars"}});
  for (const Bar& bar : bars) {
    html.element("span", bar.title, {{"class", "name"}});
    open_svg(html, bar.title, "bar");
    std::array<std::string, 8> paths;
    for (const Segment& segment : bar.segments)
      paths.at(static_cast<size_t>(segment.color)) +=
          box(segment.begin, 0, segment.end - segment.begin, 100);
    for (int color = 0; color < 8; ++color)
      write_path(html, phase_class(color), paths[static_cast<size_t>(color)]);
    std::string lines;
    for (const double mark : marks) lines += point('M', mark, 0) + "v100";
    write_path(html, "mark", lines);
    for (const Bar::Tooltip& tooltip : bar.tooltips)
      write_tooltip(html, tooltip.begin, tooltip.end - tooltip.begin, tooltip.text);
    html.close();
  }
  html.close();
}

void write_columns(HtmlWriter& html, const std::vector<Bar>& bars, std::string_view top,
                   const std::vector<size_t>& marks) {
  if (bars.empty()) return;
  const double width = 100.0 / static_cast<double>(bars.size());
  html.open("figure", {{"class", "wide"}});
  html.open("div", {{"class", "plot"}});
  html.element("i", top, {{"class", "hi"}});
  html.element("i", "0", {{"class", "lo"}});
  open_svg(html, "duration of each round", "columns");
  std::string rest;
  for (size_t i = 0; i < bars.size(); ++i)
    rest += box(width * (static_cast<double>(i) + 0.1), 100 - bars[i].whole, 0.8 * width,
                bars[i].whole);
  write_path(html, "rest", rest);
  std::array<std::string, 8> paths;
  for (size_t i = 0; i < bars.size(); ++i)
    for (const Segment& segment : bars[i].segments)
      paths.at(static_cast<size_t>(segment.color)) +=
          box(width * (static_cast<double>(i) + 0.1), 100 - segment.end, 0.8 * width,
              segment.end - segment.begin);
  for (int color = 0; color < 8; ++color)
    write_path(html, phase_class(color), paths[static_cast<size_t>(color)]);
  std::string lines;
  for (const size_t mark : marks) lines += point('M', centre(mark, bars.size()), 0) + "v100";
  write_path(html, "mark", lines);
  for (size_t i = 0; i < bars.size(); ++i)
    for (const Bar::Tooltip& tooltip : bars[i].tooltips)
      write_tooltip(html, width * static_cast<double>(i), width, tooltip.text);
  html.close();
  html.close();
  x_labels(html, bars.front().title, bars.back().title);
  html.close();
}

void write_strips(HtmlWriter& html, const std::vector<Strip>& strips) {
  html.open("div", {{"class", "bars"}});
  for (const Strip& strip : strips) {
    html.element("span", strip.title, {{"class", "name"}});
    open_svg(html, strip.title, "bar");
    const double width = 100.0 / static_cast<double>(std::max<size_t>(1, strip.shades.size()));
    static constexpr std::array<const char*, 7> kClasses = {"c0", "c1", "c2", "c3",
                                                            "c4", "c5", "c6"};
    std::array<std::string, 7> paths;
    for (size_t i = 0; i < strip.shades.size(); ++i)
      if (strip.shades[i])
        paths.at(static_cast<size_t>(*strip.shades[i])) +=
            box(width * static_cast<double>(i), 0, width * 0.94, 100);
    for (size_t k = 0; k < paths.size(); ++k) write_path(html, kClasses[k], paths[k]);
    for (size_t i = 0; i < strip.shades.size(); ++i)
      write_tooltip(html, width * static_cast<double>(i), width, strip.tooltips[i]);
    html.close();
  }
  html.close();
}

void write_envelopes(HtmlWriter& html, const std::vector<Envelope>& envelopes) {
  std::vector<double> all;
  for (const Envelope& envelope : envelopes)
    for (const auto& p : envelope.points) {
      all.push_back(p.low);
      all.push_back(p.high);
    }
  if (all.empty()) return;
  const Axis axis = axis_of(all);
  html.open("div", {{"class", "grid"}});
  for (const Envelope& envelope : envelopes) {
    if (envelope.points.empty()) continue;
    html.open("figure");
    html.element("figcaption", envelope.title);
    html.open("div", {{"class", "plot"}});
    axis_labels(html, axis);
    open_svg(html, envelope.title, "line");
    std::string upper, lower, mean;
    for (const auto& p : envelope.points) {
      upper += point(upper.empty() ? 'M' : 'L', p.x, 100 - axis.at(p.high));
      lower = point('L', p.x, 100 - axis.at(p.low)) + lower;
      mean += point(mean.empty() ? 'M' : 'L', p.x, 100 - axis.at(p.mean));
    }
    write_path(html, "range", upper + lower + "z");
    write_path(html, "s", mean);
    html.close();
    html.close();
    x_labels(html, envelope.first_label, envelope.last_label);
    html.close();
  }
  html.close();
}

void write_effects(HtmlWriter& html, const std::vector<Effect>& effects) {
  std::vector<double> all;
  for (const Effect& effect : effects)
    for (const Effect::Round& round : effect.rounds)
      for (const auto& value : {round.given, round.trained, round.averaged})
        if (value) all.push_back(*value);
  if (all.empty()) return;
  const Axis axis = axis_of(all);
  const auto text = [](const std::optional<double>& value) {
    return value ? loss_text(*value) : std::string("not measured");
  };
  html.open("div", {{"class", "grid"}});
  for (const Effect& effect : effects) {
    const size_t n = effect.rounds.size();
    if (n == 0) continue;
    const double width = 100.0 / static_cast<double>(n);
    html.open("figure");
    html.element("figcaption", effect.title);
    html.open("div", {{"class", "plot"}});
    axis_labels(html, axis);
    open_svg(html, effect.title, "line");
    std::string gains, losses;
    for (size_t i = 0; i < n; ++i) {
      const Effect::Round& round = effect.rounds[i];
      const double x = width * static_cast<double>(i);
      if (round.given && round.trained)
        gains += point('M', x + 0.15 * width, 100 - axis.at(*round.given)) +
                 point('L', x + 0.5 * width, 100 - axis.at(*round.trained));
      if (round.trained && round.averaged)
        losses += point('M', x + 0.5 * width, 100 - axis.at(*round.trained)) +
                  point('L', x + 0.85 * width, 100 - axis.at(*round.averaged));
    }
    write_path(html, "s", gains);
    write_path(html, "back", losses);
    for (size_t i = 0; i < n; ++i) {
      const Effect::Round& round = effect.rounds[i];
      write_tooltip(html, width * static_cast<double>(i), width,
                    "round " + std::to_string(round.round) + ": given " + text(round.given) +
                        ", after training " + text(round.trained) + ", after averaging " +
                        text(round.averaged));
    }
    html.close();
    html.close();
    x_labels(html, "round " + std::to_string(effect.rounds.front().round),
             std::to_string(effect.rounds.back().round));
    html.close();
  }
  html.close();
}

void write_legend(HtmlWriter& html, const std::vector<std::pair<int, std::string_view>>& entries) {
  html.open("p", {{"class", "legend"}});
  for (const auto& [color, name] : entries) {
    html.open("span");
    open_svg(html, std::string(name), "key");
    write_path(html, phase_class(color), box(0, 0, 100, 100));
    html.close();
    html.text(name);
    html.close();
    html.text(" ");
  }
  html.close();
}

}  // namespace xffl::report
