// A malicious shell: each command of a round, with each fault.
#include <utility>

#include "hostile/cases.h"

namespace xffl::test {
namespace {

using Behaviour = HostileServer::Behaviour;

struct Place {
  const char* name;
  Access access;
  std::vector<std::string> parts;  // of the command
  // The end when the command fails for ever.
  Outcome outcome = Outcome::kTrouble;
};

struct Fault {
  enum class Effect {
    kFails,      // the command runs, and its answer is none
    kPasses,     // the answer arrives whole all the same
    kMayPass,    // the answer may arrive before the fault
    kMayRun,     // the command may not run
    kNeverRuns,  // the command does not run
  };
  const char* name;
  Behaviour behaviour;
  Effect effect = Effect::kFails;
  std::string shown{};  // a part of the message
};
using Effect = Fault::Effect;

// Changes the text of a framed answer. The server knows the command's mark from its first line.
class Frame {
 public:
  using Change = std::function<std::string(const std::string& mark, std::string text)>;
  explicit Frame(Change change) : change_(std::move(change)) {}
  /// Holds the pieces back until the mark is known; from then on each piece is changed.
  std::string operator()(std::string_view piece) {
    held_ += piece;
    if (mark_.empty()) {
      const size_t end = held_.find(" begin\n");
      if (end == std::string::npos || end < 32) return {};
      mark_ = held_.substr(end - 32, 32);
    }
    return change_(mark_, std::exchange(held_, {}));
  }

 private:
  Change change_;
  std::string mark_, held_;
};

// A behaviour is copied for each channel, so each channel has a frame of its own.
std::function<std::string(std::string_view)> framed(const Frame::Change& change) {
  return [frame = Frame(change)](std::string_view piece) mutable { return frame(piece); };
}

std::string with_exit_code(std::string text, const std::string& code) {
  const size_t at = text.rfind(" end ");
  if (at == std::string::npos) return text;
  return text.substr(0, at + 5) + code + "\n";
}

std::vector<Fault> faults() {
  const auto exits = [](const std::string& code) {
    return [code](std::string_view piece) { return with_exit_code(std::string(piece), code); };
  };
  const auto output = [](auto change) {
    Behaviour behaviour;
    behaviour.on_output = change;
    return behaviour;
  };
  Behaviour failed = output(exits("1"));
  failed.on_error = framed([](const std::string&, std::string text) {
    const size_t at = text.find(" begin\n");
    return at == std::string::npos ? text : text.insert(at + 7, kEscapes + " no\n");
  });
  Behaviour signalled;
  signalled.exit_signal = "KILL" + kEscapes;
  const auto forged = [&](const std::string& answer) {
    // In place of the first piece; nothing follows.
    return output(
        framed([answer, is_first = true](const std::string& mark, const std::string&) mutable {
          if (!std::exchange(is_first, false)) return std::string();
          return mark + " begin\n" + answer + "\n" + mark + " end 0\n";
        }));
  };
  return {
      {"IsRefused", {.refuses = true}, Effect::kNeverRuns, "refused while starting a command"},
      {"IsSilent", {.sends_per_second = 0}, Effect::kMayRun},
      {"Trickles", {.sends_per_second = 1.0 / 60}, Effect::kMayRun},
      {"FloodsStderr", {.sends_per_second = 0, .floods_stderr = true}, Effect::kMayRun},
      {"FloodsStdout", {.floods_stdout = true}, Effect::kMayPass},
      {"ClosesAtOnce", {.closes_after = 0}, Effect::kMayRun, "did not start"},
      {"ClosesInside", {.closes_after = 50}, Effect::kMayRun, "its effect is unknown"},
      {"HidesItsEnd", {.hides_exit = true}, Effect::kPasses},
      {"EndsBySignal", signalled, Effect::kPasses},
      {"PrintsGarbage", output([](std::string_view piece) {
         return std::string(piece.size() + 3, '\xff') + kEscapes;
       }),
       Effect::kFails, "did not start"},
      {"FailsWithEscapes", failed},
      {"IsNotFound", output(exits("127"))},
      {"IsNotExecutable", output(exits("126"))},
      {"ExitsWithoutANumber", output(exits("\x1b[31m0")), Effect::kFails, "its effect is unknown"},
      {"AnswersNothing", forged("")},
      {"AnswersWithEscapes", forged(kEscapes + "\n")},
      {"PrintsMegabytesFirst", output([](std::string_view piece) {
         return std::string(3u << 20, '\x1b') + std::string(piece);
       }),
       Effect::kMayRun, "more than 1 MiB before the command began"},
      {"LosesTheFirstMark", output([](std::string_view piece) {
         const size_t at = piece.find(" begin\n");
         return std::string(at == std::string_view::npos ? piece : piece.substr(at + 7));
       }),
       Effect::kFails, "did not start"},
  };
}

// The end of brno's rounds when this fault happens at each call of this place.
Outcome outcome_of(const Place& place, const Fault& fault) {
  if (fault.effect == Effect::kPasses) return Outcome::kAccepted;
  if (place.name == std::string("Submit")) {
    if (fault.effect == Effect::kNeverRuns) return Outcome::kTrouble;
    if (fault.effect == Effect::kMayRun) return Outcome::kEither;
  }
  if (place.outcome == Outcome::kTrouble && fault.effect == Effect::kMayPass)
    return Outcome::kEither;
  return place.outcome;
}

}  // namespace

std::vector<Case> command_cases() {
  const std::string look = "echo absent", put = "name \"$@\"";
  const std::vector<Place> places = {
      {"LookAtModel", Access::kShell, {look, "/models/"}},
      {"PushModel", Access::kShell, {put, "/models/"}},
      {"PushJob", Access::kShell, {put, "job.json"}},
      // sbatch has run: a search by name finds the job.
      {"Submit", Access::kShell, {"sbatch"}, Outcome::kAccepted},
      {"LookAtManifest", Access::kShell, {look, "out/update ./manifest.json"}},
      {"FetchUpdate", Access::kShell, {look, "out/update ./config.json"}},
      {"Clean", Access::kShell, {"exec timeout", "rm -rf"}, Outcome::kAccepted},
      {"Poll", Access::kShell, {"squeue"}, Outcome::kEither},
      {"StatReport", Access::kNoSftp, {"stat -c", "report.json"}},
      {"ReadReport", Access::kNoSftp, {"dd if=", "report.json"}},
      {"ListRounds", Access::kNoSftp, {"ls -A", "/brno/"}, Outcome::kAccepted},
  };
  std::vector<Case> cases;
  for (const Place& place : places)
    for (const Fault& fault : faults()) {
      const Outcome outcome = outcome_of(place, fault);
      const bool is_shown = outcome == Outcome::kTrouble && place.name != std::string("Submit");
      cases.push_back({place.name, fault.name, place.access, outcome, is_shown ? fault.shown : "",
                       [place, fault](Front& front) {
                         front.on_command(place.parts, fault.behaviour);
                         front.holds_job_until_fault = place.name == std::string("Poll");
                       }});
    }
  return cases;
}

}  // namespace xffl::test
