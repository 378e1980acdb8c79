// prefixctl doctor --disk: how fast the disk of the SSD tier writes and reads.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "base/descriptor.h"
#include "base/size.h"
#include "base/status.h"
#include "client/cli/doctor.h"
#include "os/files.h"

namespace prefixd::cli {
namespace {

constexpr size_t kPiece = size_t{4} << 20;  // as large as the pages of a few blocks together
constexpr size_t kPieces = 32;

using Clock = std::chrono::steady_clock;
using Buffer = std::unique_ptr<std::byte, decltype(&std::free)>;

struct Speed {
  double write_bytes_per_s = 0, read_bytes_per_s = 0;
};

// Bytes that no disk can compress.
Buffer RandomPiece() {
  Buffer piece(static_cast<std::byte*>(std::aligned_alloc(4096, kPiece)), &std::free);
  std::mt19937_64 random(1);
  for (size_t at = 0; at < kPiece; at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(piece.get() + at, &word, sizeof(word));
  }
  return piece;
}

// Calls `move` for each piece. Returns the bytes a second.
template <typename Move>
absl::StatusOr<double> Timed(const Move& move) {
  const Clock::time_point begin = Clock::now();
  for (size_t i = 0; i < kPieces; ++i) {
    if (move(static_cast<off_t>(i * kPiece)) != static_cast<ssize_t>(kPiece)) {
      return absl::ErrnoToStatus(errno, "");
    }
  }
  const std::chrono::duration<double> seconds = Clock::now() - begin;
  return kPieces * kPiece / std::max(seconds.count(), 1e-9);
}

absl::StatusOr<Speed> Measure(const base::Descriptor& file) {
  const Buffer piece = RandomPiece();
  Speed speed;
  PREFIXD_ASSIGN_OR_RETURN(speed.write_bytes_per_s, Timed([&](off_t at) -> ssize_t {
                             const ssize_t moved = ::pwrite(file.get(), piece.get(), kPiece, at);
                             const bool last = at == (kPieces - 1) * kPiece;
                             return last && !os::SyncData(file.get()) ? -1 : moved;
                           }));
  os::DropCache(file.get());  // where there is no O_DIRECT
  PREFIXD_ASSIGN_OR_RETURN(speed.read_bytes_per_s, Timed([&](off_t at) {
                             return ::pread(file.get(), piece.get(), kPiece, at);
                           }));
  return speed;
}

absl::StatusOr<Speed> MeasureIn(const std::string& folder, bool direct) {
  const std::string path = absl::StrCat(folder, "/prefixd-doctor-speed-", ::getpid());
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  base::Descriptor file(direct ? os::OpenUncached(path, flags, 0600)
                               : ::open(path.c_str(), flags, 0600));
  if (!file && direct && errno == EINVAL)
    file = base::Descriptor(::open(path.c_str(), flags, 0600));
  if (!file) return absl::ErrnoToStatus(errno, "");
  ::unlink(path.c_str());  // whatever happens, nothing is left
  return Measure(file);
}

}  // namespace

std::vector<Finding> ExamineDiskSpeed(const Host& host, const Wanted& wanted) {
  if (wanted.directory.empty()) return {};
  // Below it a GPU computes tokens of most models faster than they are read.
  constexpr double kSlowRead = 300e6;
  const absl::StatusOr<Speed> speed = MeasureIn(host.root + wanted.directory, wanted.direct_io);
  Finding finding{.name = "disk speed"};
  if (!speed.ok()) {
    finding.verdict = Verdict::kUnknown;
    finding.found = absl::StrCat("not measured in ", wanted.directory, ": ",
                                 std::string(speed.status().message()));
    return {finding};
  }
  const auto rate = [](double bytes) {
    return absl::StrCat(base::FormatBytes(static_cast<uint64_t>(bytes)), "/s");
  };
  finding.found = absl::StrCat("writes ", rate(speed->write_bytes_per_s), " and reads ",
                               rate(speed->read_bytes_per_s), " in pieces of 4 MiB, one at a time");
  const auto wanted_rate = static_cast<double>(wanted.write_rate);
  if (wanted_rate > speed->write_bytes_per_s) {
    finding.verdict = Verdict::kBetter;
    finding.change = absl::StrCat("--ssd-write-rate ", rate(wanted_rate),
                                  " is more than it takes: no limit holds");
    finding.worth = 35;
  }
  if (speed->read_bytes_per_s < kSlowRead) {
    finding.verdict = Verdict::kBetter;
    finding.change =
        "hits from it may be slower than computing: workers that tell their rate get none then; "
        "put --directory on a faster disk";
    finding.worth = 44;
  }
  return {finding};
}

}  // namespace prefixd::cli
