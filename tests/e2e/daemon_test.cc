// The daemon and prefixctl as programs: what they say, how they end.
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/e2e/fixture.h"

namespace prefixd::testing {
namespace {

using nlohmann::json;

TEST_F(EndToEndTest, StatusSaysWhatIsHeldAndWhatWasSaved) {
  StartDaemon();
  const std::string prompt = Corpus(0, 300);
  Worker(prompt, address(), {"--kv-bits", "8"});
  Worker(prompt, address(), {"--kv-bits", "8"});
  const json stats = Ctl({"stats"});
  EXPECT_EQ(stats["counters"]["tokens.requested"], 600);
  EXPECT_EQ(stats["counters"]["tokens.restorable"], 299);
  EXPECT_EQ(stats["counters"]["tokens.used"], 299);
  Process status({Program("prefixctl"), "--server", address(), "status"});
  EXPECT_EQ(status.Wait(), 0) << status.err();
  EXPECT_NE(status.out().find("ram"), std::string::npos) << status.out();
  EXPECT_EQ(status.out().find("\033["), std::string::npos) << "colour codes outside a terminal";
}

TEST_F(EndToEndTest, ClearEmptiesAndFlushSaves) {
  StartDaemon();
  const std::string prompt = Corpus(0, 300);
  Worker(prompt, address());
  EXPECT_EQ(Ctl({"flush"})["dirty_bytes"], 0);
  Ctl({"clear", "--all", "--yes"});
  EXPECT_EQ(Worker(prompt, address())["cached_tokens"], 0);
}

TEST_F(EndToEndTest, PrefixctlWithoutADaemonSaysWhatToDo) {
  Process status({Program("prefixctl"), "--server", address(), "status"});
  EXPECT_EQ(status.Wait(), 3);
  EXPECT_NE(status.err().find(socket()), std::string::npos) << status.err();
}

// A5 second-daemon: one directory, one daemon; the first is not disturbed.
TEST_F(EndToEndTest, ASecondDaemonOnTheSameDirectoryOrSocketIsRefused) {
  StartDaemon();
  Process same_socket(DaemonCommand());
  EXPECT_NE(same_socket.Wait(), 0);
  EXPECT_NE(same_socket.err().find(socket()), std::string::npos) << same_socket.err();
  std::vector<std::string> argv = DaemonCommand();
  argv[2] = dir_ + "/other.sock";
  Process same_directory(argv);
  EXPECT_NE(same_directory.Wait(), 0);
  EXPECT_NE(same_directory.err().find("in use"), std::string::npos) << same_directory.err();
  Ctl({"stats"});
}

// A5 unwritable-directory
TEST_F(EndToEndTest, AnUnusableDirectoryIsOneClearLine) {
  std::vector<std::string> argv = DaemonCommand();
  argv[4] = WriteFile("a_file", "not a directory");
  Process daemon(argv);
  EXPECT_NE(daemon.Wait(), 0);
  EXPECT_NE(daemon.err().find("a_file"), std::string::npos) << daemon.err();
}

// A5 garbage: bytes that are no HTTP/2 neither stop nor disturb the daemon.
TEST_F(EndToEndTest, GarbageOnTheSocketDisturbsNobody) {
  StartDaemon();
  for (int round = 0; round < 20; ++round) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::snprintf(name.sun_path, sizeof(name.sun_path), "%s", socket().c_str());
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
    std::string garbage(4096, '\0');
    for (size_t i = 0; i < garbage.size(); ++i)
      garbage[i] = static_cast<char>((i * 2654435761u + static_cast<size_t>(round)) >> 13);
    (void)!send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL);
    close(fd);
  }
  EXPECT_EQ(Worker(Corpus(0, 100), address())["cache_error"], "");
}

TEST_F(EndToEndTest, UnknownFlagsAreRefusedWithTheChoices) {
  Process daemon({Program("prefixd"), "--no-such-flag"});
  EXPECT_NE(daemon.Wait(), 0);
  Process bits({Program("prefixd-worker"), "--model", std::string(PREFIXD_TEST_DATA) + "/model",
                "--prompt", "x", "--kv-bits", "7"});
  EXPECT_NE(bits.Wait(), 0);
  EXPECT_NE(bits.err().find("2, 3, 4, 5, 6"), std::string::npos) << bits.err();
}

// The socket is for its owner and group alone.
TEST_F(EndToEndTest, TheSocketHasMode0660AndTheDirectory0700) {
  StartDaemon();
  namespace fs = std::filesystem;
  EXPECT_EQ(fs::status(socket()).permissions(), static_cast<fs::perms>(0660));
  EXPECT_EQ(fs::status(dir_ + "/data").permissions(), static_cast<fs::perms>(0700));
}

}  // namespace
}  // namespace prefixd::testing
