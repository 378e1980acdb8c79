// Views of prefixctl clear, flush, prefetch and verify (sentences) and of config (a table).
#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "client/cli/table.h"
#include "client/cli/units.h"
#include "client/cli/views.h"

namespace prefixd::cli {
namespace {

using Settings = google::protobuf::RepeatedPtrField<v1::GetConfigReply::Setting>;

std::string SettingTable(const Settings& settings) {
  Table table({{"name"}, {"value"}, {"from"}});
  for (const v1::GetConfigReply::Setting& setting : settings) {
    table.AddRow({setting.name(), setting.value(), setting.source()});
  }
  return table.Text();
}

std::string BorderText(const v1::ClearReply& reply) {
  std::string text;
  if (reply.border_waits()) {
    text +=
        "the SSD tier's disk has not taken this yet, it is tried again: until then a restart may "
        "bring back what is on SSD\n";
  }
  if (reply.remote_waits()) {
    text +=
        "the store that hosts share has not heard of this yet, it is tried again: until then "
        "other hosts may go on using what is there\n";
  }
  return text;
}

}  // namespace

std::string ClearView(const v1::ClearReply& reply) {
  const std::string text = absl::StrCat("cleared ", Plural(reply.spaces(), "space"), ", ",
                                        base::FormatBytes(reply.bytes()), " of pages");
  const std::string end = "\n" + BorderText(reply);
  if (reply.waiting_ssd_bytes() == 0) return text + end;
  return absl::StrCat(text, "; ", base::FormatBytes(reply.waiting_ssd_bytes()),
                      " stay in files until their segments age out", end);
}

std::string PurgeView(const v1::ClearReply& sum) {
  std::string text =
      absl::StrCat("purged ", Plural(sum.spaces(), "space"), ", ", base::FormatBytes(sum.bytes()),
                   " of pages; files of ", base::FormatBytes(sum.removed_bytes()), " removed, ",
                   base::FormatBytes(sum.rewritten_bytes()), " of other spaces written again\n");
  if (sum.leased_bytes() > 0) {
    absl::StrAppend(&text, base::FormatBytes(sum.leased_bytes()),
                    " are being read still and are zeroed when they are released\n");
  }
  return text + BorderText(sum);
}

std::string FlushView(const v1::FlushReply& reply) {
  std::string text =
      absl::StrCat("wrote ", base::FormatBytes(reply.flushed_bytes()), " to the ssd");
  if (reply.dirty_bytes() == 0) {
    text += ", everything is safe\n";
  } else {
    absl::StrAppend(&text, "; ", base::FormatBytes(reply.dirty_bytes()),
                    " are in RAM only: they are more than the SSD budget has room for, the time "
                    "was up (--timeout), the disk takes nothing, or there is no SSD tier "
                    "(prefixctl status says)\n");
  }
  if (reply.remote_waits()) {
    text += "not all of it was offered to other hosts before the time was up\n";
  }
  return text;
}

std::string PrefetchView(const v1::PrefetchReply::Hint& hint) {
  if (hint.restorable_tokens() == 0) return "nothing of it is cached\n";
  std::string text = absl::StrCat(CountText(hint.tokens()), " tokens are in RAM or on the way, ",
                                  base::FormatBytes(hint.bytes()), " are read from the ssd\n");
  if (hint.tokens() < hint.restorable_tokens()) {
    absl::StrAppend(&text, "left on the ssd: ", CountText(hint.restorable_tokens() - hint.tokens()),
                    " tokens, hints may take an eighth of the arena at a time\n");
  }
  return text;
}

std::string VerifyView(const v1::VerifyReply& sum) {
  std::string text =
      absl::StrCat("verified ", Plural(sum.pages(), "page"), ", ", base::FormatBytes(sum.bytes()));
  if (sum.in_use() > 0)
    absl::StrAppend(&text, " (", CountText(sum.in_use()), " in use passed over)");
  text += ": ";
  if (sum.bad() == 0 && sum.unreadable() == 0) return text + "all are as they were stored\n";
  absl::StrAppend(&text, CountText(sum.bad()), " bad and dropped");
  if (sum.unreadable() > 0)
    absl::StrAppend(&text, ", ", CountText(sum.unreadable()), " that the disk did not give");
  return text + " (prefixd's log says which)\n";
}

std::string ConfigView(const v1::GetConfigReply& reply) {
  return absl::StrCat("prefixd ", PrintableText(reply.version()), "\n\n",
                      SettingTable(reply.settings()), "\nlimits of the wire\n",
                      SettingTable(reply.limits()));
}

}  // namespace prefixd::cli
