// One request on its way through: sent to a server, its answer streamed to the client as it comes.
//
// Belongs to the client's thread; a thread of its own talks to the server.
#pragma once
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "client/llama/client_socket.h"
#include "client/llama/llama_server.h"
#include "httplib.h"

namespace prefixd::llama {

class Relay {
 public:
  // Begins to send the request, whose headers are the client's but for those of the connection.
  Relay(const LlamaServer& server, const httplib::Request& request, std::string body);
  ~Relay();  // ends the request if it is not over
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Waits until the server has answered with status and headers. Returns false if it has not, or
  // once the client has gone.
  bool WaitForHead(ClientSocket* client) PREFIXD_EXCLUDES(mutex_);
  // Requires: WaitForHead() returned true.
  int status() const { return head_.status; }
  const httplib::Headers& headers() const { return head_.headers; }
  std::string error() const { return httplib::to_string(error_); }

  enum class Came { kPart, kEnd, kBroken, kNothingYet };
  // Waits for the next part of the body, at most a while.
  Came Next(std::string* part) PREFIXD_EXCLUDES(mutex_);
  // Returns the last bytes of what came, which hold the server's timings.
  const std::string& end_of_answer() const { return end_; }
  bool complete() PREFIXD_EXCLUDES(mutex_);

 private:
  void Run();
  bool Take(const char* data, size_t size) PREFIXD_EXCLUDES(mutex_);

  const std::unique_ptr<httplib::Client> client_;
  httplib::Request request_;
  httplib::Response head_;  // the thread's until head_came_ is set
  httplib::Error error_ = httplib::Error::Success;
  std::string end_;  // of what Next() gave
  base::Mutex mutex_;
  base::CondVar moved_;
  std::deque<std::string> parts_ PREFIXD_GUARDED_BY(mutex_);
  size_t bytes_ PREFIXD_GUARDED_BY(mutex_) = 0;  // of parts_
  bool head_came_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool over_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool whole_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool gave_up_ PREFIXD_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the rest
};

// Returns true for headers that are of one connection and are not passed on.
bool IsOfConnection(const std::string& header);

}  // namespace prefixd::llama
