// Loads that find their pages in device memory: right bytes, right counts, nothing over PCIe.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "tests/cuda/arena_file.h"
#include "tests/cuda/cases.h"

namespace prefixd::cuda {
namespace {

constexpr uint32_t kHeads = 2, kDim = 64, kTokens = 64;
constexpr uint32_t kExtents = 48;
constexpr uint64_t kExtent = 16384;

// A context of its own, with device pages, and an arena whose extents are stored again and again.
class Worker {
 public:
  explicit Worker(uint64_t budget_pages) : file_(kExtents * kExtent) {
    format_ =
        CFormat(quant::KvFormat{quant::Tiled(quant::MlxAffineFormat(8, 64, quant::Dtype::kF16)),
                                quant::MlxAffineFormat(4, 64, quant::Dtype::kF16)});
    page_bytes_ = kHeads * (prefixd_cuda_unit_bytes(&format_.key, kDim, kTokens) +
                            prefixd_cuda_unit_bytes(&format_.value, kDim, kTokens));
    EXPECT_LE(page_bytes_, kExtent);
    room_ = (page_bytes_ + 255) / 256 * 256;
    cuda_ = prefixd_cuda_open(nullptr);
    EXPECT_EQ(prefixd_cuda_keep_pages(cuda_, budget_pages * room_), PREFIXD_OK)
        << prefixd_cuda_last_error();
    for (uint32_t i = 0; i < kExtents; ++i) Store(i);
    arena_ = prefixd_cuda_pin(cuda_, file_.reader(), file_.bytes(), nullptr);
    EXPECT_NE(arena_, nullptr) << prefixd_cuda_last_error();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    prefixd_cuda_unpin(arena_);
    prefixd_cuda_close(cuda_);
  }

  // Evicts what the extent holds and stores other bytes there, under a new name.
  void Store(uint32_t extent) {
    const uint64_t generation = ++generations_[extent];
    std::byte* const at = file_.writer() + extent * kExtent;
    for (uint64_t i = 0; i < page_bytes_; ++i) {
      at[i] = static_cast<std::byte>((i * 31 + extent * 7 + generation * 101 + (i >> 8)) & 0x3B);
    }
  }
  prefixd_cuda_page_name NameOf(uint32_t extent) const {
    return {extent + 1, generations_[extent]};
  }
  bool Holds(uint32_t extent, const void* device) const {
    std::vector<std::byte> bytes(page_bytes_);
    EXPECT_EQ(cudaMemcpy(bytes.data(), device, page_bytes_, cudaMemcpyDefault), cudaSuccess);
    return std::memcmp(bytes.data(), file_.reader() + extent * kExtent, page_bytes_) == 0;
  }
  prefixd_block BlockOf(uint32_t extent) const {
    return {file_.reader() + extent * kExtent, extent * kExtent, kTokens, kTokens, 0};
  }
  prefixd_cuda_page_counts Counts() const {
    prefixd_cuda_page_counts counts = PREFIXD_INIT(prefixd_cuda_page_counts);
    EXPECT_EQ(prefixd_cuda_page_state(cuda_, &counts), PREFIXD_OK);
    return counts;
  }

  prefixd_cuda* cuda() const { return cuda_; }
  const prefixd_format& format() const { return format_; }
  uint64_t page_bytes() const { return page_bytes_; }
  uint64_t room() const { return room_; }

