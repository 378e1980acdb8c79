// A shared arena's file under /dev/shm, pages of known bytes in it, and children that use it. For
// tests.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "block/block_hash.h"
#include "ram/arena.h"

namespace prefixd::ram {

inline constexpr uint64_t kKiB = 1 << 10, kMiB = 1 << 20;

// A path that no other test uses; what stands there goes away with the object.
class ArenaPath {
 public:
  explicit ArenaPath(const std::string& folder = "/dev/shm") {
    static std::atomic<int> count{0};
    path_ =
        folder + "/prefixd-ram-test-" + std::to_string(getpid()) + "-" + std::to_string(count++);
  }
  ~ArenaPath() {
    if (owner_ != getpid()) return;  // a forked child
    unlink(path_.c_str());
    unlink((path_ + ".new").c_str());
    std::error_code error;
    std::filesystem::remove_all(path_ + ".locks", error);
  }
  ArenaPath(const ArenaPath&) = delete;
  ArenaPath& operator=(const ArenaPath&) = delete;
  const std::string& str() const { return path_; }

 private:
  const pid_t owner_ = getpid();
  std::string path_;
};

// 8 MiB in slabs of 256 KiB unless told otherwise.
inline Arena::Options SharedOptions(const ArenaPath& path) {
  Arena::Options options;
  options.capacity_bytes = 8 * kMiB;
  options.slab_bytes = 256 * kKiB;
  options.path = path.str();
  options.epoch = 1;
  return options;
}
inline std::unique_ptr<Arena> OpenOrDie(const Arena::Options& options) {
  absl::StatusOr<std::unique_ptr<Arena>> arena = Arena::Open(options);
  EXPECT_TRUE(arena.ok()) << arena.status();
  return arena.ok() ? *std::move(arena) : nullptr;
}
inline std::unique_ptr<Arena> OpenOrDie(const ArenaPath& path) {
  return OpenOrDie(SharedOptions(path));
}

inline void Overwrite(const std::string& path, uint64_t offset, const void* bytes, size_t count) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(pwrite(fd, bytes, count, static_cast<off_t>(offset)), static_cast<ssize_t>(count));
  close(fd);
}

inline struct stat StatOf(const std::string& path) {
  struct stat status = {};
  EXPECT_EQ(stat(path.c_str(), &status), 0) << path << ": " << strerror(errno);
  return status;
}
inline uint64_t AllocatedBytes(const Arena& arena) {
  struct stat status = {};
  EXPECT_EQ(fstat(arena.fd(), &status), 0);
  return static_cast<uint64_t>(status.st_blocks) * 512;
}

inline block::SpaceId SpaceIdOf(uint64_t seed) {
  block::SpaceId id{};
  std::memcpy(id.data(), &seed, sizeof(seed));
  return id;
}
inline block::BlockHash HashOf(uint64_t seed) {
  block::BlockHash hash{};
  std::memcpy(hash.data() + 3, &seed, sizeof(seed));
  return hash;
}

// A page that is told from others by `seed`, with what its content borrows.
struct TestPage {
  std::vector<block::Token> tokens;
  std::vector<block::ContentKey> keys;
  PageContent content;
};
inline TestPage MakePage(uint64_t seed, uint32_t space, uint64_t page_bytes) {
  TestPage page;
  for (uint32_t i = 0; i < 64; ++i) page.tokens.push_back(static_cast<uint32_t>(seed * 1000 + i));
  for (uint32_t i = 0; i < seed % 3; ++i) {
    block::ContentKey& key = page.keys.emplace_back();
    key.start = 10 * i;
    key.length = 5;
    key.item_offset = i;
    key.digest = SpaceIdOf(seed + i);
  }
  PageContent& content = page.content;
  content.name.block = HashOf(seed);
  content.name.group = static_cast<uint16_t>(seed % 7);
  content.name.part = static_cast<uint16_t>(seed % 5);
  content.name.rung = static_cast<uint16_t>(seed % 2);
  content.name.tokens = 64;
  content.space = space;
  content.parent = HashOf(seed + 1);
  content.serial = seed * 3;
  content.parent_serial = seed * 3 - 1;
  content.first_token = static_cast<uint32_t>(seed * 64);
  content.page_bytes = page_bytes;
  content.payload_bytes = page_bytes - 8;
  content.check = seed * 77;
  content.tokens = {.tokens = page.tokens, .content = page.keys};
  content.ends = {1, 33, 64};
  content.last_use = static_cast<int64_t>(1'000'000 + seed);
  return page;
}

