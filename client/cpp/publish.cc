#include "publish.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/status.h"
#include "block/page_layout.h"
#include "raw_stream.h"
#include "wire/answer.h"
#include "wire/limits.h"
#include "wire/page_message.h"
#include "wire/sequence.h"

namespace prefixd::client {
namespace {

// Bytes that are put before they are published. Bounds what a reservation holds in the daemon's
// RAM.
constexpr uint64_t kBatchBytes = uint64_t{4} << 20;
// The same for blocks in staging memory, which the daemon takes in one call.
constexpr uint64_t kStagedBatchBytes = uint64_t{64} << 20;

// What waits for the disk would keep the session's other calls off the channel.
wire::DirectVerb VerbOf(const v1::CommitRequest& request) {
  return request.durability() == v1::DURABILITY_SSD ? wire::DirectVerb::kNone
                                                    : wire::DirectVerb::kCommit;
}

// Internal unless the plan's blocks are cut where our pages are and reach `tokens`. A plan may
// leave out blocks at its begin that the cache has.
absl::Status CheckPlan(const block::ReservePlan& plan, uint32_t block_tokens, uint32_t tokens) {
  uint32_t at = plan.blocks.empty() ? 0 : plan.blocks.front().first_token;
  if (at % block_tokens == 0) {
    for (const block::BlockPlan& b : plan.blocks) {
      if (b.first_token != at || b.tokens != std::min(block_tokens, tokens - at)) break;
      at += b.tokens;
    }
  }
  if (at == tokens) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("commit: the daemon's plan breaks off at token ", at, " of ", tokens));
}

class Publication {
 public:
  Publication(Core& core, const SpaceState& space, const OwnPages& pages,
              const PublishRequest& request)
      : core_(core),
        space_(space),
        pages_(pages),
        request_(request),
        session_(request.opened.space.session),
        staging_(request.opened.attachment->staging().get()),
        groups_(static_cast<uint32_t>(space.groups().size())),
        target_(static_cast<uint32_t>(request.sequence.tokens.size())) {}

  absl::Status Run(std::optional<Announced>* announced) {
    if (TakeAnnounced(announced)) {
      done_tokens_ = request_.committed_tokens;
    } else {
      PREFIXD_RETURN_IF_ERROR(Reserve());
    }
    std::vector<block::BlockPlan> blocks;
    for (const block::BlockPlan& b : plan_.blocks) {
      const bool last = b.first_token + b.tokens == target_;  // an end may be declared there
      if (b.first_token < target_ && (last || !IsDone(b))) blocks.push_back(b);
    }
    const auto first_foreign =
        std::find_if(blocks.begin(), blocks.end(),
                     [&](const block::BlockPlan& b) { return IsMissing(b) && !CanGive(b); });
    for (BlockIterator begin = blocks.begin(); begin != first_foreign;) {
      const BlockIterator end = BatchEnd(begin, first_foreign);
      PREFIXD_RETURN_IF_ERROR(StoreBatch({&*begin, static_cast<size_t>(end - begin)}));
      begin = end;
    }
    if (first_foreign == blocks.end()) return absl::OkStatus();
    const bool pending = first_foreign->state == block::BlockState::kPending;
    return absl::FailedPreconditionError(
        absl::StrCat(pending ? "commit: another worker is still writing the block at token "
                             : "commit: the cache lost the block at token ",
                     first_foreign->first_token, ", what follows it cannot be stored"));
  }
  Published TakePublished(absl::Status status) {
    return {.info = info_,
            .leases = std::move(leases_),
            .status = std::move(status),
            .coarser = coarser_};
  }
  const block::ReservePlan& plan() const { return plan_; }
  bool used_up() const { return target_ == PlanEnd(); }

 private:
  using Blocks = std::span<const block::BlockPlan>;

  uint32_t PlanEnd() const {
    return plan_.blocks.empty() ? 0 : plan_.blocks.back().first_token + plan_.blocks.back().tokens;
  }
  uint32_t Index(const block::BlockPlan& b) const { return b.first_token / pages_.block_tokens(); }
  // Whether the plan asks for the block's page of the group.
  bool IsWanted(const block::BlockPlan& b, uint32_t group) const {
    return !space_.IsState(group) && b.rungs[group] != block::kNoLimit;
  }
  // Whether every page of a full group that the plan asks for is here. Pages of a sliding group may
  // be left out.
  bool CanGive(const block::BlockPlan& b) const {
    for (uint32_t group = 0; group < groups_; ++group) {
      const bool full = space_.kinds()[group] == block::LayerKind::kFull;
      if (full && IsWanted(b, group) && !pages_.IsOwn(group, Index(b))) return false;
    }
    return true;
  }
  // Whether this reservation has published the block already.
  bool IsDone(const block::BlockPlan& b) const { return b.first_token + b.tokens <= done_tokens_; }
  bool IsMissing(const block::BlockPlan& b) const {
    return b.state != block::BlockState::kPresent && !IsDone(b);
  }

