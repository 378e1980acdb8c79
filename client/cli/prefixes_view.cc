// View of prefixctl prefixes:
//
//   prefix               space         requests  last read  ram       ssd
//   0 to 1,024           3f2a9c0d11e4       312        4 s  12.0 MiB  12.0 MiB
//     1,024 to 9,792     3f2a9c0d11e4        20      2 min  99.4 MiB  0 B
//   of the last 332 requests that read the cache
#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "client/cli/names.h"
#include "client/cli/table.h"
#include "client/cli/units.h"
#include "client/cli/views.h"

namespace prefixd::cli {

std::vector<std::string> PrefixNames(const v1::ListPrefixesReply& reply) {
  constexpr size_t kMostIndent = 8;
  std::vector<size_t> depths;
  std::vector<std::string> names;
  for (const v1::Prefix& prefix : reply.prefixes()) {
    const bool below = prefix.parent() > 0 && prefix.parent() <= depths.size();
    depths.push_back(below ? depths[prefix.parent() - 1] + 1 : 0);
    names.push_back(absl::StrCat(std::string(2 * std::min(depths.back(), kMostIndent), ' '),
                                 CountText(prefix.from_token()), " to ",
                                 CountText(prefix.to_token())));
  }
  return names;
}

std::string PrefixesView(const v1::ListPrefixesReply& reply) {
  const std::string gone =
      reply.gone() == 0 ? "" : absl::StrCat("; ", reply.gone(), " more read what is gone");
  if (reply.prefixes().empty()) {
    return absl::StrCat("no request has read a whole block of the cache yet", gone, "\n");
  }
  using Align = Table::Align;
  Table table({{"prefix"},
               {"space"},
               {"requests", Align::kRight},
               {"last read", Align::kRight},
               {"ram", Align::kRight},
               {"ssd", Align::kRight}});
  const std::vector<std::string> names = PrefixNames(reply);
  for (int i = 0; i < reply.prefixes_size(); ++i) {
    const v1::Prefix& prefix = reply.prefixes(i);
    table.AddRow({names[static_cast<size_t>(i)], ShortId(prefix.space_id()),
                  CountText(prefix.requests()), UptimeText(prefix.age_s()),
                  base::FormatBytes(prefix.ram_bytes()), base::FormatBytes(prefix.ssd_bytes())});
  }
  return absl::StrCat(table.Text(), "of the last ", Plural(reply.requests(), "request"),
                      " that read the cache", gone, "\n");
}

}  // namespace prefixd::cli
