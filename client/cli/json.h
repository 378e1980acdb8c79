// The JSON that scripts read, one object for each command. Times are in the unit that their names
// say, sizes in bytes. Space ids are 64 hexadecimal digits; ids of sessions, leases and pins are
// 16. Once released, fields stay and keep their meaning.
//
// Pure functions. Every text is one line and ends with a newline. Bytes that are not UTF-8 become
// U+FFFD.
#pragma once
#include <string>

#include "client/cli/views.h"
#include "prefixd/v1/admin.pb.h"

namespace prefixd::cli {

std::string StatusJson(const StatusInput& input);
std::string StatsJson(const v1::GetStatsReply& stats);
std::string SpacesJson(const v1::ListSpacesReply& reply);
std::string MatchJson(const MatchInput& input);
std::string SessionsJson(const v1::ListSessionsReply& reply);
std::string LeasesJson(const v1::ListLeasesReply& reply);
std::string EndSessionJson(const v1::EndSessionReply& reply);
std::string PinJson(const PinInput& input);
std::string UnpinJson(const v1::UnpinReply& reply);
std::string PinsJson(const v1::ListPinsReply& reply);
std::string LimitsJson(const v1::SetSpaceLimitsRequest& request,
                       const v1::SetSpaceLimitsReply& reply);
std::string BudgetJson(const v1::SetBudgetsReply& reply);
std::string WhyJson(const v1::WhyReply& reply);
std::string ClearJson(const v1::ClearReply& reply);
std::string PurgeJson(const v1::ClearReply& sum);
std::string FlushJson(const v1::FlushReply& reply);
std::string PrefetchJson(const v1::PrefetchReply::Hint& hint);
std::string VerifyJson(const v1::VerifyReply& sum);
std::string ConfigJson(const v1::GetConfigReply& reply);

}  // namespace prefixd::cli
