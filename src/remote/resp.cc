#include "remote/resp.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/status.h"

namespace prefixd::remote {
namespace {

absl::Status NoProtocol(std::string_view what) {
  return absl::DataLossError(absl::StrCat("remote: the server's answer ", std::string(what)));
}

size_t BytesOf(const Runs& runs) {
  size_t bytes = 0;
  for (const std::span<std::byte>& run : runs) bytes += run.size();
  return bytes;
}

}  // namespace

Command::Command(size_t arguments) { Put(absl::StrCat("*", arguments, "\r\n")); }

void Command::Put(std::string text) {
  texts_.push_back(std::move(text));
  runs_.push_back(base::AsBytes(texts_.back()));
  bytes_ += texts_.back().size();
}

Command& Command::Add(std::string_view text) {
  Put(absl::StrCat("$", text.size(), "\r\n", std::string(text), "\r\n"));
  return *this;
}

Command& Command::AddRuns(const ConstRuns& runs) {
  size_t bytes = 0;
  for (const std::span<const std::byte>& run : runs) bytes += run.size();
  Put(absl::StrCat("$", bytes, "\r\n"));
  runs_.insert(runs_.end(), runs.begin(), runs.end());
  bytes_ += bytes;
  Put("\r\n");
  return *this;
}

absl::Status ReplyReader::Fill() {
  if (begin_ == end_) begin_ = end_ = 0;
  if (end_ == buffer_.size()) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    if (end_ == buffer_.size()) buffer_.resize(2 * buffer_.size());
  }
  PREFIXD_ASSIGN_OR_RETURN(const size_t read, source_->ReadSome(std::span(buffer_).subspan(end_)));
  end_ += read;
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReplyReader::Line() {
  for (size_t seen = 0;;) {
    const auto* const from = reinterpret_cast<const char*>(buffer_.data());
    for (size_t at = begin_ + seen; at + 1 < end_; ++at, ++seen) {
      if (from[at] != '\r' || from[at + 1] != '\n') continue;
      std::string line(from + begin_, at - begin_);
      begin_ = at + 2;
      if (line.empty()) return NoProtocol("has an empty line");
      return line;
    }
    if (end_ - begin_ > kMostLine) return NoProtocol("has a line without an end");
    PREFIXD_RETURN_IF_ERROR(Fill());
  }
}

absl::StatusOr<int64_t> ReplyReader::Length(std::string_view line) {
  int64_t length = 0;
  if (!absl::SimpleAtoi(std::string(line.substr(1)), &length) || length < -1) {
    return NoProtocol("has a length that is no number");
  }
  return length;
}

// Large strings go straight to where they belong; what is in the buffer already is copied.
absl::Status ReplyReader::Take(std::span<std::byte> to) {
  const size_t here = std::min(to.size(), end_ - begin_);
  std::memcpy(to.data(), buffer_.data() + begin_, here);
  begin_ += here;
  for (to = to.subspan(here); !to.empty();) {
    if (to.size() < buffer_.size()) {
      PREFIXD_RETURN_IF_ERROR(Fill());
      return Take(to);
    }
    PREFIXD_ASSIGN_OR_RETURN(const size_t read, source_->ReadSome(to));
    to = to.subspan(read);
  }
  return absl::OkStatus();
}

absl::Status ReplyReader::Skip(size_t bytes) {
  while (bytes > 0) {
    if (begin_ == end_) PREFIXD_RETURN_IF_ERROR(Fill());
    const size_t here = std::min(bytes, end_ - begin_);
    begin_ += here;
    bytes -= here;
  }
  return absl::OkStatus();
}

absl::Status ReplyReader::EndOfString() {
  std::byte end[2];
  PREFIXD_RETURN_IF_ERROR(Take(end));
  if (end[0] != std::byte{'\r'} || end[1] != std::byte{'\n'}) {
    return NoProtocol("has a string that goes on behind its length");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReplyReader::Text(size_t bytes) {
  std::string text;
  while (text.size() < bytes) {
    if (begin_ == end_) PREFIXD_RETURN_IF_ERROR(Fill());
    const size_t here = std::min(bytes - text.size(), end_ - begin_);
    text.append(reinterpret_cast<const char*>(buffer_.data()) + begin_, here);
    begin_ += here;
  }
  PREFIXD_RETURN_IF_ERROR(EndOfString());
  return text;
}

absl::StatusOr<Reply> ReplyReader::ReadList(std::string_view line, int depth, size_t most_bytes) {
  PREFIXD_ASSIGN_OR_RETURN(int64_t count, Length(line));
  if (count < 0) return Reply{};
  if (line[0] == '%' || line[0] == '|') count *= 2;
  if (depth == 0 || count > static_cast<int64_t>(kMostItems)) {
    return NoProtocol("is nested too deeply, or too long");
  }
  Reply list{.kind = Reply::Kind::kList, .text = {}, .items = {}};
  for (int64_t i = 0; i < count; ++i) {
    bool passed_over = false;
    PREFIXD_ASSIGN_OR_RETURN(Reply item, ReadAny(depth - 1, most_bytes, &passed_over));
    list.items.push_back(std::move(item));
  }
  return list;
}

absl::StatusOr<Reply> ReplyReader::ReadAny(int depth, size_t most_bytes, bool* passed_over) {
  PREFIXD_ASSIGN_OR_RETURN(const std::string line, Line());
  Reply reply;
  switch (line[0]) {
    case '+':
    case ',':  // double
    case '(':  // big number
    case '#':  // boolean
      return Reply{.kind = Reply::Kind::kText, .text = line.substr(1), .items = {}};
    case '-':
      return Reply{.kind = Reply::Kind::kError, .text = line.substr(1), .items = {}};
    case '_':
      return reply;
    case ':':
      reply.kind = Reply::Kind::kInteger;
      if (absl::SimpleAtoi(line.substr(1), &reply.number)) return reply;
      return NoProtocol("has an integer that is none");
    case '$':
    case '=':    // verbatim
    case '!': {  // error with a length
      PREFIXD_ASSIGN_OR_RETURN(const int64_t length, Length(line));
      if (length < 0) return reply;
      if (static_cast<uint64_t>(length) > most_bytes) return NoProtocol("has too long a string");
      reply.kind = line[0] == '!' ? Reply::Kind::kError : Reply::Kind::kBulk;
      PREFIXD_ASSIGN_OR_RETURN(reply.text, Text(static_cast<size_t>(length)));
      return reply;
    }
    case '*':
    case '~':
    case '%':
      return ReadList(line, depth, most_bytes);
    case '>':
    case '|':
      *passed_over = true;
      return ReadList(line, depth, most_bytes);
    default:
      return NoProtocol("is none of the protocol");
  }
}

absl::StatusOr<Reply> ReplyReader::Read(size_t most_bytes) {
  for (;;) {
    bool passed_over = false;
    PREFIXD_ASSIGN_OR_RETURN(Reply reply, ReadAny(kMostDepth, most_bytes, &passed_over));
    if (!passed_over) return reply;
  }
}

absl::Status ReplyReader::ReadItem(const Runs* to, absl::Status* what) {
  PREFIXD_ASSIGN_OR_RETURN(const std::string line, Line());
  if (line[0] == '_') {
    if (what->ok()) *what = absl::NotFoundError("remote: a part of the bundle is not there");
    return absl::OkStatus();
  }
  if (line[0] != '$') return NoProtocol("has a part that is no string");
  PREFIXD_ASSIGN_OR_RETURN(const int64_t length, Length(line));
  if (length < 0) {
    if (what->ok()) *what = absl::NotFoundError("remote: a part of the bundle is not there");
    return absl::OkStatus();
  }
  if (to == nullptr || static_cast<uint64_t>(length) != BytesOf(*to)) {
    *what = absl::DataLossError("remote: a part of the bundle has another length");
    PREFIXD_RETURN_IF_ERROR(Skip(static_cast<size_t>(length)));
    return EndOfString();
  }
  for (const std::span<std::byte>& run : *to) PREFIXD_RETURN_IF_ERROR(Take(run));
  return EndOfString();
}

ReplyReader::Filled ReplyReader::ReadInto(std::span<const Runs> to) {
  if (begin_ == end_) {
    if (absl::Status filled = Fill(); !filled.ok()) return {.status = filled, .other = {}};
  }
  if (buffer_[begin_] != std::byte{'*'}) {
    absl::StatusOr<Reply> other = Read();
    if (!other.ok()) return {.status = other.status(), .other = {}};
    return {.status = absl::UnknownError("remote: no list"),
            .other = *std::move(other),
            .readable = true};
  }
  const absl::StatusOr<std::string> line = Line();
  if (!line.ok()) return {.status = line.status(), .other = {}};
  const absl::StatusOr<int64_t> count = Length(*line);
  if (!count.ok()) return {.status = count.status(), .other = {}};
  absl::Status what;
  for (int64_t i = 0; i < *count; ++i) {
    const Runs* const place =
        static_cast<uint64_t>(i) < to.size() ? &to[static_cast<size_t>(i)] : nullptr;
    if (absl::Status read = ReadItem(place, &what); !read.ok())
      return {.status = read, .other = {}};
  }
  if (what.ok() && *count != static_cast<int64_t>(to.size())) {
    what = absl::DataLossError("remote: the bundle has another number of parts");
  }
  return {.status = what, .other = {}, .readable = true};
}

}  // namespace prefixd::remote
