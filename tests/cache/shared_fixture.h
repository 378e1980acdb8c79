// A cache over a shared arena on tmpfs, and workers that map it: in this process, or in one of
// their own that can be stopped and killed.
#pragma once
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "base/process.h"
#include "tests/cache/fixture.h"

namespace prefixd::testing {

// The files of a session, mapped as a worker maps them.
class MappedFiles {
 public:
  MappedFiles() = default;
  MappedFiles(const cache::SessionFiles& files, const cache::ArenaPlace& place,
              uint64_t staging_bytes)
      : arena_fd_(files.arena), lock_fd_(files.lock), place_(place), staging_bytes_(staging_bytes) {
    arena_ = static_cast<const std::byte*>(
        mmap(nullptr, place.file_bytes, PROT_READ, MAP_SHARED, files.arena, 0));
    if (files.staging >= 0) {
      staging_ = static_cast<std::byte*>(
          mmap(nullptr, staging_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, files.staging, 0));
      close(files.staging);
    }
  }
  ~MappedFiles() { Unmap(); }
  MappedFiles(const MappedFiles&) = delete;
  MappedFiles& operator=(const MappedFiles&) = delete;

  // What the kernel does when a worker dies.
  void Unmap() {
    if (arena_ != nullptr) munmap(const_cast<std::byte*>(arena_), place_.file_bytes);
    if (staging_ != nullptr) munmap(staging_, staging_bytes_);
    if (arena_fd_ >= 0) close(arena_fd_);
    if (lock_fd_ >= 0) close(lock_fd_);
    arena_ = nullptr;
    staging_ = nullptr;
    arena_fd_ = lock_fd_ = -1;
  }
  int arena_fd() const { return arena_fd_; }
  std::span<const std::byte> at(uint64_t offset, uint64_t bytes) const {
    return {arena_ + place_.data_offset + offset, bytes};
  }
  std::byte* staging() const { return staging_; }

 private:
  int arena_fd_ = -1, lock_fd_ = -1;
  cache::ArenaPlace place_;
  const std::byte* arena_ = nullptr;
  std::byte* staging_ = nullptr;
  uint64_t staging_bytes_ = 0;
};

// A worker in a process of its own, forked before any cache is open (a fork would share the cache's
// lock on its file). It maps the arena it is sent and says what it reads there.
class WorkerProcess {
 public:
  WorkerProcess() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) abort();
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      Serve(ends[1]);
      _exit(0);
    }
    close(ends[1]);
    socket_ = ends[0];
  }
  ~WorkerProcess() {
    Kill();
    close(socket_);
  }
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const { kill(pid_, signal); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // Closes the files here: from now on only the worker holds them.
  void Map(const cache::SessionFiles& files, const cache::ArenaPlace& place) {
    Command command{.file_bytes = place.file_bytes, .data_offset = place.data_offset};
    iovec part{&command, sizeof(command)};
    const int both[] = {files.arena, files.lock};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(both))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(both));
    std::memcpy(CMSG_DATA(header), both, sizeof(both));
    if (sendmsg(socket_, &message, 0) < 0) abort();
    uint64_t answer = 0;
    if (read(socket_, &answer, sizeof(answer)) != sizeof(answer)) abort();
    close(files.arena);
    close(files.lock);
    if (files.staging >= 0) close(files.staging);
  }
  // XXH3 of what it reads through its mapping now.
  uint64_t Sum(uint64_t offset, uint64_t bytes) const {
    const Command command{.offset = offset, .bytes = bytes};
    uint64_t answer = 0;
    if (write(socket_, &command, sizeof(command)) != sizeof(command) ||
        read(socket_, &answer, sizeof(answer)) != sizeof(answer)) {
      abort();
    }
    return answer;
  }

 private:
  struct Command {
    uint64_t file_bytes = 0, data_offset = 0;  // to map, with the descriptor
    uint64_t offset = 0, bytes = 0;            // to read
  };
  static void Serve(int socket) {
    const std::byte* data = nullptr;
    while (true) {
      Command command;
      iovec part{&command, sizeof(command)};
      int both[2] = {-1, -1};
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(both))] = {};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      if (recvmsg(socket, &message, 0) != sizeof(command)) return;
      uint64_t answer = 0;
      if (command.file_bytes > 0) {
        std::memcpy(both, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(both));
        void* const map = mmap(nullptr, command.file_bytes, PROT_READ, MAP_SHARED, both[0], 0);
        data = static_cast<const std::byte*>(map) + command.data_offset;
        mmap(nullptr, 4096, PROT_NONE, MAP_SHARED, both[1], 0);  // keeps the lock
        close(both[0]);
        close(both[1]);
      } else {
        answer = base::Xxh3({data + command.offset, command.bytes});
      }
      if (write(socket, &answer, sizeof(answer)) != sizeof(answer)) return;
    }
  }
  pid_t pid_ = -1;
  int socket_ = -1;
};

