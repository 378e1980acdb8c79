// The wire form of Redis, RESP2 and RESP3 (redis.io/docs/reference/protocol-spec): commands out,
// replies in.
//
// Not thread-safe. A reply's lengths are the server's word: no memory is taken for bytes that have
// not come.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "remote/remote_store.h"

namespace prefixd::remote {

// A command, as an array of bulk strings.
class Command {
 public:
  Command(Command&&) = default;
  Command& operator=(Command&&) = default;
  explicit Command(size_t arguments);   // exactly so many are added
  Command& Add(std::string_view text);  // copied
  // Borrowed: the bytes must stay until the command was sent. `text` may be added before.
  Command& AddRuns(const ConstRuns& runs);
  // What goes out, in order.
  const ConstRuns& runs() const { return runs_; }
  size_t bytes() const { return bytes_; }

 private:
  void Put(std::string text);

  std::deque<std::string> texts_;
  ConstRuns runs_;
  size_t bytes_ = 0;
};

struct Reply {
  enum class Kind { kText, kError, kInteger, kBulk, kNull, kList };
  Kind kind = Kind::kNull;
  std::string text;  // kText, kError, kBulk
  int64_t number = 0;
  std::vector<Reply> items;  // kList; of a map, keys and values in turn

  bool is(Kind of) const { return kind == of; }
};

// Where replies come from.
class Source {
 public:
  virtual ~Source() = default;
  // Reads at least one byte and at most all of `to`. An error: there are none before the deadline.
  virtual absl::StatusOr<size_t> ReadSome(std::span<std::byte> to) = 0;
};

class ReplyReader {
 public:
  static constexpr size_t kMostLine = 64 * 1024;
  static constexpr size_t kMostItems = 1 << 20;
  static constexpr int kMostDepth = 8;

  explicit ReplyReader(Source* source) : source_(source) {}

  // Reads one reply; pushes and attributes of RESP3 before it are passed over. DataLoss: these are
  // no bytes of the protocol, or a string is longer than `most_bytes`; nothing more can be read.
  absl::StatusOr<Reply> Read(size_t most_bytes = kMaxRecordBytes);
  // Reads a list of bulk strings straight into `to`, one into each. After NotFound (an item is
  // null), DataLoss with `readable` (another length or number of items) and any reply that is no
  // list, which comes as `other`, more can be read.
  struct Filled {
    absl::Status status;
    Reply other;            // an error of the server, if `status` is Unknown
    bool readable = false;  // the next reply can be read
  };
  Filled ReadInto(std::span<const Runs> to);

 private:
  absl::StatusOr<std::string> Line();
  absl::StatusOr<int64_t> Length(std::string_view line);
  absl::StatusOr<Reply> ReadAny(int depth, size_t most_bytes, bool* passed_over);
  absl::StatusOr<Reply> ReadList(std::string_view line, int depth, size_t most_bytes);
  absl::StatusOr<std::string> Text(size_t bytes);
  absl::Status Take(std::span<std::byte> to);
  absl::Status Skip(size_t bytes);
  absl::Status EndOfString();
  absl::Status Fill();
  // Reads one item of ReadInto. `found`: it had the runs' length.
  absl::Status ReadItem(const Runs* to, absl::Status* what);

  Source* const source_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(16 * 1024);
  size_t begin_ = 0, end_ = 0;
};

}  // namespace prefixd::remote
