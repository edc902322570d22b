// Lies of Slurm's programs, in answers that arrive whole.
#include "hostile/cases.h"

namespace xffl::test {
namespace {

using Output = std::function<std::string(std::string_view)>;

// Replaces the text of a framed answer: `change` gets the text between the marks.
Output answer(const std::function<std::string(const std::string& text)>& change,
              const std::string& code = "") {
  auto held = std::make_shared<std::string>();
  return [=](std::string_view piece) -> std::string {
    *held += piece;
    const size_t begin = held->find(" begin\n");
    const size_t end = held->rfind(" end ");
    if (begin == std::string::npos || end == std::string::npos || held->back() != '\n') return "";
    const std::string mark = held->substr(begin - 32, 32);
    const std::string text = held->substr(begin + 7, end - 33 - begin - 7);
    const std::string exit = code.empty() ? held->substr(end + 5) : code + "\n";
    held->clear();
    return mark + " begin\n" + change(text) + "\n" + mark + " end " + exit;
  };
}

// Replaces field `number` of each row of a job.
std::string with_field(const std::string& text, size_t number, const std::string& value) {
  std::string changed;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.find('|') != std::string::npos) {
      size_t from = 0;
      for (size_t i = 0; i < number; ++i) from = line.find('|', from) + 1;
      const size_t to = std::min(line.find('|', from), line.size());
      line.replace(from, to - from, value);
    }
    changed += line + "\n";
  }
  return changed;
}

}  // namespace

