#include "remote/redis_store.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/status.h"

namespace prefixd::remote {
namespace {

absl::Status Unexpected(const Reply& reply) {
  return absl::DataLossError(
      absl::StrCat("remote: the server's answer is none to what was asked: ", reply.text));
}

uint64_t BytesOf(const auto& runs) {
  uint64_t bytes = 0;
  for (const auto& run : runs) bytes += run.size();
  return bytes;
}

// A call for each name; RunAll makes the pointers.
template <typename Make>
std::vector<Call> CallsFor(std::span<const std::string> names, Make make) {
  std::vector<Call> calls;
  calls.reserve(names.size());
  for (const std::string& name : names) calls.emplace_back(name, make(name));
  return calls;
}

void RunAll(Pipeline& pipeline, std::vector<Call>& calls, base::Deadline deadline) {
  std::vector<Call*> all;
  all.reserve(calls.size());
  for (Call& call : calls) all.push_back(&call);
  pipeline.Run(all, deadline);
}

void RunOne(Pipeline& pipeline, Call& call, base::Deadline deadline) {
  Call* const one = &call;
  pipeline.Run({&one, 1}, deadline);
}

FoundRecord RecordOf(Call& call) {
  using Outcome = FoundRecord::Outcome;
  if (absl::IsDeadlineExceeded(call.status)) return {.outcome = Outcome::kLate, .record = {}};
  if (!call.status.ok()) return {.outcome = Outcome::kDown, .record = {}};
  if (!call.reply.is(Reply::Kind::kBulk)) return {.outcome = Outcome::kAbsent, .record = {}};
  return {.outcome = Outcome::kFound, .record = std::move(call.reply.text)};
}

}  // namespace

absl::StatusOr<std::shared_ptr<RedisStore>> RedisStore::Open(RedisOptions options) {
  std::shared_ptr<TlsContext> tls;
  if (options.tls) {
    PREFIXD_ASSIGN_OR_RETURN(tls, TlsContext::Open(options));
  }
  return std::shared_ptr<RedisStore>(new RedisStore(std::move(options), std::move(tls)));
}

std::vector<FoundRecord> RedisStore::Find(std::span<const std::string> names,
                                          base::Deadline deadline) {
  std::vector<Call> calls = CallsFor(names, [](const std::string& name) {
    return std::move(Command(3).Add("HGET").Add(name).Add("r"));
  });
  RunAll(pipeline_, calls, deadline);
  std::vector<FoundRecord> records;
  for (Call& call : calls) {
    records.push_back(RecordOf(call));
    bytes_read_ += records.back().record.size();
  }
  return records;
}

absl::Status RedisStore::Load(const std::string& name, std::span<const Runs> stripes,
                              base::Deadline deadline) {
  if (stripes.empty() || stripes.size() > kMaxStripes) {
    return absl::InvalidArgumentError(
        absl::StrCat("remote: ", stripes.size(), " stripes, there are 1 to ", kMaxStripes));
  }
  Command command(2 + stripes.size());
  command.Add("HMGET").Add(name);
  uint64_t bytes = 0;
  for (size_t i = 0; i < stripes.size(); ++i) {
    command.Add(absl::StrCat(i));
    bytes += BytesOf(stripes[i]);
  }
  Call call(name, std::move(command));
  call.into = stripes;
  call.bytes = bytes;
  RunOne(pipeline_, call, deadline);
  if (call.status.ok()) bytes_read_ += bytes;
  return call.status;
}

absl::StatusOr<std::vector<bool>> RedisStore::Touch(std::span<const std::string> names,
                                                    base::Deadline deadline) {
  std::vector<Call> calls = CallsFor(
      names, [](const std::string& name) { return std::move(Command(2).Add("TOUCH").Add(name)); });
  RunAll(pipeline_, calls, deadline);
  std::vector<bool> there;
  for (const Call& call : calls) {
    if (!call.status.ok()) return call.status;
    if (!call.reply.is(Reply::Kind::kInteger)) return Unexpected(call.reply);
    there.push_back(call.reply.number > 0);
  }
  return there;
}

absl::Status RedisStore::Store(const std::string& name, std::span<const std::byte> record,
                               std::span<const ConstRuns> stripes, base::Deadline deadline) {
  if (stripes.size() > kMaxStripes || record.size() > kMaxRecordBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "remote: a bundle of ", stripes.size(), " stripes and a record of ", record.size(),
        " bytes, the most are ", kMaxStripes, " and ", kMaxRecordBytes));
  }
  Command command(2 + 2 * (1 + stripes.size()));
  command.Add("HSET").Add(name).Add("r").AddRuns({record});
  for (size_t i = 0; i < stripes.size(); ++i) {
    if (BytesOf(stripes[i]) > kStripeBytes) {
      return absl::InvalidArgumentError(absl::StrCat("remote: a stripe of ", BytesOf(stripes[i]),
                                                     " bytes, the most are ", kStripeBytes));
    }
    command.Add(absl::StrCat(i)).AddRuns(stripes[i]);
  }
  Call call(name, std::move(command));
  call.bytes = call.command.bytes();
  RunOne(pipeline_, call, deadline);
  if (!call.status.ok()) return call.status;
  bytes_written_ += call.bytes;
  return call.reply.is(Reply::Kind::kInteger) ? absl::OkStatus() : Unexpected(call.reply);
}

absl::StatusOr<uint64_t> RedisStore::Number(const char* verb, const std::string& name,
                                            base::Deadline deadline) {
  Call call(name, std::move(Command(2).Add(verb).Add(name)));
  RunOne(pipeline_, call, deadline);
  if (!call.status.ok()) return call.status;
  if (call.reply.is(Reply::Kind::kNull)) return 0;
  uint64_t number = 0;
  if (call.reply.is(Reply::Kind::kInteger) && call.reply.number >= 0) {
    return static_cast<uint64_t>(call.reply.number);
  }
  if (call.reply.is(Reply::Kind::kBulk) && absl::SimpleAtoi(call.reply.text, &number))
    return number;
  return Unexpected(call.reply);
}

absl::StatusOr<uint64_t> RedisStore::ReadNumber(const std::string& name, base::Deadline deadline) {
  return Number("GET", name, deadline);
}

absl::StatusOr<uint64_t> RedisStore::RaiseNumber(const std::string& name, base::Deadline deadline) {
  return Number("INCR", name, deadline);
}

RemoteStatus RedisStore::Status() const {
  RemoteStatus status = cluster_.Status();
  status.tls = options_.tls;
  status.bytes_read = bytes_read_;
  status.bytes_written = bytes_written_;
  return status;
}

}  // namespace prefixd::remote
