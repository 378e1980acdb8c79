#include "bench/remote/bundles.h"

#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/status.h"
#include "bench/common/shared_daemon.h"

namespace prefixd::bench {
namespace {

const std::string kFormats = "0", kKey = "a key of the bench";

base::Deadline Soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(10); }

remote::ChainName NameOf(size_t bundle, remote::Seal seal) {
  remote::ChainName name{};
  const uint64_t number = bundle * 2 + (seal == remote::Seal::kChecks ? 1 : 0) + 1;
  static_assert(sizeof(name) >= sizeof(number));
  std::memcpy(&name, &number, sizeof(number));
  return name;
}

}  // namespace

Bundles::Bundles(size_t count, remote::Seal seal)
    : count_(count),
      seal_(seal),
      source_(SharedGeometry()),
      tenant_(remote::DeriveKeys(base::AsBytes(kKey), "bench")) {
  for (size_t i = 0; i < count; ++i) keys_.push_back(remote::KeyOf(NameOf(i, seal), kFormats));
  ready_ = Sealed(0);
}

std::vector<size_t> Bundles::StripeBytes() const {
  std::vector<size_t> bytes;
  for (const std::span<const std::byte> stripe : ready_.stripes) bytes.push_back(stripe.size());
  return bytes;
}

remote::BundleRecord Bundles::RecordOf(size_t bundle) const {
  remote::BundleRecord record;
  record.name = NameOf(bundle, seal_);
  record.formats = kFormats;
  record.tokens.resize(PageSource::kBlockTokens, static_cast<block::Token>(bundle));
  for (uint32_t group = 0; group < source_.groups(); ++group) {
    record.pages.push_back({.group = group, .page_bytes = source_.page_bytes(group)});
  }
  return record;
}

remote::SealedBundle Bundles::Sealed(size_t bundle) const {
  std::vector<std::span<const std::byte>> pages;
  for (uint32_t group = 0; group < source_.groups(); ++group) {
    pages.emplace_back(source_.page({.sequence = bundle, .group = group}),
                       source_.page_bytes(group));
  }
  return remote::SealBundle(tenant_, seal_, RecordOf(bundle), pages);
}

absl::Status Bundles::Write(remote::RemoteStore& store, const std::string& key,
                            const remote::SealedBundle& sealed) {
  std::vector<remote::ConstRuns> stripes;
  for (const std::span<const std::byte> stripe : sealed.stripes) stripes.push_back({stripe});
  return store.Store(key, base::AsBytes(sealed.record), stripes, Soon());
}

absl::Status Bundles::SealAndStore(remote::RemoteStore& store, size_t bundle) const {
  return Write(store, write_key(bundle), Sealed(bundle));
}

absl::Status Bundles::StoreReady(remote::RemoteStore& store, size_t bundle) const {
  return Write(store, write_key(bundle), ready_);
}

absl::Status Bundles::Prepare(remote::RemoteStore& store) {
  for (size_t i = 0; i < count_; ++i) PREFIXD_RETURN_IF_ERROR(Write(store, keys_[i], Sealed(i)));
  const std::vector<remote::FoundRecord> found = store.Find(keys_, Soon());
  opened_.resize(count_);
  for (size_t i = 0; i < count_; ++i) {
    const remote::BundleRecord record = RecordOf(i);
    const remote::Wanted wanted{.least = seal_,
                                .groups = source_.identity().groups,
                                .name = record.name,
                                .formats = record.formats,
                                .block = {record.tokens, {}}};
    const remote::BadBundle bad =
        remote::OpenRecord(tenant_, base::AsBytes(found[i].record), wanted, &opened_[i]);
    if (bad == remote::BadBundle::kNone) continue;
    return absl::DataLossError(absl::StrCat("bundle ", i, ": ", remote::NameOf(bad)));
  }
  return absl::OkStatus();
}

std::vector<std::span<std::byte>> Bundles::Cut(std::span<std::byte> pages) const {
  std::vector<std::span<std::byte>> cut;
  for (uint32_t group = 0; group < source_.groups(); ++group) {
    cut.push_back(pages.first(source_.page_bytes(group)));
    pages = pages.subspan(source_.page_bytes(group));
  }
  return cut;
}

absl::Status Bundles::Load(remote::RemoteStore& store, size_t bundle, std::span<std::byte> to,
                           bool open) const {
  const std::vector<std::span<std::byte>> pages = Cut(to);
  std::vector<remote::Tag> tags;
  const std::vector<remote::Runs> stripes = remote::StripesInto(opened_[bundle], pages, &tags);
  PREFIXD_RETURN_IF_ERROR(store.Load(keys_[bundle], stripes, Soon()));
  if (!open || remote::OpenPages(tenant_, opened_[bundle], pages, tags)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("bundle ", bundle, " is not what was stored"));
}

bool Bundles::Matches(size_t bundle, std::span<const std::byte> pages) const {
  for (uint32_t group = 0; group < source_.groups(); ++group) {
    if (!source_.Matches({.sequence = bundle, .group = group}, pages.data())) return false;
    pages = pages.subspan(source_.page_bytes(group));
  }
  return true;
}

}  // namespace prefixd::bench
