#include "client/cli/top/ask.h"

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "base/status.h"
#include "client/cli/views.h"
#include "wire/admin.h"
#include "wire/bearer.h"

namespace prefixd::cli {
namespace {

class Asker {
 public:
  Asker(Options options, Surroundings surroundings)
      : options_(std::move(options)), surroundings_(std::move(surroundings)) {}

  absl::StatusOr<Sample> Ask() {
    absl::StatusOr<Sample> sample = Try();
    if (!sample.ok()) calls_.reset();
    return sample;
  }

 private:
  // Without --admin the socket is looked for again: it is not there while no daemon runs.
  std::string Admin() const {
    return options_.admin == options_.server ? DefaultAdmin(surroundings_, options_.server)
                                             : options_.admin;
  }

  absl::Status Connect() {
    DaemonCalls::Where where{.server = options_.server, .admin = Admin()};
    const std::string token_file = wire::TokenFileFor(options_.server, options_.token_file);
    if (!token_file.empty()) {
      const auto bearer = std::make_shared<wire::Bearer>(token_file);
      PREFIXD_RETURN_IF_ERROR(bearer->Reload());
      where.bearer = bearer;
    }
    calls_ = std::make_unique<DaemonCalls>(where, options_.timeout);
    return absl::OkStatus();
  }

  absl::StatusOr<Sample> Try() {
    if (calls_ == nullptr) PREFIXD_RETURN_IF_ERROR(Connect());
    Sample sample;
    PREFIXD_ASSIGN_OR_RETURN(sample.stats, calls_->GetStats());
    if (!TellsSums(sample.stats)) {
      return absl::PermissionDeniedError(
          "what top shows is not told to a caller of one tenant: see prefixctl spaces");
    }
    sample.at = std::chrono::steady_clock::now().time_since_epoch();
    PREFIXD_ASSIGN_OR_RETURN(sample.health, calls_->Health());
    PREFIXD_ASSIGN_OR_RETURN(const v1::ListSessionsReply sessions,
                             IfAllowed(calls_->ListSessions()));
    for (const auto& session : sessions.sessions()) sample.sessions[session.session()] = session;
    PREFIXD_ASSIGN_OR_RETURN(const v1::ListLeasesReply leases, IfAllowed(calls_->ListLeases()));
    sample.leases.assign(leases.leases().begin(), leases.leases().end());
    PREFIXD_RETURN_IF_ERROR(AskForPrefixes());
    sample.prefixes = prefixes_;
    return sample;
  }

  // The daemon walks its tree for them.
  absl::Status AskForPrefixes() {
    constexpr std::chrono::seconds kEvery(5);
    const auto now = std::chrono::steady_clock::now();
    if (prefixes_at_ && now - *prefixes_at_ < kEvery) return absl::OkStatus();
    v1::ListPrefixesRequest request;
    request.set_most(200);
    PREFIXD_ASSIGN_OR_RETURN(prefixes_, IfAllowed(calls_->ListPrefixes(request)));
    prefixes_at_ = now;
    return absl::OkStatus();
  }

  template <typename Reply>
  static absl::StatusOr<Reply> IfAllowed(absl::StatusOr<Reply> reply) {
    if (absl::IsPermissionDenied(reply.status())) return Reply();
    return reply;
  }

  const Options options_;
  const Surroundings surroundings_;
  std::unique_ptr<DaemonCalls> calls_;
  v1::ListPrefixesReply prefixes_;
  std::optional<std::chrono::steady_clock::time_point> prefixes_at_;
};

}  // namespace

Watch::Ask AskDaemon(const Options& options, const Surroundings& surroundings) {
  const auto asker = std::make_shared<Asker>(options, surroundings);
  return [asker] { return asker->Ask(); };
}

}  // namespace prefixd::cli
