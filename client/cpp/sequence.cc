#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"

#include "attend_layer.h"
#include "convert.h"
#include "prefixd/client.h"
#include "sequence_impl.h"

namespace prefixd {
namespace {

using client::ToPublic;

absl::Status NoSequence() {
  return absl::FailedPreconditionError("sequence: empty, Space::Begin() gives one");
}

Result<CommitInfo> ToResult(const absl::StatusOr<CommitInfo>& info) {
  if (!info.ok()) return {.status = ToPublic(info.status()), .held = {}};
  return {.status = {}, .held = *info};
}

client::LayerTokens Range(int layer, uint32_t begin, uint32_t count) {
  return {.layer = static_cast<uint32_t>(layer), .begin = begin, .count = count};
}

}  // namespace

Sequence::Sequence() = default;
Sequence::Sequence(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Sequence::~Sequence() { Release(); }
Sequence::Sequence(Sequence&&) noexcept = default;
Sequence& Sequence::operator=(Sequence&& other) noexcept {
  if (this != &other) {
    Release();
    impl_ = std::move(other.impl_);
  }
  return *this;
}

const MatchInfo& Sequence::match() const {
  static const MatchInfo none;
  return impl_ ? impl_->match : none;
}

uint32_t Sequence::restorable_tokens() const { return impl_ ? impl_->restorable_tokens() : 0; }

uint32_t Sequence::Wait(int layer) {
  if (!impl_ || !impl_->HasLayer(layer)) return 0;
  impl_->Ready(layer).IgnoreError();
  return restorable_tokens();
}

uint32_t Sequence::WaitAll() {
  if (!impl_) return 0;
  for (int layer = 0; impl_->HasLayer(layer); ++layer) Wait(layer);
  return restorable_tokens();
}

uint32_t Sequence::Restart() { return impl_ ? impl_->Restart() : 0; }

Status Sequence::Append(int layer, uint32_t begin, uint32_t count, const TensorView& key,
                        const TensorView& value) {
  if (!impl_) return ToPublic(NoSequence());
  if (absl::Status bad = impl_->CheckTokens(layer, begin, count); !bad.ok()) return ToPublic(bad);
  impl_->SettleBefore(begin);
  const absl::Status status = impl_->pages.Append(Range(layer, begin, count), key, value);
  impl_->core->counts().BeganCoarser(impl_->pages.TakeCoarserBlocks());
  return ToPublic(status);
}

Status Sequence::WritePacked(int layer, uint32_t begin, uint32_t count, const PackedView& key,
                             const PackedView& value) {
  if (!impl_) return ToPublic(NoSequence());
  if (absl::Status bad = impl_->CheckTokens(layer, begin, count); !bad.ok()) return ToPublic(bad);
  impl_->SettleBefore(begin);
  return ToPublic(impl_->pages.WritePacked(Range(layer, begin, count), key, value));
}

Status Sequence::Gather(int layer, uint32_t begin, uint32_t count, const MutablePackedView& key,
                        const MutablePackedView& value) const {
  if (!impl_) return ToPublic(NoSequence());
  if (absl::Status bad = impl_->CheckTokens(layer, begin, count); !bad.ok()) return ToPublic(bad);
  return ToPublic(impl_->Gather(Range(layer, begin, count), key, value));
}

std::span<const uint32_t> Sequence::snapshots_wanted() const {
  if (!impl_) return {};
  return impl_->snapshots_wanted();
}

Status Sequence::PutState(int layer, uint32_t tokens, std::span<const std::byte> state) {
  return ToPublic(impl_ ? impl_->PutState(layer, tokens, state) : NoSequence());
}

Status Sequence::GetState(int layer, std::span<std::byte> state) const {
  return ToPublic(impl_ ? impl_->GetState(layer, state) : NoSequence());
}

void Sequence::PushToken(uint32_t token) {
  if (impl_) impl_->tokens.push_back(token);
}

std::span<const BlockTableEntry> Sequence::block_table(int layer) {
  if (!impl_ || !impl_->HasLayer(layer) || !impl_->Ready(layer).ok()) return {};
  return impl_->pages.Table(static_cast<uint32_t>(layer));
}

Status Sequence::Attend(int layer, const float* q, float* out, const AttendOptions& options) {
  if (!impl_) return ToPublic(NoSequence());
  if (!impl_->HasLayer(layer)) {
    return ToPublic(absl::InvalidArgumentError(absl::StrCat("attend: no layer ", layer)));
  }
  if (const absl::Status ready = impl_->Ready(layer); !ready.ok()) return ToPublic(ready);
  const auto index = static_cast<uint32_t>(layer);
  return client::AttendLayer(impl_->space->groups()[impl_->space->layers()[index].group],
                             impl_->pages.Table(index), q, out, options);
}

Result<CommitInfo> Sequence::Commit(const CommitOptions& options) {
  if (!impl_) return {.status = ToPublic(NoSequence()), .held = {}};
  try {
    return ToResult(impl_->Commit(options));
  } catch (const std::bad_alloc&) {  // building the messages of a long sequence
    return {.status = {StatusCode::kExhausted, "commit: out of memory"}, .held = {}};
  }
}

bool Sequence::StartCommit(const CommitOptions& options) {
  try {
    return impl_ && impl_->StartCommit(options);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

Result<CommitInfo> Sequence::FinishCommit() {
  if (!impl_) return {.status = ToPublic(NoSequence()), .held = {}};
  return ToResult(impl_->FinishCommit());
}

void Sequence::Release(const ReleaseInfo& info) {
  if (impl_) impl_->Release(info);
}

uint64_t Sequence::in_place_bytes() const {
  if (!impl_) return 0;
  for (int layer = 0; impl_->HasLayer(layer); ++layer) {
    if (!impl_->Ready(layer).ok()) return 0;
  }
  return impl_->pages.in_place_bytes();
}

std::optional<ArenaView> Sequence::arena() const {
  if (!impl_ || !impl_->held.has_value()) return std::nullopt;
  const std::shared_ptr<const client::ArenaMapping>& mapping = impl_->held->attachment->arena();
  if (mapping == nullptr) return std::nullopt;
  std::optional<ArenaView> view = mapping->View();
  if (view.has_value()) view->mapping = mapping;
  return view;
}

std::chrono::microseconds Sequence::load_time() const {
  return impl_ && impl_->load ? impl_->load->duration() : std::chrono::microseconds{0};
}

}  // namespace prefixd
