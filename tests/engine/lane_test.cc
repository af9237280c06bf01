// One data connection: messages find their places, and what a peer must not
// send is an error.
#include "custom_ops/core/transport/lane.h"

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "custom_ops/core/tfring.h"
#include "custom_ops/core/transport/mesh.h"

namespace tfring {
namespace {

// Two ends of a connection in one process.
struct Pair {
  Pair() {
    int fds[2] = {-1, -1};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    here = Lane(Socket(fds[0]));
    there = Lane(Socket(fds[1]));
    raw = fds[1];
  }

  // Until neither end gets any further.
  Status Move() {
    for (uint64_t before = 1; before != moved;) {
      before = moved;
      TFR_RETURN_IF_ERROR(here.MoveOut("there", &moved));
      TFR_RETURN_IF_ERROR(there.MoveOut("here", &moved));
      if (there.wants_in()) {
        TFR_RETURN_IF_ERROR(there.MoveIn("here", &moved));
      }
      if (here.wants_in()) {
        TFR_RETURN_IF_ERROR(here.MoveIn("there", &moved));
      }
    }
    return Status::Ok();
  }

  Lane here;
  Lane there;
  int raw = -1;
  uint64_t moved = 0;
};

std::vector<iovec> Parts(std::string* text) {
  return {{text->data(), text->size()}};
}

void WriteHeader(int fd, uint64_t tag, uint64_t bytes) {
  const MessageHeader::Encoded header = MessageHeader{tag, bytes}.Encode();
  ASSERT_EQ(write(fd, header.data(), header.size()),
            static_cast<ssize_t>(header.size()));
}

TEST(MessagesOfAllSizesFindTheirPlaces) {
  for (const size_t size :
       {size_t{1}, size_t{1000}, size_t{1024}, size_t{3} << 20}) {
    CASE(size, " bytes");
    Pair pair;
    std::vector<std::string> sent;
    std::vector<std::string> got(4, std::string(size, '?'));
    int sends = 4;
    int receives = 4;
    for (size_t i = 0; i < got.size(); ++i) {
      sent.emplace_back(size, static_cast<char>('a' + i));
    }
    for (size_t i = 0; i < got.size(); ++i) {
      pair.there.Receive(i + 1, Parts(&got[i]), &receives);
      pair.here.Send(i + 1, Parts(&sent[i]), &sends);
    }
    ASSERT_TRUE(pair.Move().ok());
    EXPECT_EQ(sends, 0);
    EXPECT_EQ(receives, 0);
    EXPECT_TRUE(got == sent);
    EXPECT_TRUE(pair.here.idle() && pair.there.idle());
  }
}

TEST(PartsAreSentAndFilledInTheirOrder) {
  Pair pair;
  std::string text = "0123456789";
  std::string got(10, '?');
  int left = 2;
  pair.here.Send(1, {{&text[5], 5}, {&text[0], 0}, {&text[0], 5}}, &left);
  pair.there.Receive(1, {{&got[0], 3}, {&got[3], 0}, {&got[3], 7}}, &left);
  ASSERT_TRUE(pair.Move().ok());
  EXPECT_EQ(left, 0);
  EXPECT_EQ(got, "5678901234");
}

TEST(AMessageThatIsEarlyWaits) {
  Pair pair;
  std::string first = "first";
  std::string second = "second";
  int sends = 2;
  pair.here.Send(7, Parts(&second), &sends);
  pair.here.Send(6, Parts(&first), &sends);
  std::string early(6, '?');
  std::string late(5, '?');
  int receives = 2;
  pair.there.Receive(5, {}, &receives);  // never comes
  ASSERT_TRUE(pair.Move().ok());
  pair.there.Receive(6, Parts(&late), &receives);
  ASSERT_TRUE(pair.Move().ok());
  EXPECT_EQ(receives, 2);  // the one in front is still early
  pair.there.Receive(7, Parts(&early), &receives);
  ASSERT_TRUE(pair.Move().ok());
  EXPECT_EQ(receives, 0);
  EXPECT_EQ(early, "second");
  EXPECT_EQ(late, "first");
}

TEST(AnotherSizeThanIsDueIsAnError) {
  Pair pair;
  std::string got(8, '?');
  int left = 1;
  pair.here.Receive(3, Parts(&got), &left);
  WriteHeader(pair.raw, 3, uint64_t{1} << 62);
  const Status status = pair.Move();
  EXPECT_EQ(status.code(), TFR_INTERNAL);
  EXPECT_CONTAINS(status.message(), "there is out of step: tag 3");
  EXPECT_EQ(got, "????????");
}

TEST(AMessageThatHasComeAlreadyIsAnError) {
  Pair pair;
  std::string got(8, '?');
  int left = 1;
  pair.here.Receive(3, Parts(&got), &left);
  WriteHeader(pair.raw, 2, 8);
  EXPECT_CONTAINS(pair.Move().message(), "which is not expected");
}

TEST(APeerThatClosesIsNamed) {
  Pair pair;
  std::string got(8, '?');
  int left = 1;
  pair.here.Receive(3, Parts(&got), &left);
  pair.there.Close();
  uint64_t moved = 0;
  const Status status = pair.here.MoveIn("rank 5", &moved);
  EXPECT_EQ(status.code(), TFR_UNAVAILABLE);
  EXPECT_CONTAINS(status.message(), "rank 5 closed its data connection");
}

// A rank that leaves in good order concerns later collectives only; then
// another one dies without closing its connection.
TEST(AnAbortAfterALeaveEndsTheWait) {
  int fds[2] = {-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  const Socket silent(fds[1]);
  std::vector<HostSockets> sockets(2);
  sockets[1].emplace_back(fds[0]);
  Failure failure;
  Mesh mesh(0, std::move(sockets), {"here", "there"}, &failure);
  std::string got(8, '?');
  int left = 1;
  mesh.Receive(1, 0, 1, Parts(&got), &left);
  failure.Leave(Unavailable("rank 2 has shut down"), 10);
  std::thread other([&failure] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    failure.Abort(Unavailable("rank 1 is gone"));
  });
  const Status status = mesh.Turn(3, Deadline::After(20));
  other.join();
  EXPECT_EQ(status.message(), "rank 1 is gone");
}

// The connection is the first to tell of a death, and the last to know whose.
TEST(ALostConnectionLeavesTheReasonToTheSideChannel) {
  int fds[2] = {-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  std::vector<HostSockets> sockets(2);
  sockets[1].emplace_back(fds[0]);
  Failure failure;
  Mesh mesh(0, std::move(sockets), {"here", "there"}, &failure);
  std::string got(8, '?');
  int left = 1;
  mesh.Receive(1, 0, 1, Parts(&got), &left);
  close(fds[1]);
  std::thread other([&failure] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    failure.Abort(Unavailable("rank 3 is gone"));
  });
  const Status status = mesh.Turn(3, Deadline::After(20));
  other.join();
  EXPECT_EQ(status.message(), "rank 3 is gone");
}

}  // namespace
}  // namespace tfring
