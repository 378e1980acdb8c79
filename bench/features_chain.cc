// A chain whose blocks are stored in full precision, in 8 and in 4 bits: attention on it errs no
// more than on its worst part, and a block that went bad is stored again by whoever comes next.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/checksum.h"
#include "base/status.h"
#include "bench/attention_call.h"
#include "bench/features.h"
#include "bench/own_cache.h"
#include "block/page_layout.h"
#include "kernels/attention.h"
#include "quant/unit.h"

namespace prefixd::bench {
namespace {

constexpr uint32_t kBlock = 64, kBlocks = 10, kTokens = kBlock * kBlocks, kHeads = 2, kDim = 128;
constexpr uint32_t kRungs = 3, kWorst = 2;  // raw, 8 bits, 4 bits

using Page = std::vector<std::byte>;
// Which rung each block is in.
using Rungs = std::vector<uint32_t>;

Rungs Mixed() {
  Rungs rungs;
  for (uint32_t i = 0; i < kBlocks; ++i) rungs.push_back(i % kRungs);
  return rungs;
}

base::Deadline Soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }

block::SpaceIdentity Identity() {
  const quant::TensorFormat raw = quant::RawFormat(quant::Dtype::kF16);
  const auto mlx = [](uint8_t bits) {
    return quant::MlxAffineFormat(bits, 64, quant::Dtype::kF16);
  };
  block::LayerGroup group;
  group.name = "full.0";
  group.layers = {0};
  group.kv_heads = kHeads;
  group.key_dim = group.value_dim = kDim;
  group.ladder = {{raw, raw}, {mlx(8), mlx(8)}, {mlx(4), mlx(4)}};
  block::SpaceIdentity identity;
  identity.model = "chain";
  identity.weights_digest[0] = std::byte{1};
  identity.block_tokens = kBlock;
  identity.groups = {group};
  return identity;
}

// Normal values of one sequence, and its pages in any rung.
class Sequence {
 public:
  explicit Sequence(uint32_t seed)
      : keys_(NormalFloats(size_t{kTokens} * kHeads * kDim, 2 * seed)),
        values_(NormalFloats(size_t{kTokens} * kHeads * kDim, 2 * seed + 1)),
        queries_(NormalFloats(size_t{kHeads} * kDim, 7000 + seed)) {
    for (uint32_t i = 0; i < kTokens; ++i) tokens_.push_back(seed * kTokens + i);
  }
  const std::vector<block::Token>& tokens() const { return tokens_; }

  Page PageOf(const block::LayerGroup& group, uint32_t rung, uint32_t block) const {
    const block::PageLayout layout = block::LayoutOfPage(group, rung, kBlock);
    Page page(layout.page_bytes);
    const quant::KvFormat& format = group.ladder[rung];
    for (uint32_t head = 0; head < kHeads; ++head) {
      Fill({.format = format.key, .side = quant::Side::kKey, .dim = kDim, .page_tokens = kBlock},
           keys_, block, head, page.data() + block::KeyUnitOffset(group, layout, 0, head));
      Fill(
          {.format = format.value, .side = quant::Side::kValue, .dim = kDim, .page_tokens = kBlock},
          values_, block, head, page.data() + block::ValueUnitOffset(group, layout, 0, head));
    }
    return page;
  }
  // One query row at the end, over pages as they are; pages must stay.
  absl::StatusOr<std::vector<float>> Attend(const block::LayerGroup& group,
                                            const std::vector<Page>& pages,
                                            const Rungs& rungs) const {
    uint64_t bytes = 0;
    for (const Page& page : pages) bytes += page.size();
    const std::unique_ptr<std::byte, void (*)(std::byte*)> memory(
        static_cast<std::byte*>(::operator new(bytes, std::align_val_t(quant::kUnitAlignment))),
        [](std::byte* to) { ::operator delete(to, std::align_val_t(quant::kUnitAlignment)); });
    std::byte* at = memory.get();
    std::vector<quant::BlockTableEntry> table;
    for (size_t i = 0; i < pages.size(); ++i) {
      std::memcpy(at, pages[i].data(), pages[i].size());
      table.push_back({.units = at, .page_tokens = kBlock, .tokens = kBlock, .format = rungs[i]});
      at += pages[i].size();
    }
    std::vector<float> out(queries_.size());
    PREFIXD_RETURN_IF_ERROR(
        kernels::Attend(table, group.ladder, queries_.data(), out.data(),
                        {.query_heads = kHeads,
                         .kv_heads = kHeads,
                         .key_dim = kDim,
                         .value_dim = kDim,
                         .first_position = static_cast<uint32_t>(pages.size()) * kBlock - 1,
                         .scale = 1 / std::sqrt(static_cast<float>(kDim))}));
    return out;
  }
  // All blocks in one rung.
  absl::StatusOr<std::vector<float>> AttendIn(const block::LayerGroup& group, uint32_t rung) const {
    std::vector<Page> pages;
    for (uint32_t i = 0; i < kBlocks; ++i) pages.push_back(PageOf(group, rung, i));
    return Attend(group, pages, Rungs(kBlocks, rung));
  }

