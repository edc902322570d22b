// A malicious SFTP server: each request of a round, with each wrong answer.
#include "hostile/cases.h"

namespace xffl::test {
namespace {

struct Place {
  const char* name;
  Access access;
  uint8_t type;
  std::string part;  // of the path
  Outcome outcome = Outcome::kTrouble;
};

struct Fault {
  const char* name;
  std::function<std::string(const SftpPacket& request)> answer;
};

std::string packet(uint8_t type, uint32_t id, const std::string& body) {
  return SftpPacket{type, id, body}.bytes();
}

std::vector<Fault> faults() {
  return {
      {"Fails", [](const SftpPacket& each) { return sftp_status(each.id, 4, kEscapes); }},
      {"IsDenied", [](const SftpPacket& each) { return sftp_status(each.id, 3); }},
      {"HasAnUnknownStatus", [](const SftpPacket& each) { return sftp_status(each.id, 77777); }},
      {"HasNoAnswer", [](const SftpPacket&) { return std::string(); }},
      {"HasAnotherId", [](const SftpPacket& each) { return sftp_status(each.id + 1000, 0); }},
      {"HasAnotherType",
       [](const SftpPacket& each) { return packet(kSftpVersion, each.id, sftp_u32(3)); }},
      {"IsAHugePacket", [](const SftpPacket&) { return sftp_u32(0xffffffffu) + "\x67"; }},
      {"IsAnEmptyPacket", [](const SftpPacket&) { return sftp_u32(0); }},
      {"EndsInsideItsString",
       [](const SftpPacket& each) { return packet(kSftpHandle, each.id, sftp_u32(1u << 30)); }},
      {"IsAnUnaskedFlood",
       [](const SftpPacket& each) {
         std::string flood;
         for (uint32_t i = 0; i < 50'000; ++i) flood += sftp_status(each.id + i, 0);
         return flood;
       }},
      {"IsNoSftp", [](const SftpPacket&) { return "connection closed by " + kEscapes + "\n"; }},
  };
}

}  // namespace

std::vector<Case> sftp_cases() {
  const std::vector<Place> places = {
      {"SftpStatReport", Access::kShell, kSftpLstat, "report.json"},
      {"SftpOpenReport", Access::kShell, kSftpOpen, "report.json"},
      {"SftpReadReport", Access::kShell, kSftpRead, "report.json"},
      {"SftpListRounds", Access::kShell, kSftpOpendir, "/brno", Outcome::kAccepted},
      {"SftpReadFolder", Access::kShell, kSftpReaddir, "/brno", Outcome::kAccepted},
      {"SftpOpenModel", Access::kMover, kSftpOpen, "/models/"},
      {"SftpWriteModel", Access::kMover, kSftpWrite, "/models/"},
      {"SftpOpenUpdate", Access::kMover, kSftpOpen, "out/update/model"},
      {"SftpReadUpdate", Access::kMover, kSftpRead, "out/update/model"},
  };
  std::vector<Case> cases;
  for (const Place& place : places)
    for (const Fault& fault : faults())
      cases.push_back(
          {place.name, fault.name, place.access, place.outcome, "", [place, fault](Front& front) {
             front.on_sftp(place.type, place.part,
                           [fault](const SftpPacket& each) { return fault.answer(each); });
           }});
  const auto add = [&](const char* place, const char* fault, Access access, Outcome outcome,
                       uint8_t type, const std::string& part,
                       std::function<std::string(const SftpPacket&)> answer) {
    cases.push_back({place, fault, access, outcome, "", [=](Front& front) {
                       front.on_sftp(type, part,
                                     [answer](const SftpPacket& each) { return answer(each); });
                     }});
  };
  const auto change = [&](const char* place, const char* fault, Access access, Outcome outcome,
                          uint8_t type, const std::string& part, Front::SftpChange answer) {
    cases.push_back({place, fault, access, outcome, "",
                     [=](Front& front) { front.on_sftp_answer(type, part, answer); }});
  };
  // Answers of the right type that lie.
  const auto attributes = [](uint32_t mode, uint64_t size) {
    return sftp_u32(5) + sftp_u64(size) + sftp_u32(mode);
  };
  for (const auto& [fault, mode] : {std::pair{"IsALink", 0120777u}, std::pair{"IsADevice", 020666u},
                                    std::pair{"IsAFifo", 010666u}, std::pair{"IsAFolder", 040755u}})
    add("SftpStatReport", fault, Access::kShell, Outcome::kTrouble, kSftpLstat, "report.json",
        [=](const SftpPacket& each) { return packet(kSftpAttrs, each.id, attributes(mode, 10)); });
  add("SftpStatReport", "HasEndlessAttributes", Access::kShell, Outcome::kTrouble, kSftpLstat,
      "report.json", [](const SftpPacket& each) {
        return packet(kSftpAttrs, each.id, sftp_u32(0x80000000u) + sftp_u32(0xffffffffu));
      });
  add("SftpStatReport", "NeverExists", Access::kShell, Outcome::kTrouble, kSftpLstat, "report.json",
      [](const SftpPacket& each) { return sftp_status(each.id, 2); });
  add("SftpReadReport", "NeverEnds", Access::kShell, Outcome::kTrouble, kSftpRead, "report.json",
      [](const SftpPacket& each) {
        return packet(kSftpData, each.id, sftp_string(std::string(60'000, ' ')));
      });
  add("SftpReadReport", "HasNoByte", Access::kShell, Outcome::kTrouble, kSftpRead, "report.json",
      [](const SftpPacket& each) { return packet(kSftpData, each.id, sftp_string("")); });
  add("SftpReadReport", "HasMoreThanAsked", Access::kShell, Outcome::kTrouble, kSftpRead,
      "report.json", [](const SftpPacket& each) {
        return packet(kSftpData, each.id, sftp_string(std::string(500'000, '{')));
      });
  add("SftpReadUpdate", "IsByteByByte", Access::kMover, Outcome::kTrouble, kSftpRead,
      "out/update/model",
      [](const SftpPacket& each) { return packet(kSftpData, each.id, sftp_string("x")); });
  // The file's size is right, so that the training may still be whole: a trouble of the link.
  add("SftpReadUpdate", "EndsEarly", Access::kMover, Outcome::kTrouble, kSftpRead,
      "out/update/model", [](const SftpPacket& each) { return sftp_status(each.id, 1); });
  change("SftpReadUpdate", "HasAWrongByte", Access::kMover, Outcome::kRejected, kSftpRead,
         "out/update/model", [](const SftpPacket& each) {
           SftpPacket changed = each;
           if (changed.body.size() > 100)
             changed.body[99] = static_cast<char>(changed.body[99] ^ 1);
           return changed.bytes();
         });
  change("SftpReadUpdate", "ComesTwice", Access::kMover, Outcome::kTrouble, kSftpRead,
         "out/update/model", [](const SftpPacket& each) { return each.bytes() + each.bytes(); });
  add("SftpWriteModel", "IsSwallowed", Access::kMover, Outcome::kEither, kSftpWrite, "/models/",
      [](const SftpPacket& each) { return sftp_status(each.id, 0); });
  const auto names = [](const std::vector<std::string>& listed, uint32_t mode) {
    std::string body = sftp_u32(static_cast<uint32_t>(listed.size()));
    for (const std::string& name : listed)
      body += sftp_string(name) + sftp_string(name) + sftp_u32(4) + sftp_u32(mode);
    return body;
  };
  const auto list = [&](const char* fault, const std::vector<std::string>& listed) {
    add("SftpReadFolder", fault, Access::kShell, Outcome::kAccepted, kSftpReaddir, "/brno",
        [=](const SftpPacket& each) { return packet(kSftpName, each.id, names(listed, 040755)); });
  };
  list("NamesAParent", {"../../../victim"});
  list("NamesARoundWithEscapes", {"r0001" + kEscapes});
  list("NamesNothingForEver", {});
  list("NamesTheSameForEver", {"r0001"});
  list("NamesAFutureRound", {"r9999", "r-001", "r99999999999999999999"});
  add("SftpReadFolder", "CountsTooManyNames", Access::kShell, Outcome::kAccepted, kSftpReaddir,
      "/brno",
      [](const SftpPacket& each) { return packet(kSftpName, each.id, sftp_u32(0xffffffffu)); });
  // The server's first packet.
  const auto version = [&](const char* fault, Outcome outcome, HostileServer::Behaviour behaviour) {
    cases.push_back({"SftpVersion", fault, Access::kShell, outcome, "",
                     [behaviour](Front& front) { front.on_command({"sftp"}, behaviour); }});
  };
  version("IsSilent", Outcome::kTrouble, {.sends_per_second = 0});
  version("Trickles", Outcome::kTrouble, {.sends_per_second = 1.0 / 60});
  version("ClosesAtOnce", Outcome::kAccepted, {.closes_after = 0});
  version("ClosesInside", Outcome::kAccepted, {.closes_after = 7});
  version("FloodsStderr", Outcome::kAccepted, {.sends_per_second = 0, .floods_stderr = true});
  version("FloodsStdout", Outcome::kAccepted, {.sends_per_second = 0, .floods_stdout = true});
  return cases;
}

}  // namespace xffl::test