  // Takes over the announced plan if it covers what is to be stored, block by block. Returns false
  // if there is none of this session, or if it does not and is abandoned.
  bool TakeAnnounced(std::optional<Announced>* announced) {
    if (!announced->has_value() || (*announced)->session != session_) return false;
    const uint32_t end = (*announced)->tokens();
    plan_ = (*announced)->plan;
    if (target_ > end || (target_ != end && target_ % pages_.block_tokens() != 0) ||
        request_.committed_tokens >= end || !CheckPlan(plan_, pages_.block_tokens(), end).ok()) {
      core_.release_sender().Abandon(session_, plan_.reservation);
      announced->reset();
      plan_ = {};
      return false;
    }
    return true;
  }

  absl::Status Reserve() {
    std::vector<uint64_t> writable;
    for (uint32_t group = 0; group < groups_; ++group) {
      writable.push_back(pages_.rungs_used(group));
    }
    PREFIXD_ASSIGN_OR_RETURN(Announced announced,
                             client::Reserve(core_, space_,
                                             {.opened = request_.opened,
                                              .sequence = request_.sequence,
                                              .block_tokens = pages_.block_tokens(),
                                              .writable = writable,
                                              .turn_ends = request_.ends,
                                              .seeds = staging_ == nullptr,
                                              .deadline = request_.deadline}));
    plan_ = std::move(announced.plan);
    coarser_ = AdvisesCoarser(plan_, writable);
    return absl::OkStatus();
  }

  using BlockIterator = std::vector<block::BlockPlan>::const_iterator;
  BlockIterator BatchEnd(BlockIterator begin, BlockIterator end) const {
    uint64_t bytes = 0;
    const uint64_t limit = staging_ != nullptr ? kStagedBatchBytes : kBatchBytes;
    auto at = begin;
    for (; at != end && bytes < limit; ++at) {
      if (IsMissing(*at)) bytes += at->tokens * space_.payload_bytes_per_token();
    }
    return at;
  }

  v1::CommitRequest Header(Blocks blocks) const {
    v1::CommitRequest header;
    header.set_session(session_.id);
    header.set_reservation(plan_.reservation.value);
    header.set_tokens(blocks.back().first_token + blocks.back().tokens);
    header.set_sequence_end(request_.sequence_end && header.tokens() == target_);
    for (const uint32_t end : request_.ends) {
      if (end > blocks.front().first_token && end <= header.tokens()) header.add_ends(end);
    }
    header.set_lease(request_.lease);
    // Only the last batch asks for SSD; its answer is about all before it, too.
    if (request_.durability == Durability::kSsd && header.tokens() == target_) {
      header.set_durability(v1::DURABILITY_SSD);
    }
    return header;
  }

  // A page as the plan cuts it.
  struct CutPage {
    uint32_t group = 0;
    block::BlockPlan block;
    uint32_t rung = 0;
    uint32_t tokens = 0;
    PageMemory memory;
    uint64_t page_bytes = 0;
  };

  absl::StatusOr<CutPage> Cut(const block::BlockPlan& b, uint32_t group) const {
    const block::LayerGroup& layers = space_.groups()[group];
    const OwnPages::Page own = pages_.own_page(group, Index(b));
    CutPage page{.group = group,
                 .block = b,
                 .rung = own.rung,
                 .tokens = b.tokens,
                 .memory = own.memory,
                 .page_bytes = block::LayoutOfPage(layers, own.rung, b.tokens).page_bytes};
    if (b.tokens == pages_.block_tokens()) return page;
    page.memory = AllocatePage(request_.opened.attachment->staging().get(), page.page_bytes);
    if (!page.memory) return absl::ResourceExhaustedError("commit: no memory for a page");
    block::CutPage(layers, own.rung, own.memory.get(), pages_.block_tokens(), b.tokens,
                   page.memory.get());
    return page;
  }

