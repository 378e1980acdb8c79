#include "bench/trace/player.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/checksum.h"
#include "base/status.h"
#include "bench/common/mix.h"
#include "bench/common/patience.h"
#include "bench/common/timing.h"

namespace prefixd::bench {
namespace {

constexpr int kBlocksAtOnce = 32;  // of one Put

}  // namespace

TracePlayer::TracePlayer(const TraceBudget& budget)
    : shape_(budget.shape), has_ssd_(budget.ssd_bytes > 0) {
  std::string data(shape_.page_bytes, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(Mix(i));
  page_.set_page_bytes(data.size());
  page_.set_tokens(shape_.block_tokens);
  page_.set_xxh3(base::Xxh3(std::as_bytes(std::span(data))));
  page_.set_data(std::move(data));
}

absl::StatusOr<std::unique_ptr<TracePlayer>> TracePlayer::Start(const TraceBudget& budget) {
  auto player = std::unique_ptr<TracePlayer>(new TracePlayer(budget));
  std::filesystem::create_directories(budget.directory);
  const std::string ssd = budget.ssd_bytes == 0 ? "off" : absl::StrCat(budget.ssd_bytes);
  PREFIXD_ASSIGN_OR_RETURN(
      player->daemon_,
      DaemonProcess::Start({.directory = budget.directory,
                            .ram = std::to_string(budget.ram_bytes),
                            .ssd = ssd,
                            .flags = {"--log-level", "warning", "--ssd-shallow-tokens",
                                      std::to_string(budget.shape.shallow_tokens()),
                                      "--ssd-write-share", budget.write_share}}));
  player->stats_ = std::make_unique<DaemonStats>(player->daemon_->address());
  PREFIXD_ASSIGN_OR_RETURN(
      player->session_,
      RawSession::Open(
          {.address = player->daemon_->address(), .name = "trace", .wants_arena = false}));
  PREFIXD_ASSIGN_OR_RETURN(player->space_, player->session_->OpenSpace(IdentityOf(budget.shape)));
  return player;
}

absl::StatusOr<TraceLookUp> TracePlayer::Play(std::span<const TraceBlock> path) {
  const std::vector<block::Token> tokens = TokensOf(shape_, path);
  v1::AcquireRequest request;
  request.set_session(session_->id());
  *request.add_items()->mutable_sequence() = SequenceOf(tokens);
  PREFIXD_ASSIGN_OR_RETURN(const v1::AcquireReply reply, session_->Acquire(request));
  if (reply.answers_size() != 1) return absl::InternalError("acquire: not one answer");
  const v1::Answer& answer = reply.answers(0);
  PREFIXD_ASSIGN_OR_RETURN(const TraceLookUp found, Count(answer));
  const absl::Status stored = Store(tokens);
  if (answer.lease() != 0) PREFIXD_RETURN_IF_ERROR(session_->Release({answer.lease()}));
  PREFIXD_RETURN_IF_ERROR(stored);
  return found;
}

absl::StatusOr<TraceWrites> TracePlayer::Writes() {
  PREFIXD_ASSIGN_OR_RETURN(const v1::GetStatsReply stats, stats_->Get());
  return TraceWrites{.spilled_bytes = CounterOf(stats, "bytes.spilled"),
                     .rewritten_bytes = CounterOf(stats, "bytes.rewritten"),
                     .ssd_file_bytes = stats.ssd_file_bytes()};
}

absl::StatusOr<TraceTokens> TracePlayer::Tokens() {
  PREFIXD_ASSIGN_OR_RETURN(const v1::GetStatsReply stats, stats_->Get());
  return TraceTokens{.requested = CounterOf(stats, "tokens.requested"),
                     .restorable = CounterOf(stats, "tokens.restorable"),
                     .from_ssd = CounterOf(stats, "tokens.restorable.ssd")};
}

v1::Sequence TracePlayer::SequenceOf(std::span<const block::Token> tokens) const {
  v1::Sequence sequence;
  sequence.set_space(space_);
  sequence.mutable_tokens()->Add(tokens.begin(), tokens.end());
  return sequence;
}

absl::StatusOr<TraceLookUp> TracePlayer::Count(const v1::Answer& answer) {
  uint32_t usable = answer.restorable_tokens();
  if (answer.ssd_bytes() > 0) {
    PREFIXD_ASSIGN_OR_RETURN(const uint32_t read, ReadAll(answer.lease()));
    usable = std::min(usable, read);
  }
  TraceLookUp found;
  for (const v1::Shortening& cut : answer.shortened_by()) {
    if (cut.reason() != v1::SHORTEN_REASON_LEASE_QUOTA) continue;
    found.beyond_quota = cut.tokens_lost() / shape_.tokens();
  }
  const uint64_t blocks = usable / shape_.tokens() + found.beyond_quota;
  found.ssd = std::min(blocks, answer.ssd_bytes() / (shape_.page_bytes * shape_.kv_blocks));
  found.ram = blocks - found.ssd;
  return found;
}

absl::StatusOr<uint32_t> TracePlayer::ReadAll(uint64_t lease) {
  v1::FetchRequest request;
  request.set_session(session_->id());
  request.set_lease(lease);
  grpc::ClientContext context;
  SetDeadline(&context, kPatience);
  const auto stream = session_->stub().Fetch(&context, request);
  uint32_t usable = ~uint32_t{0};
  for (v1::FetchChunk chunk; stream->Read(&chunk);) {
    if (chunk.has_ready()) usable = std::min(usable, chunk.ready().usable_tokens());
  }
  PREFIXD_RETURN_IF_ERROR(FromGrpc("fetch", stream->Finish()));
  return usable;
}

absl::Status TracePlayer::Store(std::span<const block::Token> tokens) {
  v1::ReserveRequest request;
  request.set_session(session_->id());
  *request.mutable_sequence() = SequenceOf(tokens);
  v1::ReserveReply plan;
  grpc::ClientContext context;
  SetDeadline(&context, kPatience);
  PREFIXD_RETURN_IF_ERROR(FromGrpc("reserve", session_->stub().Reserve(&context, request, &plan)));
  int next = 0;
  while (next < plan.blocks_size() && plan.blocks(next).state() == v1::BLOCK_STATE_PRESENT) {
    ++next;
  }
  bool room = true;
  if (next == plan.blocks_size()) return Commit(plan, next);
  while (next < plan.blocks_size() && room) {
    const int end = std::min(plan.blocks_size(), next + kBlocksAtOnce);
    PREFIXD_ASSIGN_OR_RETURN(room, Put(plan, next, end));
    next = end;
  }
  if (!room) Abandon(plan.reservation());
  return absl::OkStatus();
}

v1::CommitRequest TracePlayer::HeaderOf(const v1::ReserveReply& plan, int end) const {
  const v1::BlockPlan& last = plan.blocks(end - 1);
  v1::CommitRequest header;
  header.set_session(session_->id());
  header.set_reservation(plan.reservation());
  header.set_tokens(last.first_token() + last.tokens());
  header.set_sequence_end(end == plan.blocks_size());
  return header;
}

absl::Status TracePlayer::Commit(const v1::ReserveReply& plan, int end) {
  v1::CommitReply reply;
  grpc::ClientContext context;
  SetDeadline(&context, kPatience);
  return FromGrpc("commit", session_->stub().Commit(&context, HeaderOf(plan, end), &reply));
}

// Sends blocks [first, end) and commits up to there. False: no room, and none will be made.
absl::StatusOr<bool> TracePlayer::Put(const v1::ReserveReply& plan, int first, int end) {
  v1::CommitReply reply;
  grpc::ClientContext context;
  // A prompt longer than everything that there is room for must not wait for long.
  SetDeadline(&context, has_ssd_ ? kPatience : std::chrono::milliseconds(250));
  const auto stream = session_->stub().Put(&context, &reply);
  v1::PutChunk chunk;
  *chunk.mutable_header() = HeaderOf(plan, end);
  bool open = stream->Write(chunk);
  *chunk.mutable_page() = page_;
  for (int i = first; open && i < end; ++i) {
    if (plan.blocks(i).state() == v1::BLOCK_STATE_PRESENT) continue;
    chunk.mutable_page()->set_first_token(plan.blocks(i).first_token());
    open = stream->Write(chunk);
  }
  stream->WritesDone();
  const absl::Status status = FromGrpc("put", stream->Finish());
  if (absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status)) return false;
  PREFIXD_RETURN_IF_ERROR(status);
  return std::ranges::none_of(reply.blocks(), [](const v1::BlockResult& block) {
    return block.result() == v1::STORE_RESULT_REFUSED;
  });
}

void TracePlayer::Abandon(uint64_t reservation) {
  v1::AbandonRequest request;
  request.set_session(session_->id());
  request.set_reservation(reservation);
  v1::Ack reply;
  grpc::ClientContext context;
  SetDeadline(&context, kPatience);
  session_->stub().Abandon(&context, request, &reply);  // it may be over already
}

absl::StatusOr<TraceRun> PlayTrace(const Trace& trace, const TraceShape& shape,
                                   TracePlayer& player) {
  TraceRun run;
  TraceResult& result = run.result;
  const double start = NowMicros();
  for (const Trace::Request& request : trace.requests) {
    if (request.blocks == 0) continue;
    PREFIXD_ASSIGN_OR_RETURN(const TraceLookUp found, player.Play(trace.blocks(request)));
    result.requested += request.blocks;
    result.ram_hits += found.ram;
    result.ssd_hits += found.ssd;
    run.beyond_quota += found.beyond_quota;
  }
  run.wall_us = NowMicros() - start;
  const uint64_t block_bytes = shape.page_bytes * shape.kv_blocks;
  run.stored_bytes = (result.requested - result.hits()) * block_bytes;
  PREFIXD_ASSIGN_OR_RETURN(run.writes, player.Writes());
  result.ssd_writes = (run.writes.spilled_bytes + run.writes.rewritten_bytes) / block_bytes;
  return run;
}

}  // namespace prefixd::bench
