// Flush: what is in RAM only is written to the SSD, whatever its write budget says.
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {

FlushResult Flush(Context& context, IndexLoader& index_loader, Loader& loader, Segments& segments,
                  const Patience& patience) {
  FlushResult result;
  const uint64_t round_start = context.store != nullptr ? context.store->last_sequence() : 0;
  context.index->AdmitAll();
  const bool works = index_loader.WaitLoaded(patience.until()) && context.store != nullptr;
  if (works) loader.WaitVerified(patience);
  while (works && !patience.over()) {
    const absl::StatusOr<uint64_t> bytes = segments.SpillOnce(round_start, WriteLimits::kIgnore);
    if (!bytes.ok() || *bytes == 0) break;
    result.flushed_bytes += *bytes;
  }
  result.dirty_bytes = context.index->Counts().dirty_bytes;
  context.counters.Add("flushes");
  return result;
}

}  // namespace prefixd::cache::verbs
