// Messages between two processes of a host, with open files: a connected unix socket that keeps the
// borders between messages.
//
// linux: SEQPACKET. portable: a stream, on which each message has its length before it, 4 bytes,
// lowest first. connect() from one to the other fails with EPROTOTYPE.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace prefixd::os {

// SOCK_SEQPACKET or SOCK_STREAM.
int MessageSocketType();

// Sends one message and open files, at most 8, without waiting and without SIGPIPE. Returns false,
// with errno, if it did not go whole: the connection is of no more use. Thread-safe.
bool SendMessage(int socket, std::string_view message, std::span<const int> files);

// Receives messages, one after the other. Not thread-safe.
class MessageReader {
 public:
  // Bytes behind `most_bytes` are dropped. `most_files`: 0 to 8; the kernel drops files beyond it.
  MessageReader(size_t most_bytes, size_t most_files)
      : most_bytes_(most_bytes), most_files_(most_files) {}
  ~MessageReader();  // closes the files that nobody took
  MessageReader(const MessageReader&) = delete;
  MessageReader& operator=(const MessageReader&) = delete;

  enum class Got {
    kMore,     // not whole yet: call again once the socket is readable
    kMessage,  // whole
    kEnd,      // the peer hung up (errno 0), or the connection failed (errno)
  };
  // Reads what is there, without waiting. Not called again after kEnd, nor after kMessage before
  // Next().
  Got Read(int socket);
  // Begins the next message; closes the files that nobody took.
  void Next();

  std::string_view bytes() const { return {room_.data(), kept_bytes_}; }
  uint64_t sent_bytes() const { return sent_bytes_; }  // more than bytes() has: some were dropped
  bool dropped_files() const { return dropped_files_; }
  // Close-on-exec, and the caller's. portable: a moment after they came, so a caller that may exec
  // in another thread keeps it from forking meanwhile.
  std::vector<int> TakeFiles();

 private:
  const size_t most_bytes_, most_files_;
  std::string room_;  // most_bytes_ once the first message comes
  size_t kept_bytes_ = 0;
  std::string head_;  // portable: of the length
  std::vector<int> files_;
  uint64_t sent_bytes_ = 0;
  [[maybe_unused]] uint64_t dropped_bytes_ = 0;  // portable
  bool dropped_files_ = false;
};

}  // namespace prefixd::os
