#include <algorithm>
#include <bit>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "block/tokens.h"
#include "convert.h"
#include "plan_pages.h"
#include "prefixd/client.h"
#include "publish.h"
#include "sequence_pages.h"
#include "space_impl.h"

namespace prefixd {
namespace {

using client::ToPublic;
using std::chrono::steady_clock;

constexpr uint64_t kRunBytesWithoutStaging = uint64_t{32} << 20;

const Status& NoPlan() {
  static const Status none{StatusCode::kFailedPrecondition,
                           "plan: empty, Space::Reserve() gives one"};
  return none;
}

}  // namespace

struct Plan::Impl {
  Impl(std::shared_ptr<client::Core> core_in, std::shared_ptr<client::SpaceState> space_in,
       std::span<const uint32_t> tokens_in, const ReserveOptions& options)
      : core(std::move(core_in)),
        space(std::move(space_in)),
        tokens(tokens_in.begin(), tokens_in.end()),
        content(client::FromPublic(options.content)),
        ends(options.turn_ends.begin(), options.turn_ends.end()),
        rungs{.rung = options.write_format, .coarser = options.coarser_formats},
        pages(space, {.block_tokens = space->block_tokens(),
                      .format = options.write_format,
                      .coarser = options.coarser_formats,
                      .readable = options.readable}) {}

  const std::shared_ptr<client::Core> core;
  const std::shared_ptr<client::SpaceState> space;
  const std::vector<uint32_t> tokens;
  const std::vector<block::ContentKey> content;
  const std::vector<uint32_t> ends;
  const client::WriteRungs rungs;
  client::PlanPages pages;
  std::optional<client::Announced> announced;
  std::vector<TokenRun> missing;
  uint32_t committed_tokens = 0;
  Status status;

  absl::Status Reserve(base::Deadline deadline);
  absl::StatusOr<CommitInfo> Commit(uint32_t target, const CommitOptions& options);
  void Abandon();
  // InvalidArgument unless the space has the layer and the plan the tokens.
  absl::Status CheckTokens(const char* caller, int layer, uint32_t begin, uint32_t count) const;