  // Adds the pages of a block that are to be stored: those that are missing, and snapshots of
  // states.
  absl::Status AddPages(const block::BlockPlan& b, std::vector<CutPage>* pages) const {
    for (uint32_t group = 0; IsMissing(b) && group < groups_; ++group) {
      if (!IsWanted(b, group) || !pages_.IsOwn(group, Index(b))) continue;
      PREFIXD_ASSIGN_OR_RETURN(pages->emplace_back(), Cut(b, group));
    }
    for (const OwnPages::State& state : pages_.states(b.first_token, b.first_token + b.tokens)) {
      const uint32_t at = state.tokens - b.first_token;
      for (uint32_t group = 0; group < groups_; ++group) {
        if (!space_.IsState(group)) continue;
        pages->push_back({.group = group,
                          .block = b,
                          .rung = at,
                          .tokens = at,
                          .memory = state.pages[group],
                          .page_bytes = space_.groups()[group].state_bytes});
      }
    }
    return absl::OkStatus();
  }

  absl::Status StoreBatch(Blocks blocks) {
    std::vector<CutPage> pages, staged, sent;
    for (const block::BlockPlan& b : blocks) PREFIXD_RETURN_IF_ERROR(AddPages(b, &pages));
    for (CutPage& page : pages) {
      const bool in_staging = staging_ != nullptr && page.memory.staging == staging_;
      (in_staging ? staged : sent).push_back(std::move(page));
    }
    v1::CommitRequest header = Header(blocks);
    if (!sent.empty() && staged.empty()) return Put(header, sent);
    if (!sent.empty()) {
      v1::CommitRequest only_pages = header;
      only_pages.set_tokens(0);
      only_pages.set_sequence_end(false);
      only_pages.set_lease(false);
      only_pages.clear_durability();
      PREFIXD_RETURN_IF_ERROR(Put(only_pages, sent));
    }
    AddColumns(staged, &header);
    PREFIXD_ASSIGN_OR_RETURN(v1::CommitReply reply,
                             Call(&Connection::Stub::Commit, header, VerbOf(header)));
    return Take(&reply);
  }

  void AddColumns(const std::vector<CutPage>& staged, v1::CommitRequest* header) const {
    std::vector<v1::StagedPages*> columns(groups_, nullptr);
    for (const CutPage& page : staged) {
      v1::StagedPages*& column = columns[page.group];
      if (column == nullptr) {
        column = header->add_staged();
        column->set_group(page.group);
      }
      column->add_first_token(page.block.first_token);
      column->add_rung(page.rung);
      column->add_offset(staging_->OffsetOf(page.memory));
    }
  }

  absl::Status Put(const v1::CommitRequest& header, const std::vector<CutPage>& pages) {
    grpc::ClientContext context;
    context.set_deadline(WallClock(request_.deadline));
    CarryTrace(&context);
    RawStream stream(core_.connection()->page_channel(), "/prefixd.v1.PrefixCache/Put", &context);
    v1::PutChunk first;
    *first.mutable_header() = header;
    bool open = stream.Write(Serialize(first));
    core_.connection()->PreparePut(session_);
    for (size_t i = 0; open && i < pages.size(); ++i) open = PutPage(pages[i], &stream);
    stream.WritesDone();
    grpc::ByteBuffer bytes;
    v1::CommitReply reply;
    const bool replied = stream.Read(&bytes) && Parse(bytes, &reply);
    if (replied) stream.Read(&bytes);  // reads the end, which Finish() waits for
    PREFIXD_RETURN_IF_ERROR(wire::FromGrpc(stream.Finish()));
    if (!replied) return absl::InternalError("commit: the daemon's answer to Put is not readable");
    return Take(&reply);
  }

  // Returns false if the stream is broken; Finish() says why.
  bool PutPage(const CutPage& page, RawStream* stream) const {
    // If the plan tells a seed, the sum with it is the one that the daemon keeps: it need not
    // compute another.
    const bool planned = !page.block.seeds.empty() && page.block.rungs[page.group] == page.rung;
    const uint64_t seed = planned ? page.block.seeds[page.group] : 0;
    base::Xxh3Stream sum;
    sum.Begin(seed);
    for (uint64_t offset = 0; offset < page.page_bytes; offset += wire::kMaxPieceBytes) {
      const uint64_t bytes = std::min(wire::kMaxPieceBytes, page.page_bytes - offset);
      sum.Update({page.memory.get() + offset, bytes});
      const wire::PieceHeader piece{.group = page.group,
                                    .first_token = page.block.first_token,
                                    .tokens = page.tokens,
                                    .rung = page.rung,
                                    .page_bytes = page.page_bytes,
                                    .offset = offset,
                                    .xxh3 = seed != 0 ? sum.Sum() : sum.Finish(),
                                    .sum_seed = seed,
                                    .data_bytes = bytes};
      if (!stream->Write(
              wire::MakePageMessage(piece, page.memory.get() + offset, page.memory.bytes)))
        return false;
    }
    return true;
  }

