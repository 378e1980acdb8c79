// One connection to a Redis server: TCP, with TLS if asked for, logged in.
//
// Not thread-safe. After an error, or a deadline that passed, it is of no use any more.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "remote/redis_options.h"
#include "remote/resp.h"

namespace prefixd::remote {

// What all connections of a store share for TLS. Thread-safe once it is made.
class TlsContext {
 public:
  // Reads the certificates. FailedPrecondition names the file that cannot be used.
  static absl::StatusOr<std::shared_ptr<TlsContext>> Open(const RedisOptions& options);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;
  void* ssl_context() const { return context_; }  // SSL_CTX

 private:
  TlsContext() = default;
  void* context_ = nullptr;
};

class Connection : public Source {
 public:
  // Connects, agrees on TLS and logs in. Unavailable, PermissionDenied or DeadlineExceeded say
  // which server and why. `tls`: null for plain TCP.
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const Endpoint& endpoint,
                                                          const RedisOptions& options,
                                                          const std::shared_ptr<TlsContext>& tls,
                                                          base::Deadline deadline);
  ~Connection() override;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Every call of Send and of the reader ends by then.
  void SetDeadline(base::Deadline deadline) { deadline_ = deadline; }
  // Sends commands, one after the other.
  absl::Status Send(std::span<const Command* const> commands);
  ReplyReader& reader() { return reader_; }
  // One command and its reply.
  absl::StatusOr<Reply> Ask(const Command& command);
  // Whether the server has closed it, or said something that nobody asked for.
  bool stale() const;

  absl::StatusOr<size_t> ReadSome(std::span<std::byte> to) override;

 private:
  explicit Connection(const Endpoint& endpoint) : endpoint_(endpoint) {}
  absl::Status Connect();
  absl::Status AgreeOnTls(const RedisOptions& options);
  absl::Status LogIn(const RedisOptions& options);
  absl::Status WriteAll(const ConstRuns& runs);
  absl::Status WriteTls(std::span<const std::byte> bytes);
  // Waits until the socket can be read or written, or the deadline.
  absl::Status Await(short events);
  absl::Status Failed(const char* what, int error) const;

  const Endpoint endpoint_;
  std::shared_ptr<TlsContext> tls_;
  void* ssl_ = nullptr;  // SSL, owned
  int socket_ = -1;
  base::Deadline deadline_;
  ReplyReader reader_{this};
};

}  // namespace prefixd::remote
