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

// That of the file at `path`, which is made, mode 0600, where there is none. FailedPrecondition: a
// file that others may read, or another user's. Errors name the path.
absl::StatusOr<Token> LoadToken(const std::string& path);

// UNAUTHENTICATED, and what to do, unless the caller sent the token: "authorization: Bearer HEX".
// `token` null: none is needed.
grpc::Status CheckToken(const Token* token, const grpc::ServerContextBase& context);

// Ends a call before it began.
inline grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                        const grpc::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

}  // namespace prefixd::daemon
