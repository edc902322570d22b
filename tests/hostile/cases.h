// The cases of the hostile suite. A case is a fault at a place of call; no two cases differ in a
// value alone.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hostile/federation.h"

namespace xffl::test {

struct Case {
  std::string place;  // the call of the coordinator, or the file that it reads
  std::string fault;
  Access access = Access::kShell;
  Outcome outcome = Outcome::kTrouble;
  std::string shown;  // a text in the terminal or in the journal
  std::function<void(Front&)> arrange;

  std::string name() const { return place + "_" + fault; }
};

std::vector<Case> command_cases();   // a malicious shell
std::vector<Case> sftp_cases();      // a malicious SFTP server
std::vector<Case> greeting_cases();  // a malicious SSH server
std::vector<Case> slurm_cases();     // lies of Slurm's programs
std::vector<Case> report_cases();    // lies in report.json and other texts of a job
std::vector<Case> update_cases();    // lies in the update's manifest and files
std::vector<Case> all_cases();

/// Text that would change a terminal: colour, title, clipboard, cursor, 8-bit controls.
inline const std::string kEscapes =
    "\x1b[31m\x1b]0;owned\a\x1b]52;c;ZXZpbA==\a\x1b[2J\r\x9b"
    "31m\b\xe2\x80\xae";

}  // namespace xffl::test
