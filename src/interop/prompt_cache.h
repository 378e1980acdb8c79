// mlx-lm's prompt-cache files (save_prompt_cache): the caches of all layers in one safetensors
// file.
//
// Thread-safe.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "interop/mlx_cache.h"

namespace prefixd::interop {

// Where the numbers of a cache object are. Neither version of mlx-lm reads the other's files.
enum class PromptCacheStyle {
  kMetaState,  // metadata [meta_states, user's, class names]: mlx-lm d78bf58e and before
  kScalars,    // numbers are arrays of the state; metadata [user's, class names, which arrays are
               // numbers, texts or None]: mlx-lm 0.32
};

struct PromptCache {
  PromptCacheStyle style = PromptCacheStyle::kMetaState;
  std::vector<MlxCache> layers;                   // in the form of kMetaState, whatever the style
  std::map<std::string, std::string> metadata;    // the user's: model name, chat template, ...
  std::shared_ptr<const SafetensorsFile> file{};  // arrays that were read point into it
};

// Returns the errors of SafetensorsFile::Open, and InvalidArgument naming the file if it is no
// prompt cache. Does not check classes and shapes: ReadKvRows() and ReadStateArrays() do that.
absl::StatusOr<PromptCache> ReadPromptCache(const std::string& path);
// Replaces `path`. InvalidArgument for a user's key that is empty or has a dot, which mlx-lm
// misreads.
absl::Status WritePromptCache(const std::string& path, const PromptCache& cache);

}  // namespace prefixd::interop
