#include "bench/hostile/attacks.h"

#include <array>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "grpcpp/generic/generic_stub.h"

#include "base/status.h"
#include "bench/common/raw_transfer.h"
#include "bench/hostile/unfinished_messages.h"
#include "client/cpp/raw_stream.h"
#include "wire/identity.h"
#include "wire/limits.h"

namespace prefixd::bench {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kMessageBytes = wire::TokenMessageBytes(kAttackedRamBytes);
// A parsed content key takes so much, with one token under it.
constexpr uint64_t kKeyBytes = 208;
constexpr uint64_t kUnfoldedBytes = kMessageBytes + kMiB;
constexpr uint32_t kAnnouncedTokens = 390'000;  // one session may announce half of all
constexpr std::array<std::byte, 32> kDigest{std::byte{7}};

// Keys of so many tokens each, from `first` on.
std::vector<v1::ContentKey> Keys(uint32_t first, uint32_t count, uint32_t length) {
  std::vector<v1::ContentKey> keys(count);
  for (uint32_t i = 0; i < count; ++i) {
    keys[i].set_start(first + length * i);
    keys[i].set_length(length);
    keys[i].set_digest(kDigest.data(), kDigest.size());
  }
  return keys;
}

absl::Status Reserve(Attacker& attacker, const RawSequence& sequence,
                     std::span<const uint32_t> turn_ends = {}) {
  v1::ReserveRequest request;
  request.set_session(attacker.session().id());
  FillSequence(sequence, request.mutable_sequence());
  request.mutable_turn_ends()->Add(turn_ends.begin(), turn_ends.end());
  v1::ReserveReply reply;
  grpc::ClientContext context;
  SetDeadline(&context, seconds(60));
  PREFIXD_RETURN_IF_ERROR(
      FromGrpc("reserve", attacker.session().stub().Reserve(&context, request, &reply)));
  v1::AbandonRequest abandon;
  abandon.set_session(attacker.session().id());
  abandon.set_reservation(reply.reservation());
  v1::Ack ack;
  grpc::ClientContext end;
  return FromGrpc("abandon", attacker.session().stub().Abandon(&end, abandon, &ack));
}

uint32_t Of(double share, uint32_t limit) {
  return static_cast<uint32_t>(share * limit) / PageSource::kBlockTokens * PageSource::kBlockTokens;
}

// --- requests of a size ---

// The content of `sequence` begins one token later in the second space: their ranges cross.
RawSequence Crossed(uint64_t space, double share, uint32_t first) {
  const uint32_t tokens = Of(share, kUnfoldedBytes / kKeyBytes);
  RawSequence sequence = MakeSequence(space, tokens, tokens);
  sequence.content = Keys(first, tokens / 2 - 1, 2);
  return sequence;
}
absl::StatusOr<uint64_t> SecondSpace(Attacker& attacker) {
  block::SpaceIdentity identity = attacker.source().identity();
  identity.salt = "second";
  return attacker.session().OpenSpace(identity);
}
absl::Status StoreCrossed(Attacker& attacker, double share) {
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t second, SecondSpace(attacker));
  PREFIXD_RETURN_IF_ERROR(
      StorePut(attacker.session(), attacker.source(), Crossed(attacker.space(), share, 0)));
  return StorePut(attacker.session(), attacker.source(), Crossed(second, share, 1));
}
absl::Status MatchCrossed(Attacker& attacker, double share) {
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t second, SecondSpace(attacker));
  v1::AcquireRequest request;
  request.set_session(attacker.session().id());
  for (const auto& [space, first] : {std::pair(attacker.space(), 0u), std::pair(second, 1u)}) {
    v1::AcquireRequest::Item* const item = request.add_items();
    item->set_set(1);
    FillSequence(Crossed(space, share, first), item->mutable_sequence());
  }
  v1::AcquireReply reply;
  grpc::ClientContext context;
  SetDeadline(&context, seconds(60));
  return FromGrpc("match", attacker.session().stub().Match(&context, request, &reply));
}

absl::Status ReserveContent(Attacker& attacker, double share) {
  const auto keys = static_cast<uint32_t>(share * static_cast<double>(kUnfoldedBytes / kKeyBytes));
  RawSequence sequence = MakeSequence(attacker.space(), 1, keys);
  sequence.content = Keys(0, keys, 1);
  return Reserve(attacker, sequence);
}

