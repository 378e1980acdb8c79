// Where a channel goes, and whether it is encrypted.
#pragma once
#include <grpcpp/security/credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace prefixd::wire {

inline constexpr char kTlsScheme[] = "tls://";

struct Target {
  std::string address;  // as gRPC takes it
  std::shared_ptr<grpc::ChannelCredentials> credentials;
};

// Returns the target of "tls://host:port", else of any address as gRPC takes it, which is not
// encrypted. For tls:// it reads PEM files: $PREFIXD_TLS_CA (authorities of the daemon; default:
// those of the system), $PREFIXD_TLS_CERTIFICATE and $PREFIXD_TLS_KEY (this client's, both or
// none). The daemon's certificate must name the host. InvalidArgument names a variable whose file
// cannot be used.
absl::StatusOr<Target> TargetOf(const std::string& address);

}  // namespace prefixd::wire
