// Redis' protocol, RESP2 and RESP3: commands as bytes to send, and replies from bytes that arrive.
//
// Not thread-safe.
#pragma once
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "remote/remote_store.h"

namespace prefixd::remote {

// Commands, one behind the other. What is borrowed must stay as it is until it was sent.
class Commands {
 public:
  // Begins a command of so many arguments, its name among them.
  Commands& Begin(size_t arguments);
  Commands& Add(std::string_view argument);  // copied
  Commands& Borrow(std::span<const std::byte> argument);
  Commands& Borrow(const ConstRuns& argument);  // one argument, in runs
  // A command of short arguments.
  Commands& Call(std::span<const std::string_view> arguments);
  Commands& Call(std::initializer_list<std::string_view> arguments) {
    return Call(std::span(arguments.begin(), arguments.size()));
  }
  // Appends the other's commands.
  void Append(const Commands& other);

  uint64_t bytes() const { return bytes_; }
  // Sets up to places.size() places to what follows the first `sent` bytes. Returns how many.
  // Requires: `sent` does not shrink from call to call.
  size_t Rest(uint64_t sent, std::span<iovec> places);
  void Clear();

 private:
  struct Piece {
    const std::byte* borrowed = nullptr;  // null: in text_
    size_t at = 0, bytes = 0;             // at: in text_
  };
  void Text(std::string_view text);

  std::string text_;
  std::vector<Piece> pieces_;
  uint64_t bytes_ = 0;
  size_t first_piece_ = 0;  // of those that are not sent
  uint64_t first_at_ = 0;   // where it begins
};

// A reply. RESP2's null bulk and null array are kNull.
struct Reply {
  enum class Kind {
    kNull,
    kSimple,
    kError,  // text: the code and what follows; RESP3's long errors too
    kInteger,
    kBool,    // integer: 0 or 1
    kText,    // a bulk string; RESP3's verbatim strings too, without their type
    kNumber,  // text: RESP3's double or big number, as it was sent
    kArray,
    kMap,  // keys and values in turn
    kSet,
    kFilled,       // a bulk string that went into the runs given for it
    kOtherLength,  // a bulk string that did not: its length is not that of the runs
  };
  Kind kind = Kind::kNull;
  int64_t integer = 0;  // kOtherLength: the length that it has
  std::string text{};
  std::vector<Reply> items{};

  bool operator==(const Reply&) const = default;
  bool error() const { return kind == Kind::kError; }
  bool text_or_simple() const { return kind == Kind::kText || kind == Kind::kSimple; }
};

// Reads replies from bytes as they arrive. Takes any bytes: what is no reply ends it. No memory is
// taken because a number in front of bytes says that they will come.
class ReplyReader {
 public:
  static constexpr size_t kMaxLine = 8192;
  static constexpr size_t kMaxDepth = 8;
  static constexpr size_t kMaxItems = size_t{1} << 19;       // in one reply, all levels together
  static constexpr size_t kMaxTextBytes = size_t{16} << 20;  // the same
  static constexpr int64_t kMaxSkippedBytes = int64_t{1} << 30;
  static constexpr size_t kMostPlaces = 64;

  // Says where the bulk strings of the next reply without an expectation go: of an array, item i
  // into into[i]; else the reply itself into into[0]. Where `into` has none, they become kText. The
  // runs must stay until the reply was taken.
  void Expect(std::span<const Runs> into) { expected_.push_back({into}); }
  size_t expected() const { return expected_.size(); }

  // Sets the places where bytes that arrive next go, in order. Returns how many; at least one, none
  // of them empty.
  size_t Places(std::array<iovec, kMostPlaces>* places);
  // So many bytes arrived in the places. Requires: at most what these hold.
  void Arrived(size_t bytes);

  enum class State {
    kReply,
    kMore,    // bytes are missing
    kBroken,  // these bytes are no reply; for good
  };
  // Returns the next reply, if it is there. Drops what servers push between replies.
  State Next(Reply* reply);
  const std::string& why_broken() const { return why_; }

 private:
  struct Expected {
    std::span<const Runs> into;
  };
  struct Open {  // an aggregate whose items are not all there
    Reply reply;
    int64_t missing = 0;   // items
    bool dropped = false;  // a push, or attributes
    bool whole_reply = false;
  };
  enum class Body { kNone, kText, kRuns, kSkip };

  State Broken(const char* why);
  State Header(std::string_view line);
  State Aggregate(char type, int64_t count);
  State Bulk(char type, int64_t bytes);
  State TakeBody();
  State Finish(Reply reply);
  State Close();
  const Runs* Target() const;
  size_t BufferedReadBytes() const;
  std::string_view buffered() const { return {buffer_.data() + begin_, end_ - begin_}; }

  std::deque<Expected> expected_;
  std::vector<Open> open_;
  size_t items_ = 0, text_bytes_ = 0;  // of the reply that is being read
  std::string why_;
  bool broken_ = false;
  bool done_ = false;  // done_reply_ is whole
  Reply done_reply_;

  Body body_ = Body::kNone;
  Reply body_reply_;
  uint64_t body_left_ = 0;  // without the line's end behind it
  const Runs* runs_ = nullptr;
  size_t run_ = 0, run_at_ = 0;
  size_t verbatim_ = 0;  // bytes of its type in front of a verbatim string

  std::array<char, 16384> buffer_;
  size_t begin_ = 0, end_ = 0;  // of what arrived and was not read
};

}  // namespace prefixd::remote
