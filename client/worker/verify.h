// --verify-hits: computes a hit again from nothing, and compares what the cache gave with it.
//
// A page is right if its bytes are the same. It may be right if they are not: tokens that another
// worker decoded, or computed on other grids or machines, were rounded differently. Hence there is
// a bound on the relative RMS difference of the dequantized values, for K or V of one block in one
// layer. A page of other tokens differs by about 1. Where formats mix, the bound is that of the
// coarsest. The states of recurrent layers are not compared.
#pragma once
#include <cstdint>
#include <random>
#include <span>

#include "absl/status/statusor.h"

#include "client/worker/model.h"
#include "prefixd/client.h"

namespace prefixd::worker {

struct Verification {
  uint32_t tokens = 0;            // tokens compared, in every layer
  uint32_t identical_tokens = 0;  // tokens with the same bytes in every layer
  uint32_t wrong_blocks = 0;      // blocks with a layer beyond the bound
  double worst = 0;               // difference of the worst block
  double bound = 0;
};

// Chooses which hits are verified: each with probability `share`, the same ones for the same seed.
class HitSampler {
 public:
  HitSampler(double share, uint64_t seed) : share_(share), random_(seed) {}
  bool Next() { return share_ > 0 && std::uniform_real_distribution<>()(random_) < share_; }

 private:
  const double share_;
  std::mt19937_64 random_;
};

// Returns 0.02 for raw values, 0.1 for 8 bits, 0.5 for fewer, by the coarser of K and V.
double VerifyBound(const KvFormat& format);

// Compares `hit`, which holds cached pages of all of `tokens`, with a cold run. Does not change
// `hit`; the model forgets its last step. An error if the tokens cannot be computed or read.
absl::StatusOr<Verification> VerifyHit(Model& model, Space& space, Sequence& hit,
                                       std::span<const uint32_t> tokens);

}  // namespace prefixd::worker
