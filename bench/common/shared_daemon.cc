#include "bench/common/shared_daemon.h"

#include <stdlib.h>
#include <sys/vfs.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

#include "bench/common/process_memory.h"

namespace prefixd::bench {

const Geometry& SharedGeometry() {
  static const Geometry geometry{
      .model = "7 layers of 8 heads", .layers = 7, .kv_heads = 8, .dim = 128};
  return geometry;
}

ArenaFolder::ArenaFolder() : path_("/dev/shm/prefixd-bench-XXXXXX") {
  if (::mkdtemp(path_.data()) == nullptr) path_.clear();
}

ArenaFolder::~ArenaFolder() {
  std::error_code ignored;  // what is left behind goes with the next boot
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

uint64_t ArenaFolder::free_bytes() const {
  struct statfs room {};
  if (path_.empty() || ::statfs(path_.c_str(), &room) != 0) return 0;
  return room.f_bavail * static_cast<uint64_t>(room.f_bsize);
}

std::unique_ptr<SharedDaemon> StartSharedDaemon(Bench& bench, const std::string& name,
                                                uint64_t ram_bytes) {
  auto daemon = std::make_unique<SharedDaemon>();
  if (!bench.Check(daemon->folder.free_bytes() >= ram_bytes,
                   absl::StrCat(name, ": /dev/shm has no room for ", ram_bytes, " bytes"))) {
    return nullptr;
  }
  const std::string directory = bench.directory() + "/" + name;
  std::filesystem::create_directories(directory);
  daemon->options = {.directory = directory,
                     .ram = std::to_string(ram_bytes),
                     .ssd = "off",
                     .arena = daemon->folder.file("arena"),
                     .flags = {"--log-level", "warning"}};
  auto process = DaemonProcess::Start(daemon->options);
  if (!bench.Check(process.ok(), process.status().ToString())) return nullptr;
  daemon->process = *std::move(process);
  return daemon;
}

uint64_t FittingBytes(Bench& bench, uint64_t wanted) {
  const uint64_t room = AvailableBytes() / 3 / kMiB * kMiB;
  if (wanted <= room) return wanted;
  bench.Note(absl::StrCat("little memory: ", BytesText(static_cast<double>(room)), " instead of ",
                          BytesText(static_cast<double>(wanted))));
  return room;
}

}  // namespace prefixd::bench
