#include "block/page_check.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"

namespace prefixd::block {
namespace {

template <typename T>
std::byte* Append(std::byte* to, const T& value) {
  std::memcpy(to, &value, sizeof(value));
  return to + sizeof(value);
}

uint64_t NeverZero(uint64_t check) { return check == 0 ? 1 : check; }

absl::Status Differs(const char* field, uint64_t seen, uint64_t wanted) {
  return absl::DataLossError(
      absl::StrCat("page: header has ", field, " ", seen, ", expected ", wanted));
}

absl::Status VerifyName(const PageHeader& header, const PageName& name) {
  if (header.group != name.group) return Differs("group", header.group, name.group);
  if (header.part != name.part) return Differs("part", header.part, name.part);
  if (header.rung != name.rung) return Differs("rung", header.rung, name.rung);
  if (header.tokens != name.tokens) return Differs("tokens", header.tokens, name.tokens);
  if (!std::equal(std::begin(header.space_prefix), std::end(header.space_prefix),
                  name.space.begin())) {
    return absl::DataLossError(absl::StrCat("page: header is of space ",
                                            base::ToHex(header.space_prefix), ", expected ",
                                            base::ToHex(std::span(name.space).first(16))));
  }
  if (!std::equal(std::begin(header.block), std::end(header.block), name.block.begin())) {
    return absl::DataLossError(absl::StrCat("page: header is of block ", base::ToHex(header.block),
                                            ", expected ", base::ToHex(name.block)));
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t CheckSeed(const PageName& name) {
  std::array<std::byte, 58> encoded;
  std::byte* to = encoded.data();
  to = Append(to, name.space);
  to = Append(to, name.block);
  to = Append(to, name.group);
  to = Append(to, name.part);
  to = Append(to, name.rung);
  Append(to, name.tokens);
  return base::Xxh3(encoded);
}

uint64_t PageCheck(const PageName& name, std::span<const std::byte> page) {
  return NeverZero(base::Xxh3(page, CheckSeed(name)));
}

uint64_t CopyAndCheck(const PageName& name, std::span<const std::byte> from, std::byte* to) {
  return NeverZero(base::CopyAndXxh3(from, to, CheckSeed(name)));
}

PageHeader MakePageHeader(const PageName& name, std::span<const std::byte> page, uint64_t check) {
  PageHeader header{.group = name.group,
                    .part = name.part,
                    .rung = name.rung,
                    .tokens = name.tokens,
                    .page_bytes = static_cast<uint32_t>(page.size()),
                    .check = check};
  std::copy_n(name.space.begin(), sizeof(header.space_prefix), header.space_prefix);
  std::copy_n(name.block.begin(), sizeof(header.block), header.block);
  return header;
}

absl::Status VerifyPage(const PageHeader& header, const PageName& name, uint64_t expected_check,
                        std::span<const std::byte> page) {
  if (header.magic != kPageMagic) return Differs("magic", header.magic, kPageMagic);
  if (header.version != kPageFormatVersion) {
    return Differs("version", header.version, kPageFormatVersion);
  }
  if (absl::Status status = VerifyName(header, name); !status.ok()) return status;
  if (header.page_bytes != page.size()) {
    return Differs("page_bytes", header.page_bytes, page.size());
  }
  if (header.coding != 0) return Differs("coding", header.coding, 0);
  if (header.check != expected_check) return Differs("check", header.check, expected_check);
  if (const uint64_t check = PageCheck(name, page); check != expected_check) {
    return absl::DataLossError(
        absl::StrCat("page: bytes have check ", check, ", expected ", expected_check));
  }
  return absl::OkStatus();
}

}  // namespace prefixd::block
