#include "xffl/history/kept_checks.h"

#include <gtest/gtest.h>

#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::history {
namespace {

using test::error_of;

KeptCheck check(const std::string& name, const std::string& result, int64_t events) {
  KeptCheck one;
  one.name = name;
  one.content = "what is compared";
  one.result = result;
  one.checked_at = "2026-11-24T01:02:03.004Z";
  one.events = events;
  one.last_event_at = "2026-11-23T01:02:03.004Z";
  one.passed = result == "ok" ? 4 : 0;
  if (result == "failed") {
    one.failed = 1;
    one.failures = {"r0001/x: expected a, found \"b\"\x1b[0m"};
  }
  if (result == "not checked") one.not_checked = {"needs --replay"};
  return one;
}

TEST(KeptChecks, AreReadAsTheyWereWritten) {
  const std::vector<KeptCheck> checks = {check("chain", "ok", 7), check("replay", "failed", 7),
                                         check("blocks", "not checked", 7)};
  EXPECT_EQ(parse_kept_checks(format_kept_checks(checks), "here"), checks);
  const test::TempDir dir;
  EXPECT_TRUE(read_kept_checks(dir / "absent").empty());
}

TEST(KeptChecks, ACheckThatWasNotMadeReplacesNoResult) {
  std::vector<KeptCheck> all =
      merged({}, {check("chain", "ok", 7), check("replay", "not checked", 7)});
  all = merged(all, {check("chain", "ok", 9), check("replay", "failed", 9)});
  all = merged(all, {check("chain", "failed", 12), check("replay", "not checked", 12)});
  EXPECT_EQ(all, (std::vector{check("chain", "failed", 12), check("replay", "failed", 9)}));
  all = merged(all, {check("replay", "ok", 13), check("blocks", "not checked", 13)});
  EXPECT_EQ(all, (std::vector{check("chain", "failed", 12), check("replay", "ok", 13),
                              check("blocks", "not checked", 13)}));
}

TEST(KeptChecks, ADamagedFileIsNamed) {
  const std::string good = format_kept_checks({check("chain", "ok", 7)});
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return text;
  };
  for (const std::string& bad :
       {std::string("{}"), std::string("[]"), good.substr(0, good.size() / 2),
        with("\"schema\": 1", "\"schema\": 2"), with("\"ok\"", "\"fine\""),
        with("\"events\": 7", "\"events\": -7"), with("\"failures\": []", "\"failures\": [1]"),
        with("\"checks\": [", "\"checks\": [[], ")}) {
    const Error error = error_of([&] { parse_kept_checks(bad, "verification.json"); });
    EXPECT_NE(std::string(error.what()).find("verification.json"), std::string::npos)
        << bad << "\n"
        << error.what();
  }
}

}  // namespace
}  // namespace xffl::history
