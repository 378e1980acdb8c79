#include "kernels/kept_threads.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace prefixd::kernels {
namespace {

constexpr uint32_t kMostThreads = 256;

class KeptThreads {
 public:
  void Run(uint32_t count, const std::function<void(uint32_t)>& work) PREFIXD_EXCLUDES(mutex_) {
    Call call{.work = work, .end = count};
    {
      const base::MutexLock lock(mutex_);
      calls_.push_back(&call);
      wanted_ += count - 1;
      StartThreads();
    }
    wake_.NotifyAll();
    work(0);
    const base::MutexLock lock(mutex_);
    Close(&call);
    while (call.running != 0) ended_.Wait(mutex_);
  }

 private:
  struct Call {
    const std::function<void(uint32_t)>& work;
    uint32_t next = 1, end = 0;  // indices that helpers may still begin
    uint32_t running = 0;        // helpers at work
  };

  // Starts threads until each wanted index has an idle one, as far as the system gives them.
  void StartThreads() PREFIXD_REQUIRES(mutex_) {
    while (idle_ < wanted_ && threads_ < kMostThreads) {
      try {
        std::thread([this] { Help(); }).detach();
      } catch (const std::system_error&) {
        return;
      }
      ++threads_;
      ++idle_;
    }
  }

  void Help() PREFIXD_EXCLUDES(mutex_) {
    const base::MutexLock lock(mutex_);
    for (;;) {
      while (calls_.empty()) wake_.Wait(mutex_);
      Call* const call = calls_.front();
      const uint32_t index = call->next++;
      --wanted_;
      --idle_;
      ++call->running;
      if (call->next == call->end) Close(call);
      mutex_.unlock();
      call->work(index);
      mutex_.lock();
      ++idle_;
      if (--call->running == 0) ended_.NotifyAll();
    }
  }

  // Keeps helpers from beginning further indices of the call.
  void Close(Call* call) PREFIXD_REQUIRES(mutex_) {
    wanted_ -= call->end - call->next;
    call->next = call->end;
    calls_.erase(std::remove(calls_.begin(), calls_.end(), call), calls_.end());
  }

  base::Mutex mutex_;
  base::CondVar wake_, ended_;
  std::vector<Call*> calls_ PREFIXD_GUARDED_BY(mutex_);  // with indices to begin, oldest first
  uint32_t wanted_ PREFIXD_GUARDED_BY(mutex_) = 0;       // indices to begin, of all calls_
  uint32_t threads_ PREFIXD_GUARDED_BY(mutex_) = 0;
  uint32_t idle_ PREFIXD_GUARDED_BY(mutex_) = 0;  // threads without work
};

// Never destroyed: helpers wait in it until the process ends.
std::atomic<KeptThreads*> of_process = nullptr;

KeptThreads& OfProcess() {
  static const bool made = [] {
    of_process = new KeptThreads;
    // The child of a fork has no helpers.
    pthread_atfork(nullptr, nullptr, [] { of_process = new KeptThreads; });
    return true;
  }();
  (void)made;
  return *of_process;
}

}  // namespace

void RunOnKeptThreads(uint32_t count, const std::function<void(uint32_t)>& work) {
  if (count == 1) return work(0);
  OfProcess().Run(count, work);
}

}  // namespace prefixd::kernels
