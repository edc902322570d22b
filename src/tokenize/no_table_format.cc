// In place of table_format.cc in a build without libarrow (cmake/arrow.cmake).
#include "format_reader.h"
#include "xffl/base/error.h"

namespace xffl::tokenize {

bool reads_tables() { return false; }

std::unique_ptr<FormatReader> read_table(const std::filesystem::path& path, InputFormat /*format*/,
                                         const DocumentOptions& /*options*/) {
  throw Error(
      ErrorKind::kUnsupported,
      path.string() +
          ": this xffl-tokenize was built without libarrow, which reads Parquet and Arrow: "
          "convert the data to JSONL (docs/user/tokenizing.md has a script), or use a "
          "build with libarrow: a bundle (scripts/package.sh), or your own (scripts/build.sh)");
}

}  // namespace xffl::tokenize
