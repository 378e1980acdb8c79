// Stores a prompt's KV cache and reads it back as another worker: by_cpp ADDRESS. Without a prefixd
// it says so.
#include <prefixd/attention.h>
#include <prefixd/block_table.h>
#include <prefixd/client.h>
#include <prefixd/format.h>

#include <cstdio>
#include <numeric>
#include <vector>

namespace pd = prefixd;

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  pd::SpaceSpec spec{.model = "consumer", .weights_digest = {std::byte{7}}};
  spec.layers.assign(2, {.kv_heads = 1,
                         .key_dim = 64,
                         .value_dim = 64,
                         .formats = {pd::MlxAffine(8, 64, pd::Dtype::kF16)}});
  std::vector<uint32_t> tokens(200);
  std::iota(tokens.begin(), tokens.end(), 1);
  const std::vector<float> rows(200 * 64, 0.5F);
  unsigned found[2] = {};
  for (unsigned& cached : found) {
    pd::Client client({.address = argv[1], .name = "consumer"});
    pd::Result<pd::Space> space = client.OpenSpace(spec);
    if (!space.ok()) {
      std::printf("no space: %s\n", space.status.message.c_str());
      return 1;
    }
    pd::Sequence sequence = space.value().Begin(tokens, {.max_cached_tokens = 199});
    cached = sequence.restorable_tokens();
    for (int layer = 0; layer < 2; ++layer) {
      sequence.Wait(layer);
      sequence.Append(layer, cached, 200 - cached, {rows.data()}, {rows.data()});
    }
    const auto stored = sequence.Commit({.sequence_end = true});
    if (!stored.ok()) std::printf("not stored: %s\n", stored.status.message.c_str());
    sequence.Release({.used_tokens = cached});
  }
  std::printf("found %u, then %u of 200\n", found[0], found[1]);
  return found[1] == 199 ? 0 : 1;
}
