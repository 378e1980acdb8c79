// A secret that goes with every call of a channel: "authorization: Bearer HEX".
#pragma once
#include <grpcpp/support/client_interceptor.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#include "base/mutex.h"
#include "base/secret_file.h"

namespace prefixd::wire {

inline constexpr char kBearerKey[] = "authorization";

std::string BearerText(const base::Secret& secret);
// Reads what BearerText made. Returns nullopt for any other text.
std::optional<base::Secret> ReadBearer(std::string_view text);

// The secret of a file, as it was when Reload last read it. Thread-safe.
class Bearer {
 public:
  explicit Bearer(std::string path) : path_(std::move(path)) {}

  // Reads the file again, since the daemon may have made another. On an error it keeps what it had.
  absl::Status Reload() PREFIXD_EXCLUDES(mutex_);
  std::string text() const PREFIXD_EXCLUDES(mutex_);  // empty: none yet

 private:
  const std::string path_;
  mutable base::Mutex mutex_;
  std::string text_ PREFIXD_GUARDED_BY(mutex_);
};

// Returns the interceptors of a channel whose calls carry `bearer`. Empty if it is null: the
// channel is then like any other.
std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> Carrying(
    std::shared_ptr<const Bearer> bearer);

// Returns the file that a client of `address` reads: `named`, else $PREFIXD_TOKEN_FILE. Empty for a
// unix socket, whose permissions decide who can connect, and if neither names a file.
std::string TokenFileFor(const std::string& address, const std::string& named);

}  // namespace prefixd::wire
