#include "wire/page.h"

#include "wire/fields.h"
#include "wire/limits.h"

namespace prefixd::wire {

absl::Status CheckPiece(const v1::PageBytes& page) {
  const uint64_t bytes = page.data().size();
  if (bytes == 0) return absl::InvalidArgumentError("page: data has 0 bytes, wants at least 1");
  PREFIXD_RETURN_IF_ERROR(CheckLength("page: data", bytes, kMaxPieceBytes));
  if (page.offset() > page.page_bytes() || bytes > page.page_bytes() - page.offset()) {
    return absl::InvalidArgumentError(absl::StrCat("page: data of ", bytes, " bytes at offset ",
                                                   page.offset(), " reaches past page_bytes ",
                                                   page.page_bytes()));
  }
  return absl::OkStatus();
}

}  // namespace prefixd::wire
