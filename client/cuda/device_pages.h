// DevicePages: which pages are in a fixed piece of device memory, where, and which of them go when
// there is no room. Counts and offsets only: no CUDA, so that all of it runs without a GPU.
//
// Thread-safe. A page has references while something may read or write it. Only a page without any
// is evicted, the one that was released longest ago first. A page is found by its name once it is
// published, that is, once an event exists that tells when its bytes are there.
#pragma once
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace prefixd::cuda {

// Names bytes: two pages with equal names hold equal bytes. high and low both 0: no name.
struct PageName {
  uint64_t high = 0, low = 0;
  uint32_t bytes = 0;
  bool operator==(const PageName&) const = default;
};
struct PageNameHash {
  size_t operator()(const PageName& name) const {
    return name.high ^ name.low * 0x9E3779B97F4A7C15u ^ name.bytes;
  }
};

// Whatever tells when a page's bytes are there; an event of CUDA's.
using Fence = std::shared_ptr<void>;

struct KeptPage {
  PageName name;
  uint64_t offset = 0;  // in the device memory
  uint64_t room = 0;    // bytes that it takes there
  uint32_t references = 0;
  bool published = false;  // found by its name
  bool forgotten = false;  // never to be found
  Fence fence = nullptr;   // null: the bytes are there
};

struct DevicePageCounts {
  uint64_t budget_bytes = 0, used_bytes = 0, referenced_bytes = 0;
  uint64_t pages = 0;
  uint64_t hits = 0, hit_bytes = 0;
  uint64_t misses = 0, missed_bytes = 0;
  uint64_t evictions = 0, evicted_bytes = 0;
  uint64_t no_room = 0;  // misses that could not be kept: what is in use fills the budget
};

class DevicePages {
 public:
  static constexpr uint64_t kAlignment = 256;

  explicit DevicePages(uint64_t budget_bytes);
  DevicePages(const DevicePages&) = delete;
  DevicePages& operator=(const DevicePages&) = delete;

  struct Found {
    KeptPage* page = nullptr;  // null: it is not there
    Fence fence = nullptr;     // the reader waits for it, if any
  };
  // Finds a page and takes a reference to it. Counts a hit or a miss.
  Found Find(const PageName& name);
  // Makes room for a page that Find() missed, with a reference and not yet published. Returns null
  // if what has no references does not give enough room; never waits.
  KeptPage* Reserve(const PageName& name);
  // The page can be found from here on, unless another one with its name is: then this one goes
  // with its last reference.
  void Publish(KeptPage* page, Fence fence);
  // The bytes are there: whoever finds the page waits for nothing.
  void Settle(const std::vector<KeptPage*>& pages);
  // Gives back one reference to each.
  void Release(const std::vector<KeptPage*>& pages);
  // The same as soon as `done` returns true. It is asked when room or counts are wanted, with the
  // lock held.
  void ReleaseWhen(std::vector<KeptPage*> pages, std::function<bool()> done);
  // No page that is here now, published or not, is found from here on. Those without references go
  // at once.
  void Forget();

  DevicePageCounts counts();

 private:
  using Pages = std::list<KeptPage>;
  struct Later {
    std::vector<KeptPage*> pages;
    std::function<bool()> done;
  };

  void ReleaseLocked(const std::vector<KeptPage*>& pages);
  void ReleaseDone();
  void Unpublish(KeptPage* page);
  void Drop(Pages& from, Pages::iterator page);
  // Returns where `room` bytes in a row are free; false if they are nowhere.
  bool TakeRoom(uint64_t room, uint64_t* offset);
  void GiveRoom(uint64_t offset, uint64_t room);
  void AddFree(uint64_t offset, uint64_t bytes);
  void RemoveFree(std::map<uint64_t, uint64_t>::iterator it);

  std::mutex mutex_;  // guards what follows
  DevicePageCounts counts_;
  Pages in_use_;  // with references, in no order
  Pages idle_;    // without; the next to go is the first
  std::unordered_map<const KeptPage*, Pages::iterator> places_;
  std::unordered_map<PageName, KeptPage*, PageNameHash> by_name_;
  std::map<uint64_t, uint64_t> free_;                     // offset: bytes; neighbours are joined
  std::set<std::pair<uint64_t, uint64_t>> free_by_size_;  // bytes, offset
  std::vector<Later> later_;
};

}  // namespace prefixd::cuda
