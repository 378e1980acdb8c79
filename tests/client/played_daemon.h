// A daemon that does what no real prefixd does, as a test tells it: on a socket of its own, with a
// lease of `tokens` tokens for whoever asks, by Fetch or in an arena of its own making.
#pragma once
#include <fcntl.h>
#include <grpcpp/server_builder.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/mutex.h"
#include "block/arena_file.h"
#include "block/page_layout.h"
#include "os/messages.h"
#include "os/sockets.h"
#include "prefixd/v1/prefix_cache.grpc.pb.h"
#include "tests/client/support.h"
#include "wire/identity.h"

namespace prefixd {

inline constexpr uint32_t kBlock = 64;

// The arena that it hands out: a memfd with a true header.
class PlayedArena {
 public:
  static constexpr uint64_t kFileBytes = uint64_t{16} << 20, kDataOffset = uint64_t{1} << 20;
  PlayedArena() : fd_(memfd_create("arena", MFD_CLOEXEC)) {
    if (ftruncate(fd_, kFileBytes) != 0) ADD_FAILURE() << "ftruncate";
    base_ = static_cast<std::byte*>(
        mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0));
    header_ = new (base_) block::ArenaHeader;
    header_->magic = block::kArenaMagic;
    header_->version = block::kArenaVersion;
    header_->file_bytes = kFileBytes;
    header_->data_offset = kDataOffset;
    Seal();
  }
  ~PlayedArena() {
    munmap(base_, kFileBytes);
    close(fd_);
  }
  block::ArenaHeader& header() { return *header_; }
  void Seal() { header_->check = base::Xxh3({base_, offsetof(block::ArenaHeader, check)}); }
  std::byte* data() { return base_ + kDataOffset; }
  int OpenReadOnly() const {
    return open(("/proc/self/fd/" + std::to_string(fd_)).c_str(), O_RDONLY | O_CLOEXEC);
  }

 private:
  const int fd_;
  std::byte* base_ = nullptr;
  block::ArenaHeader* header_ = nullptr;
};

// The side socket: answers every key with the descriptors that `files` gives.
class PlayedFdSocket {
 public:
  PlayedFdSocket(const std::string& path, std::function<std::vector<int>()> files)
      : files_(std::move(files)),
        fd_(os::NewSocket(AF_UNIX, os::MessageSocketType(), 0, os::Waits::kYes)) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path, path.data(), path.size());
    if (bind(fd_, reinterpret_cast<sockaddr*>(&name), sizeof(name)) != 0 || listen(fd_, 8) != 0) {
      ADD_FAILURE() << "fd socket " << path;
    }
    thread_ = std::thread([this] {
      for (int peer = 0; (peer = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) Answer(peer);
    });
  }
  ~PlayedFdSocket() {
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
  }
  // Changes the key before it goes back.
  std::function<void(std::string*)> change_key = [](std::string*) {};

 private:
  void Answer(int peer) {
    os::MessageReader asked(64, 0);
    pollfd polled{.fd = peer, .events = POLLIN, .revents = 0};
    while (asked.Read(peer) == os::MessageReader::Got::kMore) poll(&polled, 1, -1);
    std::string key(asked.bytes());
    change_key(&key);
    const std::vector<int> files = files_();
    os::SendMessage(peer, key, files);
    for (int file : files) close(file);
    close(peer);
  }

  const std::function<std::vector<int>()> files_;
  const int fd_;
  std::thread thread_;
};

class PlayedDaemon final : public v1::PrefixCache::Service {
 public:
  explicit PlayedDaemon(const std::string& address) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~PlayedDaemon() override {
    LetGo();
    server_->Shutdown(std::chrono::system_clock::now());
  }
  void LetGo() {
    if (!std::exchange(gone_, true)) let_go_.set_value();
  }
  // Every session stream ends.
  void EndSessions() {
    base::MutexLock lock(mutex_);
    ++life_;
    changed_.NotifyAll();
  }
  void Tell(v1::SessionEvent event) {
    event.set_epoch(1);
    base::MutexLock lock(mutex_);
    events_.push_back(std::move(event));
    changed_.NotifyAll();
  }
  // Until everything told has been handed to the stream.
  void WaitTold() {
    base::MutexLock lock(mutex_);
    while (!events_.empty()) changed_.Wait(mutex_);
  }
  void TellReady(uint32_t group, bool with_offsets = false) {
    v1::SessionEvent event;
    event.mutable_ready()->set_lease(1);
    event.mutable_ready()->set_group(group);
    for (uint32_t at = 0; with_offsets && at < tokens; at += kBlock) {
      event.mutable_ready()->add_first_token(at);
      event.mutable_ready()->add_offset(OffsetOf(group, at / kBlock));
    }
    Tell(event);
  }
  void TellFailed(uint32_t group, uint32_t usable_tokens) {
    v1::SessionEvent event;
    event.mutable_failed()->set_lease(1);
    event.mutable_failed()->set_group(group);
    event.mutable_failed()->set_usable_tokens(usable_tokens);
    Tell(event);
  }
  std::vector<v1::AttachRequest> attaches() const {
    base::MutexLock lock(mutex_);
    return attaches_;
  }
  std::vector<uint64_t> released() const {
    base::MutexLock lock(mutex_);
    return released_;
  }
  // Where the page of a block stands in the arena.
  static uint64_t OffsetOf(uint32_t group, uint32_t block) {
    return (uint64_t{group} * 16 + block) * (uint64_t{256} << 10);
  }

