#include "xffl/submit/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"
#include "xffl/base/shell.h"
#include "xffl/submit/queue_manager.h"
#include "xffl/submit/scheduler.h"

namespace xffl::submit {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string refusal(std::string_view text, const TemplateValues& values,
                    const std::set<std::string, std::less<>>& optional = {}) {
  try {
    const std::string rendered = render_template(text, "t.sh", values, optional);
    return "no error, rendered: " + rendered;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
}

TEST(Template, FillsInPlainQuotedAndWordValues) {
  EXPECT_EQ(render_template("#SBATCH -J {{name}}\ncd {{quote folder}}\nexec {{words argv}}\n", "t",
                            {{"name", "xffl-p-0001"},
                             {"folder", "/a b/it's"},
                             {"argv", std::vector<std::string>{"run", "--x", "a b", ""}}}),
            "#SBATCH -J xffl-p-0001\ncd '/a b/it'\\''s'\nexec run --x 'a b' ''\n");
}

TEST(Template, AcceptsBlanksInBracesAndSeveralDirectivesOnALine) {
  EXPECT_EQ(render_template("{{ a }}{{quote  b}}-{{a}}", "t", {{"a", "1"}, {"b", "2"}}), "12-1");
}

TEST(Template, LinesBecomeOneLineEachWithTheirIndentation) {
  const std::vector<std::string> items{"module load cuda", "export A='b c'"};
  EXPECT_EQ(render_template("a\n  {{lines env}}\nb\n", "t", {{"env", items}}),
            "a\n  module load cuda\n  export A='b c'\nb\n");
  EXPECT_EQ(render_template("a\n{{lines env}}\nb\n", "t", {{"env", std::vector<std::string>{}}}),
            "a\nb\n");
}

TEST(Template, ValuesAreNotReadAsTemplates) {
  EXPECT_EQ(render_template("{{lines env}}\n{{quote x}}", "t",
                            {{"env", std::vector<std::string>{"echo {{x}}"}}, {"x", "{{x}}"}}),
            "echo {{x}}\n'{{x}}'");
}

TEST(Template, RejectsAnUndefinedNameWithItsLine) {
  const std::string message = refusal("one\ntwo {{acount}}\n", {{"account", "a"}});
  EXPECT_THAT(message, StartsWith("t.sh:2: "));
  EXPECT_THAT(message, HasSubstr("'acount'"));
  EXPECT_THAT(message, HasSubstr("there are: account"));
}

TEST(Template, RejectsAnUnusedValueUnlessOptional) {
  EXPECT_THAT(refusal("x\n", {{"account", "a"}}), HasSubstr("'account' is never used"));
  EXPECT_EQ(render_template("x\n", "t", {{"account", "a"}}, {"account"}), "x\n");
}

TEST(Template, RejectsMalformedDirectives) {
  const TemplateValues values{{"a", "1"}, {"l", std::vector<std::string>{"1"}}};
  EXPECT_THAT(refusal("{{a", values), HasSubstr("t.sh:1: '{{' without '}}'"));
  EXPECT_THAT(refusal("{{a\n}}", values), HasSubstr("t.sh:1: '{{' without '}}'"));
  EXPECT_THAT(refusal("{{}}", values), HasSubstr("does not name a value"));
  EXPECT_THAT(refusal("{{A}}", values), HasSubstr("does not name a value"));
  EXPECT_THAT(refusal("{{quote a b}}", values), HasSubstr("does not name a value"));
  EXPECT_THAT(refusal("{{raw a}}", values), HasSubstr("unknown directive 'raw'"));
  EXPECT_THAT(refusal("x {{lines l}}", values), HasSubstr("must stand alone"));
  EXPECT_THAT(refusal("{{lines l}} x", values), HasSubstr("must stand alone"));
  EXPECT_THAT(refusal("{{a}} {{lines l}}", values), HasSubstr("must stand alone"));
  EXPECT_THAT(refusal("{{lines l}}{{lines l}}", values), HasSubstr("must stand alone"));
  EXPECT_THAT(refusal("a\r\n{{a}}", values), HasSubstr("carriage return"));
}

TEST(Template, RejectsAStringForAListAndAListForAString) {
  const TemplateValues values{{"a", "1"}, {"l", std::vector<std::string>{"1"}}};
  EXPECT_THAT(refusal("{{l}}", values), HasSubstr("'l' is a list"));
  EXPECT_THAT(refusal("{{quote l}}", values), HasSubstr("'l' is a list"));
  EXPECT_THAT(refusal("{{words a}}", values), HasSubstr("'a' is a string"));
  EXPECT_THAT(refusal("{{lines a}}", values), HasSubstr("'a' is a string"));
}

TEST(Template, NoValueCanAddALine) {
  for (const std::string& bad :
       {std::string("x\n#SBATCH --account=other"), std::string("x\r#SBATCH -A y"),
        std::string("x\0y", 3), std::string("\n")}) {
    for (const char* text : {"{{v}}", "#SBATCH -A {{v}}", "{{quote v}}"})
      EXPECT_THAT(refusal(text, {{"v", bad}}), HasSubstr("newline, carriage return or NUL"))
          << text;
    for (const char* text : {"{{words v}}", "{{lines v}}"})
      EXPECT_THAT(refusal(text, {{"v", std::vector<std::string>{"good", bad}}}),
                  HasSubstr("newline, carriage return or NUL"))
          << text;
  }
}

TEST(Template, RejectsAPlainValueWithShellCharacters) {
  for (const char* bad : {"a b", "$(touch x)", "`id`", "a;b", "a&b", "a|b", "a>b", "'", "\"", "~",
                          "*", "a\\b", "a\tb", "#x", "", "a --wrap=x", "\xc3\xa8"})
    EXPECT_THAT(refusal("#SBATCH -A {{v}}", {{"v", bad}}), HasSubstr("use {{quote v}}")) << bad;
}

TEST(Template, RejectsAQuotedValueInsideQuotes) {
  const TemplateValues values{{"v", "x y"}};
  EXPECT_THAT(refusal("echo \"{{quote v}}\"", values), HasSubstr("stands inside quotes"));
  EXPECT_THAT(refusal("echo 'a {{quote v}}'", values), HasSubstr("stands inside quotes"));
  EXPECT_THAT(refusal("echo `id {{quote v}}`", values), HasSubstr("stands inside quotes"));
  EXPECT_THAT(refusal("echo \\{{quote v}}", values), HasSubstr("stands inside quotes"));
  EXPECT_THAT(refusal("echo \"a\\\" {{quote v}}\"", values), HasSubstr("stands inside quotes"));
  EXPECT_THAT(refusal("echo '\\'' {{quote v}}'", values), HasSubstr("stands inside quotes"));
  EXPECT_THAT(refusal("echo '{{a}} {{quote v}}'", {{"a", "1"}, {"v", "x y"}}),
              HasSubstr("stands inside quotes"));
  EXPECT_EQ(render_template("# it's {{quote v}}", "t", values), "# it's 'x y'");
  EXPECT_EQ(render_template("echo 'a' \"b\" {{quote v}}", "t", values), "echo 'a' \"b\" 'x y'");
}

TEST(Template, RejectsLinesThatAreDirectivesOrContinueOnTheNextLine) {
  const auto lines = [](const char* item) {
    return TemplateValues{{"l", std::vector<std::string>{item}}};
  };
  EXPECT_THAT(refusal("{{lines l}}", lines(" #SBATCH -A x")), HasSubstr("batch directive"));
  EXPECT_THAT(refusal("{{lines l}}", lines("export A=b\\")), HasSubstr("swallow the next line"));
  EXPECT_THAT(refusal("{{lines l}}", lines("\\")), HasSubstr("swallow the next line"));
  EXPECT_EQ(render_template("{{lines l}}", "t", lines("echo \\\\")), "echo \\\\");
}

TEST(Template, OnlyOptionsBecomeDirectives) {
  const auto options = [](std::vector<std::string> items) { return TemplateValues{{"o", items}}; };
  EXPECT_EQ(
      render_template("#!/bin/sh\n{{sbatch o}}\ntrue\n", "t",
                      options({"--nodes=2", "--constraint=[a|b]&c", "--exclusive"})),
      "#!/bin/sh\n#SBATCH --nodes=2\n#SBATCH --constraint=[a|b]&c\n#SBATCH --exclusive\ntrue\n");
  for (const char* bad :
       {"nodes=2", "-N2", "", "--a b", "--a=\"b", "--a='", "--a#b", "--a=$b", "--a\n"})
    EXPECT_THAT(refusal("{{sbatch o}}", options({bad})), HasSubstr("t.sh:1:")) << bad;
  EXPECT_THAT(refusal("x {{sbatch o}}", options({"--a"})), HasSubstr("must stand alone"));
}

TEST(Template, EscapesControlCharactersInMessages) {
  const std::string message = refusal("{{v}}", {{"v", "\x1b[2J\n"}});
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(Template, ListsTheShippedTemplatesForAnUnknownName) {
  try {
    shipped_template("proces");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("there are: "));
    EXPECT_THAT(error.what(), HasSubstr("process"));
  }
}

std::vector<std::string> shells() {
  std::vector<std::string> found;
  for (const char* shell : {"/bin/sh", "/bin/dash", "/bin/bash", "/bin/ksh", "/bin/zsh"})
    if (access(shell, X_OK) == 0) found.emplace_back(shell);
  return found;
}

/// The words as parsed by `shell`, each followed by a NUL.
std::string echoed(const std::string& shell, const std::vector<std::string>& words) {
  const std::string script = "printf '%s\\0' " + quote_argv_for_shell(words);
  const ProcessResult result = run_process({.argv = {shell, "-c", script}});
  EXPECT_EQ(result.exit_code, 0) << shell << ": " << result.err;
  return result.out;
}

std::string with_nuls(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += word + '\0';
  return text;
}

TEST(QuoteForShell, PreservesEveryByteInEveryShell) {
  std::vector<std::string> words{"",         "-n",       "-",     "~",     "a b",   "'",
                                 "''",       "\\",       "$HOME", "$(id)", "`id`",  "a\nb",
                                 "!x",       "%s",       "{a,b}", "A=b",   "'\\''", "\"\"'\"",
                                 "\xc3\xa8", "\xff\xfe", "if",    "*",     "#",     "\r\n"};
  for (int byte = 1; byte < 256; ++byte)
    words.push_back("x" + std::string(1, static_cast<char>(byte)));
  for (const std::string& shell : shells())
    EXPECT_EQ(echoed(shell, words), with_nuls(words)) << shell;
}

TEST(QuoteForShell, PreservesRandomBytesInEveryShell) {
  std::mt19937 random(20260301);
  constexpr std::string_view kSpecial = "'\"\\$`!(){}[]<>|&;*?~# \t\n\r-=";
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<std::string> words(50);
    for (std::string& word : words) {
      const size_t length = random() % 20;
      for (size_t i = 0; i < length; ++i)
        word += random() % 2 == 0 ? kSpecial[random() % kSpecial.size()]
                                  : static_cast<char>(1 + random() % 255);
    }
    for (const std::string& shell : shells())
      ASSERT_EQ(echoed(shell, words), with_nuls(words)) << shell << ", trial " << trial;
  }
}

TEST(QuoteForShell, RejectsNul) {
  EXPECT_THROW(quote_for_shell(std::string_view("a\0b", 3)), Error);
}

class ProcessJob : public testing::Test {
 protected:
  std::string render(const std::filesystem::path& folder, std::vector<std::string> environment,
                     std::vector<std::string> launch) const {
    return render_template(shipped_template("process"), "process",
                           {{"job_name", "xffl-p-0001-r0001-alba-a1"},
                            {"folder", folder.string()},
                            {"nonce", std::string(32, 'a')},
                            {"environment", std::move(environment)},
                            {"launch", std::move(launch)}});
  }

