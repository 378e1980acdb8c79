// The token of TCP connections: whoever cannot read its file gets nothing over TCP.
//
// Thread-safe: constant after construction.
#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"

#include "base/secret_file.h"

namespace prefixd::daemon {

struct Token {
  base::Secret secret{};
};

// Returns the token of the file at `path`; makes the file, mode 0600, if there is none.
// FailedPrecondition: a file that others may read, or another user's. Errors name the path.
absl::StatusOr<Token> LoadToken(const std::string& path);

// Returns UNAUTHENTICATED, with what to do, unless the caller sent the token: "authorization:
// Bearer HEX". A null `token` means that none is needed.
grpc::Status CheckToken(const Token* token, const grpc::ServerContextBase& context);

// Ends a call with `status` before it begins.
inline grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                        const grpc::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

}  // namespace prefixd::daemon
