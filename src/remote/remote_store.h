// A store that several hosts share: bundles of bytes under names. What the bytes mean, and whether
// they are whole, is not its business (bundle.h).
//
// A bundle has a record and stripes 0, 1, 2, ... It is written at once or not at all, and may be
// gone at any time. There is no directory: a name is asked for, and is there or not.
//
// Thread-safe. Every call returns by its deadline; none waits for a place that was given up lately.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/mutex.h"

namespace prefixd::remote {

inline constexpr size_t kMaxRecordBytes = size_t{1} << 20;
// A stripe with what the server keeps beside it fits a size class of jemalloc: 262,144 bytes.
inline constexpr size_t kStripeBytes = 262'080;
inline constexpr uint32_t kMaxStripes = 4096;
inline constexpr size_t kMaxPosts = 1024;  // of a board
inline constexpr size_t kMaxPostBytes = size_t{16} << 10;

// Bytes in runs: a stripe that goes to, or comes from, several places in memory.
using Runs = std::vector<std::span<std::byte>>;
using ConstRuns = std::vector<std::span<const std::byte>>;

struct FoundRecord {
  enum class Outcome {
    kFound,
    kAbsent,
    kLate,  // no answer by the deadline
    kDown,  // its server is given up for now, or failed
  };
  Outcome outcome = Outcome::kAbsent;
  std::string record;  // kFound
};

// A text on a board.
struct Post {
  std::string field;
  std::string text;
  bool operator==(const Post&) const = default;
};

// One server, for people.
struct NodeStatus {
  std::string address;                     // "10.0.0.3:6379"
  bool open = false;                       // the breaker: it is given up until next_try_us
  std::string why;                         // the last failure, empty if there was none
  int64_t failed_us = 0, next_try_us = 0;  // monotonic
  uint64_t in_flight_bytes = 0;
};

struct RemoteStatus {
  bool known = false;    // which server has what has been learned
  bool cluster = false;  // else one server has everything
  bool tls = false;
  std::vector<NodeStatus> nodes;      // of primaries, by address
  std::vector<std::string> warnings;  // about the servers' settings: their eviction policy, ...
  uint64_t bytes_read = 0, bytes_written = 0;  // of values
};

class RemoteStore {
 public:
  virtual ~RemoteStore() = default;

  // Reads the record of each name. Returns one result for each, in order.
  virtual std::vector<FoundRecord> Find(std::span<const std::string> names,
                                        base::Deadline deadline) = 0;

  // Reads stripes 0 to stripes.size() - 1 of a bundle, each straight into its runs, which it fills.
  // NotFound: the bundle, or a stripe, is not there. DataLoss: a stripe has another length.
  // Unavailable, DeadlineExceeded: its server failed, is given up, or is late. After an error the
  // runs may hold anything.
  virtual absl::Status Load(const std::string& name, std::span<const Runs> stripes,
                            base::Deadline deadline) = 0;

  // Says of each name whether a bundle is there, and marks it as used. Unavailable,
  // DeadlineExceeded: of at least one that is not known.
  virtual absl::StatusOr<std::vector<bool>> Touch(std::span<const std::string> names,
                                                  base::Deadline deadline) = 0;

  // Writes a bundle, in one step. ResourceExhausted: the server has no room. InvalidArgument: more
  // stripes or longer ones than the limits. Unavailable, DeadlineExceeded as in Load; the bundle
  // may be there then.
  virtual absl::Status Store(const std::string& name, std::span<const std::byte> record,
                             std::span<const ConstRuns> stripes, base::Deadline deadline) = 0;

  // A number that all hosts see, 0 until it is raised. Raise adds 1 and returns the sum.
  virtual absl::StatusOr<uint64_t> ReadNumber(const std::string& name, base::Deadline deadline) = 0;
  virtual absl::StatusOr<uint64_t> RaiseNumber(const std::string& name,
                                               base::Deadline deadline) = 0;
  // Puts back a number that the store lost. Returns what it is then: at least `least`, which must
  // not be 0; more, if it was raised since, or if several hosts put it back at the same moment.
  virtual absl::StatusOr<uint64_t> RestoreNumber(const std::string& name, uint64_t least,
                                                 base::Deadline deadline) = 0;

  // A board has texts that all hosts see, each under a field of its own. Write replaces the field's
  // text, and lets the whole board stay for `lifetime` from now.
  // ResourceExhausted: the board is full. InvalidArgument: the text is longer than kMaxPostBytes.
  // Both are for people and small things: they take several round trips.
  virtual absl::Status WritePost(const std::string& board, const Post& post,
                                 std::chrono::seconds lifetime, base::Deadline deadline) = 0;
  // Returns at most kMaxPosts, in any order; longer texts than the limit are left out.
  virtual absl::StatusOr<std::vector<Post>> ReadBoard(const std::string& board,
                                                      base::Deadline deadline) = 0;

  virtual RemoteStatus Status() const = 0;
};

}  // namespace prefixd::remote
