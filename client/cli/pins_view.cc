// Views of prefixctl pin, unpin and pins. pins prints:
//
//   pin               space         worker     tokens  pages  size      age     left
//   5f3a9c0000000012  3f2a9c0d11e4  prefixctl   1,777    112  13.5 MiB  4 min   56 min
#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "client/cli/names.h"
#include "client/cli/table.h"
#include "client/cli/units.h"
#include "client/cli/views.h"

namespace prefixd::cli {

std::string PinView(const PinInput& input) {
  const v1::PinReply& reply = input.reply;
  const v1::Answer& answer = reply.answer();
  const std::string ended =
      EndSentence(answer.match_ended_by(), answer.matched_tokens(), answer.diverged_sequences());
  if (reply.pinned_tokens() == 0) return absl::StrCat("nothing is pinned: ", ended, "\n");
  std::string text = absl::StrCat(
      "pin ", HexId(reply.pin()), " keeps ", CountText(reply.pinned_tokens()), " of ",
      Plural(input.requested_tokens, "token"), ", ", base::FormatBytes(reply.bytes()), ", ",
      input.ttl_s > 0 ? absl::StrCat("for ", UptimeText(input.ttl_s)) : std::string("until unpin"),
      "\n");
  if (reply.pinned_tokens() == input.requested_tokens) return text;
  return absl::StrCat(text, "the rest: ", ended, "\n");
}

std::string UnpinView(const v1::UnpinReply& reply) {
  return absl::StrCat("unpinned: ", base::FormatBytes(reply.bytes()),
                      " may go when room is needed\n");
}

std::string PinsView(const v1::ListPinsReply& reply) {
  if (reply.pins().empty()) return "no pins\n";
  using Align = Table::Align;
  Table table({{"pin"},
               {"space"},
               {"worker"},
               {"tokens", Align::kRight},
               {"pages", Align::kRight},
               {"size", Align::kRight},
               {"age", Align::kRight},
               {"left", Align::kRight}});
  for (const v1::ListPinsReply::Pin& pin : reply.pins()) {
    table.AddRow({HexId(pin.pin()), ShortId(pin.space_id()), pin.worker(), CountText(pin.tokens()),
                  CountText(pin.pages()), base::FormatBytes(pin.bytes()), UptimeText(pin.age_s()),
                  pin.left_s() > 0 ? UptimeText(pin.left_s()) : "-"});
  }
  return table.Text();
}

}  // namespace prefixd::cli