std::vector<Case> slurm_cases() {
  std::vector<Case> cases;
  using Change = std::function<std::string(const std::string&)>;
  const auto add = [&](const char* place, const char* fault, const std::string& command,
                       Outcome outcome, const std::string& shown, const Change& change,
                       const std::string& code = "") {
    cases.push_back({place, fault, Access::kShell, outcome, shown, [=](Front& front) {
                       Front::Behaviour behaviour;
                       behaviour.on_output = [=, each = Output()](std::string_view piece) mutable {
                         if (!each) each = answer(change, code);
                         return each(piece);
                       };
                       front.on_command({command}, behaviour);
                     }});
  };
  const auto submit = [&](const char* fault, Outcome outcome, const std::string& shown,
                          const std::string& text, const std::string& code = "") {
    add(
        "Submit", fault, "sbatch", outcome, shown, [text](const std::string&) { return text; },
        code);
  };
  submit("AnswersZero", Outcome::kEither, "", "0\n");
  submit("AnswersANegativeId", Outcome::kEither, "", "-17\n");
  submit("AnswersAnEndlessId", Outcome::kEither, "", std::string(100'000, '9') + "\n");
  submit("AnswersAnIdWithEscapes", Outcome::kEither, "", "17" + kEscapes + "\n");
  submit("AnswersAnIdWithACommand", Outcome::kEither, "", "17; touch /tmp/victim\n");
  submit("AnswersTwoIds", Outcome::kEither, "", "17\n18\n");
  submit("AnswersAnOption", Outcome::kEither, "", "--help\n");
  submit("RejectsWithEscapes", Outcome::kRejected, "Slurm rejected",
         "sbatch: error: Invalid account " + kEscapes + "\n", "1");
  submit("DefersForEver", Outcome::kTrouble, "does not accept",
         "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: "
         "Job violates accounting/QOS policy "
         "(job submit limit, user's size and/or time limits)\n",
         "1");
  submit("FailsWithoutAReason", Outcome::kEither, "", "", "1");
  submit("RejectsAndSucceeds", Outcome::kEither, "", "sbatch: error: invalid partition\n", "0");

  const auto poll = [&](const char* fault, Outcome outcome, const std::string& shown,
                        const Change& change) {
    add("Poll", fault, "squeue", outcome, shown, change);
    cases.back().arrange = [inner = cases.back().arrange](Front& front) {
      inner(front);
      front.holds_job_until_fault = true;
    };
  };
  const auto field = [](size_t number, const std::string& value) {
    return [=](const std::string& text) { return with_field(text, number, value); };
  };
  poll("NamesAnotherId", Outcome::kEither, "", field(0, "4242"));
  poll("NamesAnIdWithEscapes", Outcome::kEither, "", field(0, kEscapes));
  poll("NamesAnotherJob", Outcome::kEither, "", field(1, "somebody-elses-job"));
  poll("HasAnUnknownState", Outcome::kEither, "", field(2, "FLYING" + kEscapes));
  poll("IsHeld", Outcome::kEither, "", field(2, "REQUEUE_HOLD"));
  poll("IsCancelled", Outcome::kEither, "", field(2, "CANCELLED by 0"));
  poll("StartsInAThousandYears", Outcome::kEither, "", [](const std::string& text) {
    return with_field(with_field(text, 2, "PENDING"), 3, "999999999999999999");
  });
  poll("HasEndlessTimeLeft", Outcome::kEither, "", field(4, "99999999999-99:99:99"));
  poll("HasAnotherFolder", Outcome::kEither, "", field(5, "/" + kEscapes));
  poll("HasAReasonWithEscapes", Outcome::kEither, "", [](const std::string& text) {
    return with_field(with_field(text, 2, "PENDING"), 7, kEscapes + std::string(5000, 'x'));
  });
  poll("HasTooFewFields", Outcome::kEither, "",
       [](const std::string& text) { return text.substr(0, text.find('|')) + "\nxffl-end\n"; });
  poll("HasNoEnd", Outcome::kEither, "",
       [](const std::string& text) { return text.substr(0, text.find("xffl-end")); });
  poll("HasNoClock", Outcome::kEither, "",
       [](const std::string& text) { return "now\n" + text.substr(text.find('\n') + 1); });
  poll("HasTwoEnds", Outcome::kEither, "",
       [](const std::string& text) { return text + "xffl-end\n"; });
  poll("HasMillionsOfRows", Outcome::kEither, "", [](const std::string& text) {
    std::string rows = "1\n";
    for (int i = 0; i < 300'000; ++i)
      rows += std::to_string(i + 1) + "|x|RUNNING|0|1:00|/|n|None\n";
    return rows + text.substr(text.find('\n') + 1);
  });
  poll("HasRowsForOneId", Outcome::kEither, "", [](const std::string& text) {
    const size_t row = text.find('\n') + 1, end = text.find("xffl-end");
    std::string rows;
    for (int i = 0; i < 1000; ++i)
      rows += with_field(text.substr(row, end - row), 2, i % 2 ? "PENDING" : "RUNNING");
    return text.substr(0, row) + rows + "xffl-end\n";
  });

  // A job that does not end: the round's end closes its attempt.
  const auto at_close = [&](const char* place, const char* fault, const std::string& command,
                            const Change& change, const std::string& code = "") {
    add(place, fault, command, Outcome::kTrouble, "", change, code);
    cases.back().arrange = [inner = cases.back().arrange](Front& front) {
      inner(front);
      front.holds_job = true;
    };
  };
  at_close(
      "Cancel", "FailsForEver", "scancel",
      [](const std::string&) { return "scancel: error: Kill job error " + kEscapes + "\n"; }, "1");
  at_close(
      "Cancel", "PrintsAnErrorAndSucceeds", "scancel",
      [](const std::string&) { return "scancel: error: Access/permission denied\n"; }, "0");
  at_close(
      "Cancel", "DeniesTheJob", "scancel",
      [](const std::string&) { return "scancel: error: Invalid job id specified\n"; }, "1");
  at_close("Poll", "SaysCompletedWithoutAReport", "squeue", field(2, "COMPLETED"));
  at_close("Poll", "SaysOutOfMemory", "squeue", field(2, "OUT_OF_MEMORY"));
  at_close("Poll", "SaysNodeFailureForEver", "squeue", field(2, "NODE_FAIL"));
  at_close("Poll", "SaysPreemptedForEver", "squeue", field(2, "PREEMPTED"));
  at_close("Poll", "SaysTimeoutForEver", "squeue", field(2, "TIMEOUT"));
  at_close("Poll", "ForgetsTheJob", "squeue", [](const std::string& text) {
    return text.substr(0, text.find('\n')) + "\nxffl-end\n";
  });
  // squeue forgets the job, so that sacct is asked.
  const auto account = [&](const char* fault, const Change& change, const std::string& code = "") {
    at_close("Accounting", fault, "sacct", change, code);
    cases.back().arrange = [inner = cases.back().arrange](Front& front) {
      inner(front);
      Front::Behaviour forgets;
      forgets.on_output = [each = Output()](std::string_view piece) mutable {
        if (!each)
          each = answer([](const std::string& text) {
            return text.substr(0, text.find('\n')) + "\nxffl-end\n";
          });
        return each(piece);
      };
      front.on_command({"squeue"}, forgets);
    };
  };
  account("SaysCompleted", field(2, "COMPLETED"));
  account("SaysCancelledWithEscapes", field(2, "CANCELLED by " + kEscapes));
  account("HasAnUnknownState", field(2, kEscapes));
  account("NamesAnotherJob", field(1, "x"));
  account("HasNoEnd", [](const std::string& text) { return text.substr(0, 5); });
  account(
      "IsDisabled", [](const std::string&) { return "accounting storage is disabled\n"; }, "1");
  account("HasMillionsOfRows", [](const std::string&) {
    std::string rows;
    for (int i = 0; i < 400'000; ++i) rows += "12|x|COMPLETED|n|" + std::to_string(i) + "\n";
    return rows + "xffl-end\n";
  });
  return cases;
}

}  // namespace xffl::test
