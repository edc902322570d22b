// The answers of the scripts that query and write files at a facility: an accepted answer has one
// view for each file, within the limits of the query.
#include "fuzz.h"
#include "shell_files.h"

using namespace xffl;
using remote::CommandResult;
using remote::FileInfo;

namespace {

// A session whose every command gives `answer`; look_by_shell() and put_by_shell() call only run().
class AnswerSession final : public remote::Session {
 public:
  CommandResult answer;

  CommandResult run(const std::vector<std::string>&, const std::string&, std::chrono::milliseconds,
                    std::stop_token) override {
    return answer;
  }
  std::optional<FileInfo> stat(const RemotePath&) override { unexpected(); }
  size_t read(const RemotePath&, uint64_t, std::span<std::byte>) override { unexpected(); }
  void write(const RemotePath&, uint64_t, std::span<const std::byte>) override { unexpected(); }
  void sync(const RemotePath&) override { unexpected(); }
  void rename(const RemotePath&, const RemotePath&) override { unexpected(); }
  std::vector<std::string> list(const RemotePath&) override { unexpected(); }
  void make_dirs(const RemotePath&) override { unexpected(); }
  void remove_tree(const RemotePath&, std::stop_token) override { unexpected(); }

 private:
  [[noreturn]] static void unexpected() {
    fuzz::expect(false, "only commands are run");
    std::abort();
  }
};

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const RemotePath folder("/work/attempt");
  static const std::vector<remote::FileQuery> queries{
      {"report.json", 64}, {"job.out", 0}, {"a", 9}};
  fuzz::Choices choices(data, size);
  AnswerSession session;
  session.answer.exit_code = choices.byte() % 6;
  // The rest is the output of a successful command, or the errors of a failed command.
  (session.answer.exit_code == 0 ? session.answer.out : session.answer.err) = choices.rest();

  const auto views =
      fuzz::accepted([&] { return remote::look_by_shell(session, folder, queries); });
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
  const auto put = fuzz::accepted([&] { return remote::put_by_shell(session, folder, files); });
  fuzz::expect(!put || !*put || (session.answer.exit_code == 0 && session.answer.out == "end\n"),
               "only the expected answer is a success");
  if (const auto copied = remote::dd_copied(choices.rest()))
    fuzz::expect(choices.rest().find(" byte") != std::string_view::npos, "dd names bytes");
  return 0;
}
