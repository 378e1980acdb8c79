#include "daemon/access/audit.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/server_interceptor.h"
#include "spdlog/spdlog.h"

#include "daemon/access/roles.h"
#include "prefixd/v1/admin.pb.h"

namespace prefixd::daemon {
namespace {

using grpc::experimental::InterceptionHookPoints;

// Sums, which programs ask for all the time, and settings.
constexpr std::array<std::string_view, 2> kNotAudited = {"Admin.GetStats", "Admin.GetConfig"};
constexpr size_t kShownBytes = 512;

// Returns "Admin.Clear" of "/prefixd.v1.Admin/Clear"; empty for another package.
std::string VerbOf(std::string_view method) {
  constexpr std::string_view kPackage = "/prefixd.v1.";
  if (!method.starts_with(kPackage)) return "";
  return absl::StrReplaceAll(std::string(method.substr(kPackage.size())), {{"/", "."}});
}

// Returns the request's fields; lists of tokens and texts are cut short.
std::string WhatOf(const std::string& verb, void* request, bool raw) {
  const auto* method = google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
      absl::StrCat("prefixd.v1.", verb));
  if (method == nullptr || request == nullptr) return "";
  std::string text;
  if (raw) {
    const std::unique_ptr<google::protobuf::Message> message(
        google::protobuf::MessageFactory::generated_factory()
            ->GetPrototype(method->input_type())
            ->New());
    grpc::ByteBuffer bytes = *static_cast<grpc::ByteBuffer*>(request);
    grpc::Slice slice;
    if (!bytes.DumpToSingleSlice(&slice).ok() || slice.size() > 64 * kShownBytes ||
        !message->ParseFromArray(slice.begin(), static_cast<int>(slice.size()))) {
      return "";
    }
    text = message->ShortDebugString();
  } else {
    const auto* const message = static_cast<const google::protobuf::Message*>(request);
    if (message->ByteSizeLong() > 64 * kShownBytes) return "a request of great size";
    text = message->ShortDebugString();
  }
  return text.size() <= kShownBytes ? text : text.substr(0, kShownBytes) + "...";
}

class Auditor final : public grpc::experimental::Interceptor {
 public:
  Auditor(Gate* gate, std::shared_ptr<AuditLog> log, std::string verb, bool raw,
          grpc::ServerContextBase* context)
      : gate_(gate), log_(std::move(log)), verb_(std::move(verb)), raw_(raw), context_(context) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE)) {
      what_ = WhatOf(verb_, methods->GetRecvMessage(), raw_);
      who_ = gate_->Describe(*context_);  // the connection may be gone when the call ends
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const grpc::Status status = methods->GetSendStatus();
      // Strangers cannot fill the disk: the gate counts them, and logs one a second.
      if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) return methods->Proceed();
      Write(status.ok() ? "OK"
                        : absl::StrCat("refused, ", absl::CHexEscape(status.error_message())));
    } else if (methods->QueryInterceptionHookPoint(
                   InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      Write("begins");  // a stream, which may go on for days
    }
    methods->Proceed();
  }

 private:
  void Write(const std::string& outcome) {
    if (who_.empty()) who_ = gate_->Describe(*context_);
    log_->Write(absl::StrCat(verb_, " by ", who_, ": ", what_.empty() ? "everything" : what_, ": ",
                             outcome));
  }

  Gate* const gate_;
  const std::shared_ptr<AuditLog> log_;
  const std::string verb_;
  const bool raw_;
  grpc::ServerContextBase* const context_;
  std::string who_, what_;
};

class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  Factory(Gate* gate, std::shared_ptr<AuditLog> log, bool raw)
      : gate_(gate), log_(std::move(log)), raw_(raw) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    const std::string_view method = info->method() == nullptr ? "" : info->method();
    if (!method.starts_with("/prefixd.v1.Admin/")) return nullptr;
    std::string verb = VerbOf(method);
    if (!IsAudited(verb)) return nullptr;
    return new Auditor(gate_, log_, std::move(verb), raw_, info->server_context());
  }

 private:
  Gate* const gate_;
  const std::shared_ptr<AuditLog> log_;
  const bool raw_;
};

}  // namespace

bool IsAudited(std::string_view verb) {
  return verb.starts_with("Admin.") && std::ranges::find(kNotAudited, verb) == kNotAudited.end();
}

absl::StatusOr<std::shared_ptr<AuditLog>> AuditLog::Open(const std::string& path) {
  const int file =
      path.empty()
          ? -1
          : ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (!path.empty() && file < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("audit-log: ", path, " cannot be opened: ", std::strerror(errno)));
  }
  return std::shared_ptr<AuditLog>(new AuditLog(path, file));
}

AuditLog::~AuditLog() {
  if (file_ >= 0) ::close(file_);
}

void AuditLog::Write(const std::string& line) {
  spdlog::info("audit: {}", line);
  if (file_ < 0) return;
  const std::string text =
      absl::StrCat(absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()),
                   " audit: ", line, "\n");
  if (::write(file_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    spdlog::warn("audit-log: {} cannot be written: {}", path_, std::strerror(errno));
  }
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> Auditing(
    Gate* gate, std::shared_ptr<AuditLog> log, bool raw) {
  return std::make_unique<Factory>(gate, std::move(log), raw);
}

}  // namespace prefixd::daemon
