#include "bench/common/daemon_stats.h"

#include <chrono>

#include "absl/strings/str_cat.h"

#include "bench/common/raw_session.h"
#include "wire/admin_socket.h"
#include "wire/grpc_status.h"

namespace prefixd::bench {
namespace {

void SetUp(grpc::ClientContext* context) {
  context->set_wait_for_ready(true);
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
}

uint64_t Find(const google::protobuf::RepeatedPtrField<v1::Count>& counts,
              const std::string& name) {
  for (const v1::Count& count : counts) {
    if (count.name() == name) return count.value();
  }
  return 0;
}

}  // namespace

DaemonStats::DaemonStats(const std::string& address)
    : stub_(v1::Admin::NewStub(
          OpenChannel("unix://" + wire::AdminSocketOf(wire::SocketPathOf(address))))) {}

absl::StatusOr<v1::GetStatsReply> DaemonStats::Get() {
  grpc::ClientContext context;
  SetUp(&context);
  v1::GetStatsReply reply;
  if (absl::Status status = wire::FromGrpc("stats", stub_->GetStats(&context, {}, &reply));
      !status.ok())
    return status;
  return reply;
}

absl::Status DaemonStats::Clear() {
  grpc::ClientContext context;
  SetUp(&context);
  v1::ClearReply reply;
  return wire::FromGrpc("clear", stub_->Clear(&context, {}, &reply));
}

absl::Status DaemonStats::Flush() {
  grpc::ClientContext context;
  SetUp(&context);
  v1::FlushReply reply;
  return wire::FromGrpc("flush", stub_->Flush(&context, {}, &reply));
}

uint64_t CounterOf(const v1::GetStatsReply& stats, const std::string& name) {
  return Find(stats.counters(), name);
}
uint64_t RamPartOf(const v1::GetStatsReply& stats, const std::string& name) {
  return Find(stats.ram_parts(), name);
}

}  // namespace prefixd::bench
