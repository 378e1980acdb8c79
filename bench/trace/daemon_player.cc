// A trace against the real daemon.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/checksum.h"
#include "base/status.h"
#include "bench/common/daemon_stats.h"
#include "bench/common/mix.h"
#include "bench/common/raw_session.h"
#include "bench/trace/player.h"
#include "wire/grpc_status.h"

namespace prefixd::bench {
namespace {

constexpr std::chrono::seconds kPatience(60);
constexpr int kBlocksAtOnce = 32;  // of one Put

void SetDeadline(grpc::ClientContext* context, std::chrono::milliseconds patience = kPatience) {
  context->set_deadline(std::chrono::system_clock::now() + patience);
}

class OverTheWire : public TracePlayer {
 public:
  static absl::StatusOr<std::unique_ptr<TracePlayer>> Open(const TraceBudget& budget) {
    auto player = std::unique_ptr<OverTheWire>(new OverTheWire(budget));
    std::filesystem::create_directories(budget.directory);
    const std::string ssd = budget.ssd_bytes == 0 ? "off" : absl::StrCat(budget.ssd_bytes);
    PREFIXD_ASSIGN_OR_RETURN(
        player->daemon_,
        DaemonProcess::Start({.directory = budget.directory,
                              .ram = std::to_string(budget.ram_bytes),
                              .ssd = ssd,
                              .flags = {"--log-level", "warning", "--ssd-shallow-tokens",
                                        std::to_string(budget.shape.shallow_tokens())}}));
    player->stats_ = std::make_unique<DaemonStats>(player->daemon_->address());
    PREFIXD_ASSIGN_OR_RETURN(
        player->session_,
        RawSession::Open(
            {.address = player->daemon_->address(), .name = "trace", .wants_arena = false}));
    PREFIXD_ASSIGN_OR_RETURN(player->space_, player->session_->OpenSpace(IdentityOf(budget.shape)));
    return player;
  }

  absl::StatusOr<TraceLookUp> Play(std::span<const TraceBlock> path) override {
    const std::vector<block::Token> tokens = TokensOf(shape_, path);
    v1::AcquireRequest request;
    request.set_session(session_->id());
    Fill(tokens, request.add_items()->mutable_sequence());
    PREFIXD_ASSIGN_OR_RETURN(const v1::AcquireReply reply, session_->Acquire(request));
    if (reply.answers_size() != 1) return absl::InternalError("acquire: not one answer");
    const v1::Answer& answer = reply.answers(0);
    PREFIXD_ASSIGN_OR_RETURN(const TraceLookUp found, Count(answer));
    const absl::Status stored = Store(tokens);
    if (answer.lease() != 0) PREFIXD_RETURN_IF_ERROR(session_->Release({answer.lease()}));
    PREFIXD_RETURN_IF_ERROR(stored);
    return found;
  }
  void PassTime(double) override {}  // a daemon lives in its own time
  absl::StatusOr<TraceWrites> Writes() override {
    PREFIXD_ASSIGN_OR_RETURN(const v1::GetStatsReply stats, stats_->Get());
    return TraceWrites{.spilled_bytes = CounterOf(stats, "bytes.spilled"),
                       .rewritten_bytes = CounterOf(stats, "bytes.rewritten"),
                       .ssd_file_bytes = stats.ssd_file_bytes()};
  }

 private:
  explicit OverTheWire(const TraceBudget& budget)
      : shape_(budget.shape), has_ssd_(budget.ssd_bytes > 0) {
    std::string data(shape_.page_bytes, '\0');
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(Mix(i));
    page_.set_page_bytes(data.size());
    page_.set_tokens(shape_.block_tokens);
    page_.set_xxh3(base::Xxh3(std::as_bytes(std::span(data))));
    page_.set_data(std::move(data));
  }
  void Fill(std::span<const block::Token> tokens, v1::Sequence* proto) const {
    proto->set_space(space_);
    proto->mutable_tokens()->Add(tokens.begin(), tokens.end());
  }

  absl::StatusOr<TraceLookUp> Count(const v1::Answer& answer) {
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
  // Usable tokens.
  absl::StatusOr<uint32_t> ReadAll(uint64_t lease) {
    v1::FetchRequest request;
    request.set_session(session_->id());
    request.set_lease(lease);
    grpc::ClientContext context;
    SetDeadline(&context);
    const auto stream = session_->stub().Fetch(&context, request);
    uint32_t usable = ~uint32_t{0};
    for (v1::FetchChunk chunk; stream->Read(&chunk);) {
      if (chunk.has_ready()) usable = std::min(usable, chunk.ready().usable_tokens());
    }
    PREFIXD_RETURN_IF_ERROR(wire::FromGrpc("fetch", stream->Finish()));
    return usable;
  }

  absl::Status Store(std::span<const block::Token> tokens) {
    v1::ReserveRequest request;
    request.set_session(session_->id());
    Fill(tokens, request.mutable_sequence());
    v1::ReserveReply plan;
    grpc::ClientContext context;
    SetDeadline(&context);
    PREFIXD_RETURN_IF_ERROR(
        wire::FromGrpc("reserve", session_->stub().Reserve(&context, request, &plan)));
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
    if (!room) PREFIXD_RETURN_IF_ERROR(Abandon(plan.reservation()));
    return absl::OkStatus();
  }
  v1::CommitRequest HeaderOf(const v1::ReserveReply& plan, int end) const {
    const v1::BlockPlan& last = plan.blocks(end - 1);
    v1::CommitRequest header;
    header.set_session(session_->id());
    header.set_reservation(plan.reservation());
    header.set_tokens(last.first_token() + last.tokens());
    header.set_sequence_end(end == plan.blocks_size());
    return header;
  }
  absl::Status Commit(const v1::ReserveReply& plan, int end) {
    v1::CommitReply reply;
    grpc::ClientContext context;
    SetDeadline(&context);
    return wire::FromGrpc("commit", session_->stub().Commit(&context, HeaderOf(plan, end), &reply));
  }
  // Sends blocks [first, end) and commits up to there. False: no room, and none will be made.
  absl::StatusOr<bool> Put(const v1::ReserveReply& plan, int first, int end) {
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
    const absl::Status status = wire::FromGrpc("put", stream->Finish());
    if (absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status)) return false;
    PREFIXD_RETURN_IF_ERROR(status);
    return std::ranges::none_of(reply.blocks(), [](const v1::BlockResult& block) {
      return block.result() == v1::STORE_RESULT_REFUSED;
    });
  }
  absl::Status Abandon(uint64_t reservation) {
    v1::AbandonRequest request;
    request.set_session(session_->id());
    request.set_reservation(reservation);
    v1::Ack reply;
    grpc::ClientContext context;
    SetDeadline(&context);
    session_->stub().Abandon(&context, request, &reply);  // it may be over already
    return absl::OkStatus();
  }

  const TraceShape shape_;
  const bool has_ssd_;
  v1::PageBytes page_;  // every page's, but for its place
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<DaemonStats> stats_;
  std::unique_ptr<RawSession> session_;
  uint64_t space_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TracePlayer>> PlayDaemon(const TraceBudget& budget) {
  return OverTheWire::Open(budget);
}

}  // namespace prefixd::bench
