// T5: the process that attached, and no other, gets the files of its session.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "daemon/unix_listener.h"
#include "tests/daemon/fd_client.h"
#include "tests/daemon/fixture.h"
#include "tests/support/worker_lock.h"

namespace prefixd::testing {
namespace {

using ::testing::HasSubstr;

class PeerTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    if (!cache_->arena().shared) GTEST_SKIP() << "no tmpfs to share memory in";
  }
  std::string fd_path() const { return dir_.path() + "/s.fd"; }
  // What another process (of another user, unless 0) is told that shows this key; the number of
  // descriptors it got stands in front.
  std::string ShowElsewhere(const std::string& key, uid_t user = 0) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    thief_ = ::fork();
    if (thief_ == 0) {
      // The group stays: it may use the socket.
      if (user != 0 && ::setresuid(user, user, user) != 0) ::_exit(1);
      const FdReply reply = ExchangeKey(fd_path(), key);
      const std::string told = std::to_string(reply.files.size()) + " " + reply.text;
      ::_exit(::write(ends[1], told.data(), told.size()) > 0 ? 0 : 1);
    }
    ::close(ends[1]);
    std::string told(1024, '\0');
    const ssize_t bytes = ::read(ends[0], told.data(), told.size());
    told.resize(static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
    ::close(ends[0]);
    ::waitpid(thief_, nullptr, 0);
    return told;
  }
  std::string Refusal(uid_t user) const {
    return "0 open_files: this is process " + std::to_string(thief_) + " of user " +
           std::to_string(user) + ", the session is that of process " + std::to_string(::getpid()) +
           " of user " + std::to_string(::geteuid());
  }
  pid_t thief_ = -1;
};

TEST_F(PeerTest, T5AnotherProcessThatKnowsTheKeyGetsNoFiles) {
  Worker worker(target());
  worker.AttachArena();
  const std::string key = worker.attached.key();
  std::string told = ShowElsewhere(key);
  EXPECT_EQ(told, Refusal(::geteuid()));
  // A session's id opens nothing.
  std::string id(key.size(), '\0');
  std::memcpy(id.data(), &worker.session, sizeof(worker.session));
  EXPECT_THAT(ShowElsewhere(id), HasSubstr("0 open_files: no session of this key"));
  EXPECT_EQ(ExchangeKey(fd_path(), key).files.size(), 3u) << "its worker still does";
  told = ShowElsewhere(key);
  EXPECT_EQ(told, Refusal(::geteuid()));
  EXPECT_EQ(worker.Counter("sessions.files_refused"), 2u);
}

TEST_F(PeerTest, T5AnotherUserThatKnowsTheKeyGetsNoFiles) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  ASSERT_EQ(::chmod(dir_.path().c_str(), 0755), 0);
  Worker worker(target());
  worker.AttachArena();
  const std::string told = ShowElsewhere(worker.attached.key(), 12345);
  EXPECT_EQ(told, Refusal(12345));
  EXPECT_EQ(ExchangeKey(fd_path(), worker.attached.key()).files.size(), 3u);
}

// What every worker can read of the arena.
TEST_F(PeerTest, T5TheArenaShowsNeitherIdsNorKeysOfSessions) {
  Worker worker(target()), reader(target());
  worker.AttachArena();
  reader.AttachArena();
  FdReply taken = ExchangeKey(fd_path(), worker.attached.key());
  FdReply reply = ExchangeKey(fd_path(), reader.attached.key());
  ASSERT_EQ(reply.files.size(), 3u);
  const Mapping arena(reply.files[0], reader.attached.arena_file_bytes(), PROT_READ);
  ASSERT_TRUE(arena.ok());
  const std::string_view tables(arena.at(0), 64 << 10);
  EXPECT_EQ(tables.find(worker.attached.key()), tables.npos);
  const std::string_view id(reinterpret_cast<const char*>(&worker.session), sizeof(uint64_t));
  EXPECT_EQ(tables.find(id), tables.npos);
}

// T5: whoever has the arena's descriptor may lock it all over: it says nothing of anybody.
TEST_F(PeerTest, T5LockingTheWholeArenaKeepsNobodysSlot) {
  Worker worker(target()), hostile(target());
  worker.AttachArena();
  hostile.AttachArena();
  FdReply taken = ExchangeKey(fd_path(), worker.attached.key());
  FdReply reply = ExchangeKey(fd_path(), hostile.attached.key());
  ASSERT_EQ(reply.files.size(), 3u);
  for (const Descriptor& file : reply.files) TakeLock(file.get(), WorkerLock::kShared);
  const uint64_t session = worker.session;
  worker.Detach();
  taken.files.clear();  // as its death does
  EXPECT_TRUE(Eventually([&](const v1::GetStatsReply&) {
    for (const auto& info : cache_->ListSessions()) {
      if (info.session.value == session) return false;
    }
    return true;
  }));
  // The stream that ended keeps its slot until gRPC is done with it.
  EXPECT_TRUE(Eventually([&](const v1::GetStatsReply&) {
    Worker next(target());
    next.AttachArena();
    return next.attached.slot() == 0 &&
           ExchangeKey(fd_path(), next.attached.key()).files.size() == 3;
  })) << "it is free again";
}

TEST(UnixPeerTest, GrpcNamesAConnectionByItsDescriptor) {
  EXPECT_EQ(daemon::AddressOf("fd:17"), "unix:");
  EXPECT_EQ(daemon::AddressOf("ipv4:127.0.0.1:4711"), "ipv4:127.0.0.1:4711");
  EXPECT_EQ(daemon::AddressOf("ipv6:%5B::1%5D:4711"), "ipv6:[::1]:4711");
  for (const char* peer : {"", "unix:", "fd:", "fd:x", "fd:-1", "fd:99999", "ipv4:1.2.3.4:5"}) {
    EXPECT_EQ(daemon::UnixPeer(peer), std::nullopt) << peer;
  }
}

}  // namespace
}  // namespace prefixd::testing