  ProcessResult start(const std::string& shell, const std::string& script) const {
    write_file_atomic(dir_ / "job.sh", script);
    return run_process({.argv = {shell, (dir_ / "job.sh").string()}});
  }

  test::TempDir dir_;
};

TEST_F(ProcessJob, ClaimsItsFolderAndBecomesTheTrainer) {
  for (const std::string& shell : shells()) {
    const auto folder =
        dir_ / ("it's $(a) folder " + std::filesystem::path(shell).filename().string());
    std::filesystem::create_directories(folder);
    // The script execs the trainer: pid and start time equal those of the claim.
    const std::string script = render(
        folder, {"export GREETING='ciao mondo'"},
        {"/bin/bash", "-c",
         R"(read -r s </proc/$$/stat; s=${s##*) }; set -- $s; echo "$$.${20} $GREETING"; pwd)"});
    const ProcessResult result = start(shell, script);
    ASSERT_EQ(result.exit_code, 0) << shell << ": " << result.err;
    const std::string owner = read_file(folder / "claim/owner", 1000);
    const std::string id = owner.substr(0, owner.find(' '));
    EXPECT_EQ(owner, id + " " + std::string(32, 'a') + "\n");
    EXPECT_EQ(result.out, id + " ciao mondo\n" + folder.string() + "\n") << shell;
    EXPECT_FALSE(std::filesystem::exists(folder / "claim/owner.part"));
  }
}

TEST_F(ProcessJob, ASecondStartTrainsNothing) {
  const std::string script = render(dir_.path(), {}, {"/bin/sh", "-c", "echo trained >>trained"});
  EXPECT_EQ(start("/bin/sh", script).exit_code, 0);
  const std::string owner = read_file(dir_ / "claim/owner", 1000);
  const ProcessResult second = start("/bin/sh", script);
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("already claimed"));
  EXPECT_EQ(read_file(dir_ / "trained", 1000), "trained\n");
  EXPECT_EQ(read_file(dir_ / "claim/owner", 1000), owner);
}

