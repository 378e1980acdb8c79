#include "bench/common/reference_loops.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

#include "grpcpp/client_context.h"
#include "grpcpp/impl/codegen/client_unary_call.h"
#include "grpcpp/support/byte_buffer.h"

namespace prefixd::bench {
namespace {

// Eight independent sums, so that loads and not additions are what limits.
template <typename Vector>
[[gnu::always_inline]] inline uint64_t Sum(const std::byte* from, size_t bytes) {
  constexpr size_t kSums = 8;
  constexpr size_t kLanes = sizeof(Vector) / sizeof(uint64_t);
  Vector sums[kSums] = {};
  for (size_t at = 0; at < bytes; at += kSums * sizeof(Vector)) {
    const auto* next = reinterpret_cast<const Vector*>(from + at);
#pragma GCC unroll 8
    for (size_t i = 0; i < kSums; ++i) sums[i] += next[i];
  }
  uint64_t total = 0;
  for (const Vector& sum : sums) {
    for (size_t lane = 0; lane < kLanes; ++lane) total += sum[lane];
  }
  return total;
}

typedef uint64_t Vector128 __attribute__((vector_size(16), may_alias));
#if defined(__x86_64__)
typedef uint64_t Vector256 __attribute__((vector_size(32), may_alias));
typedef uint64_t Vector512 __attribute__((vector_size(64), may_alias));
[[gnu::target("avx2")]] uint64_t SumAvx2(const std::byte* from, size_t bytes) {
  return Sum<Vector256>(from, bytes);
}
[[gnu::target("avx512f")]] uint64_t SumAvx512(const std::byte* from, size_t bytes) {
  return Sum<Vector512>(from, bytes);
}
#endif

}  // namespace

uint64_t StreamRead(const std::byte* from, size_t bytes) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return SumAvx512(from, bytes);
  if (__builtin_cpu_supports("avx2")) return SumAvx2(from, bytes);
#endif
  return Sum<Vector128>(from, bytes);
}

PairedStreamRead::PairedStreamRead() : thread_([this] { Work(); }) {}

PairedStreamRead::~PairedStreamRead() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

uint64_t PairedStreamRead::Read(const std::byte* from, size_t bytes) {
  const size_t half = bytes / 2 / 512 * 512;
  {
    const std::lock_guard lock(mutex_);
    from_ = from + half;
    bytes_ = bytes - half;
  }
  changed_.notify_all();
  const uint64_t sum = StreamRead(from, half);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return from_ == nullptr; });
  return sum + sum_;
}

void PairedStreamRead::Work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return over_ || from_ != nullptr; });
    if (over_) return;
    lock.unlock();
    const uint64_t sum = StreamRead(from_, bytes_);
    lock.lock();
    sum_ = sum;
    from_ = nullptr;
    changed_.notify_all();
  }
}

[[gnu::noinline]] void CopyBytes(const std::byte* from, std::byte* to, size_t bytes) {
  std::memcpy(to, from, bytes);
}

[[gnu::noinline]] bool SameBytes(const std::byte* a, const std::byte* b, size_t bytes) {
  return std::memcmp(a, b, bytes) == 0;
}

namespace {

constexpr uint64_t kDiskCall = uint64_t{1} << 20, kDiskFile = uint64_t{64} << 20;

void FillRandom(std::byte* memory, uint64_t bytes) {
  uint64_t state = 0x9e3779b97f4a7c15;
  for (uint64_t at = 0; at < bytes; at += sizeof(state)) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(memory + at, &state, sizeof(state));
  }
}

}  // namespace

