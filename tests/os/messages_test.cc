#include "os/messages.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "os/files.h"
#include "os/sockets.h"

namespace prefixd::os {
namespace {

using Got = MessageReader::Got;
using testing::SizeIs;

bool IsStream() { return MessageSocketType() == SOCK_STREAM; }

class MessagesTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(socketpair(AF_UNIX, MessageSocketType(), 0, ends_.data()), 0); }
  void TearDown() override {
    for (const int end : ends_) {
      if (end >= 0) close(end);
    }
  }
  void HangUp() { close(std::exchange(ends_[0], -1)); }
  // Sends bytes as they are.
  void SendRaw(const std::string& bytes) {
    ASSERT_EQ(send(ends_[0], bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  std::array<int, 2> ends_{-1, -1};
};

std::string Text(int fd) {
  char text[16] = {};
  const ssize_t bytes = pread(fd, text, sizeof(text), 0);
  return {text, static_cast<size_t>(std::max<ssize_t>(bytes, 0))};
}

// A file with a text and no name.
int FileWith(const std::string& text) {
  std::string path = testing::TempDir() + "prefixd_os_test_XXXXXX";
  const int fd = mkstemp(path.data());
  unlink(path.c_str());
  EXPECT_EQ(write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  return fd;
}

TEST_F(MessagesTest, AMessageArrivesWholeWithItsFilesAndTheNextIsAnother) {
  const int arena = FileWith("arena"), lock = FileWith("lock");
  const std::array<int, 2> files = {arena, lock};
  ASSERT_TRUE(SendMessage(ends_[0], "first", files));
  ASSERT_TRUE(SendMessage(ends_[0], "second", {}));
  MessageReader first(64, 8), second(64, 8);
  ASSERT_EQ(first.Read(ends_[1]), Got::kMessage);
  EXPECT_EQ(first.bytes(), "first");
  EXPECT_EQ(first.sent_bytes(), 5u);
  EXPECT_FALSE(first.dropped_files());
  const std::vector<int> taken = first.TakeFiles();
  ASSERT_THAT(taken, SizeIs(2));
  EXPECT_EQ(Text(taken[0]), "arena");
  EXPECT_EQ(Text(taken[1]), "lock");
  for (const int file : taken) {
    EXPECT_NE(fcntl(file, F_GETFD) & FD_CLOEXEC, 0);
    close(file);
  }
  EXPECT_THAT(first.TakeFiles(), SizeIs(0));
  ASSERT_EQ(second.Read(ends_[1]), Got::kMessage);
  EXPECT_EQ(second.bytes(), "second");
  EXPECT_THAT(second.TakeFiles(), SizeIs(0));
  close(arena);
  close(lock);
}

TEST_F(MessagesTest, ReadingWaitsForNobody) {
  MessageReader reader(64, 8);
  EXPECT_EQ(reader.Read(ends_[1]), Got::kMore);
  ASSERT_TRUE(SendMessage(ends_[0], "late", {}));
  EXPECT_EQ(reader.Read(ends_[1]), Got::kMessage);
  EXPECT_EQ(reader.bytes(), "late");
}

TEST_F(MessagesTest, APeerThatHangsUpEndsIt) {
  HangUp();
  MessageReader reader(64, 8);
  errno = EPERM;
  EXPECT_EQ(reader.Read(ends_[1]), Got::kEnd);
  EXPECT_EQ(errno, 0);
  EXPECT_FALSE(SendMessage(ends_[1], "to nobody", {})) << "and no SIGPIPE";
  MessageReader no_socket(64, 8);
  EXPECT_EQ(no_socket.Read(-1), Got::kEnd);
  EXPECT_EQ(errno, EBADF);
}

TEST_F(MessagesTest, ALongMessageIsCutAndItsLengthKnown) {
  ASSERT_TRUE(SendMessage(ends_[0], std::string(100'000, 'x'), {}));
  MessageReader reader(16, 0);
  ASSERT_EQ(reader.Read(ends_[1]), Got::kMessage);
  EXPECT_EQ(reader.bytes(), std::string(16, 'x'));
  EXPECT_EQ(reader.sent_bytes(), 100'000u);
  char rest = 0;
  EXPECT_EQ(recv(ends_[1], &rest, 1, MSG_DONTWAIT), -1) << "a sender is not cut off";
}

TEST_F(MessagesTest, ALongMessageThatComesInPiecesIsReadToItsEnd) {
  if (!IsStream()) GTEST_SKIP() << "the kernel keeps messages whole";
  MessageReader reader(16, 0);
  SendRaw(std::string("\x88\x13\0\0", 4) + std::string(3000, 'x'));
  EXPECT_EQ(reader.Read(ends_[1]), Got::kMore);
  SendRaw(std::string(2000, 'y'));
  ASSERT_EQ(reader.Read(ends_[1]), Got::kMessage);
  EXPECT_EQ(reader.bytes(), std::string(16, 'x'));
  EXPECT_EQ(reader.sent_bytes(), 5000u);
}

TEST_F(MessagesTest, AnEmptyMessageIsTheEnd) {
  ASSERT_TRUE(SendMessage(ends_[0], "", {}));
  MessageReader reader(16, 0);
  EXPECT_EQ(reader.Read(ends_[1]), Got::kEnd);
}

// T5: a peer cannot fill this process's table of files.
TEST_F(MessagesTest, T5FilesThatNobodyWantsAreNotReceived) {
  const int file = FileWith("x");
  const std::array<int, 8> files = {file, file, file, file, file, file, file, file};
  const size_t before = OpenDescriptors().value().size();
  ASSERT_TRUE(SendMessage(ends_[0], "many", files));
  {
    MessageReader none(16, 0);
    ASSERT_EQ(none.Read(ends_[1]), Got::kMessage);
    EXPECT_THAT(none.TakeFiles(), SizeIs(0));
    EXPECT_TRUE(none.dropped_files());
  }
  ASSERT_TRUE(SendMessage(ends_[0], "many", files));
  {
    MessageReader two(16, 2);
    ASSERT_EQ(two.Read(ends_[1]), Got::kMessage);
    EXPECT_TRUE(two.dropped_files());
  }  // which closes what nobody took
  EXPECT_EQ(OpenDescriptors().value().size(), before);
  close(file);
}

TEST_F(MessagesTest, AMessageThatComesInPiecesIsPutTogether) {
  if (!IsStream()) GTEST_SKIP() << "the kernel keeps messages whole";
  const std::string sent("\6\0\0\0pieces", 10);
  MessageReader reader(64, 8);
  for (const char byte : sent) {
    EXPECT_EQ(reader.Read(ends_[1]), Got::kMore);
    SendRaw(std::string(1, byte));
  }
  EXPECT_EQ(reader.Read(ends_[1]), Got::kMessage);
  EXPECT_EQ(reader.bytes(), "pieces");
}

TEST_F(MessagesTest, AnEndAmidAMessageIsTheEnd) {
  if (!IsStream()) GTEST_SKIP() << "the kernel keeps messages whole";
  SendRaw(std::string("\6\0\0\0pie", 7));
  HangUp();
  MessageReader reader(64, 8);
  EXPECT_EQ(reader.Read(ends_[1]), Got::kEnd);
}

TEST_F(MessagesTest, ALengthOfFourGigabytesTakesNoMemory) {
  if (!IsStream()) GTEST_SKIP() << "the kernel keeps messages whole";
  SendRaw("\xff\xff\xff\xff" + std::string(64, 'y'));
  MessageReader reader(16, 0);
  ASSERT_EQ(reader.Read(ends_[1]), Got::kMessage);
  EXPECT_EQ(reader.bytes(), std::string(16, 'y'));
  EXPECT_EQ(reader.sent_bytes(), 0xffffffffu);
}

// What a client of one flavour sees of a daemon of the other.
TEST_F(MessagesTest, ASocketOfTheOtherFlavourIsRefused) {
  std::string folder = testing::TempDir() + "prefixd_os_test_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  (folder + "/s").copy(name.sun_path, sizeof(name.sun_path) - 1);
  const int listener = NewSocket(AF_UNIX, MessageSocketType(), 0, Waits::kNo);
  const auto* const address = reinterpret_cast<const sockaddr*>(&name);
  ASSERT_EQ(bind(listener, address, sizeof(name)), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  const int other = NewSocket(AF_UNIX, IsStream() ? SOCK_SEQPACKET : SOCK_STREAM, 0, Waits::kYes);
  EXPECT_EQ(connect(other, address, sizeof(name)), -1);
  EXPECT_EQ(errno, EPROTOTYPE);
  close(other);
  close(listener);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace prefixd::os
