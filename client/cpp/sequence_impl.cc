#include "sequence_impl.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "block/arena_file.h"
#include "block/page_layout.h"
#include "convert.h"
#include "look_up.h"

namespace prefixd {
namespace {

using client::ToPublic;
using std::chrono::steady_clock;

uint64_t Micros(std::chrono::microseconds time) {
  return static_cast<uint64_t>(std::max<int64_t>(0, time.count()));
}

}  // namespace

Sequence::Impl::Impl(std::shared_ptr<client::Core> core_in,
                     std::shared_ptr<client::SpaceState> space_in, const BeginOptions& options_in)
    : core(std::move(core_in)),
      space(std::move(space_in)),
      options(options_in),
      content(client::FromPublic(options_in.content)),
      pages(space, space->block_tokens(),
            {.rung = options_in.write_format,
             .head_tokens = options_in.head_tokens,
             .head_rung = options_in.head_format,
             .coarser = options_in.coarser_formats}) {
  options.content = {};  // pointed into the caller's memory
}

std::span<const uint32_t> Sequence::Impl::snapshots_wanted() const {
  if (!announced) return {};
  const std::vector<uint32_t>& wanted = announced->plan.snapshot_tokens;
  const auto first = std::upper_bound(wanted.begin(), wanted.end(), pages.cached_tokens());
  return std::span(wanted).subspan(static_cast<size_t>(first - wanted.begin()));
}

absl::Status Sequence::Impl::PutState(int layer, uint32_t tokens_in_it,
                                      std::span<const std::byte> state) {
  PREFIXD_ASSIGN_OR_RETURN(const client::LayerPlace place,
                           client::StateLayer("put_state", *space, layer, state.size()));
  if (tokens_in_it > tokens.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("put_state: at token ", tokens_in_it, ", announced are ", tokens.size()));
  }
  return pages.PutState(place, tokens_in_it, state);
}

absl::Status Sequence::Impl::GetState(int layer, std::span<std::byte> state) const {
  PREFIXD_ASSIGN_OR_RETURN(const client::LayerPlace place,
                           client::StateLayer("get_state", *space, layer, state.size()));
  PREFIXD_RETURN_IF_ERROR(Ready(layer));
  if (pages.cached_tokens() == 0) {
    return absl::NotFoundError("get_state: nothing is cached of the sequence");
  }
  pages.CopyState(place, state);
  return absl::OkStatus();
}

uint32_t Sequence::Impl::restorable_tokens() const {
  const uint32_t cached = pages.cached_tokens();
  return load ? std::min(cached, load->usable_tokens()) : cached;
}

absl::Status Sequence::Impl::Ready(int layer, base::Deadline until) const {
  if (!load) return absl::OkStatus();
  const uint32_t group = space->layers()[static_cast<size_t>(layer)].group;
  const uint32_t usable = load->Wait(group, until);
  if (usable >= pages.cached_tokens()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("sequence: the cached tokens end at ", usable,
                                                    " instead of ", pages.cached_tokens(),
                                                    ": Restart() and begin again there"));
}

absl::Status Sequence::Impl::Gather(const client::LayerTokens& range, const MutablePackedView& key,
                                    const MutablePackedView& value) const {
  PREFIXD_RETURN_IF_ERROR(pages.Gather(range, key, value));
  if (range.count > 0) core->counts().Gathered(pages.PayloadBytes(range));
  return absl::OkStatus();
}

absl::Status Sequence::Impl::Gather(const client::LayerTokens& range, const MutableTensorView& key,
                                    const MutableTensorView& value) const {
  PREFIXD_RETURN_IF_ERROR(pages.GatherRows(range, key, value));
  if (range.count > 0) core->counts().Gathered(pages.PayloadBytes(range));
  return absl::OkStatus();
}

absl::Status Sequence::Impl::CheckTokens(int layer, uint32_t begin, uint32_t count) const {
  if (!HasLayer(layer)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence: layer ", layer, ", the space has ", space->layers().size()));
  }
  if (uint64_t{begin} + count > tokens.size()) {
    return absl::InvalidArgumentError(absl::StrCat("sequence: tokens up to ",
                                                   uint64_t{begin} + count, ", announced are ",
                                                   tokens.size(), " (PushToken announces more)"));
  }
  return Ready(layer);
}

