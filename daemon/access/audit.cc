#include "daemon/access/audit.h"

#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/server_interceptor.h"

#include "base/utf8.h"
#include "daemon/message.h"
#include "prefixd/v1/admin.pb.h"

namespace prefixd::daemon {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using grpc::experimental::InterceptionHookPoints;

constexpr size_t kShownBytes = 512;
constexpr size_t kReadBytes = 64 * kShownBytes;  // longer requests are not shown

// Returns "Admin.Clear" of "/prefixd.v1.Admin/Clear"; empty for another package.
std::string VerbOf(std::string_view method) {
  constexpr std::string_view kPackage = "/prefixd.v1.";
  if (!method.starts_with(kPackage)) return "";
  return absl::StrReplaceAll(std::string(method.substr(kPackage.size())), {{"/", "."}});
}

// Holds what a request asks for.
struct Asks {
  std::string text;       // its fields; long ones are cut short
  bool has_more = false;  // it is a later step of what an earlier request began
};

// Takes the place where a long work goes on out of the request, so that all steps read the same.
bool TakeCursor(Message* message) {
  const google::protobuf::Reflection& fields = *message->GetReflection();
  const FieldDescriptor* const cursor = message->GetDescriptor()->FindFieldByName("cursor");
  const FieldDescriptor* const purge = message->GetDescriptor()->FindFieldByName("purge");
  if (cursor == nullptr || !fields.HasField(*message, cursor)) return false;
  // A Clear that is no purge has no steps.
  if (purge != nullptr && !fields.GetBool(*message, purge)) return false;
  fields.ClearField(message, cursor);
  return true;
}

Asks WhatOf(const std::string& verb, const grpc::ByteBuffer& request, size_t bytes) {
  const auto* const method = google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
      absl::StrCat("prefixd.v1.", verb));
  if (method == nullptr) return {};
  const std::unique_ptr<Message> message(google::protobuf::MessageFactory::generated_factory()
                                             ->GetPrototype(method->input_type())
                                             ->New());
  if (bytes > kReadBytes || (bytes > 0 && !ReadSmall(request, message.get()).ok())) {
    return {absl::StrCat("a request of ", bytes, " bytes")};
  }
  Asks asks;
  asks.has_more = TakeCursor(message.get());
  asks.text = message->ShortDebugString();
  if (asks.text.size() > kShownBytes) {
    asks.text.resize(kShownBytes);
    asks.text += "...";
  }
  // A caller that only looks at the budgets sends no new ones.
  if (asks.text.empty()) asks.text = verb == "Admin.SetBudgets" ? "no change" : "everything";
  return asks;
}

class Auditor final : public grpc::experimental::Interceptor {
 public:
  Auditor(const Gate* gate, std::shared_ptr<AuditLog> log, std::string verb,
          grpc::ServerContextBase* context)
      : gate_(gate), log_(std::move(log)), verb_(std::move(verb)), context_(context) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE)) {
      Note(static_cast<const grpc::ByteBuffer*>(methods->GetRecvMessage()));
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      End(methods->GetSendStatus());
    } else if (methods->QueryInterceptionHookPoint(
                   InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      log_->Write(Line(Read(), "begins"));  // a stream, which may go on for days
    }
    methods->Proceed();
  }

 private:
  // The connection may be gone when the call ends. The message is not read before the call was let
  // in; the service empties it.
  void Note(const grpc::ByteBuffer* request) {
    caller_ = gate_ == nullptr ? Gate::DescribePeer(*context_) : gate_->Describe(*context_);
    if (request == nullptr) return;
    bytes_ = request->Length();
    if (bytes_ <= kReadBytes) request_ = *request;
  }
  Asks Read() const { return WhatOf(verb_, request_, bytes_); }
  std::string Line(const Asks& asks, const std::string& outcome) const {
    return absl::StrCat(verb_, " by ", caller_.name, " (", caller_.from, "): ", asks.text, ": ",
                        outcome);
  }
  void End(const grpc::Status& status) {
    // Strangers cannot fill the disk: the gate counts them, and logs one a second.
    if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) return;
    const Asks asks = Read();
    if (status.ok()) {
      return log_->WriteStep({.who = caller_.name,
                              .work = absl::StrCat(verb_, " ", asks.text),
                              .is_first = !asks.has_more},
                             Line(asks, "OK"));
    }
    log_->WriteRefusal(
        caller_.name, absl::StrCat("refused with code ", status.error_code()),
        Line(asks, absl::StrCat("refused, ", base::Printable(status.error_message()))));
  }

  const Gate* const gate_;
  const std::shared_ptr<AuditLog> log_;
  const std::string verb_;
  grpc::ServerContextBase* const context_;
  Gate::Caller caller_;
  size_t bytes_ = 0;
  grpc::ByteBuffer request_;
};

class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  Factory(const Gate* gate, std::shared_ptr<AuditLog> log) : gate_(gate), log_(std::move(log)) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    const std::string_view method = info->method() == nullptr ? "" : info->method();
    if (!method.starts_with("/prefixd.v1.Admin/")) return nullptr;
    std::string verb = VerbOf(method);
    if (!IsAudited(verb)) return nullptr;
    return new Auditor(gate_, log_, std::move(verb), info->server_context());
  }

 private:
  const Gate* const gate_;
  const std::shared_ptr<AuditLog> log_;
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> Auditing(
    const Gate* gate, std::shared_ptr<AuditLog> log) {
  return std::make_unique<Factory>(gate, std::move(log));
}

}  // namespace prefixd::daemon
