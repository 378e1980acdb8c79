// A stream of bytes to a server, over TCP or TLS. No call waits.
#pragma once
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/descriptor.h"
#include "remote/redis_options.h"
#include "remote/resolver.h"

struct ssl_ctx_st;
struct ssl_st;

namespace prefixd::remote {

struct TlsFiles {
  std::string ca_file{};                // empty: the authorities that the system trusts
  std::string cert_file{}, key_file{};  // both or none
};

// What TLS connections share. Thread-safe.
class TlsContext {
 public:
  // InvalidArgument names the file that cannot be used.
  static absl::StatusOr<std::shared_ptr<const TlsContext>> Make(const TlsFiles& files);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;
  // A client's end over the socket, which checks the server's certificate and that it is of `host`.
  // Null: out of memory.
  ssl_st* NewClient(int socket, const std::string& host) const;

 private:
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* const context_;
};

// Not thread-safe. After an error it is of no use. Errors are Unavailable and do not name the
// server.
class Transport {
 public:
  // Begins to connect. `tls` null: plain TCP.
  Transport(const Endpoint& address, std::shared_ptr<Resolution> resolution,
            std::shared_ptr<const TlsContext> tls);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // What poll() waits for while it connects, and beside reading and writing.
  int fd() const;
  short events() const;
  bool connected() const { return state_ == State::kConnected; }
  // Goes on to connect.
  absl::Status Connect();

  // Return how many bytes were taken or came; 0: none for now. Requires: connected().
  absl::StatusOr<size_t> Send(std::span<const iovec> places);
  absl::StatusOr<size_t> Receive(std::span<iovec> places);

 private:
  enum class State { kResolving, kConnecting, kHandshake, kConnected };
  absl::Status TakeAddresses();
  absl::Status TryNext();
  absl::Status FinishConnect();
  absl::Status Handshake();
  absl::StatusOr<size_t> SendTls(std::span<const iovec> places);
  absl::StatusOr<size_t> ReceiveTls(std::span<iovec> places);

  const Endpoint address_;
  std::shared_ptr<Resolution> resolution_;
  const std::shared_ptr<const TlsContext> tls_;
  State state_ = State::kResolving;
  std::vector<SocketAddress> addresses_;
  size_t next_address_ = 0;
  base::Descriptor socket_;
  ssl_st* ssl_ = nullptr;
  bool tls_wants_write_ = false;
  std::string record_;  // bytes on their way into one TLS record
};

}  // namespace prefixd::remote
