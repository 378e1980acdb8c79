// T2, T3: long requests have threads of their own, and begin as their memory lasts.
#include "daemon/long_requests.h"

#include <atomic>
#include <future>

#include "gtest/gtest.h"

namespace prefixd::daemon {
namespace {

TEST(LongRequestsTest, T3AsManyRunAsTheMemoryLastsInTheOrderInWhichTheyCame) {
  std::promise<void> go;
  const std::shared_future<void> gone = go.get_future().share();
  std::atomic<int> running{0}, most{0};
  std::atomic<uint64_t> bytes{0}, most_bytes{0};
  std::vector<int> order;
  base::Mutex mutex;
  {
    LongRequests requests(4, 100);
    for (int i = 0; i < 40; ++i) {
      const uint64_t own = i % 5 == 0 ? 100 : 30;
      requests.Post(own, [&, own, i] {
        {
          base::MutexLock lock(mutex);
          order.push_back(i);
        }
        most = std::max<int>(most, ++running);
        most_bytes = std::max<uint64_t>(most_bytes, bytes += own);
        gone.wait();
        bytes -= own;
        --running;
      });
    }
    go.set_value();
    // The last one: all before it have begun.
    std::promise<void> last;
    requests.Post(100, [&] { last.set_value(); });
    last.get_future().wait();
  }
  EXPECT_EQ(order.size(), 40u);
  EXPECT_LE(most_bytes, 100u);
  EXPECT_LE(most, 3);
  for (int i = 0; i < 40; i += 5)
    EXPECT_EQ(order[static_cast<size_t>(i)], i) << "a whole one overtook";
}

}  // namespace
}  // namespace prefixd::daemon