void Sequence::Impl::LookUp() { LookedUp(TryLookUp()); }

void Sequence::Impl::LookedUp(const absl::Status& status) {
  turn_ends.insert(turn_ends.end(), options.turn_ends.begin(), options.turn_ends.end());
  std::ranges::sort(turn_ends);
  options.turn_ends = {};  // pointed into the caller's memory
  match.status = ToPublic(status);
  core->counts().LookedUp(status.ok(), tokens.size(), status.ok() ? match.restorable_tokens : 0);
  committed_tokens = pages.cached_tokens() / pages.block_tokens() * pages.block_tokens();
}

absl::StatusOr<client::OpenedUnder> Sequence::Impl::OpenForLookUp(base::Deadline deadline) {
  PREFIXD_ASSIGN_OR_RETURN(client::OpenedUnder opened, core->Open(*space, deadline));
  if (opened.space.block_tokens != pages.block_tokens()) {
    return absl::UnavailableError("begin: the space was just opened with other blocks");
  }
  pages.UseStaging(opened.attachment->staging());
  return opened;
}

client::Question Sequence::Impl::QuestionOf(client::OpenedUnder opened) const {
  return {.opened = std::move(opened),
          .sequence = {.tokens = tokens, .content = content},
          .options = options};
}

absl::Status Sequence::Impl::TryLookUp() {
  if (AsksForNothing()) return absl::OkStatus();
  const base::Deadline deadline = steady_clock::now() + options.deadline;
  PREFIXD_ASSIGN_OR_RETURN(const client::OpenedUnder opened, OpenForLookUp(deadline));
  absl::StatusOr<client::LookUpAnswer> found = client::Acquire(*core, space, QuestionOf(opened));
  if (absl::IsNotFound(found.status())) space->Forget(opened.space.handle);
  PREFIXD_RETURN_IF_ERROR(found.status());
  Take(opened, *std::move(found));
  return absl::OkStatus();
}

absl::Status Sequence::Impl::TryLookUpSet(std::span<const std::unique_ptr<Impl>> set) {
  if (set.empty() || std::ranges::any_of(set, &Impl::AsksForNothing)) return absl::OkStatus();
  std::chrono::milliseconds longest{0};
  for (const auto& sequence : set) longest = std::max(longest, sequence->options.deadline);
  const base::Deadline deadline = steady_clock::now() + longest;
  std::vector<client::SetQuestion> questions;
  for (const auto& sequence : set) {
    PREFIXD_ASSIGN_OR_RETURN(client::OpenedUnder opened, sequence->OpenForLookUp(deadline));
    questions.push_back({sequence->space, sequence->QuestionOf(std::move(opened))});
    if (questions.front().question.opened.attachment == questions.back().question.opened.attachment)
      continue;
    return absl::UnavailableError("begin: the daemon came back while the spaces were opened");
  }
  absl::StatusOr<std::vector<client::LookUpAnswer>> found =
      client::AcquireSet(*set.front()->core, questions, deadline);
  for (size_t i = 0; i < set.size(); ++i) {
    const client::OpenedUnder& opened = questions[i].question.opened;
    if (absl::IsNotFound(found.status())) questions[i].space->Forget(opened.space.handle);
    if (found.ok()) set[i]->Take(opened, std::move((*found)[i]));
  }
  return found.status();
}

void Sequence::Impl::LookUpSet(std::span<const std::unique_ptr<Impl>> set) {
  const absl::Status status = TryLookUpSet(set);
  for (const auto& sequence : set) sequence->LookedUp(status);
}

void Sequence::Impl::Take(const client::OpenedUnder& opened, client::LookUpAnswer found) {
  if (found.announced) {
    Follow(client::AdvisesCoarser(*found.announced, client::WritableRungs(*space, options)));
    announced = {opened.space.session, *std::move(found.announced)};
  }
  match = ToPublic(found.match);
  match.in_place = found.in_place;
  if (!found.pages) return;
  pages.Restart(found.pages, found.match.restorable_tokens);
  held = {opened.attachment, found.lease};
  load = std::move(found.pages);
}

