// remote: the figures that issue "a shared tier on Redis Cluster" promises of one client and one
// redis-server, one file a family.
#pragma once
#include <string>

#include "bench/common/bench.h"
#include "bench/remote/loopback.h"

namespace prefixd::bench {

// Load and Store of bundles beside raw TCP and beside a loop of the same commands that does nothing
// with the bytes. The server is where the peer is; `where` says so in the lines.
void RemoteTransfers(Bench& bench, const std::string& where, const LoopbackPeer& peer);
void RemoteHits(Bench& bench);  // local hits and misses beside a server that is stopped
void RemoteFind(Bench& bench);  // names and look-ups of long chains

}  // namespace prefixd::bench
