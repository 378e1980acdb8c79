#include "base/process.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace prefixd::base {
namespace {

TEST(ProcessTest, ANameIsALineOfTextAndComesBack) {
  const ProcessName name = ThisProcess();
  EXPECT_EQ(name.pid, static_cast<uint64_t>(getpid()));
  const std::string line = Encode(name);
  EXPECT_EQ(line.size(), kProcessLineBytes);
  EXPECT_EQ(DecodeProcess(line), name);
  const ProcessName largest = {~uint64_t{0} >> 32, ~uint64_t{0}, ~uint64_t{0} >> 32};
  EXPECT_EQ(DecodeProcess(Encode(largest)), largest);
  for (const std::string& other : {std::string(), std::string(kProcessLineBytes, '\0'),
                                   std::string(kProcessLineBytes, ' '), line.substr(1)}) {
    EXPECT_EQ(DecodeProcess(other), ProcessName{});
  }
}

TEST(ProcessTest, T8WhoLivesIsToldFromWhoEndedOrHasTheSamePid) {
  ProcessName name = ThisProcess();
  EXPECT_EQ(LifeOf(name), Life::kLives);
  ++name.start;
  EXPECT_EQ(LifeOf(name), Life::kGone) << "an earlier process of this pid";
  EXPECT_EQ(LifeOf(ProcessName{}), Life::kUnknown);
  name = ThisProcess();
  ++name.pid_namespace;
  EXPECT_EQ(LifeOf(name), Life::kUnknown);
}

TEST(ProcessTest, T8AKilledProcessIsEndingUntilItIsReapedAndAStoppedOneLives) {
  const pid_t pid = fork();
  if (pid == 0) {
    while (true) pause();
  }
  const ProcessName name = NameOf(static_cast<uint64_t>(pid));
  kill(pid, SIGSTOP);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, WUNTRACED), pid);
  EXPECT_EQ(LifeOf(name), Life::kLives);
  kill(pid, SIGKILL);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(LifeOf(name), Life::kEnding);
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(LifeOf(name), Life::kGone);
}

}  // namespace
}  // namespace prefixd::base
