// A whole engine integration: attach, open the space, look the prompt up, append what was computed,
// attend over the block table, store. Usage: example_worker ADDRESS
#include <algorithm>
#include <cstdio>

#include "client/examples/toy_model.h"
#include "prefixd/attention.h"
#include "prefixd/client.h"

namespace pd = prefixd;

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: %s ADDRESS\n", argv[0]), 2;
  pd::Client client({.address = argv[1], .name = "example"});
  pd::SpaceSpec spec{.model = "toy", .weights_digest = {std::byte{1}}};
  spec.layers.assign(ToyModel::kLayers, {.kv_heads = ToyModel::kHeads,
                                         .key_dim = ToyModel::kDim,
                                         .value_dim = ToyModel::kDim,
                                         .formats = {pd::MlxAffine(8, 64, pd::Dtype::kF16)}});
  pd::Result<pd::Space> space = client.OpenSpace(spec);
  if (!space.ok()) return std::fprintf(stderr, "%s\n", space.status.message.c_str()), 1;

  std::vector<uint32_t> tokens(300);
  for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = i * i % 997;
  const uint32_t prompt = static_cast<uint32_t>(tokens.size());
  // The last prompt token is always computed: its output gives the first new one.
  pd::Sequence seq = space.value().Begin(tokens, {.max_cached_tokens = prompt - 1});
  uint32_t cached = seq.restorable_tokens(), at = cached, checksum = 0;
  std::vector<float> out;
  auto pass = [&](uint32_t count) {  // runs `count` tokens through all layers
    for (int layer = 0; layer < ToyModel::kLayers; ++layer) {
      if (seq.Wait(layer) < cached) return false;  // a cached page turned out bad
      const Qkv x = ToyModel::Project(tokens, at, count, layer);
      seq.Append(layer, at, count, {x.k.data()}, {x.v.data()});
      out.resize(x.q.size());
      seq.Attend(layer, x.q.data(), out.data(), ToyModel::Shape(at, count));
    }
    at += count;
    return true;
  };
  while (tokens.size() < prompt + 100) {  // chunked prefill, then decode
    if (!pass(std::min<uint32_t>(128, static_cast<uint32_t>(tokens.size()) - at))) {
      at = cached = seq.Restart();
      continue;
    }
    seq.Commit(
        {.sequence_end = at == prompt});  // full blocks; at the end of the prompt its tail too
    if (at == tokens.size()) seq.PushToken(tokens.emplace_back(ToyModel::Sample(out, &checksum)));
  }
  const auto stored = seq.Commit({.sequence_end = true});  // an error only costs a later miss
  seq.Release({.used_tokens = cached});
  std::printf("cached %u checksum %08x: %s\n", cached, checksum,
              stored.ok() ? "stored" : stored.status.message.c_str());
}
