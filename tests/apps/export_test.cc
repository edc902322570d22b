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

}  // namespace
}  // namespace xffl