 private:
  absl::StatusOr<client::OpenedUnder> Open(base::Deadline deadline);
  absl::Status CheckTarget(uint32_t target) const;
  void AskForMine(uint64_t run_bytes);
  // Returns the format to write the block in, as the daemon's plan advises.
  uint32_t FormatOf(const block::BlockPlan& plan) const;
  bool OthersWriteBefore(uint32_t target) const;
};

absl::StatusOr<client::OpenedUnder> Plan::Impl::Open(base::Deadline deadline) {
  PREFIXD_ASSIGN_OR_RETURN(client::OpenedUnder opened, core->Open(*space, deadline));
  if (opened.space.block_tokens != pages.block_tokens()) {
    return absl::UnavailableError(absl::StrCat("plan: the daemon has blocks of ",
                                               opened.space.block_tokens,
                                               " tokens now, the plan of ", pages.block_tokens()));
  }
  pages.UseStaging(opened.attachment->staging());
  return opened;
}

absl::Status Plan::Impl::Reserve(base::Deadline deadline) {
  for (const uint32_t end : ends) {
    if (end > 0 && end <= tokens.size()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("reserve: a turn ends at token ", end, " of ", tokens.size()));
  }
  if (tokens.empty()) return absl::OkStatus();
  PREFIXD_ASSIGN_OR_RETURN(const client::OpenedUnder opened, Open(deadline));
  std::vector<uint64_t> writable;
  for (uint32_t group = 0; group < space->groups().size(); ++group) {
    writable.push_back(pages.rungs_used(group));
  }
  absl::StatusOr<client::Announced> answer =
      client::Reserve(*core, *space,
                      {.opened = opened,
                       .sequence = {.tokens = tokens, .content = content},
                       .block_tokens = pages.block_tokens(),
                       .writable = std::move(writable),
                       .turn_ends = ends,
                       .seeds = opened.attachment->staging() == nullptr,
                       .deadline = deadline});
  if (absl::IsNotFound(answer.status())) space->Forget(opened.space.handle);
  PREFIXD_RETURN_IF_ERROR(answer.status());
  announced = *std::move(answer);
  const client::StagingMemory* staging = opened.attachment->staging().get();
  AskForMine(staging != nullptr ? staging->bytes() / 2 : kRunBytesWithoutStaging);
  return absl::OkStatus();
}

uint32_t Plan::Impl::FormatOf(const block::BlockPlan& plan) const {
  if (rungs.coarser == 0) return rungs.rung;
  for (uint32_t group = 0; group < plan.rungs.size(); ++group) {
    const uint64_t used = pages.rungs_used(group);
    // Only a group with several rungs shows the advice.
    if (plan.rungs[group] == block::kNoLimit || std::has_single_bit(used)) continue;
    const auto finest = static_cast<uint32_t>(std::countr_zero(used));
    return plan.rungs[group] > finest ? rungs.Coarser(space->formats()) : rungs.rung;
  }
  return rungs.rung;
}

void Plan::Impl::AskForMine(uint64_t run_bytes) {
  const uint64_t most =
      std::max<uint64_t>(1, run_bytes / std::max<uint64_t>(1, pages.block_bytes()));
  uint64_t blocks = 0;  // in the last run
  for (const block::BlockPlan& b : announced->plan.blocks) {
    if (b.state != block::BlockState::kYours) continue;
    const uint32_t format = FormatOf(b);
    if (format != rungs.rung) core->counts().BeganCoarser(1);
    pages.Ask(b.first_token / pages.block_tokens(), b.tokens, format);
    if (missing.empty() || missing.back().end != b.first_token || missing.back().format != format ||
        blocks == most) {
      missing.push_back({.begin = b.first_token, .end = b.first_token, .format = format});
      blocks = 0;
    }
    missing.back().end += b.tokens;
    ++blocks;
  }
}

bool Plan::Impl::OthersWriteBefore(uint32_t target) const {
  const std::vector<block::BlockPlan>& blocks = announced->plan.blocks;
  return std::any_of(blocks.begin(), blocks.end(), [&](const block::BlockPlan& b) {
    return b.state == block::BlockState::kPending && b.first_token < target;
  });
}

absl::Status Plan::Impl::CheckTarget(uint32_t target) const {
  if (target > 0 && target <= tokens.size() &&
      (target == tokens.size() || target % pages.block_tokens() == 0)) {
    return pages.CheckWritten(target);
  }
  return absl::InvalidArgumentError(absl::StrCat("commit: up to token ", target,
                                                 ", must be a multiple of ", pages.block_tokens(),
                                                 " or ", tokens.size()));
}

absl::StatusOr<CommitInfo> Plan::Impl::Commit(uint32_t target, const CommitOptions& options) {
  PREFIXD_RETURN_IF_ERROR(CheckTarget(target));
  const base::Deadline deadline = steady_clock::now() + options.deadline;
  PREFIXD_ASSIGN_OR_RETURN(const client::OpenedUnder opened, Open(deadline));
  // What others were writing may be stored by now: only a new reservation knows.
  if (announced && OthersWriteBefore(target)) Abandon();
  const std::vector<block::ContentKey> kept = block::CutContent(content, 0, target);
  const client::Published stored =
      client::Publish(*core, *space, pages,
                      {.opened = opened,
                       .sequence = {.tokens = std::span(tokens).first(target), .content = kept},
                       .committed_tokens = committed_tokens,
                       .sequence_end = options.sequence_end,
                       .ends = ends,
                       .lease = false,
                       .durability = options.durability,
                       .deadline = deadline},
                      &announced);
  if (absl::IsNotFound(stored.status)) space->Forget(opened.space.handle);
  PREFIXD_RETURN_IF_ERROR(stored.status);
  committed_tokens = std::max(committed_tokens, target);
  pages.Drop(target);
  return stored.info;
}

void Plan::Impl::Abandon() {
  if (announced) core->release_sender().Abandon(announced->session, announced->plan.reservation);
  announced.reset();
}

absl::Status Plan::Impl::CheckTokens(const char* caller, int layer, uint32_t begin,
                                     uint32_t count) const {
  if (layer < 0 || static_cast<size_t>(layer) >= space->layers().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(caller, ": layer ", layer, ", the space has ", space->layers().size()));
  }
  if (uint64_t{begin} + count <= tokens.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(caller, ": tokens up to ", uint64_t{begin} + count,
                                                 ", the plan has ", tokens.size()));
}

