// An engine in C11 with KV memory of its own: stores 300 tokens through libprefixd.so, reads them
// back, attends over them. Usage: round_trip ADDRESS. Prints "cached N stored N", or what is wrong.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prefixd.h"

enum { kTokens = 300, kLayers = 3, kHeads = 2, kDim = 64, kCodes = kDim, kScales = 4 };

// One of K or V of a layer: MLX 8 bit, group 64, f32.
typedef struct tensor {
  uint8_t codes[kHeads][kTokens][kCodes];
  float scales[kHeads][kTokens], biases[kHeads][kTokens];
} tensor;
typedef struct layer {
  tensor key, value;
} layer;

static layer own[kLayers], read_back[kLayers];

static int fail(const char* what) {
  printf("%s: %s\n", what, prefixd_last_error());
  return 1;
}

// Random keys; every value is 1.
static void fill(void) {
  uint32_t state = 1;
  for (int l = 0; l < kLayers; ++l) {
    for (int h = 0; h < kHeads; ++h) {
      for (int t = 0; t < kTokens; ++t) {
        for (int i = 0; i < kCodes; ++i) {
          state = state * 1664525u + 1013904223u;
          own[l].key.codes[h][t][i] = (uint8_t)(state >> 24);
        }
        own[l].key.scales[h][t] = (float)(l + 1) / 256;
        own[l].key.biases[h][t] = -0.5f;
        own[l].value.biases[h][t] = 1;
      }
    }
  }
}

static prefixd_planes planes_of(tensor* from, uint32_t begin) {
  prefixd_planes planes = PREFIXD_INIT(prefixd_planes);
  planes.codes = from->codes[0][begin];
  planes.scales = &from->scales[0][begin];
  planes.biases = &from->biases[0][begin];
  planes.codes_head_stride = sizeof(from->codes[0]);
  planes.codes_token_stride = kCodes;
  planes.scales_head_stride = sizeof(from->scales[0]);
  planes.scales_token_stride = kScales;
  return planes;
}

static int store(prefixd_space* space, const uint32_t* tokens, uint32_t* stored) {
  prefixd_plan* plan = prefixd_reserve(space, tokens, kTokens, NULL);
  prefixd_run runs[16];
  const size_t count = prefixd_missing(plan, runs, 16);
  prefixd_commit_info info = PREFIXD_INIT(prefixd_commit_info);
  prefixd_commit_options end = PREFIXD_INIT(prefixd_commit_options);
  end.sequence_end = 1;
  *stored = 0;
  for (size_t i = 0; i < count; ++i) {
    for (uint32_t l = 0; l < kLayers; ++l) {
      const prefixd_planes key = planes_of(&own[l].key, runs[i].begin);
      const prefixd_planes value = planes_of(&own[l].value, runs[i].begin);
      if (prefixd_write_packed(plan, l, runs[i].begin, runs[i].end - runs[i].begin, &key, &value)) {
        return fail("write_packed");
      }
    }
    if (prefixd_commit(plan, runs[i].end, NULL, &info)) return fail("commit");
    *stored += info.stored_tokens;
  }
  if (prefixd_commit(plan, kTokens, &end, &info)) return fail("commit of the end");
  prefixd_abandon(plan);
  return 0;
}

static int attend(prefixd_lease* lease, const prefixd_format* format) {
  const prefixd_block* blocks = NULL;
  const size_t count = prefixd_table(lease, 1, &blocks);
  float q[kHeads * kDim], out[kHeads * kDim];
  prefixd_attend_options options = PREFIXD_INIT(prefixd_attend_options);
  for (int i = 0; i < kHeads * kDim; ++i) q[i] = (float)(i % 7) / 7;
  options.query_heads = options.kv_heads = kHeads;
  options.key_dim = options.value_dim = kDim;
  options.first_position = kTokens - 1;
  options.scale = 0.125f;
  if (prefixd_attend(blocks, count, format, 1, q, out, &options)) return fail("attend");
  for (int i = 0; i < kHeads * kDim; ++i) {
    if (fabsf(out[i] - 1) > 1e-4f) return printf("attend: column %d is %f\n", i, (double)out[i]), 1;
  }
  return 0;
}

static int restore(prefixd_space* space, const uint32_t* tokens, const prefixd_format* format,
                   uint32_t* cached) {
  prefixd_match_info match = PREFIXD_INIT(prefixd_match_info);
  prefixd_used used = PREFIXD_INIT(prefixd_used);
  prefixd_lease* lease = prefixd_acquire(space, tokens, kTokens, NULL, &match);
  *cached = prefixd_wait_all(lease, 0);
  for (uint32_t l = 0; *cached > 0 && l < kLayers; ++l) {
    const prefixd_planes key = planes_of(&read_back[l].key, 0);
    const prefixd_planes value = planes_of(&read_back[l].value, 0);
    if (prefixd_gather(lease, l, 0, *cached, &key, &value)) return fail("gather");
  }
  if (*cached == kTokens) {
    if (match.kind != PREFIXD_EXACT) return printf("the match is %u\n", match.kind), 1;
    if (memcmp(own, read_back, sizeof(own)) != 0) return printf("other bytes came back\n"), 1;
    if (attend(lease, format)) return 1;
  }
  used.used_tokens = *cached;
  prefixd_release(lease, &used);
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 2) return fprintf(stderr, "usage: %s ADDRESS\n", argv[0]), 2;
  fill();
  prefixd_options options = PREFIXD_INIT(prefixd_options);
  options.address = argv[1];
  options.name = "c";
  prefixd_client* client = prefixd_attach(&options);
  if (!prefixd_attached(client, 20000)) return fail("attach");

  prefixd_format format = {0};
  format.key.codec = PREFIXD_MLX_AFFINE;
  format.key.dtype = PREFIXD_F32;
  format.key.bits = 8;
  format.key.group_size = 64;
  format.value = format.key;
  prefixd_layer layers[kLayers];
  for (int l = 0; l < kLayers; ++l) {
    const prefixd_layer layer = {
        .size = sizeof(layer), .kv_heads = kHeads, .key_dim = kDim, .value_dim = kDim,
        .format_count = 1, .formats = &format};
    layers[l] = layer;
  }
  const uint8_t digest[32] = {7};
  prefixd_space_spec spec = PREFIXD_INIT(prefixd_space_spec);
  spec.model = "c";
  spec.weights_digest = digest;
  spec.layers = layers;
  spec.layer_count = kLayers;
  prefixd_space* space = prefixd_open_space(client, &spec);
  if (space == NULL) return fail("open_space");

  uint32_t tokens[kTokens], before = 0, stored = 0, after = 0;
  for (uint32_t i = 0; i < kTokens; ++i) tokens[i] = i * i % 997;
  if (restore(space, tokens, &format, &before)) return 1;
  if (store(space, tokens, &stored)) return 1;
  if (restore(space, tokens, &format, &after)) return 1;
  if (after != kTokens) return printf("only %u tokens came back\n", after), 1;
  prefixd_close_space(space);
  prefixd_detach(client);
  printf("cached %u stored %u\n", before, stored);
  return 0;
}
