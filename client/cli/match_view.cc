// prefixctl match:
//
//   space         3f2a9c0d11e4 (kjv-7.7m)
//   requested     3,000 tokens
//   matched       1,777 (59.2 %), lcp
//   restorable    1,777
//   ended by      diverged at token 1,777: 2 stored sequences go on otherwise
//   shortened by  nothing
//   bytes         5.4 MiB in ram, 0 B on ssd
//   load          about 4.1 ms
#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "client/cli/names.h"
#include "client/cli/table.h"
#include "client/cli/units.h"
#include "client/cli/views.h"

namespace prefixd::cli {
namespace {

constexpr uint32_t kMostDivergedCounted = 1000;

std::string ShortenedBy(const MatchInput& input) {
  std::string text;
  const auto& groups = input.space.identity().groups();
  for (const v1::Shortening& by : input.answer.shortened_by()) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", NameOf(by.reason()), ", ",
                    Plural(by.tokens_lost(), "token"), " lost");
    if (by.all_groups()) continue;
    const bool known = by.group() < static_cast<uint32_t>(groups.size());
    absl::StrAppend(
        &text, ", group ",
        known ? groups[static_cast<int>(by.group())].name() : std::to_string(by.group()));
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace

std::string EndSentence(v1::EndReason reason, uint32_t matched_tokens,
                        uint32_t diverged_sequences) {
  const std::string at = absl::StrCat(" at token ", CountText(matched_tokens));
  switch (reason) {
    case v1::END_REASON_REQUEST_ENDED:
      return "the request's own end";
    case v1::END_REASON_DIVERGED:
      return absl::StrCat("diverged", at, ": ",
                          diverged_sequences >= kMostDivergedCounted ? "at least " : "",
                          Plural(diverged_sequences, "stored sequence"),
                          diverged_sequences == 1 ? " goes" : " go", " on otherwise");
    case v1::END_REASON_EVICTED:
      return absl::StrCat("evicted", at, ": what follows was here once");
    case v1::END_REASON_NEVER_STORED:
      if (matched_tokens == 0) return "nothing that is stored in this space begins like it";
      return absl::StrCat("never stored", at, ": nothing goes on from there");
    case v1::END_REASON_INDEX_LOADING:
      return absl::StrCat("index loading", at, ": prefixd has just started, ask again");
    default:
      return absl::StrCat(NameOf(reason), at);
  }
}

std::string MatchView(const MatchInput& input) {
  const v1::Answer& answer = input.answer;
  Table table({{""}, {""}});
  table.AddRow({"space", absl::StrCat(ShortId(input.space.stats().space_id()), " (",
                                      input.space.identity().model(), ")")});
  table.AddRow({"requested", Plural(input.requested_tokens, "token")});
  table.AddRow(
      {"matched", absl::StrCat(CountText(answer.matched_tokens()), " (",
                               PercentText(answer.matched_tokens(), input.requested_tokens), "), ",
                               NameOf(answer.kind()))});
  table.AddRow({"restorable", CountText(answer.restorable_tokens())});
  if (answer.pending_tokens() > 0) {
    table.AddRow({"pending", absl::StrCat(CountText(answer.pending_tokens()),
                                          " more, being computed by another worker")});
  }
  table.AddRow({"ended by", EndSentence(answer.match_ended_by(), answer.matched_tokens(),
                                        answer.diverged_sequences())});
  table.AddRow({"shortened by", ShortenedBy(input)});
  table.AddRow(
      {"bytes", absl::StrCat(base::FormatBytes(answer.ram_bytes()), " in ram, ",
                             base::FormatBytes(answer.ssd_bytes()), " on ssd",
                             answer.remote_bytes() == 0
                                 ? ""
                                 : absl::StrCat(", ", base::FormatBytes(answer.remote_bytes()),
                                                " on their way from other hosts"))});
  table.AddRow(
      {"load", absl::StrCat("about ", LatencyText(static_cast<double>(answer.load_us())))});
  return table.Text();
}

}  // namespace prefixd::cli