absl::Status ReserveTurns(Attacker& attacker, double share) {
  const auto count = static_cast<uint32_t>(share * wire::kMaxEnds);
  std::vector<uint32_t> ends(count);
  for (uint32_t i = 0; i < count; ++i) ends[i] = 1 + (i * 7'919) % (count * 64);  // in no order
  return Reserve(attacker, MakeSequence(attacker.space(), 2, count * 64), ends);
}

absl::Status MatchLong(Attacker& attacker, double share) {
  v1::AcquireRequest request;
  request.set_session(attacker.session().id());
  const auto tokens = static_cast<uint32_t>((kMessageBytes - 4096) / wire::kMaxItems / 4);
  for (uint32_t i = 0; i < wire::kMaxItems; ++i) {
    FillSequence(MakeSequence(attacker.space(), 100 + i, Of(share, tokens)),
                 request.add_items()->mutable_sequence());
  }
  v1::AcquireReply reply;
  grpc::ClientContext context;
  SetDeadline(&context, seconds(60));
  return FromGrpc("match", attacker.session().stub().Match(&context, request, &reply));
}

absl::Status ReserveLong(Attacker& attacker, double share) {
  return Reserve(attacker, MakeSequence(attacker.space(), 3, Of(share, kAnnouncedTokens)));
}

// --- what takes from others ---

absl::Status Unfinished(Attacker& attacker) {
  UnfinishedMessages messages(attacker.address());
  if (!messages.connected()) return absl::UnavailableError("unfinished: nobody listens");
  for (int i = 0; i < 60; ++i) {
    if (messages.Send("/prefixd.v1.PrefixCache/Match", 16 * kMiB - 1) == 0) break;
  }
  return absl::OkStatus();
}

// Two bytes of an empty item are two hundred once they are parsed.
absl::Status Unfolding(Attacker& attacker) {
  static const std::string items = [] {
    std::string text;
    while (text.size() < kMessageBytes - 2) text += std::string("\x12\0", 2);
    return text;
  }();
  grpc::GenericStub stub(attacker.session().channel());
  grpc::Slice slice(items);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer reply;
  grpc::ClientContext context;
  SetDeadline(&context, seconds(60));
  grpc::CompletionQueue queue;
  const auto call =
      stub.PrepareUnaryCall(&context, "/prefixd.v1.PrefixCache/Match", request, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return FromGrpc("match", status);
}

// A session's staging, mapped and written, whose session has ended.
absl::Status KeepStaging(Attacker& attacker) {
  if (attacker.kept.size() >= 100) attacker.kept.clear();
  auto session = attacker.OpenSession(8 * kMiB);
  PREFIXD_RETURN_IF_ERROR(session.status());
  std::memset((*session)->staging().data(), 1, (*session)->staging().size());
  (*session)->End();
  attacker.kept.push_back(*std::move(session));
  return absl::OkStatus();
}

absl::Status OpenSessions(Attacker& attacker) {
  if (attacker.kept.size() >= 3'000) attacker.kept.clear();
  auto session = attacker.OpenSession();
  PREFIXD_RETURN_IF_ERROR(session.status());
  attacker.kept.push_back(*std::move(session));
  return absl::OkStatus();
}

absl::Status Salts(Attacker& attacker) {
  block::SpaceIdentity identity = attacker.source().identity();
  identity.salt = absl::StrCat("user ", attacker.Next());
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t space, attacker.session().OpenSpace(identity));
  return StorePut(attacker.session(), attacker.source(),
                  MakeSequence(space, attacker.Next(), PageSource::kBlockTokens));
}

// First bytes of pages, as many as a reservation has, which never come whole.
absl::Status OneBytePieces(Attacker& attacker) {
  constexpr uint32_t kBlocks = 256;
  const RawSequence sequence =
      MakeSequence(attacker.space(), attacker.Next(), kBlocks * PageSource::kBlockTokens);
  v1::ReserveRequest request;
  request.set_session(attacker.session().id());
  FillSequence(sequence, request.mutable_sequence());
  v1::ReserveReply plan;
  grpc::ClientContext context;
  SetDeadline(&context, seconds(60));
  PREFIXD_RETURN_IF_ERROR(
      FromGrpc("reserve", attacker.session().stub().Reserve(&context, request, &plan)));
  grpc::ClientContext put;
  SetDeadline(&put, seconds(5));
  client::RawStream stream(attacker.session().page_channel(), "/prefixd.v1.PrefixCache/Put", &put);
  v1::PutChunk chunk;
  chunk.mutable_header()->set_session(attacker.session().id());
  chunk.mutable_header()->set_reservation(plan.reservation());
  bool open = stream.Write(client::Serialize(chunk));
  for (uint32_t block = 0; open && block < kBlocks; ++block) {
    v1::PageBytes* const page = chunk.mutable_page();
    page->set_first_token(block * PageSource::kBlockTokens);
    page->set_tokens(PageSource::kBlockTokens);
    page->set_page_bytes(attacker.source().page_bytes(0));
    page->set_data("x");
    page->set_xxh3(0);
    open = stream.Write(client::Serialize(chunk));
  }
  return absl::OkStatus();  // broken off
}

// Puts of a header alone, until they are ended.
absl::Status HalfOpenPuts(Attacker& attacker) {
  constexpr size_t kStreams = 64;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientWriter<v1::PutChunk>>> streams;
  std::vector<v1::CommitReply> replies(kStreams);
  for (size_t i = 0; i < kStreams; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    SetDeadline(contexts.back().get(), std::chrono::hours(24));
    streams.push_back(attacker.session().stub().Put(contexts.back().get(), &replies[i]));
    v1::PutChunk header;
    header.mutable_header()->set_session(attacker.session().id());
    streams.back()->Write(header);
  }
  absl::Status last;
  for (size_t i = 0; i < kStreams; ++i) {
    contexts[i]->TryCancel();
    last = FromGrpc("put", streams[i]->Finish());
  }
  return absl::IsCancelled(last) ? absl::OkStatus() : last;
}

// Leases and plans whose caller does not wait for the answer.
absl::Status GiveUp(Attacker& attacker) {
  const RawSequence sequence = MakeSequence(attacker.space(), attacker.Next(), 4'096);
  v1::AcquireRequest acquire = AcquireOf(attacker.session(), sequence);
  acquire.mutable_items(0)->set_reserve(true);
  acquire.mutable_items(0)->set_wait_pending_ms(60'000);
  v1::AcquireReply reply;
  grpc::ClientContext context;
  SetDeadline(&context, milliseconds(1));
  return FromGrpc("acquire", attacker.session().stub().Acquire(&context, acquire, &reply));
}

// A session's worth of pages, one sequence after the other.
absl::Status StoreAlways(Attacker& attacker) {
  return StorePut(attacker.session(), attacker.source(),
                  MakeSequence(attacker.space(), attacker.Next(), 4'096));
}

// Measured values that teach the load model nonsense.
absl::Status Lie(Attacker& attacker) {
  const RawSequence sequence = MakeSequence(attacker.space(), 7, 4'096);
  (void)StorePut(attacker.session(), attacker.source(), sequence);
  PREFIXD_ASSIGN_OR_RETURN(const v1::AcquireReply reply,
                           attacker.session().Acquire(AcquireOf(attacker.session(), sequence)));
  v1::ReleaseRequest request;
  request.set_session(attacker.session().id());
  v1::Released* const release = request.add_release();
  release->set_lease(reply.answers(0).lease());
  release->set_used_tokens(4'096);
  release->set_load_us(uint64_t{1} << 62);
  release->set_first_token_us(uint64_t{1} << 62);
  release->set_prefill_tokens_per_s(1e300);
  v1::Ack ack;
  grpc::ClientContext context;
  return FromGrpc("release", attacker.session().stub().Release(&context, request, &ack));
}

template <absl::Status (*kPrepare)(Attacker&, double), absl::Status (*kSend)(Attacker&, double)>
absl::Status Whole(Attacker& attacker) {
  if (kPrepare != nullptr && attacker.kept.empty()) {
    attacker.kept.push_back(nullptr);  // prepared
    PREFIXD_RETURN_IF_ERROR(kPrepare(attacker, 1));
  }
  return kSend(attacker, 1);
}

constexpr SizedRequest kSizedRequests[] = {
    {"match of a crossed set", StoreCrossed, MatchCrossed},
    {"reserve with content", nullptr, ReserveContent},
    {"reserve with turn ends", nullptr, ReserveTurns},
    {"match of 16 items", nullptr, MatchLong},
    {"reserve of many tokens", nullptr, ReserveLong},
};
constexpr Attack kAttacks[] = {
    {"crossed sets", Whole<StoreCrossed, MatchCrossed>},
    {"content keys", Whole<nullptr, ReserveContent>},
    {"turn ends", Whole<nullptr, ReserveTurns>},
    {"long matches", Whole<nullptr, MatchLong>},
    {"long reservations", Whole<nullptr, ReserveLong>},
    {"unfinished messages", Unfinished},
    {"messages that unfold", Unfolding},
    {"kept staging", KeepStaging},
    {"sessions", OpenSessions},
    {"salts", Salts},
    {"one-byte pieces", OneBytePieces},
    {"half-open puts", HalfOpenPuts},
    {"callers that give up", GiveUp},
    {"endless stores", StoreAlways},
    {"lies", Lie},
};

}  // namespace

Attacker::Attacker(const std::string& address, uint64_t seed)
    : address_(address),
      source_({.model = "hostile", .layers = 1, .kv_heads = 1, .dim = 64}),
      next_(seed << 32) {}

absl::StatusOr<std::unique_ptr<RawSession>> Attacker::OpenSession(uint64_t staging_bytes) const {
  return RawSession::Open({.address = address_,
                           .name = "hostile",
                           .wants_arena = staging_bytes > 0,
                           .staging_bytes = staging_bytes});
}

absl::StatusOr<std::unique_ptr<Attacker>> Attacker::Start(const std::string& address,
                                                          uint64_t seed) {
  std::unique_ptr<Attacker> attacker(new Attacker(address, seed));
  PREFIXD_ASSIGN_OR_RETURN(attacker->session_, attacker->OpenSession());
  PREFIXD_ASSIGN_OR_RETURN(attacker->space_,
                           attacker->session_->OpenSpace(attacker->source_.identity()));
  return attacker;
}

std::span<const Attack> Attacks() { return kAttacks; }
std::span<const SizedRequest> SizedRequests() { return kSizedRequests; }

}  // namespace prefixd::bench
