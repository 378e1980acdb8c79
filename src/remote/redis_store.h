// The store of remote_store.h on Redis Cluster, or one server that speaks Redis' protocol. A bundle
// is a hash: field r is its record, fields 0, 1, 2, ... its stripes.
//
// Thread-safe. Calls run on their callers' threads: they send to all servers that they need, then
// read what those answer. A server that is given up (node.h) is not asked.
#pragma once
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "remote/cluster.h"
#include "remote/pipeline.h"
#include "remote/redis_options.h"
#include "remote/remote_store.h"

namespace prefixd::remote {

class RedisStore final : public RemoteStore {
 public:
  // Reads the TLS files and begins to connect. FailedPrecondition: a file cannot be used.
  static absl::StatusOr<std::shared_ptr<RedisStore>> Open(RedisOptions options);

  // Waits until it is known which server has what. False: not before the deadline.
  bool WaitKnown(base::Deadline deadline) const { return cluster_.WaitKnown(deadline); }

  std::vector<FoundRecord> Find(std::span<const std::string> names,
                                base::Deadline deadline) override;
  absl::Status Load(const std::string& name, std::span<const Runs> stripes,
                    base::Deadline deadline) override;
  absl::StatusOr<std::vector<bool>> Touch(std::span<const std::string> names,
                                          base::Deadline deadline) override;
  absl::Status Store(const std::string& name, std::span<const std::byte> record,
                     std::span<const ConstRuns> stripes, base::Deadline deadline) override;
  absl::StatusOr<uint64_t> ReadNumber(const std::string& name, base::Deadline deadline) override;
  absl::StatusOr<uint64_t> RaiseNumber(const std::string& name, base::Deadline deadline) override;
  RemoteStatus Status() const override;

 private:
  RedisStore(RedisOptions options, std::shared_ptr<TlsContext> tls)
      : options_(std::move(options)), cluster_(&options_, tls), pipeline_(&cluster_, &gate_) {}
  absl::StatusOr<uint64_t> Number(const char* verb, const std::string& name,
                                  base::Deadline deadline);

  const RedisOptions options_;
  Gate gate_{options_.total_bytes};
  Cluster cluster_;
  Pipeline pipeline_;
  std::atomic<uint64_t> bytes_read_{0}, bytes_written_{0};
};

}  // namespace prefixd::remote
