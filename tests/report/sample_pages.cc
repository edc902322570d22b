// Writes pages of synthetic runs into a folder, for the test with a browser.
#include <filesystem>
#include <fstream>

#include "report/stories.h"
#include "xffl/report/format.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::filesystem::path folder = argv[1];
  const auto write = [&](const char* name, const xffl::report::RunStory& story) {
    std::ofstream(folder / name) << xffl::report::format_html(story);
  };
  write("empty.html", xffl::test::SyntheticRun().story());
  write("hostile.html", xffl::test::hostile_story());
  write("short.html", xffl::test::long_story(3, 2));
  write("long.html", xffl::test::long_story(100, 8));
  return 0;
}
