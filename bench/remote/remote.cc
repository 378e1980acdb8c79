#include "bench/remote/remote.h"

#include <memory>

#include "bench/common/families.h"
#include "bench/common/shared_daemon.h"
#include "bench/common/workloads.h"
#include "bench/remote/redis_process.h"
#include "bench/remote/veth.h"

namespace prefixd::bench {
namespace {

constexpr uint64_t kPeerBytes = 128 * kMiB;

}  // namespace

void RunRemote(Bench& bench) {
  const bool transfers = bench.Wants("load") || bench.Wants("store");
  const auto veth = transfers ? Veth::Make(bench.directory() + "/ip.log")
                              : absl::StatusOr<std::unique_ptr<Veth>>(nullptr);
  // The peers fork, so they start before anything that has threads.
  const std::unique_ptr<LoopbackPeer> near = LoopbackPeer::Start(kPeerBytes);
  if (!bench.Check(near != nullptr, "no process for raw TCP")) return;
  const std::unique_ptr<LoopbackPeer> far =
      veth.ok() && *veth ? LoopbackPeer::Start(kPeerBytes, (*veth)->place()) : nullptr;
  if (FindRedisServer().empty()) return bench.Note("left out: redis-server is not in PATH");
  const auto transfer = [&] {
    RemoteTransfers(bench, "", *near);
    if (far != nullptr) {
      RemoteTransfers(bench, " over veth", *far);
    } else {
      bench.Note("left out, over veth: " + std::string(veth.status().message()));
    }
  };
  std::vector<Family> families = {{"hits", [&] { RemoteHits(bench); }},
                                  {"find", [&] { RemoteFind(bench); }}};
  // Loading and storing are one family by two names: the same servers and peers do both.
  if (transfers)
    families.insert(families.begin(), {bench.Wants("load") ? "load" : "store", transfer});
  RunFamilies(bench, families);
}

}  // namespace prefixd::bench
