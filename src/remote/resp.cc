#include "remote/resp.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"

namespace prefixd::remote {
namespace {

constexpr size_t kLargeBytes = 4096;  // worth to be received in place
constexpr size_t kBesideLarge = 64;   // read with it: the line's end and the next header
constexpr std::string_view kLineEnd = "\r\n";

bool Number(std::string_view text, int64_t* number) {
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

uint64_t BytesOf(const Runs& runs) {
  uint64_t bytes = 0;
  for (const std::span<std::byte> run : runs) bytes += run.size();
  return bytes;
}

}  // namespace

// --- commands ---------------------------------------------------------------------------------

void Commands::Text(std::string_view text) {
  if (pieces_.empty() || pieces_.back().borrowed != nullptr) {
    pieces_.push_back({.at = text_.size()});
  }
  text_.append(text);
  pieces_.back().bytes += text.size();
  bytes_ += text.size();
}

Commands& Commands::Begin(size_t arguments) {
  Text(absl::StrCat("*", arguments, "\r\n"));
  return *this;
}

Commands& Commands::Add(std::string_view argument) {
  Text(absl::StrCat("$", argument.size(), "\r\n"));
  Text(argument);
  Text(kLineEnd);
  return *this;
}

Commands& Commands::Borrow(std::span<const std::byte> argument) {
  return Borrow(ConstRuns{argument});
}

Commands& Commands::Borrow(const ConstRuns& argument) {
  uint64_t bytes = 0;
  for (const std::span<const std::byte> run : argument) bytes += run.size();
  Text(absl::StrCat("$", bytes, "\r\n"));
  for (const std::span<const std::byte> run : argument) {
    if (!run.empty()) pieces_.push_back({.borrowed = run.data(), .bytes = run.size()});
  }
  bytes_ += bytes;
  Text(kLineEnd);
  return *this;
}

Commands& Commands::Call(std::span<const std::string_view> arguments) {
  Begin(arguments.size());
  for (const std::string_view argument : arguments) Add(argument);
  return *this;
}

void Commands::Append(const Commands& other) {
  for (const Piece& piece : other.pieces_) {
    if (piece.borrowed == nullptr) {
      Text(std::string_view(other.text_).substr(piece.at, piece.bytes));
    } else {
      pieces_.push_back(piece);
      bytes_ += piece.bytes;
    }
  }
}

size_t Commands::Rest(uint64_t sent, std::span<iovec> places) {
  while (first_piece_ < pieces_.size() && first_at_ + pieces_[first_piece_].bytes <= sent) {
    first_at_ += pieces_[first_piece_++].bytes;
  }
  size_t count = 0;
  uint64_t skip = sent - first_at_;
  for (size_t i = first_piece_; i < pieces_.size() && count < places.size(); ++i) {
    const Piece& piece = pieces_[i];
    const std::byte* const data =
        piece.borrowed != nullptr ? piece.borrowed : base::AsBytes(text_).data() + piece.at;
    // sendmsg does not write to it.
    places[count++] = {const_cast<std::byte*>(data + skip), piece.bytes - skip};
    skip = 0;
  }
  return count;
}

void Commands::Clear() { *this = Commands(); }

// --- replies: where bytes go --------------------------------------------------------------------

// What is read into the buffer is copied from there: little of a large string that is about to
// come.
size_t ReplyReader::BufferedReadBytes() const {
  if (body_ == Body::kRuns) return kBesideLarge;
  if (body_ != Body::kNone || expected_.empty()) return buffer_.size();
  const std::span<const Runs> into = expected_.front().into;
  const size_t next = open_.empty() ? 0 : open_.front().reply.items.size();
  return next < into.size() && BytesOf(into[next]) >= kLargeBytes ? kBesideLarge : buffer_.size();
}

size_t ReplyReader::Places(std::array<iovec, kMostPlaces>* places) {
  if (begin_ == end_) begin_ = end_ = 0;
  if (buffer_.size() - end_ < buffer_.size() / 2) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  size_t count = 0;
  if (body_ == Body::kRuns && begin_ == end_) {
    size_t at = run_at_;
    for (size_t i = run_; i < runs_->size(); ++i, at = 0) {
      if (count == kMostPlaces - 1) return count;
      const std::span<std::byte> rest = (*runs_)[i].subspan(at);
      if (!rest.empty()) (*places)[count++] = {rest.data(), rest.size()};
    }
  }
  const size_t room = std::min(buffer_.size() - end_, BufferedReadBytes());
  (*places)[count++] = {buffer_.data() + end_, room};
  return count;
}

void ReplyReader::Arrived(size_t bytes) {
  if (body_ == Body::kRuns && begin_ == end_) {
    while (bytes > 0 && run_ < runs_->size()) {
      const size_t taken = std::min(bytes, (*runs_)[run_].size() - run_at_);
      run_at_ += taken;
      body_left_ -= taken;
      bytes -= taken;
      if (run_at_ == (*runs_)[run_].size()) ++run_, run_at_ = 0;
    }
  }
  end_ += bytes;
}

// --- replies: what bytes mean -------------------------------------------------------------------

ReplyReader::State ReplyReader::Broken(const char* why) {
  if (!broken_) why_ = why;
  broken_ = true;
  return State::kBroken;
}

ReplyReader::State ReplyReader::Next(Reply* reply) {
  while (!broken_) {
    if (body_ != Body::kNone) {
      if (const State state = TakeBody(); state != State::kReply) return state;
    } else {
      const std::string_view rest = buffered();
      const size_t end = rest.find(kLineEnd);
      if (end == std::string_view::npos) {
        return rest.size() > kMaxLine ? Broken("a line is too long") : State::kMore;
      }
      if (end > kMaxLine) return Broken("a line is too long");
      begin_ += end + kLineEnd.size();
      if (Header(rest.substr(0, end)) == State::kBroken) return State::kBroken;
    }
    if (done_) {
      done_ = false;
      *reply = std::move(done_reply_);
      done_reply_ = {};
      if (!expected_.empty()) expected_.pop_front();
      return State::kReply;
    }
  }
  return State::kBroken;
}

ReplyReader::State ReplyReader::Header(std::string_view line) {
  if (line.empty()) return Broken("an empty line");
  const char type = line[0];
  const std::string_view rest = line.substr(1);
  if (std::string_view("+-(,").find(type) != std::string_view::npos) {
    text_bytes_ += rest.size();
    if (text_bytes_ > kMaxTextBytes) return Broken("a reply is too long");
    using Kind = Reply::Kind;
    const Kind kind = type == '+' ? Kind::kSimple : type == '-' ? Kind::kError : Kind::kNumber;
    return Finish({.kind = kind, .text = std::string(rest)});
  }
  if (type == '_' && rest.empty()) return Finish({});
  if (type == '#' && (rest == "t" || rest == "f")) {
    return Finish({.kind = Reply::Kind::kBool, .integer = rest == "t"});
  }
  int64_t number = 0;
  if (!Number(rest, &number)) return Broken("a number that is none");
  switch (type) {
    case ':':
      return Finish({.kind = Reply::Kind::kInteger, .integer = number});
    case '$':
    case '=':
    case '!':
      return Bulk(type, number);
    case '*':
    case '%':
    case '~':
    case '>':
    case '|':
      return Aggregate(type, number);
    default:
      return Broken("an unknown type");
  }
}

ReplyReader::State ReplyReader::Aggregate(char type, int64_t count) {
  if (type == '*' && count == -1) return Finish({});
  const int64_t most = static_cast<int64_t>(kMaxItems);
  if (count < 0 || count > most) return Broken("an array is too long");
  if (open_.size() >= kMaxDepth) return Broken("arrays in arrays, too deep");
  if (type == '>' && !open_.empty()) return Broken("a push inside of a reply");
  Open open;
  open.reply.kind = type == '%'   ? Reply::Kind::kMap
                    : type == '~' ? Reply::Kind::kSet
                                  : Reply::Kind::kArray;
  open.missing = type == '%' || type == '|' ? 2 * count : count;
  open.dropped = type == '>' || type == '|';
  open.whole_reply = open_.empty() && !open.dropped;
  open_.push_back(std::move(open));
  return open_.back().missing == 0 ? Close() : State::kReply;
}

// The runs of the bulk string that begins now, or null.
const Runs* ReplyReader::Target() const {
  if (expected_.empty()) return nullptr;
  const std::span<const Runs> into = expected_.front().into;
  if (open_.empty()) return into.size() == 1 ? &into[0] : nullptr;
  if (open_.size() > 1 || !open_[0].whole_reply) return nullptr;
  const size_t item = open_[0].reply.items.size();
  return item < into.size() ? &into[item] : nullptr;
}

ReplyReader::State ReplyReader::Bulk(char type, int64_t bytes) {
  if (type == '$' && bytes == -1) return Finish({});
  if (bytes < 0) return Broken("a length below 0");
  body_left_ = static_cast<uint64_t>(bytes);
  body_reply_ = {.kind = type == '!' ? Reply::Kind::kError : Reply::Kind::kText};
  verbatim_ = type == '=' ? 4 : 0;
  if (const Runs* const target = type == '$' ? Target() : nullptr; target != nullptr) {
    if (BytesOf(*target) == body_left_) {
      body_ = Body::kRuns;
      body_reply_.kind = Reply::Kind::kFilled;
      runs_ = target;
      run_ = run_at_ = 0;
      return State::kReply;
    }
    if (bytes > kMaxSkippedBytes) return Broken("a string is too long");
    body_ = Body::kSkip;
    body_reply_ = {.kind = Reply::Kind::kOtherLength, .integer = bytes};
    return State::kReply;
  }
  if (verbatim_ > body_left_) return Broken("a verbatim string without a type");
  text_bytes_ += std::min<uint64_t>(body_left_, kMaxTextBytes + 1);
  if (text_bytes_ > kMaxTextBytes) return Broken("a reply is too long");
  body_ = Body::kText;
  return State::kReply;
}

ReplyReader::State ReplyReader::TakeBody() {
  const std::string_view rest = buffered();
  const size_t count = static_cast<size_t>(std::min<uint64_t>(rest.size(), body_left_));
  if (body_ == Body::kText) body_reply_.text.append(rest.substr(0, count));
  if (body_ == Body::kRuns) {
    for (size_t at = 0; at < count;) {
      const std::span<std::byte> run = (*runs_)[run_].subspan(run_at_);
      const size_t copied = std::min(count - at, run.size());
      std::memcpy(run.data(), rest.data() + at, copied);
      at += copied;
      run_at_ += copied;
      if (run_at_ == (*runs_)[run_].size()) ++run_, run_at_ = 0;
    }
  }
  begin_ += count;
  body_left_ -= count;
  if (body_left_ > 0 || buffered().size() < kLineEnd.size()) return State::kMore;
  if (buffered().substr(0, kLineEnd.size()) != kLineEnd) return Broken("a string without an end");
  begin_ += kLineEnd.size();
  body_ = Body::kNone;
  if (verbatim_ > 0) {
    if (body_reply_.text[3] != ':') return Broken("a verbatim string without a type");
    body_reply_.text.erase(0, verbatim_);
  }
  return Finish(std::move(body_reply_));
}

// A value is whole: it goes into what is open, or is the reply.
ReplyReader::State ReplyReader::Finish(Reply reply) {
  if (open_.empty()) {
    done_ = true;
    done_reply_ = std::move(reply);
    items_ = text_bytes_ = 0;
    return State::kReply;
  }
  if (++items_ > kMaxItems) return Broken("a reply has too many items");
  Open& open = open_.back();
  open.reply.items.push_back(std::move(reply));
  return --open.missing == 0 ? Close() : State::kReply;
}

ReplyReader::State ReplyReader::Close() {
  Open closed = std::move(open_.back());
  open_.pop_back();
  if (!closed.dropped) return Finish(std::move(closed.reply));
  if (open_.empty()) items_ = text_bytes_ = 0;  // of a push; attributes are part of a reply
  return State::kReply;
}

}  // namespace prefixd::remote
