#include "daemon/page/request_story.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "block/names.h"
#include "daemon/page/plain_answers.h"

namespace prefixd::daemon {
namespace {

constexpr uint32_t kMostDivergedCounted = 1000;

// Returns "never stored" for "never_stored".
std::string Words(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

std::string Diverged(const block::MatchAnswer& match) {
  const uint32_t others = match.diverged_sequences;
  return absl::StrCat("The prompt goes on otherwise than ",
                      others >= kMostDivergedCounted ? "at least " : "",
                      CountOf(others, "stored sequence"),
                      " from here. Look what stands there in the prompt: a date, "
                      "a changed template, a tool list.");
}

std::string EndText(const block::MatchAnswer& match) {
  switch (match.ended_by) {
    case block::EndReason::kRequestEnded:
      return "The whole prompt is known.";
    case block::EndReason::kDiverged:
      return Diverged(match);
    case block::EndReason::kEvicted:
      return "What follows was here once and has been evicted. More RAM or SSD would have kept it.";
    case block::EndReason::kNeverStored:
      return match.matched_tokens == 0
                 ? "No stored sequence begins like this in its space. Look what stands first in "
                   "the prompt: a date, a changed template. Another model, tokenizer or setting is "
                   "another space: prefixctl spaces --explain says how they differ."
                 : "Nobody has stored what follows.";
    case block::EndReason::kIndexLoading:
      return "prefixd had just started and did not know yet all that is stored.";
  }
  return "For a reason that this version does not know.";
}

std::string LossText(block::ShortenReason reason) {
  using Reason = block::ShortenReason;
  switch (reason) {
    case Reason::kEvicted:
      return "Some pages of the known prefix were evicted.";
    case Reason::kNoStateSnapshot:
      return "The model has recurrent layers, whose state is stored at fewer places.";
    case Reason::kWindowGone:
      return "Pages of a sliding window are gone, so the prefix cannot end there.";
    case Reason::kCorrupt:
      return "A page did not match its checksum and was dropped.";
    case Reason::kFormat:
      return "Pages are stored in formats that the worker does not take together.";
    case Reason::kAtomicContent:
      return "A picture or another content that is kept whole was not known to its end.";
    case Reason::kRamFull:
      return "RAM had no room to load the pages from SSD: leases and pins fill it.";
    case Reason::kLeaseQuota:
      return "The session held as many leases as it leaves to others.";
    case Reason::kDeadline:
      return "The worker's time was up before more was found.";
    case Reason::kSlowerThanPrefill:
      return "Loading the rest would have taken longer than computing it.";
    case Reason::kIoError:
      return "The disk did not give a page.";
    case Reason::kIndexLoading:
      return "prefixd had just started and did not know all pages yet.";
    case Reason::kMaxTokens:
      return "The worker asked for no more.";
    case Reason::kCommonLength:
      return "The requests of a set are given one common length.";
  }
  return "For a reason that this version does not know.";
}

StoryStep Given(const block::MatchAnswer& match) {
  if (match.restorable_tokens == 0) {
    return {"Answered", "Nothing could be given: the worker computes the whole prompt.", 0, false};
  }
  std::string from;
  const auto add = [&](uint64_t bytes, const char* where) {
    if (bytes > 0)
      absl::StrAppend(&from, from.empty() ? "" : ", ", base::FormatBytes(bytes), where);
  };
  add(match.ram_bytes, " in RAM");
  add(match.ssd_bytes, " on SSD");
  add(match.remote_bytes, " from other hosts");
  return {"Answered",
          absl::StrCat("A lease on ", CountOf(match.restorable_tokens, "token"),
                       from.empty() ? "" : ": ", from, "."),
          match.restorable_tokens, false};
}

StoryStep Used(const block::PastAnswer& past) {
  if (past.used_tokens == 0 && past.load_us == 0 && past.first_token_us == 0) {
    return {"Used", "The worker has not said yet what it used.", past.match.restorable_tokens,
            false};
  }
  std::string text =
      absl::StrCat("The worker used ", CountOf(past.used_tokens, "token"), " of the cache");
  if (past.load_us > 0) {
    absl::StrAppend(&text, ", loaded in ", TimeWords(static_cast<double>(past.load_us) / 1000));
  }
  if (past.first_token_us > 0) {
    absl::StrAppend(&text, ", and had its first token after ",
                    TimeWords(static_cast<double>(past.first_token_us) / 1000));
  }
  return {"Used", text + ".", past.used_tokens, past.used_tokens < past.match.restorable_tokens};
}

}  // namespace

std::vector<StoryStep> StoryOf(const block::PastAnswer& past) {
  const block::MatchAnswer& match = past.match;
  std::vector<StoryStep> steps;
  steps.push_back({"Asked",
                   absl::StrCat("The prompt has ", CountOf(past.requested_tokens, "token"), "."),
                   past.requested_tokens, false});
  const bool ended = match.ended_by != block::EndReason::kRequestEnded;
  steps.push_back(
      {ended ? absl::StrCat("Match ends: ", Words(block::NameOf(match.ended_by))) : "Matched",
       absl::StrCat(CountOf(match.matched_tokens, "token"), " are known. ", EndText(match)),
       match.matched_tokens, ended});
  if (match.pending_tokens > 0) {
    steps.push_back({"Being computed",
                     absl::StrCat("Another worker had announced to store ",
                                  CountOf(match.pending_tokens, "further token"), "."),
                     match.matched_tokens, false});
  }
  uint32_t left = match.matched_tokens;
  for (const block::Shortening& by : match.shortened_by) {
    left -= std::min(left, by.tokens_lost);
    steps.push_back(
        {absl::StrCat("Shortened: ", Words(block::NameOf(by.reason))),
         absl::StrCat("It took ", CountOf(by.tokens_lost, "token"), ". ", LossText(by.reason)),
         left, true});
  }
  steps.push_back(Given(match));
  if (match.restorable_tokens > 0) steps.push_back(Used(past));
  return steps;
}

std::vector<StoryPhase> PhasesOf(const block::PastAnswer& past) {
  std::vector<StoryPhase> phases;
  uint64_t at = 0;
  const auto add = [&](const char* name, const char* text, uint64_t us, bool by_worker) {
    if (us == 0) return;
    phases.push_back({name, text, at, at + us, by_worker});
    at += us;
  };
  add("remote", "asking the shared store", past.remote_us, false);
  add("wait", "waiting for another worker's store", past.wait_us, false);
  add("match", "finding and leasing the pages", past.match_us, false);
  add("room", "making room and starting reads from SSD", past.room_us, false);
  add("load", "pages on their way to the worker", past.load_us, true);
  if (past.first_token_us > at) {
    add("compute", "the rest of the prompt, to the first token", past.first_token_us - at, true);
  }
  return phases;
}

}  // namespace prefixd::daemon
