// From pages that the index leased to an answer, in steps of which each caller takes those that it
// needs: MakeReadable, Account, Register.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "cache/cache.h"
#include "cache/context.h"
#include "cache/load/loader.h"
#include "cache/load/watcher.h"
#include "cache/patience.h"
#include "cache/tables/format_advice.h"
#include "cache/tables/sessions.h"

namespace prefixd::cache {

// Not thread-safe. If it is not registered, the lease ends with it.
class LeaseAnswer {
 public:
  LeaseAnswer(Context* context, SessionPtr session, SpacePtr space, index::Acquired held);

  // Starts loading what is not readable, or shortens the lease to what there is room and time for;
  // a hit that loads slower than `prefill_tokens_per_s` computes is cut where it pays. 0 = unknown.
  absl::Status MakeReadable(Loader& loader, double prefill_tokens_per_s, const Patience& patience);
  // Counts what the request found.
  void Account(const Request& request, FormatAdvice& advice);
  // Puts the lease into the table, unless nothing is restorable, and watches what is not readable
  // yet. `prefill_tokens_per_s`: of the request; 0 = unknown.
  absl::StatusOr<Acquired> Register(Sessions& sessions, Watcher& watcher, const LoadModel& model,
                                    double prefill_tokens_per_s) &&;

 private:
  void List();
  bool place() const { return session_->slot != nullptr; }  // it may be told where pages stand

  Context* const context_;
  const SessionPtr session_;
  const SpacePtr space_;
  index::Acquired held_;
  LeasePtr lease_;       // null if nothing is leased
  uint32_t tokens_ = 0;  // restorable
  // What the answer says of its pages.
  std::vector<block::LeasedPage> pages_;
  LeaseFacts facts_;
  bool readable_ = true;  // all pages were, when they were listed first
};

}  // namespace prefixd::cache
