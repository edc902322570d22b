// The answers of the scripts that query and write files at a facility: an accepted answer has one
// view for each file, within the limits of the query.
#include "fuzz.h"
#include "shell_files.h"

using namespace xffl;
using remote::CommandResult;
using remote::FileInfo;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const RemotePath folder("/work/attempt");
  static const std::vector<remote::FileQuery> queries{
      {"report.json", 64}, {"job.out", 0}, {"a", 9}};
  fuzz::Choices choices(data, size);
  CommandResult answer;
  answer.exit_code = choices.byte() % 6;
  // The rest is the output of a successful command, or the errors of a failed command.
  (answer.exit_code == 0 ? answer.out : answer.err) = choices.rest();

  const remote::RunCommand run = [&](const auto&, const auto&) { return answer; };
  const auto views = fuzz::accepted([&] { return remote::look_by_shell(run, folder, queries); });
  if (views) {
    fuzz::expect(views->size() == queries.size(), "each query has an answer");
    for (size_t i = 0; i < views->size(); ++i) {
      const remote::FileView& view = (*views)[i];
      fuzz::expect(view.bytes.size() <= queries[i].max_bytes, "a content is within its limit");
      const bool regular = view.info && view.info->type == FileInfo::Type::kRegular;
      fuzz::expect(view.bytes.empty() || regular, "only a regular file has a content");
      fuzz::expect(view.bytes.empty() || view.info->size_bytes == view.bytes.size(),
                   "a content has the file's size");
    }
  }
  const std::vector<remote::NewFile> files{{"job.json", "{}"}};
  const auto put = fuzz::accepted([&] { return remote::put_by_shell(run, folder, files); });
  fuzz::expect(!put || !*put || (answer.exit_code == 0 && answer.out == "end\n"),
               "only the expected answer is a success");
  if (const auto copied = remote::dd_copied(choices.rest()))
    fuzz::expect(choices.rest().find(" byte") != std::string_view::npos, "dd names bytes");
  return 0;
}