 private:
  ArenaFile file_;
  prefixd_format format_;
  uint64_t page_bytes_ = 0, room_ = 0;
  uint64_t generations_[kExtents] = {};
  prefixd_cuda* cuda_ = nullptr;
  prefixd_cuda_arena* arena_ = nullptr;
};

// One load of a layer with the extents as its blocks.
class OneLoad {
 public:
  OneLoad(const Worker& worker, std::vector<uint32_t> extents)
      : worker_(worker), extents_(std::move(extents)), resident_(extents_.size()) {
    for (const uint32_t extent : extents_) {
      blocks_.push_back(worker.BlockOf(extent));
      names_.push_back(worker.NameOf(extent));
    }
    layer_.blocks = blocks_.data();
    layer_.block_count = blocks_.size();
    layer_.formats = &worker.format();
    layer_.format_count = 1;
    layer_.kv_heads = kHeads;
    layer_.key_dim = layer_.value_dim = kDim;
    layer_.names = names_.data();
  }
  prefixd_cuda_load_layer& layer() { return layer_; }
  void UseInPlace() { layer_.resident = resident_.data(); }
  void CopyTo(DeviceBytes& memory) {
    for (size_t i = 0; i < extents_.size(); ++i) pages_.push_back(memory.at(i * kExtent));
    layer_.pages = pages_.data();
  }
  prefixd_cuda_load* Begin() {
    prefixd_cuda_load_options options = PREFIXD_INIT(prefixd_cuda_load_options);
    options.layers = &layer_;
    options.layer_count = 1;
    prefixd_cuda_load* const load = prefixd_cuda_load_begin(worker_.cuda(), &options);
    EXPECT_NE(load, nullptr) << prefixd_cuda_last_error();
    return load;
  }
  // Ends the load after it has looked at every page, and returns the counts.
  prefixd_cuda_load_counts Check(prefixd_cuda_load* load) {
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(prefixd_cuda_load_wait(load, 0, stream), PREFIXD_OK);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    cudaStreamDestroy(stream);
    for (size_t i = 0; i < extents_.size(); ++i) {
      const void* at = layer_.resident != nullptr ? resident_[i] : pages_[i];
      EXPECT_TRUE(at == nullptr || worker_.Holds(extents_[i], at)) << "extent " << extents_[i];
    }
    prefixd_cuda_load_counts counts = PREFIXD_INIT(prefixd_cuda_load_counts);
    EXPECT_EQ(prefixd_cuda_load_end(load, &counts), PREFIXD_OK) << prefixd_cuda_last_error();
    return counts;
  }
  const std::vector<const void*>& resident() const { return resident_; }

