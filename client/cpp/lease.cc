#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "convert.h"
#include "prefixd/client.h"
#include "sequence_impl.h"

namespace prefixd {
namespace {

using client::ToPublic;
using std::chrono::steady_clock;

// Longer than any load's own deadline, and far from where a sum overflows.
constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24);

base::Deadline Until(std::chrono::milliseconds deadline) {
  return steady_clock::now() + std::clamp(deadline, std::chrono::milliseconds(0), kLongest);
}

}  // namespace

Lease::Lease() = default;
Lease::Lease(Sequence pages) : pages_(std::move(pages)) {}
Lease::~Lease() = default;
Lease::Lease(Lease&&) noexcept = default;
Lease& Lease::operator=(Lease&&) noexcept = default;

const MatchInfo& Lease::match() const { return pages_.match(); }
uint32_t Lease::restorable_tokens() const { return pages_.restorable_tokens(); }

uint32_t Lease::Wait(int layer, std::chrono::milliseconds deadline) {
  if (!pages_.impl_ || !pages_.impl_->HasLayer(layer)) return 0;
  pages_.impl_->Ready(layer, Until(deadline)).IgnoreError();
  return restorable_tokens();
}

uint32_t Lease::WaitAll(std::chrono::milliseconds deadline) {
  if (!pages_.impl_) return 0;
  const base::Deadline until = Until(deadline);
  for (int layer = 0; pages_.impl_->HasLayer(layer); ++layer) {
    pages_.impl_->Ready(layer, until).IgnoreError();
  }
  return restorable_tokens();
}

template <typename View>
Status Lease::Copy(int layer, uint32_t begin, uint32_t count, const View& key, const View& value) {
  const auto copy = [&]() -> absl::Status {
    const uint32_t usable = Wait(layer);  // 0 if there is no such layer
    if (begin > usable || count > usable - begin) {
      return absl::FailedPreconditionError(absl::StrCat("gather: tokens ", begin, " to ",
                                                        uint64_t{begin} + count, " of layer ",
                                                        layer, ", the lease has ", usable));
    }
    if (count == 0) return absl::OkStatus();
    PREFIXD_RETURN_IF_ERROR(pages_.impl_->Gather(
        {.layer = static_cast<uint32_t>(layer), .begin = begin, .count = count}, key, value));
    Read(begin + count);
    return absl::OkStatus();
  };
  return ToPublic(copy());
}

Status Lease::Gather(int layer, uint32_t begin, uint32_t count, const MutablePackedView& key,
                     const MutablePackedView& value) {
  return Copy(layer, begin, count, key, value);
}

Status Lease::GatherRows(int layer, uint32_t begin, uint32_t count, const MutableTensorView& key,
                         const MutableTensorView& value) {
  return Copy(layer, begin, count, key, value);
}

Status Lease::GetState(int layer, std::span<std::byte> state) const {
  const Status status = pages_.GetState(layer, state);
  if (status.ok()) Read(restorable_tokens());
  return status;
}

void Lease::Read(uint32_t end) const {
  pages_.impl_->read_tokens = std::max(pages_.impl_->read_tokens, end);
}

std::span<const BlockTableEntry> Lease::Table(int layer) {
  if (!pages_.impl_ || !pages_.impl_->HasLayer(layer)) return {};
  // Cuts the table to the usable tokens.
  if (!pages_.impl_->Ready(layer).ok()) pages_.Restart();
  return pages_.block_table(layer);
}

std::span<const BlockTableEntry> Lease::block_table(int layer) {
  const std::span<const BlockTableEntry> table = Table(layer);
  if (!table.empty()) Read(restorable_tokens());
  return table;
}

std::vector<PageName> Lease::page_names(int layer) {
  const std::span<const BlockTableEntry> table = Table(layer);
  std::vector<PageName> names(table.size());
  const auto& held = pages_.impl_ ? pages_.impl_->held : std::nullopt;
  if (table.empty() || !held.has_value() || held->attachment->arena() == nullptr) return names;
  for (size_t i = 0; i < table.size(); ++i) {
    names[i] = pages_.impl_->names.Of(*held->attachment->arena(), table[i].arena_offset);
  }
  return names;
}

std::optional<ArenaView> Lease::arena() const { return pages_.arena(); }

std::vector<TokenRun> Lease::runs(int layer) {
  std::vector<TokenRun> runs;
  uint32_t begin = 0;
  for (const BlockTableEntry& entry : Table(layer)) {
    const TokenRun run{.begin = begin, .end = begin + entry.tokens, .format = entry.format};
    begin = run.end;
    if (entry.units == nullptr) continue;  // a sliding layer does not need the block
    if (!runs.empty() && runs.back().end == run.begin && runs.back().format == run.format) {
      runs.back().end = run.end;
    } else {
      runs.push_back(run);
    }
  }
  return runs;
}

void Lease::Release(const ReleaseInfo& info) { pages_.Release(info); }

Lease Space::Acquire(std::span<const uint32_t> tokens, const BeginOptions& options) {
  BeginOptions reading = options;
  reading.announce = false;
  reading.write_format = 0;
  return Lease(Begin(tokens, reading));
}

}  // namespace prefixd
