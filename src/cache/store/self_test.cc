// The page that every start writes to the SSD tier, reads back and deletes.
#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "cache/store/spiller.h"

namespace prefixd::cache {
namespace {

constexpr size_t kTestPageBytes = 64 << 10;

std::vector<std::byte> TestPage(uint64_t seed) {
  std::vector<std::byte> page(kTestPageBytes);
  for (std::byte& byte : page) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(seed >> 56);
  }
  return page;
}

absl::Status WriteReadDelete(ssd::SegmentStore* store, uint64_t seed) {
  const std::vector<std::byte> page = TestPage(seed);
  const block::PageName name{.tokens = 1};  // of no space: nothing ever asks for it
  const uint64_t check = block::PageCheck(name, page);
  PREFIXD_ASSIGN_OR_RETURN(const std::unique_ptr<ssd::SegmentWriter> segment, store->NewSegment());
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t sequence,
                           segment->AddPage(block::MakePageHeader(name, page, check), page));
  PREFIXD_ASSIGN_OR_RETURN(const ssd::SegmentInfo written, segment->Finish());
  std::vector<std::byte> back(page.size());
  const absl::Status read = store->ReadPage(sequence, name, check, back);
  PREFIXD_RETURN_IF_ERROR(store->DropSegment(written));
  PREFIXD_RETURN_IF_ERROR(read);
  if (back == page) return absl::OkStatus();
  return absl::DataLossError("what was read back differs from what was written");
}

}  // namespace

void Spiller::SelfTest() {
  const int64_t started = context_->Now();
  absl::Status status;
  {
    base::MutexLock lock(segments_->mutex);
    status = WriteReadDelete(context_->store.get(), context_->epoch);
  }
  context_->counters.Time("ssd.self_test", static_cast<uint64_t>(context_->Now() - started));
  if (status.ok()) return;
  context_->counters.Add("ssd.self_test_failed");
  context_->ssd_failing = true;  // until a segment succeeds
  context_->Log(
      LogLevel::kError,
      absl::StrCat("ssd: the page that every start writes, reads back and deletes failed, pages "
                   "may not survive a restart: ",
                   std::string(status.message())));
}

}  // namespace prefixd::cache
