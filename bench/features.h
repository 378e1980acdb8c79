// features: the figures that issue "every layer kind and every KV format" promises, one file a
// family. In this process, with pages that are as small as their formats allow.
#pragma once
#include "bench/bench.h"

namespace prefixd::bench {

void FeaturesDescriptors(Bench& bench);  // descriptors that differ a little
void FeaturesShapes(Bench& bench);       // shapes of match x formats x tiers
void FeaturesChain(Bench& bench);        // mixed chains: their error, and how they heal
void FeaturesHybrid(Bench& bench);       // recurrent and sliding layers on real prompts
void FeaturesOverhead(Bench& bench);     // what quantizing costs a decode step
void FeaturesTable(Bench& bench);        // every feature has a test or a reason
void FeaturesNumbers(Bench& bench);      // what quantizing costs and keeps

}  // namespace prefixd::bench
