// Bundles of one block each, of about 1 MiB, and their bytes: as prefixd writes them to a store.
//
// Thread-safe once Prepare has returned.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "bench/common/page_source.h"
#include "remote/bundle.h"
#include "remote/remote_store.h"

namespace prefixd::bench {

class Bundles {
 public:
  Bundles(size_t count, remote::Seal seal);

  size_t count() const { return count_; }
  const std::string& key(size_t bundle) const { return keys_[bundle]; }
  uint64_t page_bytes() const { return source_.block_bytes(); }  // of a bundle
  // Lengths of a bundle's stripes as the store has them.
  std::vector<size_t> StripeBytes() const;

  // Stores all of them, and reads their records back.
  absl::Status Prepare(remote::RemoteStore& store);
  // What these two store has keys of its own: what Load reads stays.
  std::string write_key(size_t bundle) const { return keys_[bundle] + "w"; }
  // Seals the bundle and stores it.
  absl::Status SealAndStore(remote::RemoteStore& store, size_t bundle) const;
  // Stores the first bundle's sealed bytes.
  absl::Status StoreReady(remote::RemoteStore& store, size_t bundle) const;
  // Loads the bundle's pages into `to`, of page_bytes(). Opens them too, or not.
  absl::Status Load(remote::RemoteStore& store, size_t bundle, std::span<std::byte> to,
                    bool open) const;
  bool Matches(size_t bundle, std::span<const std::byte> pages) const;
  // The record and the stripes of the first bundle.
  const remote::SealedBundle& ready() const { return ready_; }

 private:
  remote::BundleRecord RecordOf(size_t bundle) const;
  remote::SealedBundle Sealed(size_t bundle) const;
  static absl::Status Write(remote::RemoteStore& store, const std::string& key,
                            const remote::SealedBundle& sealed);
  std::vector<std::span<std::byte>> Cut(std::span<std::byte> pages) const;

  const size_t count_;
  const remote::Seal seal_;
  const PageSource source_;
  const remote::TenantKeys tenant_;
  std::vector<std::string> keys_;
  std::vector<remote::OpenedRecord> opened_;
  remote::SealedBundle ready_;
};

}  // namespace prefixd::bench
