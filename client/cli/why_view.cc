// View of prefixctl why, one sentence for each answer:
//
//   chat-17 (worker-0, 4 s ago): 41 of 3,000 tokens in space 3f0000000000, diverged at token 41:
//   312 stored sequences go on otherwise
#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "client/cli/names.h"
#include "client/cli/units.h"
#include "client/cli/views.h"

namespace prefixd::cli {
namespace {

// Shorter phases explain nothing and are left out.
constexpr uint64_t kWorthTellingUs = 1000;

void AppendPhase(const char* what, uint64_t us, std::string* text) {
  if (us < kWorthTellingUs) return;
  absl::StrAppend(text, ", ", what, " ", LatencyText(static_cast<double>(us)));
}

// Returns what took tokens, in words; "" for a reason that this version does not know.
const char* CauseInWords(v1::ShortenReason reason) {
  switch (reason) {
    case v1::SHORTEN_REASON_EVICTED:
      return "pages that were evicted";
    case v1::SHORTEN_REASON_NO_STATE_SNAPSHOT:
      return "no snapshot of the recurrent layers further on";
    case v1::SHORTEN_REASON_WINDOW_GONE:
      return "a gap in a sliding window";
    case v1::SHORTEN_REASON_CORRUPT:
      return "a bad page";
    case v1::SHORTEN_REASON_FORMAT:
      return "a stored format that the worker does not read";
    case v1::SHORTEN_REASON_ATOMIC_CONTENT:
      return "an image that is not known to its end";
    case v1::SHORTEN_REASON_RAM_FULL:
      return "no room in RAM to load into";
    case v1::SHORTEN_REASON_LEASE_QUOTA:
      return "leases at their limit";
    case v1::SHORTEN_REASON_DEADLINE:
      return "the lookup's deadline";
    case v1::SHORTEN_REASON_SLOWER_THAN_PREFILL:
      return "a disk slower than the worker's prefill";
    case v1::SHORTEN_REASON_IO_ERROR:
      return "a page that the disk did not give";
    case v1::SHORTEN_REASON_INDEX_LOADING:
      return "an index that was still loading";
    case v1::SHORTEN_REASON_MAX_TOKENS:
      // An engine computes the last token of every prompt itself and asks for no more than it uses.
      return "the worker's own limit";
    case v1::SHORTEN_REASON_COMMON_LENGTH:
      return "another space of the request, which has fewer";
    default:
      return "";
  }
}

// The name in brackets is what the documentation, the log and the counters call it.
std::string CauseOf(v1::ShortenReason reason) {
  const std::string words = CauseInWords(reason);
  return words.empty() ? NameOf(reason) : absl::StrCat(words, " (", NameOf(reason), ")");
}

std::string Sentence(const v1::PastAnswer& past) {
  std::string text = absl::StrCat(
      PrintableText(past.request_id()), " (", PrintableText(past.worker()), ", ",
      UptimeText(past.age_s()), " ago): ", CountText(past.restorable_tokens()), " of ",
      Plural(past.requested_tokens(), "token"),
      past.space_id().empty() ? "" : " in space " + ShortId(past.space_id()), ", ",
      EndSentence(past.match_ended_by(), past.matched_tokens(), past.diverged_sequences()));
  for (const v1::Shortening& by : past.shortened_by()) {
    absl::StrAppend(&text, "; ", CauseOf(by.reason()), " took ", Plural(by.tokens_lost(), "token"));
  }
  if (past.pending_tokens() > 0) {
    absl::StrAppend(&text, "; another worker was computing ", CountText(past.pending_tokens()));
  }
  if (past.remote_bytes() > 0) {
    absl::StrAppend(&text, "; ", base::FormatBytes(past.remote_bytes()), " came from other hosts");
  }
  AppendPhase("waited", past.wait_us(), &text);
  AppendPhase("asked other hosts for", past.remote_us(), &text);
  AppendPhase("matched in", past.match_us(), &text);
  AppendPhase("made room in", past.room_us(), &text);
  AppendPhase("loaded in", past.load_us(), &text);
  return text + "\n";
}

// Returns what to look at where the space of an answer had not even the first token, or "": the
// prompt begins otherwise than before, or is stored in a space that differs in the model, the
// tokenizer or a setting.
std::string Elsewhere(const v1::WhyReply& reply) {
  for (const v1::PastAnswer& past : reply.answers()) {
    if (past.match_ended_by() != v1::END_REASON_NEVER_STORED || past.matched_tokens() > 0 ||
        past.space_id().empty()) {
      continue;
    }
    return absl::StrCat(
        "If it was stored before: something changed at its first token (a date, another template), "
        "or it is in another space: `prefixctl spaces --explain ",
        ShortId(past.space_id()), "` says in which fields the others differ\n");
  }
  return "";
}

}  // namespace

std::string WhyView(const v1::WhyReply& reply) {
  if (reply.answers().empty()) {
    return absl::StrCat("none of the ", CountText(reply.remembered()),
                        " answers that prefixd remembers is such a one\n");
  }
  std::string text;
  for (const v1::PastAnswer& past : reply.answers()) absl::StrAppend(&text, Sentence(past));
  return text + Elsewhere(reply);
}

}  // namespace prefixd::cli