class SharedCacheTest : public CacheTest {
 protected:
  void TearDown() override {
    cache_.reset();
    std::filesystem::remove(arena_path_);
    std::filesystem::remove(arena_path_ + ".key");
    std::filesystem::remove_all(arena_path_ + ".locks");
  }
  cache::Options Shared(uint64_t ram = uint64_t{64} << 20) {
    cache::Options options = RamOnly(ram);
    options.arena_path = arena_path_;
    return options;
  }
  cache::Options SharedWithSsd(uint64_t ram = uint64_t{64} << 20) {
    cache::Options options = WithSsd(ram);
    options.arena_path = arena_path_;
    return options;
  }
  // A session that maps the arena, with the space open; it becomes the fixture's session.
  cache::BegunSession Attach(const block::SpaceIdentity& identity, uint64_t staging_bytes = 0,
                             std::optional<cache::SessionKey> resume = {}) {
    cache::SessionOptions options;
    options.worker = "maps";
    options.wants_arena = true;
    options.staging_bytes = staging_bytes;
    options.resume = resume;
    options.on_event = [this](const cache::SessionEvent& event) {
      std::lock_guard<std::mutex> lock(events_mutex_);
      events_.push_back(event);
      events_wake_.notify_all();
    };
    const cache::BegunSession begun = cache_->BeginSession(options);
    EXPECT_NE(begun.slot, block::kNoSlot);
    session_ = begun.session;
    EXPECT_TRUE(cache_->OpenSpace(session_, identity).ok());
    return begun;
  }
  // A process of this user, as the kernel names it.
  static base::Peer PeerOf(pid_t pid) {
    return {.pid = static_cast<uint64_t>(pid),
            .uid = geteuid(),
            .pid_namespace = base::ThisProcess().pid_namespace};
  }
  // A session of a process that the daemon knows.
  cache::BegunSession AttachAs(const base::Peer& peer,
                               std::optional<cache::SessionKey> resume = {}) {
    cache::SessionOptions options;
    options.wants_arena = true;
    options.staging_bytes = 1 << 20;
    options.resume = resume;
    options.peer = peer;
    return cache_->BeginSession(options);
  }
  std::unique_ptr<MappedFiles> MapFiles(const cache::BegunSession& begun) {
    auto files = cache_->OpenFiles(begun.key, PeerOf(getpid()));
    EXPECT_TRUE(files.ok()) << files.status();
    return std::make_unique<MappedFiles>(*files, cache_->arena(), begun.staging_bytes);
  }
  void MapIn(const cache::BegunSession& begun, WorkerProcess* worker) {
    auto files = cache_->OpenFiles(begun.key, PeerOf(worker->pid()));
    ASSERT_TRUE(files.ok()) << files.status();
    worker->Map(*files, cache_->arena());
  }
  // Every readable page of the lease against what its tokens make, where the answer says it stands.
  static void CheckInPlace(const block::SpaceIdentity& identity,
                           const std::vector<block::LeasedPage>& pages, const Tokens& tokens,
                           const MappedFiles& files) {
    for (const block::LeasedPage& page : pages) {
      ASSERT_NE(page.offset, block::kNoOffset);
      const std::vector<std::byte> want = MakePage(identity.groups[page.group], page.rung, tokens,
                                                   page.first_token, page.page_tokens);
      const auto got = files.at(page.offset, want.size());
      ASSERT_TRUE(std::equal(want.begin(), want.end(), got.begin()))
          << "group " << page.group << " at " << page.first_token;
    }
  }
  // Until `done`, for at most ten seconds.
  template <typename Done>
  static bool Until(Done done) {
    const base::Deadline deadline = In(10000);
    while (!done()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }
  bool WaitForEvents(size_t count) {
    std::unique_lock<std::mutex> lock(events_mutex_);
    return events_wake_.wait_until(lock, In(10000), [&] { return events_.size() >= count; });
  }
  // Runs `life` over a cache in a process of its own, which is then killed as by kill -9. What it
  // returns comes back.
  template <typename Life>
  std::string LiveAndBeKilled(const cache::Options& options, Life life) {
    cache_.reset();
    int pipe_ends[2];
    if (pipe(pipe_ends) != 0) abort();
    const pid_t child = fork();
    if (child == 0) {
      close(pipe_ends[0]);
      Open(options);
      std::string result = life();
      result.push_back(HasFailure() ? 'F' : 'k');
      if (write(pipe_ends[1], result.data(), result.size()) < 0) _exit(1);
      close(pipe_ends[1]);
      while (true) pause();
    }
    close(pipe_ends[1]);
    std::string result;
    char buffer[512];
    for (ssize_t count = 0; (count = read(pipe_ends[0], buffer, sizeof(buffer))) > 0;) {
      result.append(buffer, static_cast<size_t>(count));
    }
    close(pipe_ends[0]);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    EXPECT_FALSE(result.empty() || result.back() != 'k') << "the killed life had failed before";
    if (!result.empty()) result.pop_back();
    return result;
  }

  const std::string arena_path_ = "/dev/shm/prefixd_cache_test_" + std::to_string(getpid()) + "_" +
                                  std::to_string(Mix(reinterpret_cast<uint64_t>(this)));
  std::mutex events_mutex_;
  std::condition_variable events_wake_;
  std::vector<cache::SessionEvent> events_;
};

}  // namespace prefixd::testing
