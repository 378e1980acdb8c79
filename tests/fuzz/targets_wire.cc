// Messages that workers and people send.
#include <optional>
#include <string_view>

#include "base/bytes.h"
#include "prefixd/v1/admin.pb.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/targets.h"
#include "tests/support/kv_pages.h"
#include "wire/admin.h"
#include "wire/identity.h"
#include "wire/request.h"
#include "wire/sequence.h"
#include "wire/trace_context.h"

namespace prefixd::fuzz {
namespace {

// What the daemon does with a message before it asks the cache.
void Take(const v1::Sequence& sequence) {
  const absl::StatusOr<block::Request> taken = wire::FromProto(sequence);
  if (!taken.ok()) return;
  v1::Sequence again;
  wire::ToProto(taken->space, {taken->tokens, taken->content}, &again);
  const absl::StatusOr<block::Request> twice = wire::FromProto(again);
  Expect(twice.ok() && twice->tokens == taken->tokens, "a sequence comes back as it went");
}
void Take(v1::AcquireRequest request) {
  for (const v1::AcquireRequest::Item& item : request.items()) Take(item.sequence());
  wire::TakeItems(&request, uint64_t{16} << 20).IgnoreError();
  wire::FromProto(request.release()).IgnoreError();
}
void Take(const v1::ReserveRequest& request) { wire::FromProto(request).IgnoreError(); }
void Take(const v1::PinRequest& request) { wire::FromProto(request).IgnoreError(); }
void Take(const v1::CommitRequest& request) { wire::FromProto(request).IgnoreError(); }
void Take(const v1::AttachRequest& request) { wire::Check(request).IgnoreError(); }
void Take(const v1::NotSharedRequest& request) { wire::FromProto(request).IgnoreError(); }
void Take(const v1::FetchRequest& request) { wire::FromProto(request).IgnoreError(); }
void Take(const v1::WhyRequest& request) { wire::FromProto(request).IgnoreError(); }
void Take(const v1::OpenSpaceRequest& request) {
  absl::StatusOr<block::SpaceIdentity> identity = wire::FromProto(request.identity());
  if (!identity.ok() || !block::NormalizeAndValidate(&*identity).ok()) return;
  const absl::StatusOr<block::SpaceIdentity> again = wire::FromProto(wire::ToProto(*identity));
  Expect(again.ok() && block::Encode(*again) == block::Encode(*identity),
         "an identity comes back as it went");
  const absl::StatusOr<block::SpaceIdentity> stored =
      block::DecodeSpaceIdentity(block::Encode(*identity));
  Expect(stored.ok() && *stored == *identity, "a valid identity is stored and read back");
}

template <typename Message>
void Parse(Bytes bytes) {
  Message message;
  if (message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) Take(message);
}

constexpr void (*kParsers[])(Bytes) = {
    Parse<v1::AcquireRequest>, Parse<v1::ReserveRequest>,   Parse<v1::CommitRequest>,
    Parse<v1::AttachRequest>,  Parse<v1::FetchRequest>,     Parse<v1::PinRequest>,
    Parse<v1::WhyRequest>,     Parse<v1::OpenSpaceRequest>, Parse<v1::NotSharedRequest>,
};

template <typename Message>
std::string Seed(int parser, const Message& message) {
  return static_cast<char>(parser) + message.SerializeAsString();
}

void Request(Bytes input) {
  if (input.empty()) return;
  kParsers[static_cast<uint8_t>(input[0]) % std::size(kParsers)](input.subspan(1));
}

std::vector<std::string> RequestSeeds() {
  v1::AcquireRequest acquire;
  acquire.set_session(1);
  v1::AcquireRequest::Item& item = *acquire.add_items();
  for (uint32_t token = 0; token < 40; ++token) item.mutable_sequence()->add_tokens(token);
  v1::ContentKey& key = *item.mutable_sequence()->add_content();
  key.set_start(3);
  key.set_length(5);
  key.set_digest(std::string(32, 'd'));
  item.add_groups(0);
  item.add_readable(3);
  item.set_request_id("r");
  v1::ReserveRequest reserve;
  *reserve.mutable_sequence() = item.sequence();
  v1::OpenSpaceRequest open;
  block::SpaceIdentity identity = testing::SmallIdentity(64, 4);
  Expect(block::NormalizeAndValidate(&identity).ok(), "seeds are valid");
  *open.mutable_identity() = wire::ToProto(identity);
  v1::AttachRequest attach;
  attach.set_worker("w");
  attach.set_protocol(1);
  attach.set_resume(std::string(16, 'k'));
  v1::PinRequest pin;
  *pin.mutable_sequence() = item.sequence();
  return {Seed(0, acquire), Seed(1, reserve), Seed(3, attach), Seed(6, pin), Seed(8, open)};
}

// What gRPC's metadata says of a trace.
void TraceHeader(Bytes input) {
  const std::string_view text = base::AsText(input);
  wire::IsTracestate(text);
  const std::optional<wire::TraceContext> context = wire::ParseTraceparent(text);
  if (!context.has_value()) return;
  const std::optional<wire::TraceContext> again =
      wire::ParseTraceparent(wire::Traceparent(*context));
  Expect(again.has_value() && again->trace_id == context->trace_id &&
             again->span_id == context->span_id && again->sampled == context->sampled,
         "a trace context comes back as it went");
}

std::vector<std::string> TraceHeaderSeeds() {
  return {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
          "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-later",
          "rojo=00f067aa0ba902b7,fw529a3039@dt=FfAuzg~ 1"};
}

}  // namespace

std::vector<Target> WireTargets() {
  return {{"requests", Request, RequestSeeds}, {"traces", TraceHeader, TraceHeaderSeeds}};
}

}  // namespace prefixd::fuzz
