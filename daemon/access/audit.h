// One line for each call of Admin that changes something or shows more than sums: who, from where,
// which verb, of what, and how it ended. To the log, and to a file if there is one:
//
//   2027-01-01T00:00:00.000Z audit: Admin.Clear by user 1000 (process 12 of user 1000):
//   space_id: "..." purge: true: OK
#pragma once
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"

#include "daemon/access/gate.h"

namespace prefixd::daemon {

// Thread-safe. A file that cannot be written any more is told once in the log, which has the lines.
class AuditLog {
 public:
  // Opens the file for appending, mode 0600; an empty path: no file. FailedPrecondition names it.
  static absl::StatusOr<std::shared_ptr<AuditLog>> Open(const std::string& path);
  ~AuditLog();
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  void Write(const std::string& line);

 private:
  AuditLog(std::string path, int file) : path_(std::move(path)), file_(file) {}
  const std::string path_;
  const int file_;  // -1 = none
};

// Returns true if calls of `verb` ("Admin.Clear") are written down.
bool IsAudited(std::string_view verb);

// Returns what writes the lines of a server's calls. `raw`: its Admin takes messages as bytes.
// `gate` must outlive the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> Auditing(
    Gate* gate, std::shared_ptr<AuditLog> log, bool raw);

}  // namespace prefixd::daemon
