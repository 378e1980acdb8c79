#include "bench/remote/remote.h"

#include "bench/common/shared_daemon.h"
#include "bench/common/workloads.h"
#include "bench/remote/redis_process.h"

namespace prefixd::bench {

void RunRemote(Bench& bench) {
  // First of all: it forks.
  const std::unique_ptr<LoopbackPeer> peer = LoopbackPeer::Start(128 * kMiB);
  if (!bench.Check(peer != nullptr, "no process for raw TCP")) return;
  if (FindRedisServer().empty()) return bench.Note("left out: redis-server is not in PATH");
  if (bench.Wants("load") || bench.Wants("store")) RemoteTransfers(bench, *peer);
  if (bench.Wants("hits")) RemoteHits(bench);
  if (bench.Wants("find")) RemoteFind(bench);
}

}  // namespace prefixd::bench