  uint32_t tokens = 192;  // leased
  bool hang_on_acquire = false, hang_on_fetch = false;
  std::function<void(v1::Attached*)> change_attached = [](v1::Attached*) {};
  std::function<void(v1::AcquireReply*)> change_answer = [](v1::AcquireReply*) {};
  // Changes a page before it is sent; false breaks the stream off.
  std::function<bool(v1::PageBytes*)> change_page = [](v1::PageBytes*) { return true; };

 private:
  grpc::Status Attach(grpc::ServerContext* context, const v1::AttachRequest* request,
                      grpc::ServerWriter<v1::SessionEvent>* stream) override {
    v1::SessionEvent event;
    event.set_epoch(1);
    event.mutable_attached()->set_session(1);
    change_attached(event.mutable_attached());
    base::MutexLock lock(mutex_);
    attaches_.push_back(*request);
    events_.clear();
    const int life = life_;
    events_.push_front(event);
    while (!context->IsCancelled() && life == life_ &&
           let_go_seen_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      while (!events_.empty()) {
        stream->Write(events_.front());
        events_.pop_front();
        changed_.NotifyAll();
      }
      changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + std::chrono::milliseconds(5));
    }
    return grpc::Status::OK;
  }
  grpc::Status OpenSpace(grpc::ServerContext*, const v1::OpenSpaceRequest* request,
                         v1::OpenSpaceReply* reply) override {
    groups_ = wire::FromProto(request->identity())->groups;
    reply->set_epoch(1);
    reply->set_space(1);
    reply->set_block_tokens(kBlock);
    return grpc::Status::OK;
  }
  grpc::Status Acquire(grpc::ServerContext*, const v1::AcquireRequest* request,
                       v1::AcquireReply* reply) override {
    if (hang_on_acquire) let_go_seen_.wait();
    {
      base::MutexLock lock(mutex_);
      for (const v1::Released& one : request->release()) released_.push_back(one.lease());
    }
    reply->set_epoch(1);
    v1::Answer* answer = reply->add_answers();
    answer->set_lease(1);
    answer->set_matched_tokens(tokens);
    answer->set_restorable_tokens(tokens);
    answer->set_kind(v1::MATCH_KIND_EXACT);
    for (uint32_t group = 0; group < groups_.size(); ++group) {
      v1::GroupPages* pages = answer->add_pages();
      pages->set_group(group);
      for (uint32_t at = 0; at < tokens; at += kBlock) {
        pages->add_rung(0);
        pages->add_page_tokens(kBlock);
      }
    }
    change_answer(reply);
    return grpc::Status::OK;
  }
  grpc::Status Fetch(grpc::ServerContext*, const v1::FetchRequest* request,
                     grpc::ServerWriter<v1::FetchChunk>* chunks) override {
    if (hang_on_fetch) let_go_seen_.wait();
    for (uint32_t group : request->groups()) {
      for (uint32_t at = 0; at < tokens; at += kBlock) {
        v1::FetchChunk chunk;
        v1::PageBytes* page = chunk.mutable_page();
        const uint32_t slots = std::min(kBlock, tokens - at);
        const uint64_t bytes = block::LayoutOfPage(groups_[group], 0, slots).page_bytes;
        page->set_group(group);
        page->set_first_token(at);
        page->set_tokens(slots);
        page->set_page_bytes(bytes);
        page->set_data(std::string(bytes, static_cast<char>(1 + group * 16 + at / kBlock)));
        page->set_xxh3(base::Xxh3(base::AsBytes(std::string_view(page->data()))));
        if (!change_page(page)) return {grpc::StatusCode::UNAVAILABLE, "broken off"};
        if (!chunks->Write(chunk)) return grpc::Status::OK;
      }
      v1::FetchChunk chunk;
      chunk.mutable_ready()->set_group(group);
      chunk.mutable_ready()->set_usable_tokens(tokens);
      chunks->Write(chunk);
    }
    return grpc::Status::OK;
  }
  grpc::Status Release(grpc::ServerContext*, const v1::ReleaseRequest* request,
                       v1::Ack* ack) override {
    ack->set_epoch(1);
    base::MutexLock lock(mutex_);
    for (const v1::Released& one : request->release()) released_.push_back(one.lease());
    return grpc::Status::OK;
  }

  std::vector<block::LayerGroup> groups_;
  std::promise<void> let_go_;
  std::shared_future<void> let_go_seen_ = let_go_.get_future().share();
  bool gone_ = false;
  mutable base::Mutex mutex_;  // guards what follows
  base::CondVar changed_;
  int life_ PREFIXD_GUARDED_BY(mutex_) = 0;
  std::deque<v1::SessionEvent> events_ PREFIXD_GUARDED_BY(mutex_);
  std::vector<v1::AttachRequest> attaches_ PREFIXD_GUARDED_BY(mutex_);
  std::vector<uint64_t> released_ PREFIXD_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace prefixd
