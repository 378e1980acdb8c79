// The store that hosts share, on Redis Cluster or one Redis server, and on what speaks its
// protocol.
//
// A bundle is a hash: field r is its record, fields 0, 1, 2, ... are its stripes. A board is a
// hash of its texts. A call works on
// the caller's thread and polls the servers that it concerns; see remote_store.h for the promises.
#pragma once
#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "remote/redis_options.h"
#include "remote/remote_store.h"

namespace prefixd::remote {

class Cluster;
struct Ask;

// Thread-safe. Has one thread of its own, and with names of hosts up to two more.
class RedisStore final : public RemoteStore {
 public:
  // Begins to connect; does not wait, and does not fail because no server answers. InvalidArgument:
  // no server is named, or a file of TLS cannot be used.
  static absl::StatusOr<std::shared_ptr<RedisStore>> Open(RedisOptions options);
  // Requires: no call is under way.
  ~RedisStore() override;

  // Waits until it is known which server has what. False: not before the deadline.
  bool WaitKnown(base::Deadline deadline) const;

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
  absl::StatusOr<uint64_t> RestoreNumber(const std::string& name, uint64_t least,
                                         base::Deadline deadline) override;
  absl::Status WritePost(const std::string& board, const Post& post, std::chrono::seconds lifetime,
                         base::Deadline deadline) override;
  absl::StatusOr<std::vector<Post>> ReadBoard(const std::string& board,
                                              base::Deadline deadline) override;
  RemoteStatus Status() const override;

 private:
  explicit RedisStore(std::unique_ptr<Cluster> cluster);
  absl::Status LoadSome(const std::string& name, std::span<const Runs> stripes, size_t first,
                        base::Deadline deadline);
  // Why the ask has no reply that is not an error.
  absl::Status WhyNot(const Ask& ask) const;
  // Returns true if the board has the field, or room for it.
  absl::StatusOr<bool> HasRoom(const std::string& board, const std::string& field,
                               base::Deadline deadline);
  // Asks one command. The error that it, its server or the network gave.
  absl::Status One(Ask* ask, base::Deadline deadline);

  const std::unique_ptr<Cluster> cluster_;
  std::atomic<uint64_t> bytes_read_{0}, bytes_written_{0};
};

}  // namespace prefixd::remote
