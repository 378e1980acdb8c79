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

// What a stream to `address` names: the calling thread's CPU. Nothing where the ends are not to be
// kept together: the address is no unix socket, or the host is not small.
std::optional<int> CpuToName(std::string_view address);
// What a caller from `peer` (a gRPC address) named with `text`; nothing as above, and when it is no
// number of a CPU.
std::optional<int> NamedCpu(std::string_view peer, std::string_view text);

// Those that share their second-level cache with `cpu`, and itself.
cpu_set_t CpusBeside(int cpu);

// Keeps the calling thread beside `cpu`; the destructor, on the same thread, lets it run where it
// might before. A thread that may not run there stays as it is.
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

// Threads that carry what belongs to many streams: gRPC's. They come to the peer of a long stream,
// and go back once no long stream is left. Thread-safe; outlives its streams.
class Carriers {
 public:
  // One stream until its end, whose peer is on `cpu`; without one nobody goes anywhere. One thread
  // at a time.
  class Stream {
   public:
    Stream(Carriers* carriers, std::optional<int> cpu) : carriers_(carriers), cpu_(cpu) {}
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    // The calling thread did so with `bytes` of it.
    void Carried(uint64_t bytes);

   private:
    Carriers* const carriers_;
    const std::optional<int> cpu_;
    uint64_t carried_ = 0;
    std::optional<cpu_set_t> beside_;  // once it is long
  };

 private:
  void Come(const cpu_set_t& cpus) PREFIXD_EXCLUDES(mutex_);
  void Begin() PREFIXD_EXCLUDES(mutex_);
  void End() PREFIXD_EXCLUDES(mutex_);

  base::Mutex mutex_;
  int long_streams_ PREFIXD_GUARDED_BY(mutex_) = 0;
  std::map<pid_t, cpu_set_t> homes_ PREFIXD_GUARDED_BY(mutex_);  // of the threads that came
};

}  // namespace prefixd::wire