  absl::Status Take(v1::CommitReply* reply) {
    PREFIXD_RETURN_IF_ERROR(core_.connection()->CheckEpoch(session_, reply->epoch()));
    info_.stored_tokens += reply->stored_tokens();
    info_.duplicate_tokens += reply->duplicate_tokens();
    if (reply->durability() == v1::DURABILITY_SSD) info_.durability = Durability::kSsd;
    if (reply->lease() != 0) {
      PublishedLease& lease = leases_.emplace_back();
      lease.lease = {reply->lease()};
      lease.first_block = reply->first_block();
      lease.pages.Swap(reply->mutable_pages());
    }
    for (const v1::BlockResult& result : reply->blocks()) {
      if (result.result() != v1::STORE_RESULT_REFUSED) continue;
      return absl::ResourceExhaustedError(absl::StrCat(
          "commit: the block at token ", result.first_token(), " was refused: ", result.reason()));
    }
    return absl::OkStatus();
  }

  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(Connection::Method<Request, Reply> method, const Request& request,
                             wire::DirectVerb verb) {
    return core_.connection()->Call(method, session_, request, request_.deadline, verb);
  }

  Core& core_;
  const SpaceState& space_;
  const OwnPages& pages_;
  const PublishRequest& request_;
  const Session session_;
  const StagingMemory* const staging_;  // null if every page is sent
  const uint32_t groups_;
  const uint32_t target_;
  block::ReservePlan plan_;
  uint32_t done_tokens_ = 0;
  std::optional<bool> coarser_;
  CommitInfo info_;
  std::vector<PublishedLease> leases_;
};

}  // namespace

std::optional<bool> AdvisesCoarser(const block::ReservePlan& plan,
                                   std::span<const uint64_t> writable) {
  for (auto b = plan.blocks.rbegin(); b != plan.blocks.rend(); ++b) {
    if (b->state == block::BlockState::kPresent) continue;
    for (size_t group = 0; group < b->rungs.size(); ++group) {
      // Only a group with several rungs shows the advice.
      if (b->rungs[group] == block::kNoLimit || std::has_single_bit(writable[group])) continue;
      return b->rungs[group] > static_cast<uint32_t>(std::countr_zero(writable[group]));
    }
  }
  return std::nullopt;
}

absl::StatusOr<Announced> Reserve(Core& core, const SpaceState& space,
                                  const ReserveQuestion& question) {
  const Session& session = question.opened.space.session;
  v1::ReserveRequest request;
  request.set_session(session.id);
  wire::ToProto(question.opened.space.handle, question.sequence, request.mutable_sequence());
  request.mutable_writable()->Add(question.writable.begin(), question.writable.end());
  request.set_seeds(question.seeds);
  for (const uint32_t end : question.turn_ends) request.add_turn_ends(end);
  PREFIXD_ASSIGN_OR_RETURN(const v1::ReserveReply reply,
                           core.connection()->Call(&Connection::Stub::Reserve, session, request,
                                                   question.deadline, wire::DirectVerb::kReserve));
  Announced announced{.session = session, .plan = {}};
  const auto take = [&]() -> absl::Status {
    PREFIXD_ASSIGN_OR_RETURN(announced.plan,
                             wire::FromProto(reply, static_cast<uint32_t>(space.groups().size())));
    return CheckPlan(announced.plan, question.block_tokens,
                     static_cast<uint32_t>(question.sequence.tokens.size()));
  };
  if (absl::Status bad = take(); !bad.ok()) {
    core.release_sender().Abandon(session, block::ReservationId{reply.reservation()});
    return bad;
  }
  return announced;
}

Published Publish(Core& core, const SpaceState& space, const OwnPages& pages,
                  const PublishRequest& request, std::optional<Announced>* announced) {
  Publication publication(core, space, pages, request);
  const absl::Status status = publication.Run(announced);
  const block::ReservationId reservation = publication.plan().reservation;
  if (!status.ok()) {
    if (reservation) core.release_sender().Abandon(request.opened.space.session, reservation);
    announced->reset();
  } else if (announced->has_value() && publication.used_up()) {
    announced->reset();  // the reservation is complete: the daemon has ended it
  }
  Published published = publication.TakePublished(status);
  core.counts().Committed(status.ok(), published.info);
  return published;
}

}  // namespace prefixd::client
