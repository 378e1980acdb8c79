// Has one line written for each call of Admin that changes something or shows more than sums: who,
// from where, which verb, of what, and how it ended (audit_log.h).
#pragma once
#include <memory>

#include "grpcpp/grpcpp.h"

#include "daemon/access/audit_log.h"
#include "daemon/access/gate.h"

namespace prefixd::daemon {

// Returns what writes the lines of a server's calls, whose Admin takes messages as bytes. `gate`:
// who looks at the callers, and must outlive the server; null on the admin socket.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> Auditing(
    const Gate* gate, std::shared_ptr<AuditLog> log);

}  // namespace prefixd::daemon