std::unique_ptr<RawDisk> RawDisk::Open(const std::string& directory) {
  void* const memory = ::mmap(nullptr, kDiskFile, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  FillRandom(static_cast<std::byte*>(memory), kDiskFile);
  std::unique_ptr<RawDisk> disk(new RawDisk(directory, static_cast<std::byte*>(memory)));
  if (!disk->Append(kDiskCall)) return nullptr;
  disk->Remove();
  return disk;
}

RawDisk::~RawDisk() {
  Remove();
  ::munmap(memory_, kDiskFile);
}

std::string RawDisk::PathOf(uint64_t file) const {
  return directory_ + "/raw-" + std::to_string(file);
}

void RawDisk::Remove() {
  for (; first_ < next_; ++first_) ::unlink(PathOf(first_).c_str());
  read_next_ = next_;
}

bool RawDisk::Append(uint64_t bytes) {
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t length = std::min(kDiskFile, bytes - done);
    const int file =
        ::open(PathOf(next_++).c_str(), O_WRONLY | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    if (file < 0) return false;
    bool good = ::fallocate(file, 0, 0, static_cast<off_t>(length)) == 0 || errno == EOPNOTSUPP;
    for (uint64_t at = 0; good && at < length; at += kDiskCall) {
      good = ::pwrite(file, memory_ + at, kDiskCall, static_cast<off_t>(at)) ==
             static_cast<ssize_t>(kDiskCall);
    }
    good = ::fdatasync(file) == 0 && good;
    ::close(file);
    if (!good) return false;
    done += length;
  }
  return true;
}

bool RawDisk::Read(uint64_t bytes) {
  if (first_ == next_) return false;
  std::vector<std::pair<uint64_t, uint64_t>> pieces;  // file, bytes of it
  for (uint64_t done = 0; done < bytes; done += kDiskFile) {
    if (read_next_ == next_) read_next_ = first_;
    pieces.emplace_back(read_next_++, std::min(kDiskFile, bytes - done));
  }
  std::atomic<bool> good{true};
  const auto read = [&](size_t parity) {
    for (size_t i = parity; i < pieces.size() && good; i += 2) {
      if (!ReadFile(pieces[i].first, pieces[i].second)) good = false;
    }
  };
  std::thread other(read, 1);
  read(0);
  other.join();
  return good;
}

bool RawDisk::ReadFile(uint64_t number, uint64_t bytes) {
  const int file = ::open(PathOf(number).c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (file < 0) return false;
  std::byte* const to = memory_ + number % 2 * (kDiskFile / 2);
  bool good = true;
  for (uint64_t at = 0; good && at < bytes; at += kDiskCall) {
    good = ::pread(file, to + at % (kDiskFile / 2), kDiskCall, static_cast<off_t>(at)) ==
           static_cast<ssize_t>(kDiskCall);
  }
  ::close(file);
  return good;
}

double CpuMicros(pid_t pid) {
  clockid_t clock;
  timespec time;
  if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

double OwnCpuMicros() { return CpuMicros(::getpid()); }

// --- raw socket ---

namespace {

constexpr size_t kPiece = size_t{1} << 20;

struct SocketOrder {
  uint64_t bytes = 0;
  bool peer_sends = false;
};

bool WriteAll(int socket, const std::byte* from, size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = ::write(socket, from, bytes);
    if (written <= 0) return false;
    from += written;
    bytes -= static_cast<size_t>(written);
  }
  return true;
}

bool ReadAll(int socket, std::byte* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t read = ::read(socket, to, bytes);
    if (read <= 0) return false;
    to += read;
    bytes -= static_cast<size_t>(read);
  }
  return true;
}

// A stream of pieces, walking over the memory again and again.
template <typename Move>
bool ForEachPiece(uint64_t bytes, std::byte* memory, uint64_t memory_bytes, Move move) {
  for (uint64_t at = 0; at < bytes; at += kPiece) {
    if (!move(memory + at % memory_bytes)) return false;
  }
  return true;
}
bool Send(int socket, uint64_t bytes, std::byte* memory, uint64_t memory_bytes) {
  return ForEachPiece(bytes, memory, memory_bytes,
                      [=](std::byte* at) { return WriteAll(socket, at, kPiece); });
}
bool Receive(int socket, uint64_t bytes, std::byte* memory, uint64_t memory_bytes) {
  return ForEachPiece(bytes, memory, memory_bytes,
                      [=](std::byte* at) { return ReadAll(socket, at, kPiece); });
}

std::byte* TouchedMemory(uint64_t bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::memset(memory, 1, bytes);
  return static_cast<std::byte*>(memory);
}

// The peer's whole life. Only system calls: it was forked.
[[noreturn]] void ServeSocket(int socket, uint64_t memory_bytes) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::byte* const memory = TouchedMemory(memory_bytes);
  SocketOrder order;
  bool good = memory != nullptr;
  while (good && ReadAll(socket, reinterpret_cast<std::byte*>(&order), sizeof(order))) {
    std::byte done{1};
    good = order.peer_sends
               ? Send(socket, order.bytes, memory, memory_bytes)
               : Receive(socket, order.bytes, memory, memory_bytes) && WriteAll(socket, &done, 1);
  }
  ::_exit(0);
}

}  // namespace

SocketPeer::SocketPeer(pid_t pid, int socket, uint64_t memory_bytes)
    : pid_(pid),
      socket_(socket),
      memory_bytes_(memory_bytes),
      memory_(TouchedMemory(memory_bytes)) {}

std::unique_ptr<SocketPeer> SocketPeer::Start(uint64_t memory_bytes) {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) return nullptr;
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(sockets[0]);
    ServeSocket(sockets[1], memory_bytes);
  }
  ::close(sockets[1]);
  if (pid < 0) {
    ::close(sockets[0]);
    return nullptr;
  }
  return std::unique_ptr<SocketPeer>(new SocketPeer(pid, sockets[0], memory_bytes));
}

SocketPeer::~SocketPeer() {
  ::close(socket_);
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  if (memory_ != nullptr) ::munmap(memory_, memory_bytes_);
}

bool SocketPeer::Order(uint64_t bytes, bool peer_sends) {
  const SocketOrder order{.bytes = bytes, .peer_sends = peer_sends};
  return memory_ != nullptr &&
         WriteAll(socket_, reinterpret_cast<const std::byte*>(&order), sizeof(order));
}

bool SocketPeer::ReceiveFrom(uint64_t bytes) {
  return Order(bytes, true) && Receive(socket_, bytes, memory_, memory_bytes_);
}

bool SocketPeer::SendTo(uint64_t bytes) {
  std::byte done{};
  return Order(bytes, false) && Send(socket_, bytes, memory_, memory_bytes_) &&
         ReadAll(socket_, &done, 1);
}

// --- gRPC ---

bool EmptyCall::Run() {
  static const grpc::internal::RpcMethod method("/grpc.health.v1.Health/Check",
                                                grpc::internal::RpcMethod::NORMAL_RPC);
  grpc::ClientContext context;
  const grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer reply;
  return grpc::internal::BlockingUnaryCall(channel_.get(), method, &context, request, &reply).ok();
}

}  // namespace prefixd::bench
