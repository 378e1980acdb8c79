// What the litmus stress shares: an arena that a daemon writes, the mapping through which a worker
// reads it, and pages of which every word says which page it belongs to.
//
// PREFIXD_LITMUS_OPERATIONS sets the operations of the whole stress. Each test has its part of them
// and says how many it ran. The threads give each other their turns by one release store and one
// acquire load: no more order than a socket gives, and less than a mutex.
#pragma once
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "arena_mapping.h"
#include "page_names.h"
#include "ram/records.h"
#include "ram/slots.h"
#include "tests/ram/shared_arena.h"

namespace prefixd::ram {

inline constexpr uint64_t kLitmusPage = 4 * kKiB;

// The part of the stress that is `percent` of it.
inline uint64_t LitmusOperations(uint64_t percent) {
  const char* const text = std::getenv("PREFIXD_LITMUS_OPERATIONS");
  const uint64_t all = text == nullptr ? 5'000'000 : std::strtoull(text, nullptr, 10);
  return all / 100 * percent;
}

inline uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = (a + 1) * 0x9E3779B97F4A7C15 ^ (b + 1) * 0xC2B2AE3D27D4EB4F;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9;
  return x ^ x >> 32;
}

// Lets the other thread go on where both share one core.
class Turn {
 public:
  void Wait() {
    if (++waits_ % 4096 == 0) std::this_thread::yield();
  }

 private:
  uint32_t waits_ = 0;
};

// What went wrong first, and that everybody is to end.
class Verdict {
 public:
  bool bad() const { return bad_.load(std::memory_order_relaxed); }
  void Fail(const std::string& why) {
    if (!bad_.exchange(true)) ADD_FAILURE() << why;
  }
  bool Require(bool holds, const char* why) {
    if (!holds) Fail(why);
    return holds;
  }

 private:
  std::atomic<bool> bad_{false};
};

// A worker's side: its own read-only mapping of the file, and its slot's lock.
inline std::shared_ptr<const client::ArenaMapping> MapAsWorker(int arena_fd, int lock_fd) {
  base::Descriptor arena(arena_fd), lock(lock_fd);
  block::ArenaHeader header;
  EXPECT_EQ(pread(arena.get(), static_cast<void*>(&header), sizeof(header), 0),
            static_cast<ssize_t>(sizeof(header)));
  auto mapping = client::ArenaMapping::Map(
      std::move(arena), std::move(lock),
      {.file_bytes = header.file_bytes, .data_offset = header.data_offset});
  EXPECT_TRUE(mapping.ok()) << mapping.status();
  return mapping.ok() ? *std::move(mapping) : nullptr;
}

// Where a reader looks: in a worker's mapping. ThreadSanitizer knows addresses and not files, so it
// has the reader look where the writer writes.
class View {
 public:
  View(const Arena& arena, const client::ArenaMapping& mapping)
      : shift_(kAlias ? 0
                      : mapping.file().data() - reinterpret_cast<const std::byte*>(arena.header())),
        arena_(arena) {}
  const block::PageRecord& record(block::Extent extent) const {
    return *reinterpret_cast<const block::PageRecord*>(Moved(arena_.marks(extent)) -
                                                       offsetof(block::PageRecord, marks));
  }
  const block::PageMarks& marks(block::Extent extent) const { return record(extent).marks; }
  const block::SlotRecord& slot(uint32_t slot) const {
    return *reinterpret_cast<const block::SlotRecord*>(Moved(arena_.slot_records() + slot));
  }
  const std::byte* data(block::Extent extent) const { return Moved(arena_.data(extent)); }

 private:
#if defined(__SANITIZE_THREAD__)
  static constexpr bool kAlias = true;
#else
  static constexpr bool kAlias = false;
#endif
  const std::byte* Moved(const void* at) const {
    return reinterpret_cast<const std::byte*>(at) + shift_;
  }

