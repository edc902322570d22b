// `xffl trust`, `xffl login` and other prompts, without and with a terminal.
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "asking_host.h"
#include "ssh_test.h"
#include "support/on_terminal.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"

namespace xffl::remote {
namespace {

using testing::HasSubstr;
using testing::Not;

class TrustCommand : public SshTest {
 protected:
  test::TempDir project_;

  void write_project(const test::Sshd& sshd) {
    std::ofstream(project_ / "xffl.yaml")
        << "project: p\nmodel: /m\ntraining: {steps_per_round: 4, batch_size: 16}\n"
        << "facilities:\n  alba:\n    access: ssh\n    ssh:\n      hosts: [\"127.0.0.1:"
        << sshd.port() << "\"]\n      user: " << test::own_user() << "\n      keys: ["
        << sshd.key().string() << "]\n      agent: false\n"
        << "    scheduler: slurm\n    slurm: {nodes: 1, time: 1h, warning: 5m}\n"
        << "    workdir: /tmp/w\n    data: {train: /tmp/t.tokens}\n";
  }
  // Adds a line of xffl.yaml behind another one.
  void add_line(const std::string& behind, const std::string& line) const {
    std::string yaml = read_file(project_ / "xffl.yaml", 10'000);
    yaml.insert(yaml.find(behind) + behind.size(), line);
    write_file_atomic(project_ / "xffl.yaml", yaml);
  }
  // In its own session, so that the tests' terminal is not used.
  ProcessResult xffl(std::vector<std::string> words) {
    words.insert(words.begin(), {"setsid", "-w", XFFL_BINARY_DIR "/bin/xffl"});
    words.insert(words.end(), {"-p", project_.path().string()});
    return run_process({.argv = std::move(words), .timeout = std::chrono::seconds(60)});
  }
  static std::string fingerprint_of(const test::Sshd& sshd) {
    return trusted_keys(sshd.settings(), sshd.settings().hosts[0])[0].fingerprint;
  }
  bool pinned() const { return std::filesystem::exists(project_ / "known_hosts"); }
};

TEST_F(TrustCommand, PinsOnlyTheNamedKey) {
  test::Sshd sshd;
  write_project(sshd);
  add_line("facilities:\n", "  aarau: {workdir: /tmp/v, data: {train: /tmp/t.tokens}}\n");
  const std::string fingerprint = fingerprint_of(sshd);

  const auto shown = xffl({"trust", "alba"});
  EXPECT_NE(shown.exit_code, 0);
  EXPECT_THAT(shown.out, HasSubstr("not trusted yet"));
  EXPECT_THAT(shown.out, HasSubstr(fingerprint));
  EXPECT_THAT(shown.err, HasSubstr("--yes"));
  EXPECT_NE(xffl({"trust", "alba", "--yes", fingerprint + "x"}).exit_code, 0);
  EXPECT_FALSE(pinned());

  const auto refused = xffl({"login", "alba"});
  EXPECT_THAT(refused.err, HasSubstr("xffl trust alba"));
  EXPECT_EQ(refused.exit_code, exit_code(ErrorKind::kAuth));

  const auto trusted = xffl({"trust", "alba", "--yes", fingerprint});
  EXPECT_EQ(trusted.exit_code, 0) << trusted.err;
  EXPECT_TRUE(pinned());
  EXPECT_THAT(xffl({"trust", "alba"}).out, HasSubstr("is trusted: "));
  const auto login = xffl({"login", "alba"});
  EXPECT_EQ(login.exit_code, 0) << login.err;
  EXPECT_THAT(login.out, HasSubstr("logged in: " + test::own_user()));

  sshd.stop();
  sshd.change_host_key();
  sshd.start();
  const auto changed = xffl({"trust", "alba", "--yes", fingerprint});
  EXPECT_NE(changed.exit_code, 0);
  EXPECT_THAT(changed.out, HasSubstr("HOST KEY HAS CHANGED"));
  EXPECT_THAT(changed.out, HasSubstr(fingerprint));
}

// The name of a server that changes its key stands for a name that leads to two nodes in turn.
TEST_F(TrustCommand, AddKeepsTheKeyOfTheOtherNode) {
  test::Sshd sshd;
  write_project(sshd);
  const auto trust = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"trust", "alba"});
    return xffl(flags);
  };
  const std::string one = fingerprint_of(sshd);
  const std::string key_of_one = read_file(sshd.dir() / "host_key", 10'000);
  EXPECT_EQ(trust({"--yes", one}).exit_code, 0);
  sshd.stop();
  sshd.change_host_key();
  sshd.start();
  const auto shown = trust({});
  const size_t at = shown.out.rfind("SHA256:");
  ASSERT_NE(at, std::string::npos) << shown.out;
  const std::string two = shown.out.substr(at, shown.out.find_first_of(" \n", at) - at);
  ASSERT_NE(one, two);
  EXPECT_EQ(trust({"--add", "--yes", two}).exit_code, 0);
  EXPECT_EQ(xffl({"login", "alba"}).exit_code, 0) << "at the second node";
  sshd.stop();
  write_file_atomic(sshd.dir() / "host_key", key_of_one);
  sshd.start();
  EXPECT_EQ(xffl({"login", "alba"}).exit_code, 0) << "at the first node";
  EXPECT_THAT(trust({}).out, HasSubstr("is trusted: "));
}

// Runs `xffl` in the background of a new terminal, like `xffl ... &` in a shell. Returns the exit
// code, or -1 when the terminal stopped the process.
int in_background(const std::vector<std::string>& words) {
  std::vector<std::string> argv = words;
  argv.insert(argv.begin(), XFFL_BINARY_DIR "/bin/xffl");
  const std::vector<char*> pointers = exec_pointers(argv);
  int terminal = -1;
  const pid_t shell = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (shell == 0) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setpgid(0, 0);
      ::execv(pointers[0], pointers.data());
      ::_exit(127);
    }
    int status = 0;
    ::waitpid(child, &status, WUNTRACED);
    if (WIFSTOPPED(status)) ::kill(child, SIGKILL);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
  }
  EXPECT_GT(shell, 0);
  char buffer[4096];
  while (::read(terminal, buffer, sizeof buffer) > 0) continue;
  ::close(terminal);
  int status = 0;
  ::waitpid(shell, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) != 99 ? WEXITSTATUS(status) : -1;
}

