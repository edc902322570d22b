// The colours of the page: contrast as WCAG 2.1 defines it, and distance of colours also for
// colour-blind readers (Machado, Oliveira and Fernandes 2009, severity 1; CIE 1976 Lab).
#include "palette.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "style.h"

namespace xffl::report {
namespace {

using Rgb = std::array<double, 3>;  // linear
using Matrix = std::array<std::array<double, 3>, 3>;

Rgb linear(std::string_view hex) {
  Rgb rgb{};
  for (size_t i = 0; i < 3; ++i) {
    const double c = std::stoi(std::string(hex.substr(1 + 2 * i, 2)), nullptr, 16) / 255.0;
    rgb.at(i) = c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
  }
  return rgb;
}

double contrast(std::string_view a, std::string_view b) {
  const auto luminance = [](const Rgb& c) { return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2]; };
  const double x = luminance(linear(a)), y = luminance(linear(b));
  return (std::max(x, y) + 0.05) / (std::min(x, y) + 0.05);
}

std::array<double, 3> lab(const Rgb& c) {
  const auto f = [](double t) { return t > 0.008856 ? std::cbrt(t) : 7.787 * t + 16.0 / 116; };
  const double x = f((0.4124564 * c[0] + 0.3575761 * c[1] + 0.1804375 * c[2]) / 0.95047);
  const double y = f(0.2126729 * c[0] + 0.7151522 * c[1] + 0.0721750 * c[2]);
  const double z = f((0.0193339 * c[0] + 0.1191920 * c[1] + 0.9503041 * c[2]) / 1.08883);
  return {116 * y - 16, 500 * (x - y), 200 * (y - z)};
}

double distance(std::string_view a, std::string_view b, const Matrix& vision) {
  const auto seen = [&](std::string_view hex) {
    const Rgb c = linear(hex);
    Rgb out{};
    for (size_t i = 0; i < 3; ++i)
      out.at(i) = std::clamp(
          vision.at(i)[0] * c[0] + vision.at(i)[1] * c[1] + vision.at(i)[2] * c[2], 0.0, 1.0);
    return lab(out);
  };
  const auto x = seen(a), y = seen(b);
  return std::hypot(x[0] - y[0], x[1] - y[1], x[2] - y[2]);
}

constexpr std::array<Matrix, 4> kVisions = {{{{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}},
                                             {{{0.152286, 1.052583, -0.204868},
                                               {0.114503, 0.786281, 0.099216},
                                               {-0.003882, -0.048116, 1.051998}}},
                                             {{{0.367322, 0.860646, -0.227968},
                                               {0.280085, 0.672501, 0.047413},
                                               {-0.011820, 0.042940, 0.968881}}},
                                             {{{1.255528, -0.076749, -0.178779},
                                               {-0.078411, 0.930809, 0.147602},
                                               {0.004733, 0.691367, 0.303900}}}}};

TEST(Palette, TheFormulasGiveKnownValues) {
  EXPECT_NEAR(contrast("#000000", "#ffffff"), 21, 1e-9);
  EXPECT_NEAR(contrast("#777777", "#ffffff"), 4.48, 0.005);
  EXPECT_NEAR(distance("#000000", "#ffffff", kVisions[0]), 100, 0.1);
}

TEST(Palette, HasContrastInLightAndDark) {
  for (const Palette& palette : {kLight, kDark}) {
    for (const std::string_view text : {palette.text, palette.dim, palette.mark, palette.warning})
      EXPECT_GE(contrast(text, palette.background), 4.5) << text << " on " << palette.background;
    for (const std::string_view color : palette.phases)
      EXPECT_GE(contrast(color, palette.background), 3) << color << " on " << palette.background;
  }
}

TEST(Palette, PhasesDifferForColourBlindReaders) {
  for (const Palette& palette : {kLight, kDark})
    for (const Matrix& vision : kVisions)
      for (size_t i = 0; i < palette.phases.size(); ++i)
        for (size_t k = 0; k < i; ++k)
          EXPECT_GE(distance(palette.phases.at(i), palette.phases.at(k), vision), 15)
              << palette.phases.at(i) << " and " << palette.phases.at(k);
}

TEST(Palette, IsThatOfTheStyleSheet) {
  const std::string style(Markup(kStyle).text());
  const size_t dark = style.find("prefers-color-scheme:dark");
  ASSERT_NE(dark, std::string::npos);
  for (const bool is_dark : {false, true}) {
    const Palette& palette = is_dark ? kDark : kLight;
    const std::string sheet = is_dark ? style.substr(dark) : style.substr(0, dark);
    const auto has = [&](const std::string& name, std::string_view color) {
      EXPECT_THAT(sheet, testing::HasSubstr("--" + name + ":" + std::string(color)));
    };
    has("bg", palette.background);
    has("fg", palette.text);
    has("dim", palette.dim);
    has("mark", palette.mark);
    has("warn", palette.warning);
    for (size_t i = 0; i < palette.phases.size(); ++i)
      has("p" + std::to_string(i), palette.phases.at(i));
  }
}

}  // namespace
}  // namespace xffl::report