  const ptrdiff_t shift_;
  const Arena& arena_;
};

// Words all over the page's first 512 bytes.
inline constexpr size_t kPayloadWords = 64;
inline void WritePayload(std::byte* bytes, uint64_t seed) {
  for (size_t i = 0; i < kPayloadWords; ++i) {
    const uint64_t word = seed * 1'000'003 + i;
    std::memcpy(bytes + 8 * i, &word, sizeof(word));
  }
}
inline bool IsPayload(const std::byte* bytes, uint64_t seed) {
  for (size_t i = 0; i < kPayloadWords; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + 8 * i, sizeof(word));
    if (word != seed * 1'000'003 + i) return false;
  }
  return true;
}

// Pages that differ in every field, and what a reader must find of each: the record byte for byte,
// but for state and marks, and the name that a worker gives the page.
class KnownPages {
 public:
  static constexpr uint32_t kCount = 32;

  // Learns them by publishing each once, with nobody beside.
  KnownPages(Arena& arena, const client::ArenaMapping& mapping) {
    const uint32_t space = arena.AddSpace(SpaceIdOf(1), "litmus").value();
    const block::Extent extent = arena.Allocate(kLitmusPage, kLitmusPage).value();
    const View view(arena, mapping);
    for (uint32_t i = 0; i < kCount; ++i) {
      pages_.push_back(MakePage(i + 1, space, kLitmusPage));
      arena.Publish(extent, pages_.back().content);
      records_.push_back(ContentOf(view.record(extent)));
      names_.push_back(client::PageNames().Of(mapping, extent.offset));
      EXPECT_NE(names_.back(), PageName{});
    }
    arena.Free(extent);
  }

  // As a commit does: the payload, then the record.
  void Store(Arena& arena, block::Extent extent, uint32_t page) const {
    WritePayload(arena.data(extent), page);
    arena.Publish(extent, pages_[page].content);
  }

  // By the rules of a worker (client/cpp/page_names.cc) and of the next daemon (the check).
  // Empty if the record is that page's and whole; else what is wrong.
  std::string WhyNotWhole(const client::ArenaMapping& mapping, const block::PageRecord& record,
                          block::Extent extent, uint32_t page) const {
    if (client::PageNames().Of(mapping, extent.offset) != names_[page]) return "another name";
    return WhyOtherRecord(record, page);
  }
  std::string WhyOtherRecord(const block::PageRecord& record, uint32_t page) const {
    if (record.check != RecordCheck(record)) return "a record that is not whole";
    const auto* const bytes = reinterpret_cast<const char*>(&record);
    return std::memcmp(bytes + kFrom, records_[page].data(), records_[page].size()) == 0
               ? ""
               : "the record of another page";
  }
  // Which page a record's content names; nullopt: none of these.
  static std::optional<uint32_t> PageOf(const PageContent& content) {
    const uint64_t seed = content.check / 77;
    if (seed < 1 || seed > kCount) return std::nullopt;
    return static_cast<uint32_t>(seed - 1);
  }

 private:
  static constexpr size_t kFrom = offsetof(block::PageRecord, space);
  static std::string ContentOf(const block::PageRecord& record) {
    return {reinterpret_cast<const char*>(&record) + kFrom, sizeof(record) - kFrom};
  }

  std::vector<TestPage> pages_;
  std::vector<std::string> records_;
  std::vector<PageName> names_;
};

// A daemon and one worker of it, in one process.
struct LitmusArena {
  LitmusArena() {
    const uint32_t slot = slots.Claim(KeyHash({})).value();
    const SlotFiles files = slots.OpenFor(slot).value();
    mapping = MapAsWorker(files.arena, files.lock);
  }
  const ArenaPath path;
  const std::unique_ptr<Arena> arena = OpenOrDie(path);
  Slots slots{arena.get()};
  std::shared_ptr<const client::ArenaMapping> mapping;
};

}  // namespace prefixd::ram
