#include "prefixd/client.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "convert.h"
#include "core.h"
#include "sequence_impl.h"
#include "wire/answer.h"
#include "wire/sequence.h"

namespace prefixd {
namespace {

using client::ToPublic;
using std::chrono::steady_clock;

bool IsUnreachable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
}

}  // namespace

struct Client::Impl {
  std::shared_ptr<client::Core> core;
};

struct Space::Impl {
  std::shared_ptr<client::Core> core;
  std::shared_ptr<client::SpaceState> space;

  absl::StatusOr<v1::AcquireRequest> MakeRequest(const client::OpenedSpace& opened,
                                                 const block::SequenceView& sequence,
                                                 const BeginOptions& options) const;
  absl::Status LookUp(const BeginOptions& options, Sequence::Impl* sequence) const;
};

absl::StatusOr<v1::AcquireRequest> Space::Impl::MakeRequest(const client::OpenedSpace& opened,
                                                            const block::SequenceView& sequence,
                                                            const BeginOptions& options) const {
  v1::AcquireRequest request;
  request.set_session(opened.session.id);
  v1::AcquireRequest::Item* item = request.add_items();
  wire::ToProto(opened.handle, sequence, item->mutable_sequence());
  item->set_max_tokens(options.max_tokens == block::kNoLimit ? 0 : options.max_tokens);
  item->set_request_id(options.request_id);
  for (const block::LayerGroup& group : space->groups()) {
    const uint64_t readable = options.readable & ((uint64_t{1} << group.ladder.size()) - 1);
    if (readable == 0) {
      return absl::InvalidArgumentError(absl::StrCat("begin: readable names none of the ",
                                                     group.ladder.size(), " formats of group ",
                                                     group.name));
    }
    item->add_readable(readable);
  }
  return request;
}

namespace {

// The rungs of the leased pages, [group][block]. Internal when the answer does not fit the request.
absl::StatusOr<std::vector<std::vector<uint32_t>>> RungsOf(
    const wire::Answer& answer, const std::vector<block::LayerGroup>& groups, uint32_t block_tokens,
    uint32_t most_tokens) {
  const uint32_t tokens = answer.match.restorable_tokens;
  if (tokens > most_tokens) {
    return absl::InternalError(absl::StrCat("begin: the daemon restores ", tokens,
                                            " tokens, asked for at most ", most_tokens));
  }
  std::vector<std::vector<uint32_t>> rungs(groups.size());
  for (const block::LeasedPage& page : answer.pages) {
    if (page.group >= groups.size() || page.rung >= groups[page.group].ladder.size()) {
      return absl::InternalError(
          absl::StrCat("begin: the daemon leased group ", page.group, ", rung ", page.rung));
    }
    if (page.first_token != rungs[page.group].size() * block_tokens) {
      return absl::InternalError("begin: the daemon leased pages out of order");
    }
    rungs[page.group].push_back(page.rung);
  }
  const size_t blocks = (tokens + block_tokens - 1) / block_tokens;
  for (const std::vector<uint32_t>& column : rungs) {
    if (column.size() != blocks) {
      return absl::InternalError(absl::StrCat("begin: the daemon leased ", column.size(),
                                              " pages of a group, ", blocks, " expected"));
    }
  }
  return rungs;
}

}  // namespace

// Acquires and starts the loading. An error leaves the sequence without cached tokens.
absl::Status Space::Impl::LookUp(const BeginOptions& options, Sequence::Impl* sequence) const {
  if (sequence->tokens.empty() || options.max_tokens == 0) return absl::OkStatus();
  const base::Deadline asked = steady_clock::now();
  const base::Deadline deadline = asked + options.deadline;
  PREFIXD_ASSIGN_OR_RETURN(const client::OpenedSpace opened, core->Open(*space, deadline));
  if (opened.block_tokens != sequence->pages.block_tokens()) {
    return absl::UnavailableError("begin: the space was just opened with other blocks");
  }
  PREFIXD_ASSIGN_OR_RETURN(const v1::AcquireRequest request,
                           MakeRequest(opened, {sequence->tokens, sequence->content}, options));
  absl::StatusOr<v1::AcquireReply> reply = core->connection()->Call(
      &client::Connection::Stub::Acquire, opened.session, request, deadline);
  if (absl::IsNotFound(reply.status())) space->Forget(opened.handle);
  PREFIXD_RETURN_IF_ERROR(reply.status());
  if (reply->answers_size() != 1) {
    return absl::InternalError(
        absl::StrCat("begin: the daemon gave ", reply->answers_size(), " answers to one item"));
  }
  PREFIXD_ASSIGN_OR_RETURN(const wire::Answer answer,
                           wire::FromProto(reply->answers(0), opened.block_tokens));
  if (answer.match.restorable_tokens > 0) {
    const uint32_t most =
        std::min(static_cast<uint32_t>(sequence->tokens.size()), options.max_tokens);
    client::LoadPlan plan{.session = opened.session,
                          .lease = answer.lease,
                          .block_tokens = opened.block_tokens,
                          .tokens = answer.match.restorable_tokens,
                          .rungs = {},
                          .asked = asked,
                          .deadline = asked + options.load_deadline};
    absl::StatusOr<std::vector<std::vector<uint32_t>>> rungs =
        RungsOf(answer, space->groups(), opened.block_tokens, most);
    if (!rungs.ok()) {
      v1::Released released;
      released.set_lease(answer.lease.value);
      core->Release(opened.session, std::move(released));
      return rungs.status();
    }
    plan.rungs = *std::move(rungs);
    sequence->load = std::make_shared<client::PageLoad>(core->connection(), space, std::move(plan));
    sequence->pages.Restart(sequence->load, answer.match.restorable_tokens);
    core->StartLoad(sequence->load);
  }
  sequence->match = ToPublic(answer.match);
  return absl::OkStatus();
}