 private:
  static void Fill(const quant::UnitShape& shape, const std::vector<float>& floats, uint32_t block,
                   uint32_t head, std::byte* unit) {
    for (uint32_t i = 0; i < kBlock; ++i) {
      const size_t row = (size_t{block} * kBlock + i) * kHeads + head;
      quant::QuantizeToken(shape, std::span(floats).subspan(row * kDim, kDim), i, unit);
    }
  }
  const std::vector<float> keys_, values_, queries_;
  std::vector<block::Token> tokens_;
};

class Pages : public cache::FetchSink {
 public:
  bool Page(const cache::PagePiece& piece) override {
    bench::Page& page = pages[piece.first_token];
    page.insert(page.end(), piece.data.begin(), piece.data.end());
    return true;
  }
  bool Ready(const cache::GroupReady&) override { return true; }
  std::map<uint32_t, bench::Page> pages;
};

// A cache with an SSD tier that holds one chain.
class Chain {
 public:
  Chain(uint32_t seed, std::string directory)
      : sequence_(seed), directory_(std::move(directory)), identity_(Identity()) {}

  absl::Status Open() {
    own_ = {};
    PREFIXD_ASSIGN_OR_RETURN(own_, OpenOwnCache(SmallSsdCache(directory_), identity_));
    return absl::OkStatus();
  }
  // As a worker: what is missing, in the rungs given. Returns how many blocks that were.
  absl::StatusOr<uint32_t> Write(const Rungs& rungs) {
    PREFIXD_ASSIGN_OR_RETURN(const block::ReservePlan plan,
                             own_.cache->Reserve(own_.session, {.space = own_.space,
                                                                .tokens = sequence_.tokens(),
                                                                .content = {},
                                                                .groups = {},
                                                                .writable = {}}));
    uint32_t written = 0;
    for (const block::BlockPlan& block : plan.blocks) {
      if (block.state == block::BlockState::kPresent) continue;
      const uint32_t index = block.first_token / kBlock, rung = rungs[index];
      const Page page = sequence_.PageOf(group(), rung, index);
      PREFIXD_RETURN_IF_ERROR(own_.cache->PutPage(own_.session, plan.reservation,
                                                  {.first_token = block.first_token,
                                                   .tokens = block.tokens,
                                                   .rung = rung,
                                                   .page_bytes = page.size(),
                                                   .xxh3 = base::Xxh3(page),
                                                   .data = page},
                                                  Soon()));
      stored_[index] = rung;
      ++written;
    }
    PREFIXD_RETURN_IF_ERROR(own_.cache
                                ->Commit(own_.session, {.reservation = plan.reservation,
                                                        .tokens = kTokens,
                                                        .sequence_end = true,
                                                        .ends = {}})
                                .status());
    return written;
  }
  // Flips a bit in the middle of each segment on disk.
  absl::Status Damage() {
    own_.cache->Flush(Soon());
    own_ = {};
    uint32_t damaged = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_)) {
      if (entry.path().extension() != ".sst" || entry.file_size() < 100'000) continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      const auto middle = static_cast<std::streamoff>(entry.file_size() / 2);
      file.seekg(middle);
      const char byte = static_cast<char>(file.peek() ^ 0x10);
      file.seekp(middle);
      file.put(byte);
      ++damaged;
    }
    if (damaged == 0) return absl::InternalError("no segment to damage");
    return Open();
  }
  struct Read {
    uint32_t blocks = 0;       // restored
    bool right = false;        // each is byte for byte what was written there
    std::vector<float> out{};  // of attention, where all blocks are here
  };
  absl::StatusOr<Read> ReadAll() {
    cache::Request request;
    request.space = own_.space;
    request.tokens = sequence_.tokens();
    PREFIXD_ASSIGN_OR_RETURN(const cache::Acquired acquired,
                             own_.cache->Acquire(own_.session, request, Soon()));
    Pages got;
    // A page that turns out bad ends the lease there.
    own_.cache
        ->Fetch(own_.session, {.lease = acquired.lease, .groups = {}, .from_token = 0}, Soon(),
                &got)
        .IgnoreError();
    PREFIXD_RETURN_IF_ERROR(own_.cache->Release(own_.session, {.lease = acquired.lease}));
    Read read{.right = true};
    std::vector<Page> pages;
    Rungs rungs;
    for (uint32_t i = 0; i < kBlocks && got.pages.contains(i * kBlock); ++i) {
      pages.push_back(std::move(got.pages[i * kBlock]));
      rungs.push_back(stored_[i]);
      read.right &= pages.back() == sequence_.PageOf(group(), rungs.back(), i);
      ++read.blocks;
    }
    if (read.blocks == kBlocks && read.right) {
      PREFIXD_ASSIGN_OR_RETURN(read.out, sequence_.Attend(group(), pages, rungs));
    }
    return read;
  }
  const Sequence& sequence() const { return sequence_; }
  const block::LayerGroup& group() const { return identity_.groups[0]; }