// Runs `xffl` on a new terminal and types `answer` and a newline whenever the output ends in
// `question`. Returns the output.
std::string on_terminal(const std::vector<std::string>& words, const std::string& question,
                        const std::string& answer) {
  std::vector<std::string> argv = words;
  argv.insert(argv.begin(), XFFL_BINARY_DIR "/bin/xffl");
  const std::vector<char*> pointers = exec_pointers(argv);
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
  }
  const std::string typed = answer + "\n";
  std::string shown;
  const auto ends = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  for (size_t answered = 0; std::chrono::steady_clock::now() < ends;) {
    pollfd wait{terminal, POLLIN, 0};
    if (::poll(&wait, 1, 100) == 0) continue;
    char bytes[4096];
    const ssize_t n = ::read(terminal, bytes, sizeof bytes);
    if (n <= 0) break;
    shown.append(bytes, static_cast<size_t>(n));
    if (shown.size() > answered && shown.ends_with(question)) {
      answered = shown.size();
      EXPECT_EQ(::write(terminal, typed.data(), typed.size()), static_cast<ssize_t>(typed.size()));
    }
  }
  ::close(terminal);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return shown;
}

// The connection of `xffl login` ends with the command, so doctor prompts itself.
TEST_F(TrustCommand, DoctorPromptsOnItsTerminal) {
  test::Sshd keys, behind;
  keys.stop();
  const AskingHost jump(keys.dir() / "host_key", keys.port());
  write_project(behind);
  add_line("    ssh:\n", "      jump: [\"127.0.0.1:" + std::to_string(keys.port()) + "\"]\n");
  std::string yaml = read_file(project_ / "xffl.yaml", 10'000);
  yaml.replace(yaml.find("/tmp/w\n"), 6, (project_ / "w").string());
  write_file_atomic(project_ / "xffl.yaml", yaml);
  write_file_atomic(project_ / "known_hosts", read_file(keys.known_hosts(), 10'000) +
                                                  read_file(behind.known_hosts(), 10'000));
  const std::vector<std::string> doctor = {"doctor", "alba", "-p", project_.path().string()};
  const std::string shown = on_terminal(doctor, ": ", "123456");
  EXPECT_THAT(shown, HasSubstr("your phone"));
  EXPECT_THAT(shown, HasSubstr("ok      log-in"));
  EXPECT_THAT(shown, HasSubstr("ok      work folder"));
  EXPECT_THAT(shown, HasSubstr("Name: 123456"));
  const std::string login =
      on_terminal({"login", "alba", "-p", project_.path().string()}, ": ", "123456");
  EXPECT_THAT(login, HasSubstr("logged in: "));
  for (const std::string& prompts : {shown, login})
    EXPECT_THAT(prompts, Not(HasSubstr("Code: 123456"))) << "a secret has no echo";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(project_.path())) {
    if (!entry.is_regular_file()) continue;
    EXPECT_THAT(read_file(entry.path(), 1 << 20), Not(HasSubstr("123456"))) << entry.path();
  }
  EXPECT_THAT(xffl({"doctor", "alba"}).out, HasSubstr("run 'xffl login alba' on a terminal"));
  EXPECT_THAT(on_terminal(doctor, ": ", "\4"),  // the end of the input
              HasSubstr("the terminal was closed, or `xffl login` there"));
}

TEST_F(TrustCommand, PinsAKeyOnItsTerminalOnlyAfterAYes) {
  test::Sshd sshd;
  write_project(sshd);
  const auto shown_after = [&](const std::string& answer) {
    return on_terminal({"trust", "alba", "-p", project_.path().string()}, "to trust) ", answer);
  };
  for (const char* answer : {"", "y"}) {
    EXPECT_THAT(shown_after(answer), HasSubstr("the answer was not 'yes'"));
    EXPECT_FALSE(pinned()) << "'" << answer << "'";
  }
  EXPECT_THAT(shown_after("yes"), HasSubstr("pinned in "));
  EXPECT_TRUE(pinned());
}

// The login node is reachable through both jump hosts only.
TEST_F(TrustCommand, ReachesALoginNodeThroughTwoJumpHosts) {
  test::Sshd outer, middle, inner;
  std::vector<std::string> words = {"trust", "alba"};
  for (const test::Sshd* host : {&outer, &middle, &inner}) {
    words.insert(words.end(), {"--yes", fingerprint_of(*host)});
    std::ofstream(host->dir() / "authorized_keys", std::ios::app)
        << read_file(inner.dir() / "id.pub", 10'000);
  }
  write_project(inner);
  add_line("    ssh:\n", "      jump: [\"127.0.0.1:" + std::to_string(outer.port()) +
                             "\", \"127.0.0.1:" + std::to_string(middle.port()) + "\"]\n");
  const ProcessResult trusted = xffl(words);
  EXPECT_EQ(trusted.exit_code, 0) << trusted.err;
  EXPECT_EQ(middle.connections(), 2) << "for its own key, and for that of the login node";
  EXPECT_EQ(inner.connections(), 1);
}

// The run goes to the second log-in node while the first one is down.
TEST_F(TrustCommand, EachLoginNodeIsPinnedAlsoAfterARefusedOne) {
  test::Sshd first, second;
  write_project(first);
  add_line("\"127.0.0.1:" + std::to_string(first.port()) + "\"",
           ", \"127.0.0.1:" + std::to_string(second.port()) + "\"");
  const auto refused = xffl({"trust", "alba", "--yes", fingerprint_of(second)});
  EXPECT_EQ(refused.exit_code, exit_code(ErrorKind::kAuth)) << refused.out;
  EXPECT_THAT(refused.out, HasSubstr("pinned in ")) << "the second node's key";
  const std::string shown = xffl({"doctor", "alba"}).out;
  EXPECT_THAT(shown, HasSubstr("FAILED  host key         127.0.0.1 is not trusted yet"));
  EXPECT_THAT(shown, HasSubstr("ok      host key         127.0.0.1 is pinned"));
  const auto trusted = xffl({"trust", "alba", "--yes", fingerprint_of(first)});
  EXPECT_EQ(trusted.exit_code, 0) << trusted.err;
  EXPECT_THAT(trusted.out,
              HasSubstr("127.0.0.1 port " + std::to_string(second.port()) + " is trusted: "));
}

TEST_F(TrustCommand, DoctorNamesATransferHostAndTrustPinsIt) {
  test::Sshd login, transfer;
  write_project(login);
  add_line("  alba:\n",
           "    transfer: {hosts: [\"127.0.0.1:" + std::to_string(transfer.port()) + "\"]}\n");
  write_file_atomic(project_ / "known_hosts", read_file(login.known_hosts(), 10'000));
  const std::string shown = xffl({"doctor", "alba"}).out;
  EXPECT_THAT(shown, HasSubstr("ok      host key         127.0.0.1 is pinned"));
  EXPECT_THAT(shown, HasSubstr("FAILED  host key         127.0.0.1 is not trusted yet"));
  const auto trusted = xffl({"trust", "alba", "--yes", fingerprint_of(transfer)});
  EXPECT_EQ(trusted.exit_code, 0) << trusted.err;
  EXPECT_EQ(transfer.connections(), 1);
  std::ofstream(transfer.dir() / "authorized_keys", std::ios::app)
      << read_file(login.dir() / "id.pub", 10'000);
  const auto logged_in = xffl({"login", "alba"});
  EXPECT_EQ(logged_in.exit_code, 0) << logged_in.err;
  EXPECT_GE(transfer.connections(), 2) << "the host may ask its own questions";
}

TEST_F(TrustCommand, TheWizardPinsAKeyOnlyAfterAYes) {
  test::Sshd sshd;
  const auto answer_wizard = [&](const std::string& answer) {
    test::OnTerminal terminal({"config", "-p", project_.path().string()}, 100, 200, {});
    terminal.type("p\n\n\n\n\n\n\nalba\nssh\n127.0.0.1:" + std::to_string(sshd.port()) + "\n" +
                  test::own_user() + "\n" + sshd.key().string() + "\ny\n");
    EXPECT_TRUE(terminal.await_text("type yes to trust")) << terminal.bytes;
    terminal.type(answer + "\n");
    EXPECT_TRUE(terminal.await_text("Slurm account to charge")) << terminal.bytes;
  };
  for (const char* answer : {"", "y"}) {
    answer_wizard(answer);
    EXPECT_FALSE(pinned()) << "'" << answer << "'";
  }
  answer_wizard("yes");
  EXPECT_TRUE(pinned());
}

// A coordinator that reads a second factor in the background would be stopped, with all facilities.
TEST_F(TrustCommand, ABackgroundProcessIsNotStoppedByItsPrompt) {
  test::Sshd sshd;
  write_project(sshd);
  EXPECT_EQ(in_background({"trust", "alba", "-p", project_.path().string()}),
            exit_code(ErrorKind::kAuth));
  EXPECT_FALSE(pinned());
}

}  // namespace
}  // namespace xffl::remote
