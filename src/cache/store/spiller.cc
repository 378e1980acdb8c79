#include "cache/store/spiller.h"

namespace prefixd::cache {
namespace {

// Pages stay droppable for so long after a failure, instead of going from one vain segment to the
// next.
constexpr std::chrono::seconds kPauseAfterFailure(1);
constexpr int kVainRounds = 3;  // one may have begun before, one may have been of others' blocks

}  // namespace

// Every round takes what is urgent first. A round may find some of the blocks in a segment under
// way, or be cut short before them: they are asked for until they are there.
bool Spiller::WaitForSsd(const std::vector<index::BlockRef>& blocks, const Patience& patience) {
  for (uint64_t vain = 0; vain < kVainRounds;) {
    const index::PrefixIndex::OnDisk on_disk = context_->index->AreOnSsd(blocks);
    if (on_disk != index::PrefixIndex::OnDisk::kNotYet) {
      return on_disk == index::PrefixIndex::OnDisk::kAll;
    }
    const SpillDemand::Rounds seen = demand_->rounds();
    segments_->AddUrgent(blocks);
    demand_->Ask();
    SpillDemand::Rounds now = seen;
    while (now.ended == seen.ended && !demand_->stopped()) {
      if (patience.over()) return false;
      if (!runs_) Step();  // nobody else would
      now = demand_->WaitBeyond(seen, patience.next_look());
    }
    if (demand_->stopped() || context_->ssd_failing) return false;
    vain += now.vain - seen.vain;
  }
  return false;
}

void Spiller::LetWork() {
  may_work_ = true;
  may_start_.Notify();
}

bool Spiller::Step() {
  base::MutexLock one(step_mutex_);
  if (!round_start_.has_value()) round_start_ = context_->store->last_sequence();
  const absl::StatusOr<uint64_t> bytes = segments_->SpillOnce(*round_start_);
  const bool wrote = bytes.ok() && *bytes > 0;
  const bool again =
      wrote && (segments_->urgent_waits() || demand_->CleanBelow(SpillDemand::kGoOnEighths));
  if (!again) round_start_.reset();
  demand_->RoundEnded(!wrote);
  failed_ = !bytes.ok();
  return again;
}

void Spiller::Run() {
  runs_ = true;
  while (!may_work_) {
    if (!may_start_.Wait()) return;
  }
  SelfTest();
  while (demand_->wanted().Wait()) {
    while (Step() && !demand_->stopped()) {
    }
    if (failed_) demand_->wanted().Sleep(kPauseAfterFailure);
  }
}

void Spiller::Stop() {
  may_start_.Stop();
  demand_->Stop();
}

}  // namespace prefixd::cache