Space::Space() = default;
Space::Space(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Space::~Space() = default;
Space::Space(Space&&) noexcept = default;
Space& Space::operator=(Space&&) noexcept = default;

Sequence Space::Begin(std::span<const uint32_t> tokens, const BeginOptions& options) {
  if (!impl_) return {};
  auto make = [&] {
    return std::make_unique<Sequence::Impl>(Sequence::Impl{
        .core = impl_->core,
        .space = impl_->space,
        .tokens = {tokens.begin(), tokens.end()},
        .content = client::FromPublic(options.content),
        .match = {},
        .load = nullptr,
        .pages = {impl_->space, impl_->space->block_tokens(), options.write_format}});
  };
  std::unique_ptr<Sequence::Impl> sequence = make();
  const absl::Status status = impl_->LookUp(options, sequence.get());
  sequence->match.status = ToPublic(status);
  sequence->committed_tokens = sequence->pages.cached_tokens() / sequence->pages.block_tokens() *
                               sequence->pages.block_tokens();
  return Sequence(std::move(sequence));
}

Result<MatchInfo> Space::Match(std::span<const uint32_t> tokens, const BeginOptions& options) {
  const auto look = [&]() -> absl::StatusOr<MatchInfo> {
    if (!impl_) return absl::FailedPreconditionError("space: empty, Client::OpenSpace() gives one");
    const base::Deadline deadline = steady_clock::now() + options.deadline;
    PREFIXD_ASSIGN_OR_RETURN(const client::OpenedSpace opened,
                             impl_->core->Open(*impl_->space, deadline));
    const std::vector<block::ContentKey> content = client::FromPublic(options.content);
    PREFIXD_ASSIGN_OR_RETURN(const v1::AcquireRequest request,
                             impl_->MakeRequest(opened, {tokens, content}, options));
    PREFIXD_ASSIGN_OR_RETURN(const v1::AcquireReply reply,
                             impl_->core->connection()->Call(&client::Connection::Stub::Match,
                                                             opened.session, request, deadline));
    if (reply.answers_size() != 1) return absl::InternalError("match: not one answer");
    PREFIXD_ASSIGN_OR_RETURN(const wire::Answer answer,
                             wire::FromProto(reply.answers(0), opened.block_tokens));
    return ToPublic(answer.match);
  };
  absl::StatusOr<MatchInfo> info = look();
  if (!info.ok()) return {.status = ToPublic(info.status()), .held = {}};
  return {.status = {}, .held = *std::move(info)};
}

uint32_t Space::block_tokens() const { return impl_ ? impl_->space->block_tokens() : 0; }
uint64_t Space::payload_bytes_per_token() const {
  return impl_ ? impl_->space->payload_bytes_per_token() : 0;
}
std::string Space::id() const { return impl_ ? impl_->space->id() : ""; }

Client::Client(ClientOptions options)
    : impl_(std::make_shared<Impl>(Impl{std::make_shared<client::Core>(std::move(options))})) {}
Client::~Client() {
  if (impl_) impl_->core->Stop();
}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&& other) noexcept {
  if (this != &other) {
    if (impl_) impl_->core->Stop();
    impl_ = std::move(other.impl_);
  }
  return *this;
}

Result<Space> Client::OpenSpace(const SpaceSpec& spec) {
  if (!impl_)
    return {.status = {StatusCode::kFailedPrecondition, "client: moved from"}, .held = {}};
  client::Core& core = *impl_->core;
  absl::StatusOr<block::SpaceIdentity> identity = client::IdentityOf(spec);
  if (!identity.ok()) return {.status = ToPublic(identity.status()), .held = {}};
  auto space = std::make_shared<client::SpaceState>(*std::move(identity));
  core.Keep(space);
  const base::Deadline deadline = steady_clock::now() + core.connect_deadline();
  core.connection()->WaitFirstTry(deadline);
  const absl::Status opened = core.Open(*space, deadline).status();
  if (!opened.ok() && !IsUnreachable(opened)) return {.status = ToPublic(opened), .held = {}};
  Result<Space> result;
  result.held = Space(std::make_shared<Space::Impl>(Space::Impl{impl_->core, std::move(space)}));
  return result;
}

bool Client::attached() const { return impl_ && impl_->core->connection()->session().has_value(); }

bool Client::WaitAttached(std::chrono::milliseconds deadline) {
  return impl_ && impl_->core->connection()->WaitAttached(steady_clock::now() + deadline);
}

}  // namespace prefixd
