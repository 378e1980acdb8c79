// The page: what people see of a running daemon in a browser, on the address of the metrics. It
// reads and changes nothing.
//
// Everything it loads comes from the daemon, and its headers keep a browser from loading anything
// else. A request that names the daemon by another name than an IP address or "localhost" is
// refused, because a foreign page could have got that name to lead here.
#pragma once
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "base/mutex.h"
#include "daemon/page/history.h"
#include "daemon/page/source.h"

namespace prefixd::daemon {

struct PageRequest {
  std::string_view path, query;
  std::string_view host;  // the header Host; empty = none was sent
  std::string_view site;  // the header Sec-Fetch-Site, by which browsers say who asks
};
struct PageReply {
  std::string_view status = "200 OK";
  std::string type = "text/plain; charset=utf-8";
  std::string body{};
  std::string headers{};  // further ones, each with its end of line
};

// Thread-safe. Has a thread that notes what the daemon has counted, for the charts' past.
class Page {
 public:
  // Returns true for the paths that Answer serves: "/", "/page" and what is below it.
  static bool IsPath(std::string_view path);

  Page();
  ~Page();
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  // What the page shows from now on; null: it says that the daemon starts or stops. The one before
  // is not in use any more when this returns.
  void Show(std::shared_ptr<const PageSource> source) PREFIXD_EXCLUDES(mutex_);
  // Making answers takes at most a tenth of one CPU: the next one waits for as long, or until Show
  // takes the source away.
  PageReply Answer(const PageRequest& request) PREFIXD_EXCLUDES(mutex_);

 private:
  PageReply AnswerData(const PageRequest& request) PREFIXD_EXCLUDES(mutex_);
  void Run() PREFIXD_EXCLUDES(mutex_);
  struct Kept {
    std::chrono::steady_clock::time_point until;
    std::string body;
  };

  base::Mutex mutex_;  // held while an answer is made: one at a time
  base::CondVar changed_;
  bool ends_ PREFIXD_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const PageSource> source_ PREFIXD_GUARDED_BY(mutex_);
  std::map<std::string, Kept> kept_ PREFIXD_GUARDED_BY(mutex_);  // by path and query
  std::chrono::steady_clock::time_point next_ PREFIXD_GUARDED_BY(mutex_){};
  PageHistory history_ PREFIXD_GUARDED_BY(mutex_);
  std::thread thread_;  // adds to history_ every few seconds
};

}  // namespace prefixd::daemon
