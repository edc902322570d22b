// The output of Slurm's commands: ids are digits, times are not negative, texts are printable.
#include "fuzz.h"
#include "slurm_commands.h"
#include "xffl/submit/slurm.h"

using namespace xffl;
using namespace xffl::submit;

namespace {

bool is_line(std::string_view text) {
  return fuzz::is_harmless(text) && text.find('\n') == std::string_view::npos;
}

void check_rows(const std::optional<std::vector<QueueRow>>& rows, size_t size) {
  if (!rows) return;
  fuzz::expect(rows->size() <= size / 5, "a row has a line");
  for (const QueueRow& row : *rows) {
    fuzz::expect(is_slurm_id(row.id), "a row has an id", row.id);
    fuzz::expect(is_line(row.status.native) && is_line(row.status.reason), "texts are printable");
    fuzz::expect(!row.status.starts_in || row.status.starts_in->count() >= 0, "a start is ahead");
    fuzz::expect(!row.status.ends_in || row.status.ends_in->count() >= 0, "an end is ahead");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Choices choices(data, size);
  const int exit_code = choices.byte() % 3;
  const std::string_view text = choices.rest();
  check_rows(read_queue(text), size);
  const auto accounting = read_accounting(text);
  check_rows(accounting, size);
  if (accounting)
    for (const QueueRow& row : *accounting)
      fuzz::expect(row.status.state == JobState::kEnded ||
                       row.status.state == JobState::kCancelled ||
                       row.status.state == JobState::kUnknown,
                   "accounting says nothing of running jobs", row.status.native);
  const Submission out = read_submission({exit_code, std::string(text), {}});
  const Submission err = read_submission({exit_code, {}, std::string(text)});
  for (const Submission& answer : {out, err}) {
    const bool accepted = answer.kind == Submission::Kind::kAccepted;
    fuzz::expect(accepted == is_slurm_id(answer.id), "an accepted job has an id", answer.id);
    fuzz::expect(!accepted || exit_code == 0, "a failed sbatch accepts nothing");
    fuzz::expect(is_line(answer.text), "the message is one printable line", answer.text);
  }
  fuzz::expect(err.kind != Submission::Kind::kAccepted, "messages accept nothing");
  if (const auto left = read_time_left(text))
    fuzz::expect(left->count() >= 0 && left->count() < int64_t{1} << 40, "a walltime is finite");
  if (const auto longest = read_longest_walltime(text, "gpu"))
    fuzz::expect(longest->count() >= 0, "a walltime is not negative");
  fuzz::accepted([&] { return read_take_result({exit_code, std::string(text), {}}); });
  // An option that xffl accepts is one word of a directive.
  if (validate_sbatch_option(text).empty())
    fuzz::expect(text.starts_with("--") && text.find_first_of(" \t\n\r\"'\\$`#;<>!{}\0"
                                                              "\x7f") == std::string_view::npos,
                 "an option is one word", text);
  return 0;
}
