// An arena is pinned through a mapping that this process may only read, slice by slice.
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "block/arena_file.h"
#include "tests/cuda/arena_file.h"
#include "tests/cuda/cases.h"

namespace prefixd::cuda {
namespace {

void Fill(const ArenaFile& file, uint32_t seed) {
  Draw draw(seed);
  for (size_t at = 0; at + 4 <= file.bytes(); at += 4) {
    const uint32_t word = draw.Below(~0u);
    std::memcpy(file.writer() + at, &word, 4);
  }
}

prefixd_cuda_pin_state StateOf(const prefixd_cuda_arena* arena) {
  prefixd_cuda_pin_state state = PREFIXD_INIT(prefixd_cuda_pin_state);
  prefixd_cuda_pin_progress(arena, &state);
  return state;
}

// Asks until it is so, for ten seconds.
template <typename Look>
bool Until(Look look) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!look()) {
    if (std::chrono::steady_clock::now() > end) return false;
  }
  return true;
}

prefixd_cuda_pin_options SmallSlices() {
  prefixd_cuda_pin_options options = PREFIXD_INIT(prefixd_cuda_pin_options);
  options.slice_bytes = 2 * kMiB;
  return options;
}

void ExpectCopied(const ArenaFile& file, uint64_t offset, uint64_t bytes) {
  const DeviceBytes to(bytes);
  ASSERT_EQ(prefixd_cuda_copy(Gpu(), to.data(), file.reader() + offset, bytes, nullptr), PREFIXD_OK)
      << prefixd_cuda_last_error();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(std::memcmp(to.Read<std::byte>().data(), file.writer() + offset, bytes), 0);
}

TEST(PinTest, AnArenaThatMayOnlyBeReadIsPinnedWhole) {
  SKIP_WITHOUT_GPU();
  const ArenaFile file(9 * kMiB);
  const prefixd_cuda_pin_options options = SmallSlices();
  prefixd_cuda_arena* arena = prefixd_cuda_pin(Gpu(), file.reader(), file.bytes(), &options);
  ASSERT_NE(arena, nullptr) << prefixd_cuda_last_error();
  const prefixd_cuda_pin_state state = StateOf(arena);
  EXPECT_EQ(state.pinned_bytes, file.bytes()) << state.why_refused;
  EXPECT_EQ(state.slices, 5u);
  EXPECT_EQ(state.pinned_slices, 5u);
  EXPECT_EQ(state.finished, 1u);
  EXPECT_EQ(prefixd_cuda_is_pinned(arena, file.reader() + kMiB, 8 * kMiB), 1);
  EXPECT_EQ(prefixd_cuda_is_pinned(arena, file.reader() + 2 * kMiB, 8 * kMiB), 0) << "past the end";
  EXPECT_EQ(prefixd_cuda_is_pinned(arena, file.writer(), 1), 0) << "another mapping";
  prefixd_cuda_unpin(arena);
}

TEST(PinTest, CopiesCrossSlicesAndSeeWhatTheDaemonWritesLater) {
  SKIP_WITHOUT_GPU();
  const ArenaFile file(8 * kMiB);
  const prefixd_cuda_pin_options options = SmallSlices();
  prefixd_cuda_arena* arena = prefixd_cuda_pin(Gpu(), file.reader(), file.bytes(), &options);
  ASSERT_NE(arena, nullptr) << prefixd_cuda_last_error();
  Fill(file, 5);
  ExpectCopied(file, 0, file.bytes());
  ExpectCopied(file, 2 * kMiB - 7, 4 * kMiB + 11);
  Fill(file, 6);
  ExpectCopied(file, 0, file.bytes());
  prefixd_cuda_unpin(arena);
}

