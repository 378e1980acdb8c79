#include "remote/redis_store.h"

#include <algorithm>
#include <charconv>

#include "base/bytes.h"
#include "base/random.h"
#include "base/status.h"
#include "remote/cluster.h"
#include "remote/exchange.h"

namespace prefixd::remote {
namespace {

constexpr uint64_t kSmallReply = 256;    // bytes on their way for a short question
constexpr uint64_t kRecordReply = 4096;  // and for a record, of which the length is not known
constexpr size_t kPostsAtOnce = 64;

template <typename AnyRuns>
uint64_t BytesOf(const AnyRuns& runs) {
  uint64_t bytes = 0;
  for (const auto& run : runs) bytes += run.size();
  return bytes;
}

Ask AskOf(const std::string& name, std::initializer_list<std::string_view> arguments,
          uint64_t reply_bytes) {
  Ask ask;
  ask.slot = SlotOf(name);
  ask.command.Call(arguments);
  ask.bytes = ask.command.bytes() + reply_bytes;
  return ask;
}

bool IsWrongType(const Ask& ask) {
  return ask.reply.error() && ask.reply.text.starts_with("WRONGTYPE");
}

FoundRecord RecordOf(Ask* ask) {
  using Outcome = FoundRecord::Outcome;
  if (ask->outcome == Ask::Outcome::kLate) return {.outcome = Outcome::kLate, .record = {}};
  if (ask->outcome != Ask::Outcome::kReplied) return {.outcome = Outcome::kDown, .record = {}};
  if (ask->reply.error() && !IsWrongType(*ask)) return {.outcome = Outcome::kDown, .record = {}};
  if (ask->reply.kind != Reply::Kind::kText || ask->reply.text.size() > kMaxRecordBytes) return {};
  return {.outcome = Outcome::kFound, .record = std::move(ask->reply.text)};
}

absl::StatusOr<uint64_t> NumberOf(const Reply& reply) {
  if (reply.kind == Reply::Kind::kNull) return 0;
  if (reply.kind == Reply::Kind::kInteger && reply.integer >= 0) {
    return static_cast<uint64_t>(reply.integer);
  }
  uint64_t number = 0;
  const char* const end = reply.text.data() + reply.text.size();
  const auto [stop, error] = std::from_chars(reply.text.data(), end, number);
  if (!reply.text_or_simple() || error != std::errc() || stop != end) {
    return absl::DataLossError("remote: a number is none");
  }
  return number;
}

absl::Status CheckLimits(std::span<const std::byte> record, std::span<const ConstRuns> stripes) {
  if (record.size() > kMaxRecordBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("remote: a record has ", record.size(), " bytes, at most ", kMaxRecordBytes));
  }
  if (stripes.size() > kMaxStripes) {
    return absl::InvalidArgumentError(
        absl::StrCat("remote: a bundle has ", stripes.size(), " stripes, at most ", kMaxStripes));
  }
  for (const ConstRuns& stripe : stripes) {
    if (BytesOf(stripe) > kStripeBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("remote: a stripe has ", BytesOf(stripe), " bytes, at most ", kStripeBytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<RedisStore>> RedisStore::Open(RedisOptions options) {
  if (options.seeds.empty()) return absl::InvalidArgumentError("remote: no server is named");
  Login login{.user = options.user, .password = options.password, .tls = nullptr};
  if (options.tls) {
    auto tls = TlsContext::Make(
        {.ca_file = options.ca_file, .cert_file = options.cert_file, .key_file = options.key_file});
    if (!tls.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("remote: ", std::string(tls.status().message())));
    }
    login.tls = *std::move(tls);
  }
  auto cluster = std::make_unique<Cluster>(Cluster::Options{
      .seeds = std::move(options.seeds),
      .login = std::move(login),
      .connect_timeout = options.connect_patience,
      .shares = {.of_node = options.node_bytes, .of_store = options.total_bytes},
      .clock = options.clock,
      // Hosts that are not told one must not wait in step.
      .seed = options.seed != 0 ? options.seed : base::RandomWord(),
      .log = std::move(options.log),
  });
  return std::shared_ptr<RedisStore>(new RedisStore(std::move(cluster)));
}

bool RedisStore::WaitKnown(base::Deadline deadline) const { return cluster_->WaitKnown(deadline); }

RedisStore::RedisStore(std::unique_ptr<Cluster> cluster) : cluster_(std::move(cluster)) {}
RedisStore::~RedisStore() = default;

absl::Status RedisStore::WhyNot(const Ask& ask) const {
  const std::string who =
      absl::StrCat("remote: redis", ask.server.empty() ? "" : " at ", ask.server, ": ");
  switch (ask.outcome) {
    case Ask::Outcome::kReplied:
      break;
    case Ask::Outcome::kLate:
      return absl::DeadlineExceededError(absl::StrCat(who, ask.why));
    default:
      return absl::UnavailableError(absl::StrCat(who, ask.why));
  }
  if (!ask.reply.error()) return absl::OkStatus();
  const std::string why =
      absl::StrCat(who, InWords(ask.reply.text, cluster_->options().login.user));
  return ask.reply.text.starts_with("OOM") ? absl::ResourceExhaustedError(why)
                                           : absl::UnavailableError(why);
}

absl::Status RedisStore::One(Ask* ask, base::Deadline deadline) {
  Exchange(cluster_.get(), {ask, 1}, deadline).Run();
  return WhyNot(*ask);
}

std::vector<FoundRecord> RedisStore::Find(std::span<const std::string> names,
                                          base::Deadline deadline) {
  std::vector<Ask> asks;
  asks.reserve(names.size());
  for (const std::string& name : names)
    asks.push_back(AskOf(name, {"HGET", name, "r"}, kRecordReply));
  Exchange(cluster_.get(), asks, deadline).Run();
  std::vector<FoundRecord> found;
  found.reserve(names.size());
  for (Ask& ask : asks) {
    found.push_back(RecordOf(&ask));
    bytes_read_ += found.back().record.size();
  }
  return found;
}

// A bundle larger than what one server may have on its way is read piece by piece.
absl::Status RedisStore::Load(const std::string& name, std::span<const Runs> stripes,
                              base::Deadline deadline) {
  if (stripes.size() > kMaxStripes) {
    return absl::InvalidArgumentError(
        absl::StrCat("remote: a bundle has ", stripes.size(), " stripes, at most ", kMaxStripes));
  }
  for (size_t first = 0; first < stripes.size();) {
    size_t count = 0;
    uint64_t bytes = 0;
    do {
      bytes += BytesOf(stripes[first + count]) + kSmallReply;
      ++count;
    } while (first + count < stripes.size() &&
             bytes + BytesOf(stripes[first + count]) + kSmallReply <= cluster_->shares().of_node());
    PREFIXD_RETURN_IF_ERROR(LoadSome(name, stripes.subspan(first, count), first, deadline));
    first += count;
  }
  return absl::OkStatus();
}

absl::Status RedisStore::LoadSome(const std::string& name, std::span<const Runs> stripes,
                                  size_t first, base::Deadline deadline) {
  Ask ask;
  ask.slot = SlotOf(name);
  ask.into = stripes;
  ask.command.Begin(2 + stripes.size()).Add("HMGET").Add(name);
  for (size_t i = 0; i < stripes.size(); ++i) {
    ask.command.Add(std::to_string(first + i));
    ask.bytes += BytesOf(stripes[i]);
  }
  const uint64_t payload = ask.bytes;
  ask.bytes += ask.command.bytes();
  const absl::Status asked = One(&ask, deadline);
  if (IsWrongType(ask)) return absl::NotFoundError("remote: the name is of something else");
  PREFIXD_RETURN_IF_ERROR(asked);
  if (ask.reply.items.size() != stripes.size()) {
    return absl::DataLossError("remote: the answer has another number of stripes");
  }
  for (size_t i = 0; i < stripes.size(); ++i) {
    const Reply& item = ask.reply.items[i];
    if (item.kind == Reply::Kind::kNull) {
      return absl::NotFoundError(absl::StrCat("remote: stripe ", first + i, " is not there"));
    }
    if (item.kind != Reply::Kind::kFilled) {
      return absl::DataLossError(absl::StrCat("remote: stripe ", first + i, " has ", item.integer,
                                              " bytes, ", BytesOf(stripes[i]), " are expected"));
    }
  }
  bytes_read_ += payload;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<bool>> RedisStore::Touch(std::span<const std::string> names,
                                                    base::Deadline deadline) {
  std::vector<Ask> asks;
  asks.reserve(names.size());
  for (const std::string& name : names) asks.push_back(AskOf(name, {"TOUCH", name}, kSmallReply));
  Exchange(cluster_.get(), asks, deadline).Run();
  std::vector<bool> there;
  for (const Ask& ask : asks) {
    PREFIXD_RETURN_IF_ERROR(WhyNot(ask));
    there.push_back(ask.reply.integer > 0);
  }
  return there;
}

absl::Status RedisStore::Store(const std::string& name, std::span<const std::byte> record,
                               std::span<const ConstRuns> stripes, base::Deadline deadline) {
  PREFIXD_RETURN_IF_ERROR(CheckLimits(record, stripes));
  Ask ask;
  ask.slot = SlotOf(name);
  ask.command.Begin(4 + 2 * stripes.size()).Add("HSET").Add(name).Add("r").Borrow(record);
  uint64_t payload = record.size();
  for (size_t i = 0; i < stripes.size(); ++i) {
    ask.command.Add(std::to_string(i)).Borrow(stripes[i]);
    payload += BytesOf(stripes[i]);
  }
  ask.bytes = ask.command.bytes() + kSmallReply;
  PREFIXD_RETURN_IF_ERROR(One(&ask, deadline));
  bytes_written_ += payload;
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> RedisStore::ReadNumber(const std::string& name, base::Deadline deadline) {
  Ask ask = AskOf(name, {"GET", name}, kSmallReply);
  PREFIXD_RETURN_IF_ERROR(One(&ask, deadline));
  return NumberOf(ask.reply);
}

absl::StatusOr<uint64_t> RedisStore::RaiseNumber(const std::string& name, base::Deadline deadline) {
  Ask ask = AskOf(name, {"INCR", name}, kSmallReply);
  PREFIXD_RETURN_IF_ERROR(One(&ask, deadline));
  return NumberOf(ask.reply);
}

// SET NX: one of the hosts that find nothing sets it. INCRBY keeps what others raised since.
absl::StatusOr<uint64_t> RedisStore::RestoreNumber(const std::string& name, uint64_t least,
                                                   base::Deadline deadline) {
  Ask set = AskOf(name, {"SET", name, std::to_string(least), "NX"}, kSmallReply);
  PREFIXD_RETURN_IF_ERROR(One(&set, deadline));
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t number, ReadNumber(name, deadline));
  if (number >= least) return number;
  Ask add = AskOf(name, {"INCRBY", name, std::to_string(least)}, kSmallReply);
  PREFIXD_RETURN_IF_ERROR(One(&add, deadline));
  return NumberOf(add.reply);
}

absl::StatusOr<bool> RedisStore::HasRoom(const std::string& board, const std::string& field,
                                         base::Deadline deadline) {
  Ask count = AskOf(board, {"HLEN", board}, kSmallReply);
  PREFIXD_RETURN_IF_ERROR(One(&count, deadline));
  if (count.reply.integer < static_cast<int64_t>(kMaxPosts)) return true;
  Ask there = AskOf(board, {"HEXISTS", board, field}, kSmallReply);
  PREFIXD_RETURN_IF_ERROR(One(&there, deadline));
  return there.reply.integer == 1;
}

absl::Status RedisStore::WritePost(const std::string& board, const Post& post,
                                   std::chrono::seconds lifetime, base::Deadline deadline) {
  if (post.text.size() > kMaxPostBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("remote: a post has ", post.text.size(), " bytes, at most ", kMaxPostBytes));
  }
  PREFIXD_ASSIGN_OR_RETURN(const bool room, HasRoom(board, post.field, deadline));
  if (!room) {
    return absl::ResourceExhaustedError(absl::StrCat("remote: a board has ", kMaxPosts, " posts"));
  }
  Ask write = AskOf(board, {"HSET", board, post.field, post.text}, kSmallReply);
  PREFIXD_RETURN_IF_ERROR(One(&write, deadline));
  Ask keep = AskOf(board, {"EXPIRE", board, std::to_string(lifetime.count())}, kSmallReply);
  return One(&keep, deadline);
}

absl::StatusOr<std::vector<Post>> RedisStore::ReadBoard(const std::string& board,
                                                        base::Deadline deadline) {
  Ask fields = AskOf(board, {"HKEYS", board}, kRecordReply);
  PREFIXD_RETURN_IF_ERROR(One(&fields, deadline));
  std::vector<Post> posts;
  for (Reply& field : fields.reply.items) {
    if (posts.size() == kMaxPosts) break;
    posts.push_back({.field = std::move(field.text), .text = {}});
  }
  for (size_t begin = 0; begin < posts.size(); begin += kPostsAtOnce) {
    const std::span<Post> some =
        std::span(posts).subspan(begin, std::min(kPostsAtOnce, posts.size() - begin));
    std::vector<std::string_view> words{"HMGET", board};
    for (const Post& post : some) words.push_back(post.field);
    Ask ask;
    ask.slot = SlotOf(board);
    ask.command.Call(words);
    ask.bytes = ask.command.bytes() + some.size() * kRecordReply;
    PREFIXD_RETURN_IF_ERROR(One(&ask, deadline));
    if (ask.reply.items.size() != some.size()) {
      return absl::DataLossError("remote: the answer has another number of posts");
    }
    for (size_t i = 0; i < some.size(); ++i) some[i].text = std::move(ask.reply.items[i].text);
  }
  std::erase_if(posts, [](const Post& post) {
    return post.text.empty() || post.text.size() > kMaxPostBytes;
  });
  return posts;
}

RemoteStatus RedisStore::Status() const {
  RemoteStatus status = cluster_->Status();
  status.bytes_read = bytes_read_;
  status.bytes_written = bytes_written_;
  return status;
}

}  // namespace prefixd::remote
