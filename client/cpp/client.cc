#include "prefixd/client.h"

#include <memory>
#include <utility>

#include "base/status.h"
#include "convert.h"
#include "core.h"
#include "look_up.h"
#include "sequence_impl.h"
#include "space_impl.h"

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

Space::Space() = default;
Space::Space(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Space::~Space() = default;
Space::Space(Space&&) noexcept = default;
Space& Space::operator=(Space&&) noexcept = default;

Sequence Space::Begin(std::span<const uint32_t> tokens, const BeginOptions& options) {
  if (!impl_) return {};
  auto sequence = std::make_unique<Sequence::Impl>(impl_->core, impl_->space, options);
  sequence->tokens.assign(tokens.begin(), tokens.end());
  sequence->LookUp();
  return Sequence(std::move(sequence));
}

Result<MatchInfo> Space::Match(std::span<const uint32_t> tokens, const BeginOptions& options) {
  const auto look = [&]() -> absl::StatusOr<MatchInfo> {
    if (!impl_) return absl::FailedPreconditionError("space: empty, Client::OpenSpace() gives one");
    PREFIXD_ASSIGN_OR_RETURN(
        client::OpenedUnder opened,
        impl_->core->Open(*impl_->space, steady_clock::now() + options.deadline));
    const std::vector<block::ContentKey> content = client::FromPublic(options.content);
    PREFIXD_ASSIGN_OR_RETURN(const block::MatchAnswer match,
                             client::Match(*impl_->core, *impl_->space,
                                           {.opened = std::move(opened),
                                            .sequence = {.tokens = tokens, .content = content},
                                            .options = options}));
    return ToPublic(match);
  };
  absl::StatusOr<MatchInfo> info = look();
  if (!info.ok()) return {.status = ToPublic(info.status()), .held = {}};
  return {.status = {}, .held = *std::move(info)};
}

Result<uint32_t> Space::Prefetch(std::span<const uint32_t> tokens, const BeginOptions& options) {
  const auto hint = [&]() -> absl::StatusOr<uint32_t> {
    if (!impl_) return absl::FailedPreconditionError("space: empty, Client::OpenSpace() gives one");
    PREFIXD_ASSIGN_OR_RETURN(
        client::OpenedUnder opened,
        impl_->core->Open(*impl_->space, steady_clock::now() + options.deadline));
    const std::vector<block::ContentKey> content = client::FromPublic(options.content);
    return client::Prefetch(*impl_->core, *impl_->space,
                            {.opened = std::move(opened),
                             .sequence = {.tokens = tokens, .content = content},
                             .options = options});
  };
  const absl::StatusOr<uint32_t> hinted = hint();
  if (!hinted.ok()) return {.status = ToPublic(hinted.status()), .held = {}};
  return {.status = {}, .held = *hinted};
}

Result<PinInfo> Space::Pin(std::span<const uint32_t> tokens, std::chrono::milliseconds ttl,
                           const BeginOptions& options) {
  const auto pin = [&]() -> absl::StatusOr<PinInfo> {
    if (!impl_) return absl::FailedPreconditionError("space: empty, Client::OpenSpace() gives one");
    PREFIXD_ASSIGN_OR_RETURN(
        client::OpenedUnder opened,
        impl_->core->Open(*impl_->space, steady_clock::now() + options.deadline));
    const std::vector<block::ContentKey> content = client::FromPublic(options.content);
    return client::Pin(*impl_->core, *impl_->space,
                       {.opened = std::move(opened),
                        .sequence = {.tokens = tokens, .content = content},
                        .options = options},
                       ttl);
  };
  const absl::StatusOr<PinInfo> pinned = pin();
  if (!pinned.ok()) return {.status = ToPublic(pinned.status()), .held = {}};
  return {.status = {}, .held = *pinned};
}

Result<uint64_t> Space::Unpin(uint64_t pin, std::chrono::milliseconds deadline) {
  const auto unpin = [&]() -> absl::StatusOr<uint64_t> {
    if (!impl_) return absl::FailedPreconditionError("space: empty, Client::OpenSpace() gives one");
    const base::Deadline until = steady_clock::now() + deadline;
    PREFIXD_ASSIGN_OR_RETURN(const client::OpenedUnder opened,
                             impl_->core->Open(*impl_->space, until));
    return client::Unpin(*impl_->core, opened.space.session, pin, until);
  };
  const absl::StatusOr<uint64_t> bytes = unpin();
  if (!bytes.ok()) return {.status = ToPublic(bytes.status()), .held = {}};
  return {.status = {}, .held = *bytes};
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
  const auto refuse = [&](const absl::Status& why) -> Result<Space> {
    core.not_shared().Refused(spec.model, std::string(why.message()));
    return {.status = ToPublic(why), .held = {}};
  };
  absl::StatusOr<block::SpaceIdentity> identity = client::IdentityOf(spec);
  if (!identity.ok()) return refuse(identity.status());
  auto space = std::make_shared<client::SpaceState>(*std::move(identity));
  core.Keep(space);
  const base::Deadline deadline = steady_clock::now() + core.connect_deadline();
  core.connection()->WaitFirstTry(deadline);
  const absl::Status opened = core.Open(*space, deadline).status();
  if (!opened.ok() && !IsUnreachable(opened)) return refuse(opened);
  core.not_shared().Refused(spec.model, "");  // if it is refused later, the daemon notes it
  Result<Space> result;
  result.held = Space(std::make_shared<Space::Impl>(Space::Impl{impl_->core, std::move(space)}));
  return result;
}

std::vector<Lease> Client::AcquireSet(std::span<const SetMember> members,
                                      std::span<const uint32_t> tokens) {
  std::vector<std::unique_ptr<Sequence::Impl>> set;
  for (const SetMember& member : members) {
    if (!impl_ || !member.space || !member.space->impl_) return {};
    const Space::Impl& space = *member.space->impl_;
    if (space.core != impl_->core) return {};
    BeginOptions reading = member.options;
    reading.announce = false;
    reading.write_format = 0;
    set.push_back(std::make_unique<Sequence::Impl>(space.core, space.space, reading));
    set.back()->tokens.assign(tokens.begin(), tokens.end());
  }
  Sequence::Impl::LookUpSet(set);
  std::vector<Lease> leases;
  for (auto& sequence : set) leases.push_back(Lease(Sequence(std::move(sequence))));
  return leases;
}

Status Client::NotShared(const std::string& model, const std::string& reason) {
  if (!impl_) return {StatusCode::kFailedPrecondition, "client: moved from"};
  return ToPublic(impl_->core->not_shared().Say(model, reason));
}

bool Client::attached() const { return impl_ && impl_->core->connection()->session().has_value(); }

bool Client::WaitAttached(std::chrono::milliseconds deadline) {
  return impl_ && impl_->core->connection()->WaitAttached(steady_clock::now() + deadline);
}

ArenaInfo Client::arena() const {
  ArenaInfo info;
  const std::shared_ptr<client::Attachment> attachment =
      impl_ ? impl_->core->connection()->attachment() : nullptr;
  if (!attachment) {
    info.why_not = impl_ ? impl_->core->connection()->why_not_attached() : "client: moved from";
    return info;
  }
  info.why_not = attachment->why_no_arena();
  if (attachment->staging()) info.staging_bytes = attachment->staging()->bytes();
  if (!attachment->arena()) return info;
  info.data = attachment->arena()->data();
  info.data_bytes = attachment->arena()->data_bytes();
  return info;
}

ClientStats Client::stats() const { return impl_ ? impl_->core->counts().Read() : ClientStats{}; }

}  // namespace prefixd