TEST(PinTest, WhatIsNotPinnedYetIsBounced) {
  SKIP_WITHOUT_GPU();
  const ArenaFile file(70 * kMiB);
  Fill(file, 7);
  ExpectCopied(file, 4096, 69 * kMiB);  // more than the bounce buffer has
  prefixd_cuda_pin_options options = SmallSlices();
  options.background = 1;
  options.pause_us = 200;
  prefixd_cuda_arena* arena = prefixd_cuda_pin(Gpu(), file.reader(), file.bytes(), &options);
  ASSERT_NE(arena, nullptr) << prefixd_cuda_last_error();
  ExpectCopied(file, 0, file.bytes());  // whatever is pinned by now
  EXPECT_TRUE(Until([&] { return StateOf(arena).finished != 0; }));
  EXPECT_EQ(StateOf(arena).pinned_bytes, file.bytes());
  ExpectCopied(file, 0, file.bytes());
  prefixd_cuda_unpin(arena);
}

TEST(PinTest, AnArenaIsUnpinnedWhileItIsBeingPinned) {
  SKIP_WITHOUT_GPU();
  const ArenaFile file(64 * kMiB);
  for (int round = 0; round < 3; ++round) {
    prefixd_cuda_pin_options options = SmallSlices();
    options.background = 1;
    options.pause_us = 1'000'000;
    prefixd_cuda_arena* arena = prefixd_cuda_pin(Gpu(), file.reader(), file.bytes(), &options);
    ASSERT_NE(arena, nullptr) << prefixd_cuda_last_error();
    prefixd_cuda_unpin(arena);
  }
}

TEST(PinTest, ASliceThatTheDriverRefusesIsCountedWithTheReason) {
  SKIP_WITHOUT_GPU();
  const ArenaFile file(6 * kMiB);
  auto* const taken = const_cast<std::byte*>(file.reader()) + 3 * kMiB;
  ASSERT_EQ(cudaHostRegister(taken, kMiB, cudaHostRegisterReadOnly), cudaSuccess) << "by others";
  const prefixd_cuda_pin_options options = SmallSlices();
  prefixd_cuda_arena* arena = prefixd_cuda_pin(Gpu(), file.reader(), file.bytes(), &options);
  ASSERT_NE(arena, nullptr) << prefixd_cuda_last_error();
  EXPECT_EQ(StateOf(arena).pinned_slices, 2u);
  EXPECT_EQ(StateOf(arena).refused_slices, 1u);
  EXPECT_NE(std::string(StateOf(arena).why_refused), "");
  Fill(file, 8);
  ExpectCopied(file, 0, file.bytes());
  prefixd_cuda_unpin(arena);
  EXPECT_EQ(cudaHostUnregister(taken), cudaSuccess);
}

// The daemon's words of four slabs.
struct Service {
  std::atomic<uint64_t> words[4] = {block::Guarded(1), block::Guarded(0), block::Guarded(7),
                                    block::Guarded(2)};

  prefixd_cuda_arena* Pin(const ArenaFile& file,
                          int (*tell)(void*, uint64_t, uint64_t, int) = nullptr,
                          void* teller = nullptr, prefixd_cuda* gpu = nullptr) {
    prefixd_cuda_pin_options options = PREFIXD_INIT(prefixd_cuda_pin_options);
    options.slab_bytes = 2 * kMiB;
    options.service = reinterpret_cast<const uint64_t*>(words);
    options.service_stride = 1;
    options.tell = tell;
    options.teller = teller;
    return prefixd_cuda_pin(gpu != nullptr ? gpu : Gpu(), file.reader(), 8 * kMiB, &options);
  }
  void Change(size_t slab) { words[slab] = block::NextService(words[slab]); }
};

TEST(PinTest, OnlySlabsInServiceArePinnedAndNoneElseGetsMemory) {
  SKIP_WITHOUT_GPU();
  const ArenaFile file(8 * kMiB);
  Service service;
  prefixd_cuda_arena* arena = service.Pin(file);
  ASSERT_NE(arena, nullptr) << prefixd_cuda_last_error();
  EXPECT_EQ(StateOf(arena).bytes, 4 * kMiB);
  EXPECT_EQ(StateOf(arena).pinned_bytes, 4 * kMiB) << StateOf(arena).why_refused;
  EXPECT_EQ(file.allocated_bytes(), 4 * kMiB);
  for (size_t slab = 0; slab < 4; ++slab) {
    EXPECT_EQ(prefixd_cuda_is_pinned(arena, file.reader() + slab * 2 * kMiB, 2 * kMiB),
              slab % 2 == 0);
  }
  prefixd_cuda_unpin(arena);
}

