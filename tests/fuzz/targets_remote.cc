// Replies of a server that hosts share.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "remote/resp.h"
#include "remote/slots.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/targets.h"

namespace prefixd::fuzz {
namespace {

// What a reader makes of bytes that come in pieces of at most `piece`. Its runs stand between bytes
// that must stay.
struct Read {
  explicit Read(Bytes input, size_t piece) {
    const std::span<std::byte> all(room);
    const std::vector<remote::Runs> runs = {{all.subspan(8, 2), all.subspan(18, 1)},
                                            {all.subspan(32, 5000)}};
    reader.Expect(runs);
    std::array<iovec, remote::ReplyReader::kMostPlaces> places;
    while (!input.empty() && !broken) {
      const size_t count = reader.Places(&places);
      size_t taken = 0;
      for (size_t i = 0; i < count && taken < piece && taken < input.size(); ++i) {
        const size_t some = std::min({places[i].iov_len, input.size() - taken, piece - taken});
        std::memcpy(places[i].iov_base, input.data() + taken, some);
        taken += some;
        if (some < places[i].iov_len) break;
      }
      reader.Arrived(taken);
      input = input.subspan(taken);
      Take();
    }
  }
  void Take() {
    remote::Reply reply;
    remote::ReplyReader::State state;
    while ((state = reader.Next(&reply)) == remote::ReplyReader::State::kReply) {
      remote::ReadSlots(reply, "host").IgnoreError();
      replies.push_back(std::move(reply));
    }
    broken = state == remote::ReplyReader::State::kBroken;
  }

  std::vector<std::byte> room = std::vector<std::byte>(5040, std::byte{0xee});
  remote::ReplyReader reader;
  std::vector<remote::Reply> replies;
  bool broken = false;
};

bool Untouched(const std::vector<std::byte>& room, size_t from, size_t to) {
  return std::all_of(room.begin() + static_cast<ptrdiff_t>(from),
                     room.begin() + static_cast<ptrdiff_t>(to),
                     [](std::byte byte) { return byte == std::byte{0xee}; });
}

// First byte: into which pieces the rest is cut.
void Replies(Bytes input) {
  if (input.empty()) return;
  const size_t piece = 1 + static_cast<uint8_t>(input[0]) % 100;
  const Read whole(input.subspan(1), std::string::npos), cut(input.subspan(1), piece);
  Expect(whole.broken == cut.broken && whole.replies == cut.replies,
         "replies do not depend on the pieces in which they come");
  for (const Read* read : {&whole, &cut}) {
    const auto& room = read->room;
    Expect(Untouched(room, 0, 8) && Untouched(room, 10, 18) && Untouched(room, 19, 32) &&
               Untouched(room, 5032, 5040),
           "bytes beside the runs stay");
  }
}

std::vector<std::string> ReplySeeds() {
  const std::string stripe(5000, 's');
  return {"\x01*2\r\n$3\r\nabc\r\n$5000\r\n" + stripe + "\r\n+OK\r\n",
          "\x07*2\r\n$-1\r\n$4\r\nabcd\r\n:17\r\n-MOVED 1 10.0.0.1:7000\r\n",
          "\x03%2\r\n+a\r\n*2\r\n_\r\n#f\r\n$1\r\nb\r\n,3.5\r\n>1\r\n+p\r\n=8\r\ntxt:abcd\r\n",
          "\x11*1\r\n*3\r\n:0\r\n:5460\r\n*4\r\n$9\r\n127.0.0.1\r\n:7000\r\n$2\r\nid\r\n*0\r\n",
          "\x40|1\r\n+a\r\n:1\r\n:5\r\n!3\r\nERR\r\n(999999999999999999999\r\n~1\r\n+x\r\n"};
}

}  // namespace

std::vector<Target> RemoteTargets() { return {{"replies", Replies, ReplySeeds}}; }

}  // namespace prefixd::fuzz
