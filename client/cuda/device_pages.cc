#include "device_pages.h"

#include <iterator>

namespace prefixd::cuda {

DevicePages::DevicePages(uint64_t budget_bytes) {
  counts_.budget_bytes = budget_bytes / kAlignment * kAlignment;
  if (counts_.budget_bytes > 0) AddFree(0, counts_.budget_bytes);
}

DevicePages::Found DevicePages::Find(const PageName& name) {
  const std::lock_guard lock(mutex_);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) {
    ++counts_.misses;
    counts_.missed_bytes += name.bytes;
    return {};
  }
  KeptPage* const page = found->second;
  if (page->references++ == 0) {
    in_use_.splice(in_use_.end(), idle_, places_.at(page));
    counts_.referenced_bytes += page->room;
  }
  ++counts_.hits;
  counts_.hit_bytes += name.bytes;
  return {.page = page, .fence = page->fence};
}

KeptPage* DevicePages::Reserve(const PageName& name) {
  const std::lock_guard lock(mutex_);
  ReleaseDone();
  const uint64_t room = (uint64_t{name.bytes} + kAlignment - 1) / kAlignment * kAlignment;
  // Nothing is evicted for a page that would not fit all the same.
  if (room == 0 || room > counts_.budget_bytes - counts_.referenced_bytes) {
    ++counts_.no_room;
    return nullptr;
  }
  uint64_t offset = 0;
  while (!TakeRoom(room, &offset)) {
    if (idle_.empty()) {  // there is room, but not in a row
      ++counts_.no_room;
      return nullptr;
    }
    ++counts_.evictions;
    counts_.evicted_bytes += idle_.front().name.bytes;
    Drop(idle_, idle_.begin());
  }
  in_use_.push_back({.name = name, .offset = offset, .room = room, .references = 1});
  KeptPage* const page = &in_use_.back();
  places_.emplace(page, std::prev(in_use_.end()));
  counts_.used_bytes += room;
  counts_.referenced_bytes += room;
  ++counts_.pages;
  return page;
}

void DevicePages::Publish(KeptPage* page, Fence fence) {
  const std::lock_guard lock(mutex_);
  page->fence = std::move(fence);
  page->published = !page->forgotten && by_name_.emplace(page->name, page).second;
}

void DevicePages::Settle(const std::vector<KeptPage*>& pages) {
  const std::lock_guard lock(mutex_);
  for (KeptPage* page : pages) page->fence = nullptr;
}

void DevicePages::Release(const std::vector<KeptPage*>& pages) {
  const std::lock_guard lock(mutex_);
  ReleaseLocked(pages);
}

void DevicePages::ReleaseWhen(std::vector<KeptPage*> pages, std::function<bool()> done) {
  const std::lock_guard lock(mutex_);
  later_.push_back({.pages = std::move(pages), .done = std::move(done)});
}

void DevicePages::Forget() {
  const std::lock_guard lock(mutex_);
  ReleaseDone();
  while (!idle_.empty()) Drop(idle_, idle_.begin());
  for (KeptPage& page : in_use_) {
    Unpublish(&page);
    page.forgotten = true;
  }
}

DevicePageCounts DevicePages::counts() {
  const std::lock_guard lock(mutex_);
  ReleaseDone();
  return counts_;
}

void DevicePages::ReleaseLocked(const std::vector<KeptPage*>& pages) {
  for (KeptPage* page : pages) {
    if (--page->references > 0) continue;
    counts_.referenced_bytes -= page->room;
    const Pages::iterator place = places_.at(page);
    if (page->published) {
      idle_.splice(idle_.end(), in_use_, place);
    } else {
      Drop(in_use_, place);
    }
  }
}

void DevicePages::ReleaseDone() {
  for (size_t i = 0; i < later_.size();) {
    if (!later_[i].done()) {
      ++i;
      continue;
    }
    ReleaseLocked(later_[i].pages);
    later_.erase(later_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void DevicePages::Unpublish(KeptPage* page) {
  if (page->published) by_name_.erase(page->name);
  page->published = false;
}

void DevicePages::Drop(Pages& from, Pages::iterator page) {
  Unpublish(&*page);
  GiveRoom(page->offset, page->room);
  counts_.used_bytes -= page->room;
  --counts_.pages;
  places_.erase(&*page);
  from.erase(page);
}

// The smallest piece that is large enough, so that large ones stay whole.
bool DevicePages::TakeRoom(uint64_t room, uint64_t* offset) {
  const auto fits = free_by_size_.lower_bound({room, 0});
  if (fits == free_by_size_.end()) return false;
  const auto [bytes, begin] = *fits;
  RemoveFree(free_.find(begin));
  if (bytes > room) AddFree(begin + room, bytes - room);
  *offset = begin;
  return true;
}

void DevicePages::GiveRoom(uint64_t offset, uint64_t room) {
  const auto after = free_.lower_bound(offset);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      room += before->second;
      RemoveFree(before);
    }
  }
  if (after != free_.end() && after->first == offset + room) {
    room += after->second;
    RemoveFree(after);
  }
  AddFree(offset, room);
}

void DevicePages::AddFree(uint64_t offset, uint64_t bytes) {
  free_.emplace(offset, bytes);
  free_by_size_.emplace(bytes, offset);
}

void DevicePages::RemoveFree(std::map<uint64_t, uint64_t>::iterator it) {
  free_by_size_.erase({it->second, it->first});
  free_.erase(it);
}

}  // namespace prefixd::cuda
