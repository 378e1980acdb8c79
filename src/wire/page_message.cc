#include "wire/page_message.h"

#include <algorithm>
#include <array>
#include <utility>

namespace prefixd::wire {
namespace {

// Returns the data as a slice, in place. `hold` keeps the data there until gRPC is done with it.
grpc::Slice Borrow(const std::byte* data, size_t bytes, std::shared_ptr<const void> hold) {
  auto* keeper = new std::shared_ptr<const void>(std::move(hold));
  // gRPC takes a pointer to mutable bytes and never writes them.
  return grpc::Slice(
      const_cast<std::byte*>(data), bytes,
      [](void* kept) { delete static_cast<std::shared_ptr<const void>*>(kept); }, keeper);
}

std::span<const std::byte> BytesOf(const grpc::Slice& slice) {
  return {reinterpret_cast<const std::byte*>(slice.begin()), slice.size()};
}

}  // namespace

grpc::ByteBuffer MakePageMessage(const PieceHeader& piece, const std::byte* data,
                                 std::shared_ptr<const void> hold) {
  std::array<std::byte, kMaxPieceHeaderBytes> header;
  const size_t header_bytes = WritePieceHeader(piece, header.data());
  const grpc::Slice slices[] = {grpc::Slice(header.data(), header_bytes),
                                hold != nullptr ? Borrow(data, piece.data_bytes, std::move(hold))
                                                : grpc::Slice(data, piece.data_bytes)};
  return {slices, 2};
}

PageMessage::PageMessage(const grpc::ByteBuffer& buffer) {
  whole_ = buffer.Dump(&slices_).ok();
  for (const grpc::Slice& slice : slices_) bytes_ += slice.size();
}

std::optional<ParsedPiece> PageMessage::Header() const {
  if (!whole_) return std::nullopt;
  std::array<std::byte, kMaxPieceHeaderBytes> start;
  size_t filled = 0;
  for (const grpc::Slice& slice : slices_) {
    const auto run = BytesOf(slice).first(std::min(slice.size(), start.size() - filled));
    std::copy(run.begin(), run.end(), start.data() + filled);
    filled += run.size();
    if (filled == start.size()) break;
  }
  return ReadPieceHeader(std::span(start).first(filled), bytes_);
}

void PageMessage::RunsFrom(size_t from, Runs* runs) const {
  runs->clear();
  for (const grpc::Slice& slice : slices_) {
    const size_t skip = std::min(from, slice.size());
    from -= skip;
    if (skip < slice.size()) runs->push_back(BytesOf(slice).subspan(skip));
  }
}

}  // namespace prefixd::wire
