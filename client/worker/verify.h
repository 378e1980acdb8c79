// --verify-hits: a hit is computed again from nothing, and what the cache gave is compared with it.
//
// A page is right when its bytes are the same. It need not be wrong when they are not: tokens that
// another worker decoded, or computed on other grids or machines, were rounded differently. Hence a
// bound: of one block in one layer, K or V, the relative RMS difference of the dequantized values.
// A page of other tokens differs by about 1. Where formats mix, the bound is that of the coarsest.
// The states of recurrent layers are not compared.
#pragma once
#include <cstdint>
#include <random>
#include <span>

#include "absl/status/statusor.h"

#include "client/worker/model.h"
#include "prefixd/client.h"

namespace prefixd::worker {

struct Verification {
  uint32_t tokens = 0;            // compared, in every layer
  uint32_t identical_tokens = 0;  // with the same bytes in all of them
  uint32_t wrong_blocks = 0;      // with a layer beyond the bound
  double worst = 0;               // difference of the worst block
  double bound = 0;
};

// Which hits are verified: each with probability `share`, the same ones for the same seed.
class HitSampler {
 public:
  HitSampler(double share, uint64_t seed) : share_(share), random_(seed) {}
  bool Next() { return share_ > 0 && std::uniform_real_distribution<>()(random_) < share_; }

 private:
  const double share_;
  std::mt19937_64 random_;
};

// 0.02 for raw values, 0.1 for 8 bits, 0.5 for fewer: of the coarser one of K and V.
double VerifyBound(const KvFormat& format);

// `hit`: holds cached pages of `tokens`, all of them. Changes nothing of it; the model's last step
// is forgotten. An error when the tokens cannot be computed or read.
absl::StatusOr<Verification> VerifyHit(Model& model, Space& space, Sequence& hit,
                                       std::span<const uint32_t> tokens);

}  // namespace prefixd::worker
