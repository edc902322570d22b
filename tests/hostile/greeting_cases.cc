// A malicious SSH server: before the log-in, at the log-in, and on an open connection.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "hostile/cases.h"

namespace xffl::test {
namespace {

using namespace std::chrono_literals;

void say(int socket, const std::string& text) {
  ::send(socket, text.data(), text.size(), MSG_NOSIGNAL);
}

void hold(int socket, const std::stop_token& stop) {
  char bytes[4096];
  while (!stop.stop_requested()) {
    pollfd wait{socket, POLLIN, 0};
    if (::poll(&wait, 1, 20) > 0 && ::recv(socket, bytes, sizeof bytes, MSG_DONTWAIT) <= 0) return;
  }
}

const std::string kVersion = "SSH-2.0-OpenSSH_9.2\r\n";

}  // namespace

std::vector<Case> greeting_cases() {
  std::vector<Case> cases;
  const auto raw = [&](const char* fault, std::function<void(int, const std::stop_token&)> talk) {
    cases.push_back({"Greeting", fault, Access::kShell, Outcome::kTrouble, "",
                     [talk](Front& front) { front.greeting.emplace().raw = talk; }});
  };
  raw("IsSilent", hold);
  raw("ClosesAtOnce", [](int, const std::stop_token&) {});
  raw("SaysHttp", [](int socket, const std::stop_token& stop) {
    say(socket, "HTTP/1.1 400 Bad Request\r\n\r\n" + kEscapes);
    hold(socket, stop);
  });
  raw("HasAnOldVersion", [](int socket, const std::stop_token& stop) {
    say(socket, "SSH-1.5-" + kEscapes + "\r\n");
    hold(socket, stop);
  });
  raw("NeverEndsItsLine", [](int socket, const std::stop_token& stop) {
    while (!stop.stop_requested() &&
           ::send(socket, kEscapes.data(), kEscapes.size(), MSG_NOSIGNAL) > 0)
      continue;
  });
  raw("HasEndlessLines", [](int socket, const std::stop_token& stop) {
    const std::string line = "welcome " + kEscapes + "\r\n";
    while (!stop.stop_requested() && ::send(socket, line.data(), line.size(), MSG_NOSIGNAL) > 0)
      continue;
  });
  raw("Trickles", [](int socket, const std::stop_token& stop) {
    for (const char c : kVersion) {
      if (stop.stop_requested()) return;
      say(socket, std::string(1, c));
      std::this_thread::sleep_for(1s);
    }
  });
  raw("HasAHugePacket", [](int socket, const std::stop_token& stop) {
    say(socket, kVersion + std::string(4, '\x7f') + std::string(1000, '\x14'));
    hold(socket, stop);
  });
  raw("HasAnEmptyPacket", [](int socket, const std::stop_token& stop) {
    say(socket, kVersion + std::string(64, '\0'));
    hold(socket, stop);
  });
  raw("OffersNoAlgorithm", [](int socket, const std::stop_token& stop) {
    std::string body = std::string(1, '\x14') + std::string(16, 'c');
    for (int i = 0; i < 10; ++i) body += sftp_string(i < 2 ? kEscapes : "none");
    body += std::string(5, '\0');
    const size_t padding = 8 - (body.size() + 5) % 8 + 8;
    say(socket, kVersion + sftp_u32(static_cast<uint32_t>(body.size() + padding + 1)) +
                    static_cast<char>(padding) + body + std::string(padding, '\0'));
    hold(socket, stop);
  });
  raw("StopsAfterItsVersion", [](int socket, const std::stop_token& stop) {
    say(socket, kVersion);
    hold(socket, stop);
  });
  raw("DisconnectsWithEscapes", [](int socket, const std::stop_token& stop) {
    std::string body =
        std::string(1, '\x01') + sftp_u32(2) + sftp_string(kEscapes) + sftp_string("");
    const size_t padding = 8 - (body.size() + 5) % 8 + 8;
    say(socket, kVersion + sftp_u32(static_cast<uint32_t>(body.size() + padding + 1)) +
                    static_cast<char>(padding) + body + std::string(padding, '\0'));
    hold(socket, stop);
  });

  const auto greeting = [&](const char* fault, Outcome outcome, const std::string& shown,
                            HostileServer::Greeting each) {
    cases.push_back({"LogIn", fault, Access::kShell, outcome, shown,
                     [each](Front& front) { front.greeting = each; }});
  };
  HostileServer::Greeting each;
  each.banner = kEscapes + "\n" + kEscapes;
  greeting("HasABannerWithEscapes", Outcome::kAccepted, "", each);
  each.banner = std::string(200'000, '\x1b');
  greeting("HasAHugeBanner", Outcome::kEither, "", each);
  each = {};
  each.refuses = true;
  greeting("IsRefused", Outcome::kTrouble, "uthentication", each);
  each = {};
  each.partial = true;
  greeting("IsNeverEnough", Outcome::kTrouble, "uthentication", each);
  each = {};
  each.prompts = true;
  each.prompt = kEscapes + "Password: ";
  greeting("PromptsWithEscapes", Outcome::kTrouble, "uthentication", each);
  each = {};
  each.no_channels = true;
  greeting("OpensNoChannel", Outcome::kTrouble, "", each);
  cases.push_back({"LogIn", "HasAnotherHostKey", Access::kShell, Outcome::kTrouble,
                   "HOST KEY CHANGED", [](Front& front) { front.forgets_host_key = true; }});

  // On an open connection, with honest commands.
  const auto open = [&](const char* fault, Outcome outcome,
                        std::function<void(ssh_session, ssh_channel)> on_start) {
    cases.push_back({"Connection", fault, Access::kShell, outcome, "", [on_start](Front& front) {
                       Front::Behaviour behaviour;
                       behaviour.on_start = on_start;
                       front.on_command({}, behaviour);
                     }});
  };
  open("OpensAnX11Channel", Outcome::kAccepted, [](ssh_session session, ssh_channel) {
    const ssh_channel own = ssh_channel_new(session);
    ssh_channel_open_x11(own, "127.0.0.1", 6000);
  });
  open("OpensAForwardedPort", Outcome::kAccepted, [](ssh_session session, ssh_channel) {
    const ssh_channel own = ssh_channel_new(session);
    ssh_channel_open_reverse_forward(own, "127.0.0.1", 22, "127.0.0.1", 22);
  });
  open("AsksForTheAgent", Outcome::kAccepted, [](ssh_session session, ssh_channel) {
    const ssh_channel own = ssh_channel_new(session);
    ssh_channel_open_auth_agent(own);
  });
  open("DebugsWithEscapes", Outcome::kAccepted, [](ssh_session session, ssh_channel) {
    for (int i = 0; i < 20; ++i) ssh_send_debug(session, kEscapes.c_str(), 1);
  });
  open("IgnoresALot", Outcome::kAccepted, [](ssh_session session, ssh_channel) {
    const std::string filler(10'000, 'x');
    for (int i = 0; i < 50; ++i) ssh_send_ignore(session, filler.c_str());
  });
  open("SendsDataBeforeItsAnswer", Outcome::kAccepted, [](ssh_session, ssh_channel channel) {
    ssh_channel_write_stderr(channel, kEscapes.data(), static_cast<uint32_t>(kEscapes.size()));
  });
  open("DisconnectsAtEachCommand", Outcome::kTrouble,
       [](ssh_session session, ssh_channel) { ::shutdown(ssh_get_fd(session), SHUT_RDWR); });
  open("SendsAnEndOfFileFirst", Outcome::kTrouble,
       [](ssh_session, ssh_channel channel) { ssh_channel_send_eof(channel); });
  open("ClosesEachChannel", Outcome::kTrouble,
       [](ssh_session, ssh_channel channel) { ssh_channel_close(channel); });
  return cases;
}

}  // namespace xffl::test
