// Where the threads at both ends of a stream of pages run, when they are on one host.
//
// A core that writes into a socket leaves the bytes in its cache. Another core must fetch them from
// there line by line; one that shares the cache finds them: a raw unix socket costs 0.48 CPU s/GB
// between two cores, 0.28 within one, and is as fast. The kernel keeps the ends together only while
// all other cores are busy. So the caller names its CPU and stays there for as long as the stream
// lasts, and the threads of prefixd that carry the stream come to it.
//
// Only on small hosts: gRPC's threads in prefixd carry every stream and answer every other call.
// Two of them do so on one core as well as on two (a p99 beside a Fetch gets shorter, as the caller
// has the other core); sixteen would be crowded.
#pragma once
#include <sched.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include "base/mutex.h"
#include "wire/limits.h"

namespace prefixd::wire {

// Shorter streams are not worth the system calls.
inline constexpr uint64_t kLongStreamBytes = 4 * kMaxPieceBytes;

// Metadata of Fetch and Put: the caller's CPU as the kernel numbers it, in decimal.
inline constexpr char kCpuKey[] = "prefixd-cpu";

// gRPC 1.51 runs callbacks on a thread for every two cores, at least 2 and at most 16.
int CallbackThreads();

// Returns the CPU that a stream to `address` names: the calling thread's. nullopt if the ends are
// not to be kept together: the address is no unix socket, or the host is not small.
std::optional<int> CpuToName(std::string_view address);
// Returns the CPU that a caller from `peer` (a gRPC address) named with `text`. nullopt as above,
// and if `text` is no CPU's number.
std::optional<int> NamedCpu(std::string_view peer, std::string_view text);

// Returns `cpu` and the CPUs that share its second-level cache.
cpu_set_t CpusBeside(int cpu);

// Keeps the calling thread beside `cpu`; the destructor, on the same thread, lets the thread run
// where it could before. A thread that may not run there stays as it is.
class StayBeside {
 public:
  explicit StayBeside(int cpu);
  ~StayBeside();
  StayBeside(const StayBeside&) = delete;
  StayBeside& operator=(const StayBeside&) = delete;

 private:
  cpu_set_t home_;
  bool moved_ = false;
};

// gRPC's threads, which carry many streams. They come to the peer of a long stream, and go back
// once no long stream is left. Thread-safe. Must outlive its streams.
class Carriers {
 public:
  // One stream until its end, whose peer is on `cpu`; without a CPU no thread moves. For one thread
  // at a time.
  class Stream {
   public:
    Stream(Carriers* carriers, std::optional<int> cpu) : carriers_(carriers), cpu_(cpu) {}
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    // Notes that the calling thread carried `bytes` of the stream.
    void Carried(uint64_t bytes);

   private:
    Carriers* const carriers_;
    const std::optional<int> cpu_;
    uint64_t carried_ = 0;
    std::optional<cpu_set_t> beside_;  // set once the stream is long
  };

 private:
  void Come(const cpu_set_t& cpus) PREFIXD_EXCLUDES(mutex_);
  void Begin() PREFIXD_EXCLUDES(mutex_);
  void End() PREFIXD_EXCLUDES(mutex_);

  base::Mutex mutex_;
  int long_streams_ PREFIXD_GUARDED_BY(mutex_) = 0;
  std::map<pid_t, cpu_set_t> homes_ PREFIXD_GUARDED_BY(mutex_);  // where those that came could run
};

}  // namespace prefixd::wire
