#include "bench/common/daemon_stats.h"

#include <chrono>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "bench/common/patience.h"
#include "bench/common/raw_session.h"
#include "wire/admin_socket.h"

namespace prefixd::bench {
namespace {

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
  SetDeadline(&context, kPatience);
  context.set_wait_for_ready(true);
  v1::GetStatsReply reply;
  PREFIXD_RETURN_IF_ERROR(FromGrpc("stats", stub_->GetStats(&context, {}, &reply)));
  return reply;
}

absl::Status DaemonStats::Clear() {
  grpc::ClientContext context;
  SetDeadline(&context, kPatience);
  v1::ClearReply reply;
  return FromGrpc("clear", stub_->Clear(&context, {}, &reply));
}

absl::Status DaemonStats::Flush() {
  grpc::ClientContext context;
  SetDeadline(&context, kPatience);
  v1::FlushReply reply;
  return FromGrpc("flush", stub_->Flush(&context, {}, &reply));
}

uint64_t CounterOf(const v1::GetStatsReply& stats, const std::string& name) {
  return Find(stats.counters(), name);
}
uint64_t RamPartOf(const v1::GetStatsReply& stats, const std::string& name) {
  return Find(stats.ram_parts(), name);
}

}  // namespace prefixd::bench
