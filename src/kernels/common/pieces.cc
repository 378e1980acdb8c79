#include "kernels/common/pieces.h"

#include <pthread.h>

#include <atomic>
#include <memory>

#include "base/mutex.h"
#include "base/threads.h"

namespace prefixd::kernels {
namespace {

constexpr size_t kMostThreads = 256;

using Work = std::function<void(uint64_t, uint32_t)>;

// One call of ForEachPiece. A helper that comes late finds it over.
class Call {
 public:
  Call(uint64_t pieces, const Work& work) : pieces_(pieces), work_(work) {}

  void Lead() PREFIXD_EXCLUDES(mutex_) {
    TakePieces(0);
    const base::MutexLock lock(mutex_);
    over_ = true;
    while (helping_ != 0) ended_.Wait(mutex_);
  }
  void Help() PREFIXD_EXCLUDES(mutex_) {
    uint32_t thread;
    {
      const base::MutexLock lock(mutex_);
      if (over_) return;
      thread = ++helpers_;
      ++helping_;
    }
    TakePieces(thread);
    const base::MutexLock lock(mutex_);
    if (--helping_ == 0) ended_.NotifyAll();
  }

 private:
  void TakePieces(uint32_t thread) {
    for (uint64_t i = next_.fetch_add(1); i < pieces_; i = next_.fetch_add(1)) work_(i, thread);
  }

  const uint64_t pieces_;
  const Work& work_;  // the caller's: not to be used when the call is over
  std::atomic<uint64_t> next_{0};
  base::Mutex mutex_;
  base::CondVar ended_;
  uint32_t helpers_ PREFIXD_GUARDED_BY(mutex_) = 0;  // that came
  uint32_t helping_ PREFIXD_GUARDED_BY(mutex_) = 0;  // that are at work
  bool over_ PREFIXD_GUARDED_BY(mutex_) = false;
};

base::Threads* NewThreads() { return new base::Threads("prefixd kernels", kMostThreads, 0); }

// Never destroyed: threads wait in it until the process ends.
std::atomic<base::Threads*> of_process = nullptr;

base::Threads& OfProcess() {
  static const bool made = [] {
    of_process = NewThreads();
    // The child of a fork has no threads.
    pthread_atfork(nullptr, nullptr, [] { of_process = NewThreads(); });
    return true;
  }();
  (void)made;
  return *of_process;
}

}  // namespace

void ForEachPiece(uint32_t threads, uint64_t pieces, const Work& work) {
  if (threads == 1 || pieces <= 1) {
    for (uint64_t i = 0; i < pieces; ++i) work(i, 0);
    return;
  }
  const auto call = std::make_shared<Call>(pieces, work);
  base::Threads& helpers = OfProcess();
  for (uint32_t i = 1; i < threads; ++i) {
    if (!helpers.Post([call] { call->Help(); }, call.get())) break;  // no thread is to be had
  }
  call->Lead();
  helpers.Withdraw(call.get());
}

}  // namespace prefixd::kernels
