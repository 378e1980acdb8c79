#include "cache/start/legacy.h"

#include <utility>

namespace prefixd::cache {

Legacy::Legacy(Context* context, Sessions* sessions)
    : found(context->arena->TakeFound()),
      held(context->arena->TakeHeld()),
      context_(context),
      sessions_(sessions),
      held_slots_(context->slots->Held()) {
  for (const ram::HeldSlot& slot : held_slots_) slots_ |= uint64_t{1} << slot.slot;
}

void Legacy::Add(const ram::FoundPage& page, const index::PageRef& ref) {
  for (const ram::HeldSlot& slot : held_slots_) {
    if ((page.holders >> slot.slot & 1) == 0) continue;
    of_slot_[slot.slot].pages.push_back(ref);
    of_slot_[slot.slot].bytes += page.content.page_bytes;
  }
}

bool Legacy::Keep(block::Extent extent, uint64_t holders) {
  if ((holders & slots_) == 0) return false;
  auto kept = std::make_shared<const KeptExtent>(context_, extent);
  for (const ram::HeldSlot& slot : held_slots_) {
    if ((holders >> slot.slot & 1) != 0) of_slot_[slot.slot].kept.push_back(kept);
  }
  return true;
}

void Legacy::Seat() {
  for (const ram::HeldSlot& slot : held_slots_) Seat(slot);
}

void Legacy::Seat(const ram::HeldSlot& slot) {
  // Its id is gone with the daemon that gave it.
  auto session = std::make_shared<Session>(RandomSessionId(), "of an earlier daemon");
  session->key_hash = slot.key_hash;
  session->begun_us = context_->Now();
  session->peer = slot.owner;
  session->attached = false;
  session->slot = std::make_shared<const SlotHold>(context_, slot.slot);
  OfSlot& of_slot = of_slot_[slot.slot];
  const block::LeaseId lease =
      of_slot.pages.empty() ? block::LeaseId{}
                            : context_->index->AdoptLease(session->id, slot.slot, of_slot.pages);
  sessions_->Seat({.session = std::move(session),
                   .lease = lease,
                   .pages = of_slot.pages.size(),
                   .bytes = of_slot.bytes,
                   .kept = std::move(of_slot.kept)});
}

}  // namespace prefixd::cache
