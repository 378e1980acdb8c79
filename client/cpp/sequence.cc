#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "convert.h"
#include "publish.h"
#include "sequence_impl.h"

namespace prefixd {
namespace {

using client::ToPublic;
using std::chrono::steady_clock;

absl::Status NoSequence() {
  return absl::FailedPreconditionError("sequence: empty, Space::Begin() gives one");
}

client::LayerTokens Range(int layer, uint32_t begin, uint32_t count) {
  return {.layer = static_cast<uint32_t>(layer), .begin = begin, .count = count};
}

}  // namespace

absl::Status Sequence::Impl::Ready(int layer) const {
  if (!load) return absl::OkStatus();
  const uint32_t usable = load->Wait(space->layers()[static_cast<size_t>(layer)].group);
  if (usable >= pages.cached_tokens()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("sequence: the cached tokens end at ", usable,
                                                    " instead of ", pages.cached_tokens(),
                                                    ": Restart() and begin again there"));
}

absl::Status Sequence::Impl::CheckTokens(int layer, uint32_t begin, uint32_t count) const {
  if (!HasLayer(layer)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence: layer ", layer, ", the space has ", space->layers().size()));
  }
  if (uint64_t{begin} + count > tokens.size()) {
    return absl::InvalidArgumentError(absl::StrCat("sequence: tokens up to ",
                                                   uint64_t{begin} + count, ", announced are ",
                                                   tokens.size(), " (PushToken announces more)"));
  }
  return Ready(layer);
}

absl::StatusOr<CommitInfo> Sequence::Impl::Commit(const CommitOptions& options) {
  const uint32_t block_tokens = pages.block_tokens();
  const uint32_t complete = pages.complete_tokens();
  const uint32_t whole = complete / block_tokens * block_tokens;
  const uint32_t target = options.sequence_end ? complete : whole;
  const bool new_end = options.sequence_end && target != end_tokens;
  if (target == 0 || (whole <= committed_tokens && !new_end)) return CommitInfo{};
  for (int layer = 0; HasLayer(layer); ++layer) PREFIXD_RETURN_IF_ERROR(Ready(layer));

  const base::Deadline deadline = steady_clock::now() + options.deadline;
  PREFIXD_ASSIGN_OR_RETURN(const client::OpenedSpace opened, core->Open(*space, deadline));
  committed_tokens =
      std::max(committed_tokens, whole);  // refused blocks are not offered at every token
  if (opened.block_tokens != block_tokens) {
    return absl::FailedPreconditionError(
        absl::StrCat("commit: the daemon has blocks of ", opened.block_tokens,
                     " tokens now, the sequence of ", block_tokens));
  }
  const std::vector<block::ContentKey> kept = block::CutContent(content, 0, target);
  const client::Published published =
      client::Publish(*core->connection(), *space, pages,
                      {.space = opened,
                       .sequence = {.tokens = std::span(tokens).first(target), .content = kept},
                       .sequence_end = options.sequence_end,
                       .deadline = deadline});
  if (published.unfinished) core->Abandon(opened.session, published.unfinished);
  if (absl::IsNotFound(published.status)) space->Forget(opened.handle);
  PREFIXD_RETURN_IF_ERROR(published.status);
  if (options.sequence_end) end_tokens = target;
  return published.info;
}

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

uint32_t Sequence::restorable_tokens() const {
  if (!impl_) return 0;
  const uint32_t cached = impl_->pages.cached_tokens();
  return impl_->load ? std::min(cached, impl_->load->usable_tokens()) : cached;
}

uint32_t Sequence::Wait(int layer) {
  if (!impl_ || !impl_->HasLayer(layer)) return 0;
  if (impl_->load) impl_->load->Wait(impl_->space->layers()[static_cast<size_t>(layer)].group);
  return restorable_tokens();
}

uint32_t Sequence::WaitAll() {
  if (!impl_) return 0;
  for (int layer = 0; impl_->HasLayer(layer); ++layer) Wait(layer);
  return restorable_tokens();
}

uint32_t Sequence::Restart() {
  if (!impl_) return 0;
  const uint32_t usable = WaitAll();
  impl_->pages.Restart(impl_->load, usable);
  return usable;
}

Status Sequence::Append(int layer, uint32_t begin, uint32_t count, const TensorView& key,
                        const TensorView& value) {
  if (!impl_) return ToPublic(NoSequence());
  if (absl::Status bad = impl_->CheckTokens(layer, begin, count); !bad.ok()) return ToPublic(bad);
  return ToPublic(impl_->pages.Append(Range(layer, begin, count), key, value));
}

Status Sequence::WritePacked(int layer, uint32_t begin, uint32_t count, const PackedView& key,
                             const PackedView& value) {
  if (!impl_) return ToPublic(NoSequence());
  if (absl::Status bad = impl_->CheckTokens(layer, begin, count); !bad.ok()) return ToPublic(bad);
  return ToPublic(impl_->pages.WritePacked(Range(layer, begin, count), key, value));
}

Status Sequence::Gather(int layer, uint32_t begin, uint32_t count, const MutablePackedView& key,
                        const MutablePackedView& value) const {
  if (!impl_) return ToPublic(NoSequence());
  if (absl::Status bad = impl_->CheckTokens(layer, begin, count); !bad.ok()) return ToPublic(bad);
  return ToPublic(impl_->pages.Gather(Range(layer, begin, count), key, value));
}

void Sequence::PushToken(uint32_t token) {
  if (impl_) impl_->tokens.push_back(token);
}

std::span<const BlockTableEntry> Sequence::block_table(int layer) {
  if (!impl_ || !impl_->HasLayer(layer) || !impl_->Ready(layer).ok()) return {};
  return impl_->pages.Table(static_cast<uint32_t>(layer));
}

Result<CommitInfo> Sequence::Commit(const CommitOptions& options) {
  if (!impl_) return {.status = ToPublic(NoSequence()), .held = {}};
  try {
    absl::StatusOr<CommitInfo> info = impl_->Commit(options);
    if (!info.ok()) return {.status = ToPublic(info.status()), .held = {}};
    return {.status = {}, .held = *info};
  } catch (const std::bad_alloc&) {  // the messages of a long sequence
    return {.status = {StatusCode::kExhausted, "commit: out of memory"}, .held = {}};
  }
}

void Sequence::Release(const ReleaseInfo& info) {
  if (!impl_ || !impl_->load || std::exchange(impl_->released, true)) return;
  const auto micros = [](std::chrono::microseconds time) {
    return static_cast<uint64_t>(std::max<int64_t>(0, time.count()));
  };
  impl_->load->Cancel();
  v1::Released released;
  released.set_lease(impl_->load->lease().value);
  released.set_used_tokens(info.used_tokens);
  released.set_first_token_us(micros(info.first_token));
  released.set_load_us(micros(load_time()));
  released.set_prefill_tokens_per_s(info.prefill_tokens_per_s);
  impl_->core->Release(impl_->load->session(), std::move(released));
}

std::chrono::microseconds Sequence::load_time() const {
  return impl_ && impl_->load ? impl_->load->duration() : std::chrono::microseconds{0};
}

}  // namespace prefixd
