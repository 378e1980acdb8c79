// The side socket by itself: whatever a peer does, the next one is served.
#include "daemon/fd_socket.h"

#include <sys/stat.h>

#include <atomic>

#include "tests/daemon/fd_client.h"
#include "tests/daemon/fixture.h"

namespace prefixd::testing {
namespace {

using daemon::FdSocket;
using ::testing::HasSubstr;

const std::string kGoodKey = "0123456789abcdef";

Descriptor Memory(const std::string& content) {
  Descriptor file(::memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(::write(file.get(), content.data(), content.size()),
            static_cast<ssize_t>(content.size()));
  return file;
}

std::string Content(const Descriptor& file) {
  char text[64];
  const ssize_t bytes = ::pread(file.get(), text, sizeof(text), 0);
  return std::string(text, static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
}

class FdSocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    spdlog::set_level(spdlog::level::off);
    Listen();
  }
  // Whatever a test did, the next worker is served.
  void TearDown() override { EXPECT_EQ(ExchangeKey(path_, kGoodKey).text, kGoodKey); }
  absl::StatusOr<cache::SessionFiles> Open(const cache::SessionKey& key, const base::Peer& peer) {
    if (base::AsText(key) != kGoodKey) return absl::NotFoundError("session: unknown key");
    pid_ = peer.pid;
    return cache::SessionFiles{.session = {},
                               .arena = ::dup(arena_.get()),
                               .lock = ::dup(lock_.get()),
                               .staging = staging_.get() < 0 ? -1 : ::dup(staging_.get())};
  }
  void Listen() {
    auto socket = FdSocket::Listen(
        path_, {.open = [this](const cache::SessionKey& key, const base::Peer& peer) {
          return Open(key, peer);
        }});
    ASSERT_TRUE(socket.ok()) << socket.status();
    socket_ = *std::move(socket);
  }

  TempDir dir_;
  const std::string path_ = dir_.path() + "/prefixd.fd";
  Descriptor arena_ = Memory("arena");
  Descriptor lock_ = Memory("lock");
  Descriptor staging_ = Memory("staging");
  std::atomic<uint64_t> pid_{0};
  std::unique_ptr<FdSocket> socket_;
};

TEST_F(FdSocketTest, TheRightKeyGetsItsFilesAndItsPidIsSeen) {
  const FdReply reply = ExchangeKey(path_, kGoodKey);
  EXPECT_EQ(reply.text, kGoodKey);
  ASSERT_EQ(reply.files.size(), 3u);
  EXPECT_EQ(Content(reply.files[0]), "arena");
  EXPECT_EQ(Content(reply.files[1]), "lock");
  EXPECT_EQ(Content(reply.files[2]), "staging");
  EXPECT_EQ(pid_, static_cast<uint64_t>(::getpid()));
}

TEST_F(FdSocketTest, WithoutStagingTwoFilesCome) {
  staging_ = Descriptor();
  const FdReply reply = ExchangeKey(path_, kGoodKey);
  ASSERT_EQ(reply.files.size(), 2u);
  EXPECT_EQ(Content(reply.files[0]), "arena");
}

TEST_F(FdSocketTest, AWrongKeyGetsASentenceAndNoFile) {
  const FdReply reply = ExchangeKey(path_, "fedcba9876543210");
  EXPECT_THAT(reply.text, HasSubstr("unknown key"));
  EXPECT_TRUE(reply.files.empty());
}

TEST_F(FdSocketTest, GarbageOfEveryLengthGetsASentenceAndNoFile) {
  for (const size_t bytes : {1u, 15u, 17u, 4096u, 100'000u}) {
    const FdReply reply = ExchangeKey(path_, std::string(bytes, 'g'));
    EXPECT_THAT(reply.text, HasSubstr("a key has 16 bytes, this message " + std::to_string(bytes)));
    EXPECT_TRUE(reply.files.empty());
  }
}

TEST_F(FdSocketTest, AKeyThatBeginsWithTheRightOneIsWrong) {
  EXPECT_TRUE(ExchangeKey(path_, kGoodKey + "0").files.empty());
  EXPECT_TRUE(ExchangeKey(path_, kGoodKey.substr(1)).files.empty());
}

TEST_F(FdSocketTest, SilenceIsDroppedAfterASecond) {
  const auto start = std::chrono::steady_clock::now();
  const Descriptor fd = ConnectFdSocket(path_);
  EXPECT_EQ(ReceiveFiles(fd).text, "");
  const auto waited = std::chrono::steady_clock::now() - start;
  EXPECT_GE(waited, std::chrono::milliseconds(900));
  EXPECT_LT(waited, std::chrono::seconds(9));
}

TEST_F(FdSocketTest, ACrowdOfSilentPeersKeepsNobodyOut) {
  std::vector<Descriptor> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(ConnectFdSocket(path_));
  EXPECT_EQ(ExchangeKey(path_, kGoodKey).text, kGoodKey);
}

TEST_F(FdSocketTest, PeersThatHangUpAtOnceAreForgotten) {
  for (int i = 0; i < 500; ++i) ConnectFdSocket(path_);
  for (int i = 0; i < 100; ++i) {
    const Descriptor fd = ConnectFdSocket(path_);
    os::SendMessage(fd.get(), kGoodKey, {});
  }
}

TEST_F(FdSocketTest, TheSocketIsForItsGroupAndGoesWithTheDaemon) {
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0660u);
  socket_.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
  Listen();
}

TEST_F(FdSocketTest, WhatAKilledDaemonLeftIsTakenOver) {
  socket_.reset();
  {
    const Descriptor dead(os::NewSocket(AF_UNIX, os::MessageSocketType(), 0, os::Waits::kYes));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    ASSERT_EQ(::bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  ASSERT_TRUE(std::filesystem::exists(path_));
  Listen();
}

TEST_F(FdSocketTest, TwoDaemonsNeverShareOne) {
  EXPECT_THAT(std::string(FdSocket::Listen(path_, {}).status().message()),
              HasSubstr("another prefixd listens there"));
  EXPECT_EQ(FdSocket::Listen("/" + std::string(120, 'l'), {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(FdSocketPathTest, StandsBesideTheServicesSocket) {
  EXPECT_EQ(daemon::FdSocketPath("/run/prefixd/prefixd.sock"), "/run/prefixd/prefixd.fd");
  EXPECT_EQ(daemon::FdSocketPath("/tmp/s"), "/tmp/s.fd");
  EXPECT_EQ(daemon::FdSocketPath("/tmp/.sock"), "/tmp/.sock.fd");
}

}  // namespace
}  // namespace prefixd::testing
