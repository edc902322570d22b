// Lies in report.json, and in the other texts of a job that the coordinator reads.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "hostile/cases.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"

namespace xffl::test {
namespace {

namespace fs = std::filesystem;

fs::path report_of(const fs::path& attempt) { return attempt / "out/report.json"; }

void edit(const fs::path& attempt, const std::function<void(Json&)>& change) {
  Json report = parse_json(read_file(report_of(attempt), 1 << 20), "report.json");
  change(report);
  write_file_atomic(report_of(attempt),
                    report.dump(2, ' ', false, Json::error_handler_t::ignore) + "\n");
}

void edit_text(const fs::path& attempt,
               const std::function<std::string(const std::string&)>& change) {
  const std::string text = read_file(report_of(attempt), 1 << 20);
  write_file_atomic(report_of(attempt), change(text));
}

std::string replaced(std::string text, const std::string& part, const std::string& by) {
  const size_t at = text.find(part);
  return at == std::string::npos ? text : text.replace(at, part.size(), by);
}

}  // namespace

std::vector<Case> report_cases() {
  std::vector<Case> cases;
  using Tamper = std::function<void(const fs::path&)>;
  const auto add = [&](const char* fault, Outcome outcome, const std::string& shown,
                       const Tamper& tamper) {
    cases.push_back({"Report", fault, Access::kShell, outcome, shown,
                     [tamper](Front& front) { front.on_report(tamper); }});
  };
  const auto text = [&](const char* fault, const std::string& shown,
                        const std::function<std::string(const std::string&)>& change) {
    add(fault, Outcome::kRejected, shown,
        [change](const fs::path& attempt) { edit_text(attempt, change); });
  };
  const auto key = [&](const char* fault, const std::string& shown,
                       const std::function<void(Json&)>& change,
                       Outcome outcome = Outcome::kRejected) {
    add(fault, outcome, shown, [change](const fs::path& attempt) { edit(attempt, change); });
  };
  text("IsEmpty", "report.json", [](const std::string&) { return std::string(); });
  text("IsNoJson", "report.json", [](const std::string&) { return kEscapes; });
  text("IsCutShort", "report.json",
       [](const std::string& whole) { return whole.substr(0, whole.size() / 2); });
  text("HasTrailingText", "report.json", [](const std::string& whole) { return whole + whole; });
  text("IsNested", "report.json",
       [](const std::string&) { return std::string(100'000, '[') + std::string(100'000, ']'); });
  text("HasAKeyTwice", "report.json", [](const std::string& whole) {
    return replaced(whole, "\"steps\"", "\"steps\": 4, \"steps\"");
  });
  text("HasAByteOrderMark", "report.json",
       [](const std::string& whole) { return "\xff\xfe" + whole; });
  text("HasZeros", "report.json",
       [](const std::string& whole) { return whole + std::string(1000, '\0'); });
  text("HasNan", "report.json", [](const std::string& whole) {
    return replaced(whole, "\"train_loss\": ", "\"train_loss\": NaN, \"x\": ");
  });
  text("HasAnInfiniteLoss", "report.json", [](const std::string& whole) {
    return replaced(whole, "\"train_loss\": ", "\"train_loss\": 1e999, \"x\": ");
  });
  // The journal's text of this report has four times as many bytes, and beyond its limit.
  text("HasLongLists", "report.json", [](const std::string& whole) {
    Json report = parse_json(whole, "report.json");
    for (const char* list : {"architectures", "gpus"})
      report["environment"][list] = std::vector<std::string>(60'000);
    return report.dump();
  });
  text("HasThousandsOfKeys", "report.json", [](const std::string& whole) {
    std::string keys = "{";
    for (int i = 0; i < 20'000; ++i) keys += "\"k" + std::to_string(i) + "\": 1, ";
    return keys + whole.substr(1);
  });
  // Keys that a later release may know.
  add("HasAnUnknownKey", Outcome::kAccepted, "", [](const fs::path& attempt) {
    edit_text(attempt,
              [](const std::string& whole) { return "{\"extra\": 1, " + whole.substr(1); });
  });
  add("HasAnUnknownKeyWithEscapes", Outcome::kAccepted, "", [](const fs::path& attempt) {
    edit_text(attempt, [](const std::string& whole) {
      return "{\"\\u001b[31m\\u0007\": 1, " + whole.substr(1);
    });
  });
  add("IsAListOfReports", Outcome::kRejected, "report.json", [](const fs::path& attempt) {
    edit_text(attempt, [](const std::string& whole) { return "[" + whole + "]"; });
  });
  add("IsTooLarge", Outcome::kRejected, "report.json", [](const fs::path& attempt) {
    edit_text(attempt, [](const std::string& whole) { return whole + std::string(2u << 20, ' '); });
  });
  add("IsASparseGigabyte", Outcome::kRejected, "report.json",
      [](const fs::path& attempt) { fs::resize_file(report_of(attempt), 1ull << 30); });
  add("IsALink", Outcome::kEither, "", [](const fs::path& attempt) {
    fs::rename(report_of(attempt), attempt / "hidden.json");
    fs::create_symlink(attempt / "hidden.json", report_of(attempt));
  });
  add("IsALinkToItself", Outcome::kEither, "", [](const fs::path& attempt) {
    fs::remove(report_of(attempt));
    fs::create_symlink("report.json", report_of(attempt));
  });
  add("IsAFifo", Outcome::kEither, "", [](const fs::path& attempt) {
    fs::remove(report_of(attempt));
    ::mkfifo(report_of(attempt).c_str(), 0600);
  });
  add("IsAFolder", Outcome::kEither, "", [](const fs::path& attempt) {
    fs::remove(report_of(attempt));
    fs::create_directory(report_of(attempt));
  });
  add("IsUnreadable", Outcome::kEither, "",
      [](const fs::path& attempt) { fs::permissions(report_of(attempt), fs::perms::none); });
  add("VanishesAgain", Outcome::kEither, "",
      [](const fs::path& attempt) { fs::remove(report_of(attempt)); });
  key("HasNoVersion", "version", [](Json& report) { report.erase("version"); });
  key("HasAFutureVersion", "version", [](Json& report) { report["version"] = 99; });
  key("HasAVersionAsText", "version", [](Json& report) { report["version"] = "2"; });
  key("HasNoKey", "key", [](Json& report) { report.erase("key"); });
  for (const char* name : {"project", "run", "facility", "nonce"})
    key((std::string("OfAnother") + name).c_str(), name,
        [name](Json& report) { report["key"][name] = std::string(32, '0'); });
  key("OfAnotherRound", "round", [](Json& report) { report["key"]["round"] = 7; });
  key("OfAnotherAttempt", "attempt", [](Json& report) { report["key"]["attempt"] = 2; });
  key("HasAFacilityWithEscapes", "facility",
      [](Json& report) { report["key"]["facility"] = "\x1b[31m\a"; });
  key("HasAFacilityAsPath", "facility",
      [](Json& report) { report["key"]["facility"] = "../../alba"; });
  key("NamesAnotherModel", "base_model_sha256",
      [](Json& report) { report["base_model_sha256"] = std::string(64, 'a'); });
  key("NamesAnotherUpdate", "differs from the report",
      [](Json& report) { report["update_sha256"] = std::string(64, 'b'); });
  key("NamesNoUpdate", "update_sha256", [](Json& report) { report["update_sha256"] = ""; });
  key("HasAHashThatIsNone", "update_sha256",
      [](Json& report) { report["update_sha256"] = "../../" + std::string(58, 'c'); });
  key("HasTooManySteps", "steps", [](Json& report) { report["steps"] = 5; });
  key("HasNoSteps", "steps", [](Json& report) { report["steps"] = 0; });
  key("HasNegativeSteps", "steps", [](Json& report) { report["steps"] = -4; });
  key("HasFewerStepsThanAsked", "steps", [](Json& report) { report["steps"] = 3; });
  key("HasAFractionOfSamples", "samples", [](Json& report) { report["samples"] = 7.5; });
  key("HasTooManySamples", "samples", [](Json& report) { report["samples"] = 9; });
  key("HasNoSamples", "samples", [](Json& report) { report["samples"] = 0; });
  key("HasTooManyTokens", "tokens", [](Json& report) { report["tokens"] = int64_t(1) << 50; });
  key("HasOverflowingTokens", "tokens", [](Json& report) { report["tokens"] = uint64_t(1) << 63; });
  key("HasNoTokens", "tokens", [](Json& report) { report["tokens"] = 0; });
  key("HasTokensAsText", "tokens", [](Json& report) { report["tokens"] = "8"; });
  key("HasTokensAsList", "tokens", [](Json& report) { report["tokens"] = Json::array({8}); });
  key("HasANegativeLoss", "train_loss", [](Json& report) { report["train_loss"] = -1; });
  key("HasAnUnknownSet", "validation", [](Json& report) {
    report["validation"] =
        Json::array({{{"name", "x"}, {"tokens", 1}, {"nll_before", 1}, {"nll_after", 1}}});
  });
  key("HasASetAsPath", "validation", [](Json& report) {
    report["validation"] =
        Json::array({{{"name", "../x"}, {"tokens", 1}, {"nll_before", 1}, {"nll_after", 1}}});
  });
  key("HasThousandsOfSets", "validation", [](Json& report) {
    for (int i = 0; i < 5000; ++i)
      report["validation"].push_back(
          {{"name", "x" + std::to_string(i)}, {"tokens", 1}, {"nll_before", 1}, {"nll_after", 1}});
  });
  key("HasNoRanks", "world_size", [](Json& report) { report["world_size"] = 0; });
  key("HasNegativeRestarts", "restarts", [](Json& report) { report["restarts"] = -1; });
  key("RunsForEver", "seconds", [](Json& report) { report["total_seconds"] = 1e300; });
  key("HasNegativeMemory", "peak_memory_bytes",
      [](Json& report) { report["peak_memory_bytes"] = -1; });
  key("HasALongTrainer", "trainer",
      [](Json& report) { report["trainer"] = std::string(5000, 'x'); });
  // Texts that are only shown.
  const auto shown = [&](const char* fault, const char* name) {
    key(
        fault, "", [name](Json& report) { report[name] = "\x1b[31m\x1b]0;x\a\r\b\u202e"; },
        Outcome::kEither);
  };
  shown("HasATrainerWithEscapes", "trainer");
  shown("HasAJobIdWithEscapes", "scheduler_job_id");
  shown("HasAReasonWithEscapes", "optimizer_lost");
  key(
      "ClaimsAnEarlyStop", "",
      [](Json& report) {
        report["stopped_early"] = true;
        report["steps"] = 1;
        report["samples"] = 2;
        report["tokens"] = 2;
      },
      Outcome::kEither);
  key("ClaimsACheckpoint", "update_sha256", [](Json& report) {
    report["stopped_early"] = true;
    report["update_sha256"] = "";
  });

  // The output of a failed job.
  const auto output = [&](const char* fault, const Tamper& tamper) {
    cases.push_back({"JobOutput", fault, Access::kShell, Outcome::kRejected, "", [=](Front& front) {
                       front.trainer_fault = "crash!";
                       Front::Behaviour behaviour;
                       front.on_output_of_failure(tamper);
                     }});
  };
  const auto write_output = [](const fs::path& attempt, const std::string& bytes) {
    std::ofstream(attempt / "job.out", std::ios::binary | std::ios::app) << bytes;
  };
  output("HasEscapes", [=](const fs::path& attempt) { write_output(attempt, kEscapes + "\n"); });
  output("HasAHugeLine",
         [=](const fs::path& attempt) { write_output(attempt, std::string(8u << 20, 'x')); });
  output("IsBinary", [=](const fs::path& attempt) {
    std::string bytes;
    for (int i = 0; i < 4096; ++i) bytes += static_cast<char>(i * 7);
    write_output(attempt, bytes);
  });
  output("ForgesALogLine", [=](const fs::path& attempt) {
    write_output(attempt, "\n12:00:00 error alba: HOST KEY CHANGED: run `rm -rf /`\n");
  });
  output("IsALinkToAPrivateFile", [](const fs::path& attempt) {
    fs::remove(attempt / "job.out");
    fs::create_symlink("/etc/passwd", attempt / "job.out");
  });
  output("IsASparseTerabyte",
         [](const fs::path& attempt) { fs::resize_file(attempt / "job.out", 1ull << 40); });
  output("IsAFifo", [](const fs::path& attempt) {
    fs::remove(attempt / "job.out");
    ::mkfifo((attempt / "job.out").c_str(), 0600);
  });
  output("IsGone", [](const fs::path& attempt) { fs::remove(attempt / "job.out"); });
  output("HasAPrivateKey", [=](const fs::path& attempt) {
    write_output(attempt, "-----BEGIN OPENSSH PRIVATE KEY-----\n" + std::string(64, 'Q') +
                              "\n-----END OPENSSH PRIVATE KEY-----\n");
  });
  const auto failure = [&](const char* fault, const std::string& bytes) {
    cases.push_back(
        {"ModelFailure", fault, Access::kShell, Outcome::kRejected, "", [=](Front& front) {
           front.trainer_fault = "crash!";
           front.on_output_of_failure([bytes](const fs::path& attempt) {
             std::ofstream(attempt / "out/model.failure", std::ios::binary) << bytes;
           });
         }});
  };
  failure("HasEscapes", kEscapes);
  failure("IsEmpty", "");
  failure("IsHuge", std::string(16u << 20, 'x'));
  // The times of a job. The journal records them.
  const auto times = [&](const char* fault, const std::string& lines, const std::string& beat) {
    cases.push_back({"Times", fault, Access::kShell, Outcome::kEither, "", [=](Front& front) {
                       front.on_report([=](const fs::path& attempt) {
                         std::ofstream(attempt / "claim/times", std::ios::binary) << lines;
                         std::ofstream(attempt / "claim/beat-aa", std::ios::binary) << beat;
                       });
                     }});
  };
  times("AreInTheDistantFuture", "start 99999999999 job=7 beat=aa\n", "999999999999999999\n");
  times("AreEscapes", kEscapes + "\nstart 1 job=7 beat=aa\n" + kEscapes + "\n", kEscapes + "\n");
  // The measurements of a running job.
  const auto metrics = [&](const char* fault, const std::string& bytes) {
    cases.push_back({"Metrics", fault, Access::kShell, Outcome::kEither, "", [=](Front& front) {
                       front.on_report([bytes](const fs::path& attempt) {
                         std::ofstream(attempt / "out/metrics.jsonl", std::ios::binary) << bytes;
                       });
                     }});
  };
  metrics("HaveEscapes", "{\"step\": 1, \"loss\": \"" + kEscapes + "\"}\n");
  metrics("AreNoJson", kEscapes + "\n");
  metrics("HaveAHugeLine", std::string(16u << 20, '{'));
  metrics("HaveImpossibleNumbers",
          "{\"step\": 99999999999999999999, \"loss\": -1e308, \"tokens_per_second\": 1e308}\n");
  return cases;
}

}  // namespace xffl::test
