#include "ssd/index_cache.h"

#if __has_include("rocksdb/advanced_cache.h")  // since version 8
#include "rocksdb/advanced_cache.h"
#endif

namespace prefixd::ssd {

#if __has_include("rocksdb/advanced_cache.h")
namespace {

class IndexCache final : public rocksdb::CacheWrapper {
 public:
  using CacheWrapper::CacheWrapper;
  const char* Name() const override { return "prefixd.IndexCache"; }

  // A reader that wants a handle gets one of its own.
  rocksdb::Status Insert(const rocksdb::Slice& key, ObjectPtr value, const CacheItemHelper* helper,
                         size_t charge, Handle** handle, Priority priority,
                         const rocksdb::Slice& compressed,
                         rocksdb::CompressionType compression) override {
    if (helper->role != rocksdb::CacheEntryRole::kDataBlock) {
      return target_->Insert(key, value, helper, charge, handle, priority, compressed, compression);
    }
    if (handle != nullptr) {
      *handle = target_->CreateStandalone(key, value, helper, charge, /*allow_uncharged=*/true);
    } else if (helper->del_cb != nullptr) {
      helper->del_cb(value, memory_allocator());
    }
    return rocksdb::Status::OK();
  }
};

}  // namespace

std::shared_ptr<rocksdb::Cache> NewIndexCache(size_t bytes) {
  return std::make_shared<IndexCache>(rocksdb::NewLRUCache(bytes, /*num_shard_bits=*/0));
}
#else
std::shared_ptr<rocksdb::Cache> NewIndexCache(size_t bytes) {
  return rocksdb::NewLRUCache(bytes, /*num_shard_bits=*/0);
}
#endif

}  // namespace prefixd::ssd
