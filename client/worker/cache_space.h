// The space that a worker's requests live in: whose KV it is, and prefixd behind it when there is
// one.
#pragma once
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/worker/model_config.h"
#include "client/worker/options.h"
#include "prefixd/client.h"

namespace prefixd::worker {

struct ModelIdentity {
  Digest weights_digest{};
  Digest tokenizer_digest{};
};

// Of a checkpoint's folder: its tensors, and tokenizer.json or tokenizer.model. A byte-level model
// has no tokenizer file and needs none. Errors: a file cannot be read.
absl::StatusOr<ModelIdentity> IdentifyCheckpoint(const std::string& dir, const ModelConfig& config);
ModelIdentity IdentifySynthetic(const ModelConfig& config);

// formats: finest first.
SpaceSpec MakeSpaceSpec(const ModelConfig& config, const ModelIdentity& identity,
                        const std::vector<KvFormat>& formats);

// A client and its one space. The space must not outlive the client, hence the order.
struct CacheSpace {
  Client client;
  Space space;
  std::string why_alone;  // the reason why no prefixd stands behind it (yet), or empty
};

// Opens `spec` at options.server. When prefixd is away or refuses the space, the space is private
// to this process and `why_alone` says why; where prefixd is away, attaching goes on in the
// background. InvalidArgument when the spec itself is impossible.
absl::StatusOr<CacheSpace> OpenCacheSpace(const Options& options, const SpaceSpec& spec);

}  // namespace prefixd::worker