void Sequence::Impl::Follow(std::optional<bool> coarser) {
  if (coarser) pages.Advise(*coarser);
}

uint32_t Sequence::Impl::Restart() {
  Settle();
  for (int layer = 0; HasLayer(layer); ++layer) Ready(layer).IgnoreError();
  const uint32_t usable = restorable_tokens();
  if (usable < pages.cached_tokens() || usable < pages.complete_tokens()) DropReservation();
  pages.Restart(load, usable);
  for (const Held& old : std::exchange(published, {})) GiveBackUnused(old);
  committed_tokens = usable / pages.block_tokens() * pages.block_tokens();
  return usable;
}

void Sequence::Impl::Release(const ReleaseInfo& info) {
  Settle();
  DropReservation();
  ReleaseInfo worth = info;
  if (worth.used_tokens == ReleaseInfo::kAsRead)
    worth.used_tokens = std::min(read_tokens, restorable_tokens());
  if (load) load->Cancel();
  // Nobody may get a pointer into pages that the daemon may use again.
  pages.Restart(nullptr, 0);
  for (const Held& old : std::exchange(published, {})) GiveBackUnused(old);
  if (held) GiveBack(*held, worth);
  held.reset();
  load = nullptr;
}

void Sequence::Impl::GiveBack(const Held& lease, const ReleaseInfo& info) {
  v1::Released released;
  released.set_lease(lease.lease.value);
  released.set_used_tokens(info.used_tokens);
  released.set_first_token_us(Micros(info.first_token));
  const bool is_load = held && held->lease == lease.lease && load;
  released.set_load_us(is_load ? Micros(load->duration()) : 0);
  // One bad number would make the daemon refuse the whole call.
  const double rate = info.prefill_tokens_per_s;
  released.set_prefill_tokens_per_s(std::isfinite(rate) ? std::max(0.0, rate) : 0);
  core->release_sender().Release(lease.attachment->session(), std::move(released));
}

void Sequence::Impl::DropReservation() {
  if (announced) core->release_sender().Abandon(announced->session, announced->plan.reservation);
  announced.reset();
}

absl::StatusOr<std::shared_ptr<client::StoreJob>> Sequence::Impl::PrepareStore(
    const CommitOptions& with, bool copy_tail) {
  const uint32_t block_tokens = pages.block_tokens();
  const uint32_t complete = pages.complete_tokens();
  const uint32_t whole = complete / block_tokens * block_tokens;
  const uint32_t target = with.sequence_end ? complete : whole;
  const bool new_end = with.sequence_end && target != end_tokens;
  if (target == 0 || (whole <= committed_tokens && !new_end)) return nullptr;
  for (int layer = 0; HasLayer(layer); ++layer) PREFIXD_RETURN_IF_ERROR(Ready(layer));
  PREFIXD_ASSIGN_OR_RETURN(client::PageSnapshot snapshot,
                           client::PageSnapshot::Take(pages, *space, target, copy_tail));
  return std::make_shared<client::StoreJob>(
      client::StoreJob{.core = core,
                       .space = space,
                       .tokens = {tokens.begin(), tokens.begin() + target},
                       .content = block::CutContent(content, 0, target),
                       .pages = std::move(snapshot),
                       .committed_tokens = committed_tokens,
                       .sequence_end = with.sequence_end,
                       .ends = {turn_ends.begin(), std::ranges::upper_bound(turn_ends, target)},
                       .durability = with.durability,
                       .deadline = steady_clock::now() + with.deadline,
                       .announced = std::exchange(announced, std::nullopt)});
}