 private:
  const Sequence sequence_;
  const std::string directory_;
  const block::SpaceIdentity identity_;
  std::map<uint32_t, uint32_t> stored_;  // rung by block
  OwnCache own_;
};

// Of all chains together.
struct Seen {
  double worst_error = 0, mixed_error = 0, healed_error = 0;  // the largest of the seeds
  uint32_t chains = 0, cut = 0, healed = 0;                   // cut: shorter for a bad block
  uint32_t lost_blocks = 0, written_blocks = 0;
};

absl::Status Try(uint32_t seed, const std::string& directory, Seen* seen) {
  Chain chain(seed, directory);
  PREFIXD_RETURN_IF_ERROR(chain.Open());
  PREFIXD_RETURN_IF_ERROR(chain.Write(Mixed()).status());
  PREFIXD_ASSIGN_OR_RETURN(const Chain::Read whole, chain.ReadAll());
  if (whole.out.empty()) return absl::InternalError("the chain did not come back as it was stored");
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<float> raw,
                           chain.sequence().AttendIn(chain.group(), 0));
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<float> worst,
                           chain.sequence().AttendIn(chain.group(), kWorst));
  seen->worst_error = std::max(seen->worst_error, RelativeRms(worst, raw));
  seen->mixed_error = std::max(seen->mixed_error, RelativeRms(whole.out, raw));
  ++seen->chains;

  PREFIXD_RETURN_IF_ERROR(chain.Damage());
  PREFIXD_ASSIGN_OR_RETURN(const Chain::Read cut, chain.ReadAll());
  seen->cut += cut.blocks < kBlocks && cut.right;
  seen->lost_blocks += kBlocks - cut.blocks;
  // The next worker computes what it misses, in its own format.
  PREFIXD_ASSIGN_OR_RETURN(const uint32_t written, chain.Write(Rungs(kBlocks, kWorst)));
  seen->written_blocks += written;
  PREFIXD_ASSIGN_OR_RETURN(const Chain::Read healed, chain.ReadAll());
  if (healed.out.empty()) return absl::OkStatus();
  ++seen->healed;
  seen->healed_error = std::max(seen->healed_error, RelativeRms(healed.out, raw));
  return absl::OkStatus();
}

std::string ErrorText(double error) { return absl::StrCat(std::round(error * 1e5) / 1e3, " %"); }

}  // namespace

void FeaturesChain(Bench& bench) {
  Seen seen;
  const uint64_t chains = bench.Parameter("chains", 2, 10, 40);
  for (uint64_t i = 0; i < chains; ++i) {
    const absl::Status status =
        Try(static_cast<uint32_t>(i + 1), absl::StrCat(bench.directory(), "/chain-", i), &seen);
    if (!bench.Check(status.ok(), status.ToString())) return;
  }
  bench.Check(seen.cut == seen.chains, absl::StrCat("only ", seen.cut, " of ", seen.chains,
                                                    " chains were shorter for a bad block"));
  bench.Judge({.name = "chain of raw, 8-bit and 4-bit blocks",
               .ours = "error " + ErrorText(seen.mixed_error),
               .reference = "of 4 bits alone " + ErrorText(seen.worst_error),
               .seen = seen.mixed_error / seen.worst_error,
               .limit = 1,
               .runs = seen.chains});
  bench.Judge(
      {.name = "chain with a bad block",
       .ours = absl::StrCat(seen.healed, " chains healed, ", seen.written_blocks,
                            " blocks stored again, error ", ErrorText(seen.healed_error)),
       .reference = absl::StrCat(seen.chains, " chains, cut ", seen.lost_blocks, " blocks short"),
       .measure = "not healed",
       .seen = static_cast<double>(seen.chains - seen.healed),
       .limit = 0,
       .runs = seen.chains});
}

}  // namespace prefixd::bench
