#include "bench/snapshot_simulation.h"

#include <algorithm>
#include <iterator>
#include <list>
#include <map>
#include <set>

namespace prefixd::bench {
namespace {

using Tokens = std::vector<uint32_t>;

size_t Common(const Tokens& a, const Tokens& b) {
  const size_t most = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(most), b.begin()).first -
      a.begin());
}

// The longest prefix that `prompt` shares with one of `stored`: with a neighbour in token order.
size_t Shared(const std::set<Tokens>& stored, const Tokens& prompt) {
  const auto after = stored.lower_bound(prompt);
  size_t shared = after == stored.end() ? 0 : Common(*after, prompt);
  if (after != stored.begin()) shared = std::max(shared, Common(*std::prev(after), prompt));
  return shared;
}

class Snapshots {
 public:
  // The longest at a prefix of at most `most` tokens of `prompt`; it is the youngest now.
  size_t Find(const Tokens& prompt, size_t most) {
    for (size_t length : Lengths(prompt, most)) {
      if (Touch(Tokens(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(length))))
        return length;
    }
    return 0;
  }
  void Take(const Tokens& prompt, size_t length) {
    const Tokens at(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(length));
    if (Touch(at)) return;
    order_.push_back(at);
    places_[at] = std::prev(order_.end());
  }
  void KeepAtMost(double count) {
    while (static_cast<double>(order_.size()) > count && order_.size() > 1) {
      places_.erase(order_.front());
      order_.pop_front();
    }
  }
  size_t size() const { return order_.size(); }

 private:
  // Of snapshots that begin like the prompt, the longest first.
  std::vector<size_t> Lengths(const Tokens& prompt, size_t most) const {
    std::vector<size_t> lengths;
    for (const auto& [at, place] : places_) {
      if (at.size() <= most && Common(at, prompt) == at.size()) lengths.push_back(at.size());
    }
    std::sort(lengths.rbegin(), lengths.rend());
    return lengths;
  }
  bool Touch(const Tokens& at) {
    const auto found = places_.find(at);
    if (found == places_.end()) return false;
    order_.splice(order_.end(), order_, found->second);
    return true;
  }

  std::list<Tokens> order_;  // the least recently used first
  std::map<Tokens, std::list<Tokens>::iterator> places_;
};

}  // namespace

SnapshotResult SimulateSnapshots(const std::vector<Tokens>& prompts, const SnapshotPolicy& policy) {
  SnapshotResult result;
  std::set<Tokens> stored;
  Snapshots snapshots;
  for (const Tokens& prompt : prompts) {
    const size_t shared = Shared(stored, prompt);
    const size_t most = std::min(shared, prompt.size() - 1);
    const size_t found = snapshots.Find(prompt, most);
    result.requested += prompt.size();
    result.full_hits += most;
    result.hybrid_hits += found;
    result.stored += prompt.size() - shared;
    // What is computed begins at `found`: only beyond it can a snapshot be taken.
    if (policy.branch_points && shared > found && shared < prompt.size())
      snapshots.Take(prompt, shared);
    if (prompt.size() - 1 > found) snapshots.Take(prompt, prompt.size() - 1);
    snapshots.KeepAtMost(policy.share * static_cast<double>(result.stored) /
                         policy.tokens_a_snapshot);
    stored.insert(prompt);
  }
  result.snapshots = snapshots.size();
  return result;
}

}  // namespace prefixd::bench