Plan::Plan() = default;
Plan::Plan(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Plan::~Plan() { Abandon(); }
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&& other) noexcept {
  if (this != &other) {
    Abandon();
    impl_ = std::move(other.impl_);
  }
  return *this;
}

const Status& Plan::status() const { return impl_ ? impl_->status : NoPlan(); }

std::span<const TokenRun> Plan::missing() const {
  if (!impl_) return {};
  return impl_->missing;
}

Status Plan::WritePacked(int layer, uint32_t begin, uint32_t count, const PackedView& key,
                         const PackedView& value) {
  if (!impl_) return NoPlan();
  if (const absl::Status fits = impl_->CheckTokens("write_packed", layer, begin, count);
      !fits.ok()) {
    return ToPublic(fits);
  }
  return ToPublic(impl_->pages.Write(static_cast<uint32_t>(layer), begin, count, key, value));
}

Status Plan::WriteRows(int layer, uint32_t begin, uint32_t count, const TensorView& key,
                       const TensorView& value) {
  if (!impl_) return NoPlan();
  if (const absl::Status fits = impl_->CheckTokens("write_rows", layer, begin, count); !fits.ok()) {
    return ToPublic(fits);
  }
  return ToPublic(impl_->pages.WriteRows(static_cast<uint32_t>(layer), begin, count, key, value));
}

std::span<const uint32_t> Plan::snapshots_wanted() const {
  if (!impl_ || !impl_->announced) return {};
  return impl_->announced->plan.snapshot_tokens;
}

Status Plan::PutState(int layer, uint32_t tokens, std::span<const std::byte> state) {
  if (!impl_) return NoPlan();
  const absl::StatusOr<client::LayerPlace> place =
      client::StateLayer("put_state", *impl_->space, layer, state.size());
  if (!place.ok()) return ToPublic(place.status());
  if (tokens <= impl_->committed_tokens || tokens > impl_->tokens.size()) {
    return ToPublic(absl::InvalidArgumentError(
        absl::StrCat("put_state: at token ", tokens, ", must be ", impl_->committed_tokens + 1,
                     " to ", impl_->tokens.size())));
  }
  return ToPublic(impl_->pages.PutState(*place, tokens, state));
}

Result<CommitInfo> Plan::Commit(uint32_t tokens, const CommitOptions& options) {
  if (!impl_) return {.status = NoPlan(), .held = {}};
  try {
    absl::StatusOr<CommitInfo> info = impl_->Commit(tokens, options);
    if (!info.ok()) return {.status = ToPublic(info.status()), .held = {}};
    return {.status = {}, .held = *info};
  } catch (const std::bad_alloc&) {  // building the messages of a long sequence
    return {.status = {StatusCode::kExhausted, "commit: out of memory"}, .held = {}};
  }
}

void Plan::Abandon() {
  if (!impl_) return;
  impl_->Abandon();
  impl_->pages.Drop(~uint32_t{0});
  impl_->missing.clear();
}

Plan Space::Reserve(std::span<const uint32_t> tokens, const ReserveOptions& options) {
  if (!impl_) return {};
  auto plan = std::make_unique<Plan::Impl>(impl_->core, impl_->space, tokens, options);
  plan->status = ToPublic(plan->Reserve(steady_clock::now() + options.deadline));
  return Plan(std::move(plan));
}

}  // namespace prefixd