TEST(PinTest, ASlabThatComesIntoServiceIsPinnedAndOneThatLeavesItIsNot) {
  SKIP_WITHOUT_GPU();
  const ArenaFile file(8 * kMiB);
  Service service;
  prefixd_cuda_arena* arena = service.Pin(file);
  ASSERT_NE(arena, nullptr) << prefixd_cuda_last_error();
  service.Change(1);
  service.Change(2);
  EXPECT_EQ(prefixd_cuda_is_pinned(arena, file.reader() + 4 * kMiB, 1), 0) << "at once";
  EXPECT_TRUE(Until([&] {
    return prefixd_cuda_is_pinned(arena, file.reader() + 2 * kMiB, 2 * kMiB) == 1 &&
           StateOf(arena).pinned_slices == 2;
  }));
  EXPECT_EQ(StateOf(arena).pinned_bytes, 4 * kMiB);
  prefixd_cuda_unpin(arena);
}

// What is there after a hole was punched is other memory than what is registered.
TEST(PinTest, WhatWasPunchedAndIsInServiceAgainIsReadAsItIsNow) {
  SKIP_WITHOUT_GPU();
  const ArenaFile file(8 * kMiB);
  Fill(file, 9);
  Service service;
  service.Change(1);
  service.Change(3);
  prefixd_cuda_arena* arena = service.Pin(file);
  ASSERT_NE(arena, nullptr) << prefixd_cuda_last_error();
  ExpectCopied(file, 0, 8 * kMiB);
  service.Change(2);
  file.Punch(4 * kMiB, 2 * kMiB);
  service.Change(2);
  Fill(file, 10);
  ExpectCopied(file, 0, 8 * kMiB);
  EXPECT_TRUE(Until([&] {
    return StateOf(arena).pinned_slices == 4 &&
           prefixd_cuda_is_pinned(arena, file.reader(), 8 * kMiB) == 1;
  }));
  Fill(file, 11);
  ExpectCopied(file, 0, 8 * kMiB);
  prefixd_cuda_unpin(arena);
}

// What a daemon hears of one device's pins, and that it hears of a slab before it is pinned and
// after it was unpinned.
struct Teller {
  const std::byte* base = nullptr;
  prefixd_cuda_arena* arena = nullptr;
  std::mutex mutex;
  std::set<uint64_t> pinned;
  uint64_t early = 0, calls = 0;
  bool hears = true;

  static int Tell(void* teller, uint64_t slab, uint64_t slabs, int now_pinned) {
    auto* const self = static_cast<Teller*>(teller);
    const std::lock_guard lock(self->mutex);
    ++self->calls;
    for (uint64_t i = slab; i < slab + slabs; ++i) {
      const void* const at = self->base + i * 2 * kMiB;
      cudaPointerAttributes attributes = {};
      const bool registered = cudaPointerGetAttributes(&attributes, at) == cudaSuccess &&
                              attributes.type == cudaMemoryTypeHost;
      cudaGetLastError();
      if (registered) ++self->early;
      if (now_pinned != 0) {
        self->pinned.insert(i);
      } else {
        self->pinned.erase(i);
      }
    }
    return self->hears ? 1 : 0;
  }
  std::set<uint64_t> Pinned() {
    const std::lock_guard lock(mutex);
    return pinned;
  }
  uint64_t Calls() {
    const std::lock_guard lock(mutex);
    return calls;
  }
};