inline void FillPayload(Arena& arena, block::Extent extent, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (uint64_t at = 0; at + 8 <= extent.bytes; at += 512) {
    const uint64_t word = random();
    std::memcpy(arena.data(extent) + at, &word, sizeof(word));
  }
}
inline bool HasPayload(const std::byte* bytes, uint64_t extent_bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (uint64_t at = 0; at + 8 <= extent_bytes; at += 512) {
    const uint64_t word = random();
    if (std::memcmp(bytes + at, &word, sizeof(word)) != 0) return false;
  }
  return true;
}

// Allocates, fills and publishes.
inline block::Extent Store(Arena& arena, uint32_t space, uint64_t seed, uint64_t page_bytes) {
  const absl::StatusOr<block::Extent> extent = arena.Allocate(page_bytes, page_bytes);
  EXPECT_TRUE(extent.ok()) << extent.status();
  if (!extent.ok()) return {};
  FillPayload(arena, *extent, seed);
  const TestPage page = MakePage(seed, space, page_bytes);
  arena.Publish(*extent, page.content);
  return *extent;
}

// A forked process; killed when the object goes. The child must not return from `body`'s caller:
// it ends with _exit(0).
class Child {
 public:
  explicit Child(const std::function<void()>& body) {
    pid_ = fork();
    if (pid_ != 0) return;
    body();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      Wait();
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t pid() const { return pid_; }
  void Signal(int signal) const { kill(pid_, signal); }
  // The exit code; 128 + signal when it was killed.
  int Wait() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // Until it stands still by SIGSTOP.
  bool WaitStopped() const {
    int status = 0;
    return waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status);
  }

 private:
  pid_t pid_ = -1;
};

// One byte from one process to the other: what came before it has happened.
class Signal {
 public:
  Signal() { EXPECT_EQ(pipe(fds_), 0); }
  ~Signal() {
    close(fds_[0]);
    close(fds_[1]);
  }
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;
  void Send() const { EXPECT_EQ(write(fds_[1], "x", 1), 1); }
  void Await() const {
    char byte = 0;
    EXPECT_EQ(read(fds_[0], &byte, 1), 1);
  }

 private:
  int fds_[2] = {-1, -1};
};

// Passes a descriptor from one process to another.
class DescriptorPipe {
 public:
  DescriptorPipe() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_DGRAM, 0, fds_), 0); }
  ~DescriptorPipe() {
    close(fds_[0]);
    close(fds_[1]);
  }
  DescriptorPipe(const DescriptorPipe&) = delete;
  DescriptorPipe& operator=(const DescriptorPipe&) = delete;
  void Send(int fd, uint64_t word) const {
    Message message(&word);
    cmsghdr* const header = CMSG_FIRSTHDR(&message.header);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(fd));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    EXPECT_EQ(sendmsg(fds_[0], &message.header, 0), static_cast<ssize_t>(sizeof(word)));
  }
  std::pair<int, uint64_t> Receive() const {
    uint64_t word = 0;
    Message message(&word);
    EXPECT_EQ(recvmsg(fds_[1], &message.header, 0), static_cast<ssize_t>(sizeof(word)));
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message.header)), sizeof(fd));
    return {fd, word};
  }

 private:
  struct Message {
    explicit Message(uint64_t* word) : piece{word, sizeof(*word)} {
      header.msg_iov = &piece;
      header.msg_iovlen = 1;
      header.msg_control = control;
      header.msg_controllen = sizeof(control);
    }
    iovec piece;
    msghdr header = {};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  };
  int fds_[2] = {-1, -1};
};

// Looks again and again, at most 10 s.
inline bool Becomes(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace prefixd::ram