 private:
  const Worker& worker_;
  std::vector<uint32_t> extents_;
  std::vector<prefixd_block> blocks_;
  std::vector<prefixd_cuda_page_name> names_;
  std::vector<const void*> resident_;
  std::vector<void*> pages_;
  prefixd_cuda_load_layer layer_ = PREFIXD_INIT(prefixd_cuda_load_layer);
};

std::vector<uint32_t> SomeOf(uint32_t begin, uint32_t end, Draw& draw) {
  std::vector<uint32_t> extents;
  for (uint32_t i = begin; i < end; ++i) extents.push_back(i);
  for (size_t i = extents.size(); i > 1; --i) {
    std::swap(extents[i - 1], extents[draw.Below(static_cast<uint32_t>(i))]);
  }
  extents.resize(draw.From(1, static_cast<uint32_t>(std::min<size_t>(extents.size(), 12)) + 1));
  return extents;
}

TEST(LoadDevicePagesTest, ASecondLoadCostsNoByteOverPcie) {
  SKIP_WITHOUT_GPU();
  Worker worker(16);
  DeviceBytes memory(16 * kExtent);
  for (const bool in_place : {true, false, true}) {
    OneLoad load(worker, {3, 1, 40, 7});
    if (in_place) load.UseInPlace();
    if (!in_place) load.CopyTo(memory);
    const bool first = worker.Counts().pages == 0;
    const prefixd_cuda_load_counts counts = load.Check(load.Begin());
    EXPECT_EQ(counts.pinned_bytes, first ? 4 * worker.page_bytes() : 0);
    EXPECT_EQ(counts.bounced_bytes, 0u);
    EXPECT_EQ(counts.kept_bytes, first ? 0 : 4 * worker.page_bytes());
  }
}

TEST(LoadDevicePagesTest, ARandomSequenceOfLoadsAndStoresHasTheBytesAndCountsOfAnOracle) {
  SKIP_WITHOUT_GPU();
  constexpr size_t kPages = 20;
  Worker worker(kPages);
  DeviceBytes memory(16 * kExtent);
  Draw draw(51);
  std::deque<std::pair<uint64_t, uint64_t>> kept;  // names, the next to go first
  uint64_t hits = 0, misses = 0, evictions = 0;
  for (int round = 0; round < 600; ++round) {
    for (uint32_t n = draw.Below(4); n > 0; --n) worker.Store(draw.Below(kExtents));
    const std::vector<uint32_t> extents = SomeOf(0, kExtents, draw);
    std::vector<std::pair<uint64_t, uint64_t>> used;
    uint64_t found = 0;
    for (const uint32_t extent : extents) {
      const prefixd_cuda_page_name name = worker.NameOf(extent);
      used.emplace_back(name.high, name.low);
      const auto at = std::find(kept.begin(), kept.end(), used.back());
      if (at != kept.end()) {
        ++found;
        kept.erase(at);
      } else if (kept.size() + used.size() > kPages) {
        kept.pop_front();
        ++evictions;
      }
    }
    kept.insert(kept.end(), used.begin(), used.end());
    hits += found;
    misses += extents.size() - found;
    OneLoad load(worker, extents);
    if (draw.Once(2)) {
      load.UseInPlace();
    } else {
      load.CopyTo(memory);
    }
    const prefixd_cuda_load_counts counts = load.Check(load.Begin());
    ASSERT_EQ(counts.kept_bytes, found * worker.page_bytes()) << "round " << round;
    ASSERT_EQ(counts.pinned_bytes, (extents.size() - found) * worker.page_bytes());
    const prefixd_cuda_page_counts state = worker.Counts();
    ASSERT_LE(state.used_bytes, state.budget_bytes);
    ASSERT_EQ(state.pages, kept.size());
    ASSERT_EQ(state.hits, hits);
    ASSERT_EQ(state.misses, misses);
    ASSERT_EQ(state.evictions, evictions);
    ASSERT_EQ(state.in_use_bytes, 0u);
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
  EXPECT_GT(hits, 500u);
  EXPECT_GT(evictions, 500u);
}

TEST(LoadDevicePagesTest, TwoThreadsShareDevicePagesAndReadRightBytes) {
  SKIP_WITHOUT_GPU();
  Worker worker(14);
  const auto work = [&](uint32_t begin, uint32_t seed) {
    Draw draw(seed);
    DeviceBytes memory(24 * kExtent);
    for (int round = 0; round < 300; ++round) {
      for (uint32_t n = draw.Below(3); n > 0; --n) worker.Store(begin + draw.Below(16));
      std::vector<uint32_t> extents = SomeOf(begin, begin + 16, draw);  // this thread's
      const std::vector<uint32_t> both = SomeOf(32, kExtents, draw);    // nobody stores these
      extents.insert(extents.end(), both.begin(), both.end());
      OneLoad load(worker, extents);
      load.CopyTo(memory);
      if (draw.Once(2)) load.UseInPlace();
      load.Check(load.Begin());
      const prefixd_cuda_page_counts counts = worker.Counts();
      EXPECT_LE(counts.used_bytes, counts.budget_bytes);
      if (::testing::Test::HasFailure()) return;
    }
  };
  std::thread other([&] { work(0, 61); });
  work(16, 62);
  other.join();
  const prefixd_cuda_page_counts counts = worker.Counts();
  EXPECT_GT(counts.hits, 100u);
  EXPECT_GT(counts.evictions, 100u);
  EXPECT_GT(counts.no_room, 0u);
  EXPECT_EQ(counts.in_use_bytes, 0u);
  prefixd_cuda_forget_pages(worker.cuda());
  EXPECT_EQ(worker.Counts().pages, 0u);
}

TEST(LoadDevicePagesTest, ElementsFromDevicePagesAreThoseFromTheArena) {
  SKIP_WITHOUT_GPU();
  Worker worker(4);  // of 7: three go by scratch memory
  const std::vector<uint32_t> extents = {9, 2, 30, 31, 4, 5, 6};
  const size_t bytes = extents.size() * kTokens * kHeads * kDim * 2;
  std::vector<std::vector<std::byte>> got;
  for (const bool named : {false, true, true}) {
    DeviceBytes key(bytes), value(bytes);
    prefixd_cuda_tensor tensors[2] = {PREFIXD_INIT(prefixd_cuda_tensor),
                                      PREFIXD_INIT(prefixd_cuda_tensor)};
    for (prefixd_cuda_tensor& tensor : tensors) {
      tensor.dtype = PREFIXD_BF16;
      tensor.token_stride = kHeads * kDim;
      tensor.head_stride = kDim;
    }
    tensors[0].data = key.data();
    tensors[1].data = value.data();
    OneLoad load(worker, extents);
    load.layer().key = &tensors[0];
    load.layer().value = &tensors[1];
    if (!named) load.layer().names = nullptr;
    prefixd_cuda_load_counts counts = PREFIXD_INIT(prefixd_cuda_load_counts);
    EXPECT_EQ(prefixd_cuda_load_end(load.Begin(), &counts), PREFIXD_OK);
    EXPECT_EQ(counts.kept_bytes, got.size() == 2 ? 4 * worker.page_bytes() : 0);
    got.push_back(key.Read<std::byte>());
    const std::vector<std::byte> values = value.Read<std::byte>();
    got.back().insert(got.back().end(), values.begin(), values.end());
  }
  EXPECT_EQ(got[0], got[1]);
  EXPECT_EQ(got[0], got[2]);
  EXPECT_EQ(worker.Counts().no_room, 6u);
}

TEST(LoadDevicePagesTest, APageStaysWhileAStreamReadsItAndLoadsGoOnWithoutRoom) {
  SKIP_WITHOUT_GPU();
  Worker worker(2);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  std::atomic<bool> go{false};
  OneLoad first(worker, {1, 2});
  first.UseInPlace();
  prefixd_cuda_load* const load = first.Begin();
  ASSERT_EQ(prefixd_cuda_load_wait(load, 0, stream), PREFIXD_OK);
  ASSERT_EQ(cudaLaunchHostFunc(
                stream,
                [](void* flag) {
                  while (!static_cast<std::atomic<bool>*>(flag)->load()) {
                  }
                },
                &go),
            cudaSuccess);
  EXPECT_EQ(prefixd_cuda_load_keep(load, stream), PREFIXD_OK);
  EXPECT_EQ(prefixd_cuda_load_end(load, nullptr), PREFIXD_OK);
  EXPECT_EQ(worker.Counts().in_use_bytes, 2 * worker.room()) << "the stream has not read yet";
  DeviceBytes memory(4 * kExtent);
  OneLoad others(worker, {3, 4});
  others.CopyTo(memory);
  const prefixd_cuda_load_counts counts = others.Check(others.Begin());
  EXPECT_EQ(counts.pinned_bytes, 2 * worker.page_bytes());
  EXPECT_EQ(worker.Counts().no_room, 2u);
  EXPECT_EQ(worker.Counts().evictions, 0u);
  EXPECT_TRUE(worker.Holds(1, first.resident()[0]));
  go = true;
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  cudaStreamDestroy(stream);
  EXPECT_EQ(worker.Counts().in_use_bytes, 0u);
  OneLoad again(worker, {3, 4});
  again.UseInPlace();
  again.Check(again.Begin());
  EXPECT_EQ(worker.Counts().evictions, 2u);
}

TEST(LoadDevicePagesTest, ABudgetBeyondTheGpuIsRefusedAndLoadsGoOn) {
  SKIP_WITHOUT_GPU();
  prefixd_cuda* const cuda = prefixd_cuda_open(nullptr);
  EXPECT_EQ(prefixd_cuda_keep_pages(cuda, 0), PREFIXD_INVALID_ARGUMENT);
  EXPECT_EQ(prefixd_cuda_keep_pages(cuda, uint64_t{1} << 45), PREFIXD_EXHAUSTED);
  prefixd_cuda_page_counts counts = PREFIXD_INIT(prefixd_cuda_page_counts);
  EXPECT_EQ(prefixd_cuda_page_state(cuda, &counts), PREFIXD_OK);
  EXPECT_EQ(counts.budget_bytes, 0u);
  EXPECT_EQ(prefixd_cuda_keep_pages(cuda, 1 << 20), PREFIXD_OK);
  EXPECT_EQ(prefixd_cuda_keep_pages(cuda, 1 << 20), PREFIXD_FAILED_PRECONDITION);
  prefixd_cuda_close(cuda);
}

}  // namespace
}  // namespace prefixd::cuda
