// TLS of the TCP address, from files that may be replaced while prefixd runs.
//
// Each handshake looks at the files. New ones that fit together and are valid are used from then
// on; others are warned of once and the last good ones stay in use. A certificate that is not valid
// yet is used once it is. Connections that are open stay.
#pragma once
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"

namespace prefixd::daemon {

// Paths of PEM files.
struct TlsFiles {
  std::string certificate{};  // with its chain; empty = no TLS
  std::string key{};          // of that certificate
  std::string client_ca{};    // authorities of clients; empty = clients need no certificate
};

// Thread-safe; must outlive the server that uses it. FailedPrecondition names the file that cannot
// be used, and why: unreadable, not PEM, out of date, a key of another certificate.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeTls(const TlsFiles& files);

}  // namespace prefixd::daemon