TEST(PinTest, TheDaemonHearsOfASlabBeforeItIsPinnedAndAfterItWasUnpinned) {
  SKIP_WITHOUT_GPU();
  const ArenaFile file(8 * kMiB);
  Service service;
  Teller teller;
  teller.base = file.reader();
  prefixd_cuda_arena* arena = service.Pin(file, &Teller::Tell, &teller);
  ASSERT_NE(arena, nullptr) << prefixd_cuda_last_error();
  EXPECT_EQ(teller.Pinned(), (std::set<uint64_t>{0, 2}));
  service.Change(2);
  service.Change(3);
  EXPECT_TRUE(Until([&] { return teller.Pinned() == std::set<uint64_t>{0, 3}; }));
  {
    const std::lock_guard lock(teller.mutex);
    teller.hears = false;
  }
  service.Change(1);
  EXPECT_TRUE(Until([&] { return teller.Pinned() == std::set<uint64_t>{0, 1, 3}; }));
  const uint64_t before = teller.Calls();
  EXPECT_TRUE(Until([&] { return teller.Calls() > before + 1; })) << "it is told until it hears";
  prefixd_cuda_unpin(arena);
  EXPECT_EQ(teller.Pinned(), std::set<uint64_t>{});
  EXPECT_EQ(teller.early, 0u);
}

// Two GPUs where there are two, else two contexts on one.
TEST(PinTest, GpusOfAProcessShareWhatIsPinnedUntilTheLastUnpinsIt) {
  SKIP_WITHOUT_GPU();
  int gpus = 0;
  ASSERT_EQ(cudaGetDeviceCount(&gpus), cudaSuccess);
  prefixd_cuda_options other_gpu = PREFIXD_INIT(prefixd_cuda_options);
  other_gpu.device = gpus - 1;
  prefixd_cuda* const other = prefixd_cuda_open(&other_gpu);
  ASSERT_NE(other, nullptr) << prefixd_cuda_last_error();
  const ArenaFile file(8 * kMiB);
  Fill(file, 12);
  Service service;
  prefixd_cuda_arena* first = service.Pin(file);
  prefixd_cuda_arena* second = service.Pin(file, nullptr, nullptr, other);
  ASSERT_NE(second, nullptr) << prefixd_cuda_last_error();
  EXPECT_EQ(StateOf(second).pinned_bytes, 4 * kMiB) << StateOf(second).why_refused;

  const auto both_pinned = [&](uint32_t slices) {
    return StateOf(first).pinned_slices == slices && StateOf(second).pinned_slices == slices;
  };
  service.Change(2);
  file.Punch(4 * kMiB, 2 * kMiB);
  service.Change(2);
  service.Change(1);
  EXPECT_TRUE(Until([&] { return both_pinned(3); })) << StateOf(second).why_refused;
  EXPECT_EQ(StateOf(first).refused_slices + StateOf(second).refused_slices, 0u);
  Fill(file, 13);
  prefixd_cuda_unpin(first);
  EXPECT_EQ(prefixd_cuda_is_pinned(second, file.reader(), 6 * kMiB), 1);
  ASSERT_EQ(cudaSetDevice(other_gpu.device), cudaSuccess);
  const DeviceBytes to(8 * kMiB);
  EXPECT_EQ(prefixd_cuda_copy(other, to.data(), file.reader(), 8 * kMiB, nullptr), PREFIXD_OK);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(std::memcmp(to.Read<std::byte>().data(), file.writer(), 8 * kMiB), 0);
  prefixd_cuda_unpin(second);
  cudaPointerAttributes attributes = {};
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, file.reader()), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered) << "the last one unregistered it";
  prefixd_cuda_close(other);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

TEST(PinTest, SlabsThatCannotBeThoseOfAnArenaAreRefused) {
  SKIP_WITHOUT_GPU();
  const ArenaFile file(9 * kMiB);
  const uint64_t words[8] = {};
  prefixd_cuda_pin_options options = PREFIXD_INIT(prefixd_cuda_pin_options);
  options.slab_bytes = 2 * kMiB;
  options.service = words;
  options.service_stride = 1;
  EXPECT_EQ(prefixd_cuda_pin(Gpu(), file.reader(), 9 * kMiB, &options), nullptr);
  options.service_stride = 0;
  EXPECT_EQ(prefixd_cuda_pin(Gpu(), file.reader(), 8 * kMiB, &options), nullptr);
}

}  // namespace
}  // namespace prefixd::cuda
