// SPDX-License-Identifier: Apache-2.0
#include "link/trace.h"

#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "platform/os/fork.h"
#include "unit/fake_link.h"
#include "unit/support.h"

namespace trace_test {
namespace {

using namespace oh;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using unit::fails_with;
using unit::is_ok;

// One line per event.
std::vector<std::string> lines_of(const std::string& path, const std::string& with) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (line.find(with) != std::string::npos) lines.push_back(line);
  }
  return lines;
}

// The number or text after "name": in a line.
std::string value_of(const std::string& line, const std::string& name) {
  const size_t at = line.find("\"" + name + "\":");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 3;
  return line.substr(begin, line.find_first_of(",}", begin) - begin);
}

std::vector<std::string> values_of(const std::vector<std::string>& lines, const std::string& name) {
  std::vector<std::string> values;
  for (const std::string& line : lines) values.push_back(value_of(line, name));
  return values;
}

TraceEvent operation(int64_t began, int64_t ended, uint64_t link = 1) {
  return {.began = began, .ended = ended, .link = link};
}

// Ends an operation that was posted just now.
void end(Trace& trace, uint64_t tag) {
  Request request;
  request.message_tag = tag;
  trace.begin(request, "a link");
  trace.end(1, request);
  EXPECT_EQ(request.posted_at, 0);
}

class TraceTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name = "trace.json") const {
    return dir_.path() + "/" + name;
  }
  std::vector<std::string> write(TraceRecord record, const std::string& with) const {
    FILE* file = std::fopen(path("record.json").c_str(), "w");
    write_chrome_trace(std::move(record), file);
    std::fclose(file);
    return lines_of(path("record.json"), with);
  }

  unit::TempDir dir_;
};

TEST_F(TraceTest, NamesTheHostAndTheProcessInItsPath) {
  EXPECT_EQ(expand_trace_path("/t/%h.%p.json", "node7", 42), "/t/node7.42.json");
  EXPECT_EQ(expand_trace_path("100%%/%p%p", "node7", 42), "100%/4242");
  EXPECT_EQ(expand_trace_path("plain", "node7", 42), "plain");
}

TEST_F(TraceTest, EventsAreOrderedByTheirBeginning) {
  TraceRecord record;
  record.events = {operation(5000, 6000), operation(1000, 9500), operation(3001, 3500)};
  const auto lines = write(std::move(record), "\"X\"");
  EXPECT_THAT(values_of(lines, "ts"), ElementsAre("1.000", "3.001", "5.000"));
  EXPECT_THAT(values_of(lines, "dur"), ElementsAre("8.500", "0.499", "1.000"));
}

// Slices of one track have to nest.
TEST_F(TraceTest, OperationsThatOverlapHaveTracksOfTheirOwn) {
  TraceRecord record;
  record.links = {{1, "rank 1"}, {2, "a \"peer\"\n"}};
  record.events = {operation(0, 10),  operation(0, 5, 2), operation(5, 20),
                   operation(10, 15), operation(12, 13),  operation(20, 30)};
  const auto lines = write(record, "\"X\"");
  EXPECT_THAT(values_of(lines, "tid"), ElementsAre("1", "4", "2", "1", "3", "1"));
  EXPECT_THAT(values_of(write(record, "thread_name"), "args"),
              ElementsAre("{\"name\":\"rank 1\"", "{\"name\":\"rank 1 (2)\"",
                          "{\"name\":\"rank 1 (3)\"", "{\"name\":\"a \\\"peer\\\"\\\\x0a\""));
}

TEST_F(TraceTest, KeepsTheLastEventsAndSaysHowManyAreGone) {
  Trace trace(path(), 3);
  trace.connected(1, "rank 1");
  for (uint64_t tag = 0; tag < 5; ++tag) end(trace, tag);
  ASSERT_TRUE(is_ok(trace.write()));
  EXPECT_THAT(values_of(lines_of(path(), "\"X\""), "tag"), ElementsAre("2", "3", "4"));
  EXPECT_EQ(lines_of(path(), "\"overwritten\":3}").size(), 1u);
  EXPECT_EQ(lines_of(path(), "\"name\":\"connected\"").size(), 0u);
}

TEST_F(TraceTest, ForgetsLinksThatTheRingIsTooSmallFor) {
  Trace trace(path(), 2);
  for (uint64_t link = 1; link <= 5; ++link) trace.connected(link, "rank " + std::to_string(link));
  ASSERT_TRUE(is_ok(trace.write()));
  const auto names = lines_of(path(), "thread_name");
  ASSERT_EQ(names.size(), 2u);
  EXPECT_THAT(names[0], HasSubstr("rank 4"));
  EXPECT_THAT(names[1], HasSubstr("rank 5"));
}

TEST_F(TraceTest, IsWrittenOnlyIfThereIsNews) {
  Trace trace(path(), 16);
  ASSERT_TRUE(is_ok(trace.write()));
  EXPECT_EQ(unlink(path().c_str()), 0);
  ASSERT_TRUE(is_ok(trace.write()));
  EXPECT_NE(access(path().c_str(), F_OK), 0);
  end(trace, 1);
  ASSERT_TRUE(is_ok(trace.write()));
  EXPECT_EQ(lines_of(path(), "\"X\"").size(), 1u);
  EXPECT_EQ(dir_.entries(), 1u) << "nothing else is left";
}

