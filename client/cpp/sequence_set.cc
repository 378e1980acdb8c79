#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "convert.h"
#include "look_up.h"
#include "prefixd/client.h"
#include "prefixd/set.h"
#include "sequence_impl.h"
#include "sequence_set_impl.h"

namespace prefixd {
namespace {

using client::ToPublic;
using std::chrono::steady_clock;

constexpr int kMostTries = 16;

}  // namespace

absl::Status SequenceSet::Impl::TryLookUp() {
  std::chrono::milliseconds longest{0};
  for (const Sequence& member : members) {
    const Sequence::Impl& sequence = *member.impl_;
    if (sequence.tokens.empty() || sequence.options.max_cached_tokens == 0) return absl::OkStatus();
    longest = std::max(longest, sequence.options.deadline);
  }
  const base::Deadline deadline = steady_clock::now() + longest;
  std::vector<client::SetQuestion> questions;
  for (const Sequence& member : members) {
    Sequence::Impl& sequence = *member.impl_;
    PREFIXD_ASSIGN_OR_RETURN(client::OpenedUnder opened, sequence.OpenForLookUp(deadline));
    questions.push_back(
        {.space = sequence.space,
         .question = {.opened = std::move(opened),
                      .sequence = {.tokens = sequence.tokens, .content = sequence.content},
                      .options = sequence.options}});
    if (questions.front().question.opened.attachment == questions.back().question.opened.attachment)
      continue;
    return absl::UnavailableError("begin: the daemon came back while the spaces were opened");
  }
  absl::StatusOr<std::vector<client::LookUpAnswer>> found =
      client::AcquireSet(*core, questions, deadline);
  for (size_t i = 0; i < members.size(); ++i) {
    const client::OpenedUnder& opened = questions[i].question.opened;
    if (absl::IsNotFound(found.status())) questions[i].space->Forget(opened.space.handle);
    if (found.ok()) members[i].impl_->Take(opened, std::move((*found)[i]), false);
  }
  return found.status();
}

void SequenceSet::Impl::LookUp() {
  if (members.empty()) return;
  const absl::Status status = TryLookUp();
  for (const Sequence& member : members) member.impl_->LookedUp(status);
}

uint32_t SequenceSet::Impl::Least() const {
  uint32_t least = ~uint32_t{0};
  for (const Sequence& member : members) least = std::min(least, member.restorable_tokens());
  return members.empty() ? 0 : least;
}

uint32_t SequenceSet::Impl::Restart() {
  if (members.empty()) return 0;
  uint32_t most = 0, least = ~uint32_t{0};
  for (Sequence& member : members) {
    most = std::max(most, member.impl_->pages.cached_tokens());
    least = std::min(least, member.Restart());
  }
  if (least == most) return least;
  if (std::ranges::all_of(members, [](const Sequence& m) { return m.impl_->space->regular(); })) {
    for (Sequence& member : members) {
      if (member.restorable_tokens() > least) member.impl_->CutTo(least);
    }
    return least;
  }
  // Other pages may be bad too: each try finds and drops some.
  for (int tries = 0; tries < kMostTries; ++tries) {
    for (Sequence& member : members) member.impl_->Forget();
    LookUp();
    most = 0;
    for (Sequence& member : members) {
      member.WaitAll();
      most = std::max(most, member.impl_->pages.cached_tokens());
    }
    if (Least() == most) return most;
  }
  for (Sequence& member : members) member.impl_->Forget();
  return 0;
}

SequenceSet::SequenceSet() = default;
SequenceSet::SequenceSet(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SequenceSet::~SequenceSet() = default;
SequenceSet::SequenceSet(SequenceSet&&) noexcept = default;
SequenceSet& SequenceSet::operator=(SequenceSet&&) noexcept = default;

size_t SequenceSet::size() const { return impl_ ? impl_->members.size() : 0; }
Sequence& SequenceSet::operator[](size_t member) { return impl_->members[member]; }
uint32_t SequenceSet::restorable_tokens() const { return impl_ ? impl_->Least() : 0; }

uint32_t SequenceSet::WaitAll() {
  if (!impl_) return 0;
  for (Sequence& member : impl_->members) member.WaitAll();
  return impl_->Least();
}

uint32_t SequenceSet::Restart() { return impl_ ? impl_->Restart() : 0; }

uint32_t SequenceSet::Extend(std::span<const uint32_t> tokens) {
  if (!impl_) return 0;
  for (Sequence& member : impl_->members) member.impl_->Append(tokens);
  impl_->LookUp();
  uint32_t least = ~uint32_t{0};
  for (const Sequence& member : impl_->members) {
    const Sequence::Impl& sequence = *member.impl_;
    least =
        std::min(least, std::max(sequence.restorable_tokens(), sequence.pages.complete_tokens()));
  }
  return impl_->members.empty() ? 0 : least;
}

}  // namespace prefixd
