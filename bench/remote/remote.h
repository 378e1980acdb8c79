// remote: the figures that issue "a shared tier on Redis Cluster" promises of one client and one
// redis-server on loopback, one file a family.
#pragma once
#include <memory>

#include "bench/common/bench.h"
#include "bench/remote/loopback.h"

namespace prefixd::bench {

// Load and Store of bundles beside raw TCP and beside a loop of the same commands that does nothing
// with the bytes.
void RemoteTransfers(Bench& bench, const LoopbackPeer& peer);
void RemoteHits(Bench& bench);  // local hits and misses beside a server that is stopped
void RemoteFind(Bench& bench);  // names and look-ups of long chains

}  // namespace prefixd::bench
