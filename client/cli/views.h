// The texts that people see: one function for each command, from the daemon's reply to the text on
// the screen.
//
// Pure functions. Every text ends with a newline. No colours: the text is the same on a terminal
// and in a file.
#pragma once
#include <string>

#include "prefixd/v1/admin.pb.h"

namespace prefixd::cli {

struct StatusInput {
  std::string address;
  std::string health;  // what DaemonCalls::Health returns
  const v1::GetStatsReply& stats;
};
// Returns one screen: is prefixd well, is it full, does it help, what does it hold.
std::string StatusView(const StatusInput& input);

// Returns the lines of it about the store that hosts share, "" without one.
std::string RemoteLines(const v1::GetStatsReply& stats);

// Whether the reply has the daemon's sums. A caller of one tenant is told its spaces alone.
bool TellsSums(const v1::GetStatsReply& stats);

// Returns every counter and gauge, and the latencies.
std::string StatsView(const v1::GetStatsReply& stats);

std::string SpacesView(const v1::ListSpacesReply& reply);
// Returns the space `space_id` field by field, and the fields in which every other space differs,
// those of fewest first; then those of other hosts.
// Requires: `reply` answers a request with explain_against = space_id, and lists that space.
std::string ExplainView(const v1::ListSpacesReply& reply, const std::string& space_id);

struct MatchInput {
  const v1::ListSpacesReply::Space& space;
  uint32_t requested_tokens = 0;
  const v1::Answer& answer;
};
std::string MatchView(const MatchInput& input);

std::string SessionsView(const v1::ListSessionsReply& reply);
std::string LeasesView(const v1::ListLeasesReply& reply);
std::string EndSessionView(const v1::EndSessionReply& reply);

struct PinInput {
  const v1::ListSpacesReply::Space& space;
  uint32_t requested_tokens = 0;
  double ttl_s = 0;  // 0 = no end
  const v1::PinReply& reply;
};
std::string PinView(const PinInput& input);
std::string UnpinView(const v1::UnpinReply& reply);
std::string PinsView(const v1::ListPinsReply& reply);

std::string LimitsView(const v1::SetSpaceLimitsRequest& request,
                       const v1::SetSpaceLimitsReply& reply);
std::string BudgetView(const v1::SetBudgetsReply& reply);

// Returns the tokens of each prefix, "0 to 1,024", indented under what it goes on from.
std::vector<std::string> PrefixNames(const v1::ListPrefixesReply& reply);
std::string PrefixesView(const v1::ListPrefixesReply& reply);

// Returns one sentence for each answer, and how to go on where one had nothing at all.
std::string WhyView(const v1::WhyReply& reply);

// Returns a sentence that says where and why the match ended.
std::string EndSentence(v1::EndReason reason, uint32_t matched_tokens, uint32_t diverged_sequences);

std::string ClearView(const v1::ClearReply& reply);
std::string PurgeView(const v1::ClearReply& sum);
std::string FlushView(const v1::FlushReply& reply);
std::string PrefetchView(const v1::PrefetchReply::Hint& hint);
// `sum` adds up all steps, here and in PurgeView.
std::string VerifyView(const v1::VerifyReply& sum);
std::string ConfigView(const v1::GetConfigReply& reply);

// Returns the time in microseconds below which `share` (0..1) of the calls stayed. It is
// interpolated inside a power-of-two bucket, so it is right within a factor of two. 0 if nothing
// was counted.
double QuantileMicros(const v1::Latency& latency, double share);

// Returns the value of a counter; 0 if it was never counted.
uint64_t CounterValue(const v1::GetStatsReply& stats, const std::string& name);

// Returns the spaces with their sizes, one on each line.
std::string SpaceTable(const google::protobuf::RepeatedPtrField<v1::SpaceStats>& spaces,
                       size_t indent);

}  // namespace prefixd::cli
