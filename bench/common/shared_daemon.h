// A daemon whose arena is a file that workers map, without an SSD tier, and the memory for it.
//
// One thread.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "bench/common/bench.h"
#include "bench/common/daemon_process.h"
#include "bench/common/stored_sequences.h"

namespace prefixd::bench {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;

// Seven layers of 8 heads: pages of about 1 MiB.
const Geometry& SharedGeometry();

// A folder on a tmpfs for arena files, removed with this.
class ArenaFolder {
 public:
  ArenaFolder();
  ~ArenaFolder();
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  // 0 without a tmpfs.
  uint64_t free_bytes() const;

 private:
  std::string path_;
};

struct SharedDaemon {
  ArenaFolder folder;
  DaemonProcess::Options options;
  std::unique_ptr<DaemonProcess> process;
};
// nullptr, and a failed check, when it does not come up.
std::unique_ptr<SharedDaemon> StartSharedDaemon(Bench& bench, const std::string& name,
                                                uint64_t ram_bytes);

// Returns as many of `wanted` bytes as this machine has room for: at most a third of its free
// memory.
uint64_t FittingBytes(Bench& bench, uint64_t wanted);

}  // namespace prefixd::bench
