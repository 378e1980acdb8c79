// One request in several spaces: a draft beside its target, the ranks of a model. They are looked
// up in one round trip and begin at one length, the longest that the cache can restore in all.
//
// The rules of client.h. A SequenceSet belongs to one thread at a time.
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

// Each sequence is the engine's to use as any other, but for Restart(), Extend() and Park().
//
//   SequenceSet both = SequenceSet::Begin(client, {{&target, options}, {&draft, {}}}, tokens);
//   uint32_t at = both.restorable_tokens();
//   ... if (both[0].Wait(layer) < at) { at = both.Restart(); ... }
//   both[0].Commit(), both[1].Commit();
class SequenceSet {
 public:
  // Spaces of this client; empty when one is not. Never fails: without a cache it answers 0 tokens,
  // and match().status of the sequences says why. The longest of the members' deadlines counts.
  static SequenceSet Begin(Client& client, const std::vector<SetMember>& members,
                           std::span<const uint32_t> tokens);
  // The same for engines that own their KV memory. A lease may shrink alone while it loads: the
  // least that WaitAll() of any answered in the end is good in all, but with sliding or state
  // layers, where a shorter length is 0 tokens.
  static std::vector<Lease> Acquire(Client& client, const std::vector<SetMember>& members,
                                    std::span<const uint32_t> tokens);

  SequenceSet();
  ~SequenceSet();
  SequenceSet(SequenceSet&&) noexcept;
  SequenceSet& operator=(SequenceSet&&) noexcept;

  size_t size() const;
  Sequence& operator[](size_t member);  // in the order of Begin(). Requires: member < size()
  // Tokens that need not be computed in any of them. May shrink until WaitAll() has answered.
  uint32_t restorable_tokens() const;
  uint32_t WaitAll();
  // One length again after a page turned out bad: drops everything beyond what is usable in all;
  // where a shorter length needs other pages, looks up again and waits for them. Returns it.
  uint32_t Restart();
  // The next turn of all, as Sequence::Extend() with the options of before. Returns the tokens that
  // none has to compute.
  uint32_t Extend(std::span<const uint32_t> tokens);

 private:
  struct Impl;
  explicit SequenceSet(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace prefixd
