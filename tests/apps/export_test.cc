// `xffl export` as a user calls it.
#include <gmock/gmock.h>

#include "apps/sample_run.h"

namespace xffl {
namespace {

using testing::HasSubstr;
using testing::Not;

using Export = test::SampleRun;

TEST_F(Export, ProvenanceNamesFacilitiesOnRequestOnly) {
  const std::filesystem::path crate = dir_ / "crate";
  const auto export_crate = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"export", "ro-crate", "--license", "mit", crate.string()};
    words.insert(words.end(), more.begin(), more.end());
    const ProcessResult result = xffl(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return read_file(crate / "ro-crate-metadata.json", 1 << 20);
  };
  EXPECT_THAT(export_crate({}), Not(HasSubstr("alba")));
  EXPECT_THAT(export_crate({"--name-facilities"}), HasSubstr("\"alba\""));
}

TEST_F(Export, AModelIsTheOneOfTheNamedRound) {
  const std::string folder = dir_ / "model";
  const ProcessResult refused =
      xffl({"export", "model", "--license", "mit", "--round", "2", folder});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("round 2 is not published"));
}

}  // namespace
}  // namespace xffl
