// Requests that are never whole: HTTP/2 written by hand, as no gRPC library sends it.
//
// One thread.
#pragma once
#include <cstdint>
#include <string>

namespace prefixd::bench {

// One connection to a daemon's unix socket ("unix:///path"), closed with this.
class UnfinishedMessages {
 public:
  explicit UnfinishedMessages(const std::string& address);
  ~UnfinishedMessages();
  UnfinishedMessages(const UnfinishedMessages&) = delete;
  UnfinishedMessages& operator=(const UnfinishedMessages&) = delete;

  bool connected() const { return socket_ >= 0; }
  // On a stream of its own: a call of `method` ("/prefixd.v1.PrefixCache/Match") whose message says
  // that it has `message_bytes`, and as many of them, less the last, as the daemon's windows take
  // within a moment. Returns how many were sent; 0 when the connection is gone.
  uint64_t Send(const std::string& method, uint32_t message_bytes);

 private:
  bool Write(const std::string& bytes);
  void ReadFrames();  // what the daemon says: windows, pings, the end

  int socket_ = -1;
  uint32_t next_stream_ = 1;
  int64_t connection_window_ = 65'535, initial_window_ = 65'535, stream_window_ = 0;
  std::string heard_;
};

}  // namespace prefixd::bench
