// One connection to a server: commands out, replies in, in order. No call waits; whoever has
// several polls them together.
//
// Not thread-safe. After an error, or when it is late, it is thrown away: what it had to say is
// lost.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"

#include "remote/redis_options.h"
#include "remote/resolver.h"
#include "remote/resp.h"
#include "remote/transport.h"

namespace prefixd::remote {

// How connections are made. Constant.
struct Login {
  std::string user, password;  // user empty: the server's default user; password empty: none
  std::shared_ptr<const TlsContext> tls;  // null: plain TCP
};

class Connection {
 public:
  // Begins to connect, and logs in: AUTH, HELLO 3 (a server that refuses it goes on with RESP2),
  // CLIENT SETNAME prefixd.
  Connection(const Endpoint& address, const Login& login, Resolver* resolver);

  // Sends one command, and says where bulk strings of its reply go (ReplyReader::Expect).
  void Send(const Commands& command, std::span<const Runs> into = {});

  int fd() const { return transport_.fd(); }
  short events() const;
  bool connected() const { return transport_.connected(); }
  // Does what can be done at once. Unavailable names the server and says what happened.
  absl::Status Advance();
  // Returns the next reply to a Send(), if it is there.
  bool TakeReply(Reply* reply);

  // Nothing is under way, and the server has neither closed it nor said what was not asked for.
  bool StillGood();

 private:
  absl::Status SendRest();
  absl::Status ReceiveAll();
  absl::Status TakeGreeting(const Reply& reply);
  absl::Status Named(const absl::Status& status) const;

  const Endpoint address_;
  const std::string user_;
  Transport transport_;
  Commands out_;
  uint64_t sent_ = 0;
  ReplyReader reader_;
  std::deque<Reply> replies_;
  std::deque<const char*> greeting_;  // commands of the login without a reply yet
  size_t unanswered_ = 0;             // Send() without TakeReply()
};

// Says in words what an error of the server means for a person.
std::string InWords(const std::string& error, const std::string& user);

}  // namespace prefixd::remote
