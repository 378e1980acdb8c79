// protobuf below 22 and gRPC below 1.65 have handlers of their own. Later ones write to Abseil's
// log: both come by one sink there.
#include "daemon/library_logs.h"

#include "google/protobuf/stubs/common.h"
#include "grpcpp/version_info.h"
#include "spdlog/spdlog.h"

#if GOOGLE_PROTOBUF_VERSION < 4022000
#include "google/protobuf/stubs/logging.h"
#else
#include "absl/log/globals.h"
#include "absl/log/log_entry.h"
#include "absl/log/log_sink.h"
#include "absl/log/log_sink_registry.h"
#endif
#if GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR < 65
#include "grpc/support/log.h"
#endif

namespace prefixd::daemon {
namespace {

bool (*told_of)(const std::string& line) = nullptr;

#if GOOGLE_PROTOBUF_VERSION < 4022000
// What a caller sends must not fill the log: protobuf tells bad text of requests.
void TakeThatOfProtobuf() {
  google::protobuf::SetLogHandler(
      [](google::protobuf::LogLevel, const char*, int, const std::string& line) {
        spdlog::debug("protobuf: {}", line);
      });
}
#else
class Sink : public absl::LogSink {
 public:
  void Send(const absl::LogEntry& entry) override {
    const std::string line(entry.text_message());
    if (told_of(line)) return;
    const bool of_protobuf = entry.source_filename().find("protobuf") != absl::string_view::npos;
    const bool is_error = entry.log_severity() >= absl::LogSeverity::kError && !of_protobuf;
    spdlog::log(is_error ? spdlog::level::warn : spdlog::level::debug, "libraries: {}", line);
  }
};

void TakeThatOfProtobuf() {
  absl::SetStderrThreshold(absl::LogSeverityAtLeast::kInfinity);
  absl::AddLogSink(new Sink);  // gRPC's threads may outlive main
}
#endif

#if GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR < 65
// gRPC would write to stderr itself, and wait for whoever reads it.
void TakeThatOfGrpc() {
  ::gpr_set_log_function([](gpr_log_func_args* args) {
    if (told_of(args->message)) return;
    spdlog::log(
        args->severity == GPR_LOG_SEVERITY_ERROR ? spdlog::level::warn : spdlog::level::debug,
        "grpc: {}", args->message);
  });
}
#else
void TakeThatOfGrpc() {}
#endif

}  // namespace

void TakeLogsOfLibraries(bool (*told)(const std::string& line)) {
  told_of = told;
  TakeThatOfProtobuf();
  TakeThatOfGrpc();
}

}  // namespace prefixd::daemon
