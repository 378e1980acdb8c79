// The space of a worker's requests: whose KV it is, and prefixd behind it if there is one.
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

// Returns the digests of a checkpoint's folder: its tensors, and tokenizer.json or tokenizer.model.
// A byte-level model has no tokenizer file and needs none. FailedPrecondition if a file cannot be
// read.
absl::StatusOr<ModelIdentity> IdentifyCheckpoint(const std::string& dir, const ModelConfig& config);
ModelIdentity IdentifySynthetic(const ModelConfig& config);

// `formats`: finest first.
SpaceSpec MakeSpaceSpec(const ModelConfig& config, const ModelIdentity& identity,
                        const std::vector<KvFormat>& formats);

// A client and its one space. The space must not outlive the client, hence the order of members.
struct CacheSpace {
  Client client;
  Space space;
  std::string why_alone;  // why no prefixd serves the space (yet); empty if one does
};

// Opens `spec` at options.server. If prefixd is away or refuses the space, the space is private to
// this process and `why_alone` says why. If prefixd is away, the client goes on trying to attach in
// the background. InvalidArgument if the spec itself is impossible.
absl::StatusOr<CacheSpace> OpenCacheSpace(const Options& options, const SpaceSpec& spec);

}  // namespace prefixd::worker
