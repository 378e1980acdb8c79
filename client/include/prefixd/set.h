// One request in several spaces: a draft model beside its target, or the ranks of a model. One
// round trip looks all of them up. They begin at one length, the longest that the cache can restore
// in all.
//
// The rules of client.h hold. A SequenceSet belongs to one thread at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "prefixd/client.h"

namespace prefixd {

struct SetMember {
  Space* space = nullptr;
  BeginOptions options{};
};

// The engine uses each sequence like any other, but does not call its Restart(), Extend() or
// Park().
//
//   SequenceSet both = SequenceSet::Begin(client, {{&target, options}, {&draft, {}}}, tokens);
//   uint32_t at = both.restorable_tokens();
//   ... if (both[0].Wait(layer) < at) { at = both.Restart(); ... }
//   both[0].Commit(), both[1].Commit();
class SequenceSet {
 public:
  // Looks the tokens up in the members' spaces. The set is empty if one of them is not of `client`.
  // Never fails: without a cache it answers 0 tokens, and match().status of the sequences says why.
  // The longest of the members' deadlines counts.
  static SequenceSet Begin(Client& client, const std::vector<SetMember>& members,
                           std::span<const uint32_t> tokens);
  // The same for engines that own their KV memory. A lease may shrink alone while it loads. The
  // least that WaitAll() of any lease finally returned is good in all, except with sliding or state
  // layers, where a shorter length is worth 0 tokens.
  static std::vector<Lease> Acquire(Client& client, const std::vector<SetMember>& members,
                                    std::span<const uint32_t> tokens);

  SequenceSet();
  ~SequenceSet();
  SequenceSet(SequenceSet&&) noexcept;
  SequenceSet& operator=(SequenceSet&&) noexcept;

  size_t size() const;
  Sequence& operator[](size_t member);  // in the order of Begin(). Requires: member < size()
  // Tokens that need not be computed in any member. May shrink until WaitAll() has returned.
  uint32_t restorable_tokens() const;
  uint32_t WaitAll();
  // Restores one length after a page turned out bad: drops everything beyond what is usable in all
  // members. Where a shorter length needs other pages, looks up again and waits for them. Returns
  // the length.
  uint32_t Restart();
  // Begins the next turn in all members, as Sequence::Extend() with the options they had. Returns
  // the tokens that no member has to compute.
  uint32_t Extend(std::span<const uint32_t> tokens);

 private:
  struct Impl;
  explicit SequenceSet(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace prefixd