TEST_F(TraceTest, AnyThreadMayAddWhileItIsWritten) {
  constexpr uint64_t kEach = 2000;
  Trace trace(path(), 4 * kEach);
  unit::Threads threads;
  for (int i = 0; i < 2; ++i) {
    threads.start([&] {
      for (uint64_t tag = 0; tag < kEach; ++tag) end(trace, tag);
    });
  }
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(is_ok(trace.write()));
  threads.join();
  ASSERT_TRUE(is_ok(trace.write()));
  EXPECT_EQ(lines_of(path(), "\"X\"").size(), 2 * kEach);
}

TEST_F(TraceTest, ALinkTellsOfRequestsOfTheApplicationAndOfItsEnd) {
  Trace trace(path(), 16);
  unit::FakeLink made;
  made.link.trace = &trace;
  made.link.id = 7;
  trace.connected(7, "rank 3");
  Request request;
  request.kind = OpKind::kRecv;
  request.tag = OH_ANY_TAG;
  made.link.note_post(request);
  EXPECT_GT(request.posted_at, 0);
  request.message_tag = 11;
  request.nbytes = 300;
  request.path = OH_PATH_SHM;
  made.link.finish(request, {});
  EXPECT_EQ(request.posted_at, 0);
  Request piece;
  piece.internal = true;
  made.link.note_post(piece);
  made.link.finish(piece, {});
  Request late;
  late.kind = OpKind::kRecv;
  late.tag = OH_ANY_TAG;
  late.size = 512;
  made.link.note_post(late);
  made.link.finish(late, error(OH_ERR_TIMEOUT, "too late"));
  made.link.set_lost(error(OH_ERR_PEER_LOST, "it died"));
  (void)made.link.set_closed();
  ASSERT_TRUE(is_ok(trace.write()));
  const auto operations = lines_of(path(), "\"X\"");
  ASSERT_EQ(operations.size(), 2u);
  EXPECT_THAT(operations[0],
              HasSubstr("\"name\":\"recv\",\"args\":{\"tag\":11,\"bytes\":300,\"path\":\"shm\","
                        "\"status\":\"OH_OK\"}"));
  EXPECT_THAT(operations[1], HasSubstr("{\"tag\":\"any\",\"bytes\":512,\"path\":\"none\","
                                       "\"status\":\"OH_ERR_TIMEOUT\"}"));
  const auto moments = lines_of(path(), "\"i\"");
  EXPECT_THAT(values_of(moments, "name"), ElementsAre("\"connected\"", "\"lost\"", "\"closed\""));
  EXPECT_THAT(moments[1], HasSubstr("OH_ERR_PEER_LOST"));
}

TEST_F(TraceTest, ARequestHasNoTimeWithoutATrace) {
  unit::FakeLink made;
  Request request;
  made.link.note_post(request);
  EXPECT_EQ(request.posted_at, 0);
}

// A process has a single trace, so each test runs in its own process.
TEST_F(TraceTest, TheFirstEndpointMakesIt) {
  unit::in_child([this] {
    Result<Trace*> none = Trace::open(unit::config_with());
    ASSERT_TRUE(is_ok(none));
    EXPECT_EQ(*none, nullptr);
    Result<Trace*> made = Trace::open(unit::config_with({{"ONEHOP_TRACE", path("%p.json")}}));
    ASSERT_TRUE(is_ok(made));
    EXPECT_EQ((*made)->path(), path(strf("%d.json", getpid())));
    EXPECT_EQ(access((*made)->path().c_str(), F_OK), 0) << "it is written at once";
    Result<Trace*> again = Trace::open(unit::config_with({{"ONEHOP_TRACE", path("other")}}));
    ASSERT_TRUE(is_ok(again));
    EXPECT_EQ(*again, *made);
  });
}

TEST_F(TraceTest, AFileThatCannotBeWrittenIsAnError) {
  unit::in_child([this] {
    auto made = Trace::open(unit::config_with({{"ONEHOP_TRACE", path("missing/trace.json")}}));
    EXPECT_TRUE(fails_with(made, OH_ERR_CONFIG, "missing/trace.json"));
    EXPECT_TRUE(fails_with(made, OH_ERR_CONFIG, "ENOENT"));
  });
}

TEST_F(TraceTest, ItIsWrittenAtExitButNotByAChild) {
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    fork_watch();
    Result<Trace*> made = Trace::open(unit::config_with({{"ONEHOP_TRACE", path()}}));
    if (!made.ok()) _exit(1);
    end(**made, 5);
    unlink(path().c_str());
    if (fork() == 0) {
      end(**made, 6);
      std::exit(0);  // NOLINT: handlers at exit are what is tested
    }
    int status = 0;
    wait(&status);
    if (status != 0 || access(path().c_str(), F_OK) == 0) _exit(2);
    std::exit(0);  // NOLINT: the same
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(values_of(lines_of(path(), "\"X\""), "tag"), ElementsAre("5"));
}

}  // namespace
}  // namespace trace_test
