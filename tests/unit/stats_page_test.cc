// SPDX-License-Identifier: Apache-2.0
#include "endpoint/stats_page.h"

#include <sys/stat.h>
#include <utime.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "unit/fake_link.h"
#include "unit/traffic.h"

namespace stats_page_test {
namespace {

using namespace oh;
using ::testing::HasSubstr;
using unit::is_ok;

Deadline in_time() { return Deadline::after(20 * kSecond); }

TEST(PostedTimes, KnowsTheOldestInWhateverOrderTheyEnd) {
  unit::FakeLink made;
  made.link.posted_times = std::make_unique<PostedTimes>();
  Request first;
  Request second;
  for (Request* each : {&first, &second}) {
    each->kind = OpKind::kRecv;
    made.link.note_posted(*each);
  }
  const int64_t oldest = made.link.posted_times->oldest();
  EXPECT_GT(oldest, 0);
  made.link.finish(second, {});
  EXPECT_EQ(made.link.posted_times->oldest(), oldest);
  made.link.finish(first, {});
  EXPECT_EQ(made.link.posted_times->oldest(), 0);
  Request over;
  over.kind = OpKind::kRecv;
  made.link.finish(over, {});
  EXPECT_EQ(made.link.posted_times->oldest(), 0) << "it has never been in flight";
}

class StatsPageTest : public ::testing::Test {
 protected:
  std::shared_ptr<Endpoint> endpoint(const std::string& top = "on") {
    Result<std::shared_ptr<Endpoint>> made =
        Endpoint::create(unit::config_with({{"ONEHOP_INTERFACE", "127.0.0.1"},
                                            {"ONEHOP_SOCKET_DIR", dir_.path()},
                                            {"ONEHOP_TOP", top}}),
                         {});
    EXPECT_TRUE(is_ok(made));
    return *made;
  }
  std::vector<std::string> pages() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(StatsPage::kPrefix) && !name.ends_with(".new")) {
        found.push_back(entry.path().string());
      }
    }
    return found;
  }
  static std::string read(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  unit::TempDir dir_;
};

TEST_F(StatsPageTest, IsThereWhileTheEndpointIsOpenAndItsUsersOnly) {
  std::shared_ptr<Endpoint> made = endpoint();
  ASSERT_EQ(pages().size(), 1u);
  struct stat status{};
  ASSERT_EQ(stat(pages()[0].c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_THAT(read(pages()[0]), HasSubstr(strf("\"pid\":%d,", getpid())));
  made->close();
  EXPECT_TRUE(pages().empty());
}

TEST_F(StatsPageTest, IsNotThereUnlessAskedFor) {
  std::shared_ptr<Endpoint> made = endpoint("off");
  EXPECT_TRUE(pages().empty());
  made->close();
}

TEST_F(StatsPageTest, TellsWhatMovesAndWhatIsInFlight) {
  std::shared_ptr<Endpoint> one = endpoint();
  std::shared_ptr<Endpoint> other = endpoint();
  std::shared_ptr<Peer> to_other = *one->connect(other->own_address().encode(), {}, in_time());
  std::shared_ptr<Peer> to_one = *other->incoming().accept(in_time());
  ASSERT_EQ(pages().size(), 2u);
  Bytes room(100);
  Request late;
  unit::prepare(&late, OpKind::kRecv, *other, room.data(), room.size(), 9);
  ASSERT_TRUE(is_ok(to_one->operations().messages().post_recv(&late)));
  auto some_page_has = [&](const std::string& text) {
    return unit::eventually([&] {
      for (const std::string& page : pages()) {
        if (read(page).find(text) != std::string::npos) return true;
      }
      return false;
    });
  };
  EXPECT_TRUE(some_page_has("\"in_flight\":1,"));
  ASSERT_TRUE(is_ok(unit::send(*one, *to_other, Bytes(100), 9, in_time())));
  ASSERT_TRUE(is_ok(other->requests().wait(&late, in_time(), &*to_one)));
  EXPECT_TRUE(some_page_has("\"paths\":{\"inline\":{\"sent\":[1,100],\"received\":[0,0]}}"));
  EXPECT_TRUE(
      some_page_has("\"in_flight\":0,\"oldest_us\":0,\"paths\":{\"inline\":{\"sent\":[0,0],"
                    "\"received\":[1,100]}}"));
  one->close();
  EXPECT_TRUE(unit::eventually([&] {
    other->progress_thoroughly();
    return !to_one->is_open();
  }));
  EXPECT_TRUE(some_page_has("\"state\":\"lost\""));
  other->close();
  EXPECT_TRUE(pages().empty());
}

TEST_F(StatsPageTest, PagesThatKilledProcessesLeftGoAfterAnHour) {
  const std::string old = dir_.path() + "/" + StatsPage::kPrefix + "1.a";
  const std::string young = dir_.path() + "/" + StatsPage::kPrefix + "1.b";
  const std::string other = dir_.path() + "/other";
  for (const std::string& path : {old, young, other}) std::ofstream(path) << "{}";
  const utimbuf long_ago = {time(nullptr) - 4000, time(nullptr) - 4000};
  ASSERT_EQ(utime(old.c_str(), &long_ago), 0);
  ASSERT_EQ(utime(other.c_str(), &long_ago), 0);
  std::shared_ptr<Endpoint> made = endpoint();
  EXPECT_FALSE(std::filesystem::exists(old));
  EXPECT_TRUE(std::filesystem::exists(young));
  EXPECT_TRUE(std::filesystem::exists(other));
  made->close();
}

}  // namespace
}  // namespace stats_page_test
