#include "lab/sandbox.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <future>

#include "lab/lab_error.h"

namespace lab {
namespace {

namespace fs = std::filesystem;

class LabSandbox : public ::testing::TestWithParam<Sandbox> {
 protected:
  void SetUp() override {
    try {
      check_sandbox(GetParam());
    } catch (const LabError& error) {
      GTEST_SKIP() << error.what();
    }
  }

  Confined sh(const std::string& script, Limits limits = {}) {
    return run_confined({"bash", "-c", script}, limits, {}, GetParam());
  }
};

Limits seconds(int count) {
  Limits limits;
  limits.wall = std::chrono::seconds(count);
  return limits;
}

class LabSandboxNamespaces : public LabSandbox {};

TEST_P(LabSandbox, GivesBackOutputResultAndCode) {
  Folders folders;
  folders.input = "secret\n";
  folders.environment = {{"NAME", "value"}};
  const Confined ran =
      run_confined({"bash", "-c", "read x; echo out $NAME; echo $x >&3; exit 7"}, {}, folders, GetParam());
  EXPECT_EQ(ran.output, "out value\n");
  EXPECT_EQ(ran.result, "secret\n");
  EXPECT_EQ(ran.exit_code, 7);
  EXPECT_EQ(ran.stopped, "");
}

TEST_P(LabSandbox, TellsTheSignal) {
  EXPECT_EQ(sh("kill -SEGV $$").signal, 11);
}

TEST_P(LabSandbox, EndsWhatNeverEnds) {
  const auto begin = std::chrono::steady_clock::now();
  const Confined ran = sh("sleep 100 & while true; do :; done", seconds(1));
  EXPECT_TRUE(ran.timed_out);
  EXPECT_NE(ran.stopped.find("did not end within 1 s"), std::string::npos) << ran.stopped;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST_P(LabSandbox, SaysWhenTheProcessorTimeIsUsedUp) {
  Limits limits = seconds(30);
  limits.cpu = std::chrono::seconds(1);
  const Confined ran = sh("exec bash -c 'while true; do :; done'", limits);
  EXPECT_FALSE(ran.timed_out);
  EXPECT_EQ(ran.stopped, "took more than 1 s of processor time");
}

TEST_P(LabSandbox, EndsWhatOutlivesTheCommand) {
  if (GetParam() == Sandbox::none && ::geteuid() != 0) GTEST_SKIP() << "has no user id of its own";
  const std::string name = "7" + std::to_string(::getpid());
  const Confined ran = sh("setsid sleep " + name + " >/dev/null 2>&1 3>&- & disown; echo started");
  EXPECT_EQ(ran.output, "started\n");
  bool alive = true;
  for (int i = 0; i < 3000 && alive; ++i) {  // the kernel takes a moment to take a namespace down
    alive = false;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      std::ifstream in(entry.path() / "cmdline");
      std::string line;
      std::getline(in, line);  // which, unlike an iterator, does not throw when a process ends meanwhile
      alive |= line == std::string("sleep\0", 6) + name + '\0';
    }
    if (alive) ::usleep(20000);
  }
  EXPECT_FALSE(alive);
}

// Which it would if its user id were given to one of them.
TEST_P(LabSandbox, ALongProgramOutlivesManyShortOnes) {
  auto of_long =
      std::async(std::launch::async, [&] { return sh("read -t 60 < <(sleep 3; echo go); echo ended"); });
  for (int i = 0; i < 50; ++i) EXPECT_EQ(sh("echo short").output, "short\n");
  const Confined ran = of_long.get();
  EXPECT_EQ(ran.output, "ended\n") << ran.signal;
}

TEST_P(LabSandbox, LimitsMemoryOfAllProcessesTogether) {
  Limits limits = seconds(60);
  limits.memory = 200 << 20;
  const std::string half = "x=$(head -c 60000000 /dev/zero | tr '\\0' a); sleep 50";
  const Confined ran = sh("(" + half + ") & (" + half + ") & (" + half + ") & (" + half + ") & wait", limits);
  EXPECT_EQ(ran.stopped, "took more than 200 MiB of memory");
}

TEST_P(LabSandbox, LimitsProcesses) {
  if (GetParam() == Sandbox::none && ::geteuid() != 0) GTEST_SKIP() << "counts the whole session's processes";
  Limits limits = seconds(3);
  limits.processes = 32;
  const Confined ran = sh("f() { f | f & }; f; sleep 100", limits);
  EXPECT_FALSE(ran.ok());
  EXPECT_LE(ran.output.size(), static_cast<size_t>(limits.output));
}

TEST_P(LabSandbox, LimitsFilesAndOutput) {
  Limits limits = seconds(30);
  limits.file = 1 << 20;
  limits.output = 1000;
  const Confined ran =
      sh("head -c 3000000 /dev/zero > $TMPDIR/x; stat -c %s $TMPDIR/x; yes | head -c 100000", limits);
  EXPECT_NE(ran.output.find("1048576\n"), std::string::npos) << ran.output;
  EXPECT_EQ(ran.output.size(), 1000u);
}

INSTANTIATE_TEST_SUITE_P(Each, LabSandbox, ::testing::Values(Sandbox::namespaces, Sandbox::none),
                         [](const auto& info) {
                           return info.param == Sandbox::none ? "none" : "namespaces";
                         });

TEST_P(LabSandboxNamespaces, LimitsTheScratchFolder) {
  Limits limits = seconds(30);
  limits.scratch = 4 << 20;
  const Confined ran = sh(
      "for i in $(seq 20); do head -c 1000000 /dev/zero > $TMPDIR/$i; done 2>/dev/null; du -sm $TMPDIR | cut -f1; "
      "head -c 3000000 /dev/zero > /dev/shm/x; stat -c %s /dev/shm/x; touch /dev/x && echo wrote",
      limits);
  EXPECT_EQ(ran.output.substr(0, 2), "4\n") << ran.output;
  EXPECT_NE(ran.output.find("1048576\n"), std::string::npos) << ran.output;
  EXPECT_EQ(ran.output.find("wrote"), std::string::npos) << ran.output;
}

TEST_P(LabSandboxNamespaces, SeesOnlyWhatItIsGivenAndWritesNothing) {
  const fs::path folder = fs::temp_directory_path() / ("ladder-seen-" + std::to_string(::getpid()));
  fs::create_directories(folder / "inside");
  std::ofstream(folder / "inside" / "a") << "A";
  std::ofstream(folder / "b") << "B";
  const std::string at = folder.string();
  Folders folders;
  folders.readable = {folder / "inside"};
  const Confined ran =
      run_confined({"bash", "-c",
                    "cat " + at + "/inside/a; cat " + at + "/b; echo x > " + at + "/inside/a; echo x > " +
                        at + "/c; touch /usr/x /x /etc/x; echo; ls /; " + "ls /proc | grep -c '^[0-9]'"},
                   {}, folders, GetParam());
  EXPECT_EQ(ran.output.front(), 'A');
  EXPECT_EQ(ran.output.find("B"), std::string::npos);
  EXPECT_EQ(ran.output.find("home\n"), std::string::npos);
  std::ifstream a(folder / "inside" / "a");
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(a)), {}), "A");
  EXPECT_FALSE(fs::exists(folder / "c"));
  EXPECT_FALSE(fs::exists("/x"));
  EXPECT_FALSE(fs::exists("/usr/x"));
  const int processes = std::stoi(ran.output.substr(ran.output.rfind('\n', ran.output.size() - 2) + 1));
  EXPECT_LE(processes, 6);
  fs::remove_all(folder);
}

TEST_P(LabSandboxNamespaces, HasNoNetwork) {
  EXPECT_FALSE(sh("exec 5<>/dev/tcp/127.0.0.1/22 || exec 5<>/dev/tcp/1.1.1.1/53").ok());
  EXPECT_EQ(sh("grep -cv -e lo: -e '|' /proc/net/dev").output, "0\n");
}

INSTANTIATE_TEST_SUITE_P(Only, LabSandboxNamespaces, ::testing::Values(Sandbox::namespaces),
                         [](const auto&) { return "namespaces"; });

TEST(LabSandboxCheck, AProgramThatIsNotThereEndsWith127) {
  EXPECT_EQ(run_confined({"no-such-program"}, {}, {}, Sandbox::none).exit_code, 127);
}

}  // namespace
}  // namespace lab
