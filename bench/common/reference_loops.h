// The limits that workloads are held against: plain loops that call nothing of the project.
//
// Memory: pure functions, thread-safe. Peers are other processes, each used by one thread.
#pragma once
#include <grpcpp/channel.h>
#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace prefixd::bench {

// --- memory ---

// Reads every byte once in order, with the widest vectors of this CPU. Returns a sum over them.
// Requires: 64-byte aligned, bytes a multiple of 512.
uint64_t StreamRead(const std::byte* from, size_t bytes);

// The same with two threads, a half each; the second one waits between reads.
class PairedStreamRead {
 public:
  PairedStreamRead();
  ~PairedStreamRead();
  uint64_t Read(const std::byte* from, size_t bytes);

 private:
  void Work();
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::byte* from_ = nullptr;  // null = nothing to do
  size_t bytes_ = 0;
  uint64_t sum_ = 0;
  bool over_ = false;
  std::thread thread_;
};

// The C library's memcpy and memcmp, out of line.
void CopyBytes(const std::byte* from, std::byte* to, size_t bytes);
bool SameBytes(const std::byte* a, const std::byte* b, size_t bytes);

// --- a disk: O_DIRECT, 1 MiB a call ---

class RawDisk {
 public:
  // nullptr where the filesystem of this existing folder refuses O_DIRECT.
  static std::unique_ptr<RawDisk> Open(const std::string& directory);
  ~RawDisk();  // removes the files
  RawDisk(const RawDisk&) = delete;
  RawDisk& operator=(const RawDisk&) = delete;

  // Appends to files of 64 MiB, each given its room first and synced at its end, from 64 MiB of
  // random bytes. Bytes are a multiple of 1 MiB. False when the kernel refuses.
  bool Append(uint64_t bytes);
  // Reads so many bytes of what was appended, file by file, by two threads: more only wait for each
  // other. Each goes round 32 MiB of memory. Requires: bytes as one Append had.
  bool Read(uint64_t bytes);
  void Remove();  // the files so far

 private:
  RawDisk(std::string directory, std::byte* memory)
      : directory_(std::move(directory)), memory_(memory) {}
  std::string PathOf(uint64_t file) const;
  bool ReadFile(uint64_t number, uint64_t bytes);

  const std::string directory_;
  std::byte* const memory_;
  uint64_t first_ = 0, next_ = 0;  // files that are there
  uint64_t read_next_ = 0;
};

// --- CPU time ---

// User and system time of a process so far, all its threads. 0 when it is gone.
double CpuMicros(pid_t pid);
double OwnCpuMicros();

// --- a raw unix socket: write() and read() of 1 MiB pieces ---

class SocketPeer {
 public:
  // Forks: before this process has threads of its own. nullptr when the kernel refuses. Each side
  // walks over `memory_bytes` of its own memory, more than any cache holds, as often as needed.
  // Requires: a multiple of 1 MiB.
  static std::unique_ptr<SocketPeer> Start(uint64_t memory_bytes);
  ~SocketPeer();

  // Moves `bytes` (a multiple of 1 MiB). False when the peer is gone.
  bool ReceiveFrom(uint64_t bytes);
  bool SendTo(uint64_t bytes);  // returns when the peer has read all
  pid_t pid() const { return pid_; }

 private:
  SocketPeer(pid_t pid, int socket, uint64_t memory_bytes);
  bool Order(uint64_t bytes, bool peer_sends);
  const pid_t pid_;
  const int socket_;
  const uint64_t memory_bytes_;
  std::byte* const memory_;
};

// --- gRPC itself: an unary call without content, answered by gRPC's own health service ---

class EmptyCall {
 public:
  // The channel to a server with EnableDefaultHealthCheckService.
  explicit EmptyCall(std::shared_ptr<grpc::Channel> channel) : channel_(std::move(channel)) {}
  bool Run();

 private:
  const std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace prefixd::bench