absl::StatusOr<CommitInfo> Sequence::Impl::TakeStored(client::StoreJob& job) {
  announced = std::move(job.announced);
  const auto target = static_cast<uint32_t>(job.tokens.size());
  pages.DropStates(target);  // they are stored, or not worth another try
  if (!job.opened) return job.status;
  // Counts refused blocks too: they are not offered again with every token.
  committed_tokens =
      std::max(committed_tokens, target / pages.block_tokens() * pages.block_tokens());
  if (job.opened->space.block_tokens == pages.block_tokens()) {
    pages.UseStaging(job.opened->attachment->staging());  // a new session has new staging memory
  }
  Follow(job.published.coarser);
  SwapPublished(*job.opened, job.published, target);
  if (absl::IsNotFound(job.status)) space->Forget(job.opened->space.handle);
  PREFIXD_RETURN_IF_ERROR(job.status);
  std::erase_if(turn_ends, [&](uint32_t end) { return end <= target; });
  if (job.sequence_end) end_tokens = target;
  return job.published.info;
}

absl::StatusOr<CommitInfo> Sequence::Impl::Commit(const CommitOptions& with) {
  Settle();
  PREFIXD_ASSIGN_OR_RETURN(const std::shared_ptr<client::StoreJob> job,
                           PrepareStore(with, /*copy_tail=*/false));
  if (job == nullptr) return CommitInfo{};
  job->Run();
  return TakeStored(*job);
}

bool Sequence::Impl::StartCommit(const CommitOptions& with) {
  if (storing && !storing->done()) return false;
  Settle();
  absl::StatusOr<std::shared_ptr<client::StoreJob>> job = PrepareStore(with, /*copy_tail=*/true);
  if (!job.ok()) store_status.Update(job.status());
  if (!job.ok() || *job == nullptr) return false;
  storing = client::BackgroundStore::Start(*job);
  if (!storing) announced = std::move((*job)->announced);
  return storing != nullptr;
}

void Sequence::Impl::Settle() {
  if (!storing) return;
  const std::unique_ptr<client::BackgroundStore> ended = std::move(storing);
  const absl::StatusOr<CommitInfo> info = TakeStored(ended->Wait());
  if (!info.ok()) return store_status.Update(info.status());
  stored.stored_tokens += info->stored_tokens;
  stored.duplicate_tokens += info->duplicate_tokens;
}

void Sequence::Impl::SettleBefore(uint32_t begin) {
  if (!storing) return;
  const size_t block_tokens = pages.block_tokens();  // whole blocks only: the tail was copied
  if (begin < storing->job().tokens.size() / block_tokens * block_tokens) Settle();
}

absl::StatusOr<CommitInfo> Sequence::Impl::FinishCommit() {
  Settle();
  const absl::Status status = std::exchange(store_status, absl::OkStatus());
  const CommitInfo info = std::exchange(stored, {});
  PREFIXD_RETURN_IF_ERROR(status);
  return info;
}

// Own pages that the daemon has leased to us are read in the arena from now on, and their memory is
// freed.
void Sequence::Impl::SwapPublished(const client::OpenedUnder& opened,
                                   const client::Published& stored, uint32_t tokens) {
  for (const client::PublishedLease& lease : stored.leases) {
    const Held fresh{opened.attachment, lease.lease};
    bool swapped = false;
    for (const v1::GroupPages& column : lease.pages) {
      const uint32_t group = column.group();
      if (group >= space->groups().size()) break;
      if (!column.ready() || space->IsState(group)) continue;
      for (int i = 0;
           i < std::min({column.offset_size(), column.rung_size(), column.page_tokens_size()});
           ++i) {
        const std::optional<client::CachedPage> page =
            PageInArena(*opened.attachment, space->groups()[group],
                        {.offset = column.offset(i),
                         .page_tokens = column.page_tokens(i),
                         .rung = column.rung(i)});
        const uint32_t block = lease.first_block + static_cast<uint32_t>(i);
        // The stored page of a tail lacks the tokens that were appended meanwhile.
        const bool full = (uint64_t{block} + 1) * pages.block_tokens() <= tokens;
        if (full && page && pages.Swap(group, block, *page)) swapped = true;
      }
    }
    if (swapped) {
      published.push_back(fresh);
    } else {
      GiveBackUnused(fresh);
    }
  }
}

}  // namespace prefixd