TEST_F(ProcessJob, TwentyConcurrentStartsTrainOnce) {
  const std::string script = render(dir_.path(), {}, {"/bin/sh", "-c", "echo trained >>trained"});
  write_file_atomic(dir_ / "job.sh", script);
  std::string all = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sh " +
                    quote_for_shell((dir_ / "job.sh").string()) + " & done; wait";
  EXPECT_EQ(run_process({.argv = {"/bin/sh", "-c", all}}).exit_code, 0);
  EXPECT_EQ(read_file(dir_ / "trained", 1000), "trained\n");
}

TEST_F(ProcessJob, FailsWithoutItsFolderOrProgram) {
  EXPECT_NE(start("/bin/sh", render(dir_ / "nowhere", {}, {"/bin/true"})).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "claim"));
  EXPECT_NE(start("/bin/sh", render(dir_.path(), {}, {"/nowhere/xffl-train"})).exit_code, 0);
}

TEST(QueueManagers, EachHasASchedulerAndAShippedTemplate) {
  for (const QueueManager* manager : queue_managers()) {
    EXPECT_NE(manager->make, nullptr) << manager->name;
    EXPECT_FALSE(shipped_template(manager->name).empty()) << manager->name;
    EXPECT_EQ(&queue_manager(manager->name), manager);
  }
  EXPECT_THROW(queue_manager("lsf"), Error);
}

}  // namespace
}  // namespace xffl::submit
